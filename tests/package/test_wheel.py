"""Contents and metadata of both wheels, which are built from a copy and used outside the checkout."""

import email
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import whitenorm

pytest.importorskip("setuptools", minversion="77")

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
FILES = {
    "whitenorm": ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"),
    "whitenorm_lab": ("pyproject.toml", "README.md", "LICENSE"),
}
FOLDERS = {"whitenorm": ROOT, "whitenorm_lab": ROOT / "lab"}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels, built without a network from copies, because setuptools leaves files beside the source."""
    folder = tmp_path_factory.mktemp("wheels")
    for package, source in FOLDERS.items():
        copy = folder / package
        shutil.copytree(source / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in FILES[package]:
            shutil.copy(source / name, copy)
        built = subprocess.run([sys.executable, "-c", BUILD, ".."], cwd=copy, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
    return {package: next(folder.glob(f"{package}-*.whl")) for package in FOLDERS}


@pytest.fixture(scope="module")
def site_packages(wheels):
    """A folder with both packages, as an installation has them."""
    folder = wheels["whitenorm"].parent / "unpacked"
    for wheel in wheels.values():
        zipfile.ZipFile(wheel).extractall(folder)
    return folder


def read_metadata(site_packages, package):
    info = site_packages / f"{package}-{whitenorm.__version__}.dist-info"
    return email.message_from_string((info / "METADATA").read_text()), (info / "entry_points.txt").read_text()


@pytest.mark.parametrize("package", FOLDERS)
def test_a_wheel_has_its_package_and_nothing_else(wheels, package):
    names = set(zipfile.ZipFile(wheels[package]).namelist())
    source = FOLDERS[package] / "src"
    files = {
        str(path.relative_to(source))
        for path in (source / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    info = f"{package}-{whitenorm.__version__}.dist-info"
    assert {name for name in names if not name.startswith(info)} == files
    assert f"{package}/py.typed" in names
    assert f"{info}/licenses/LICENSE" in names
    # No results and no data sets: the largest file is the demo's digits.
    assert wheels[package].stat().st_size < 2_000_000


def test_the_wheels_have_their_data_files(wheels):
    assert "whitenorm/diagnostics/page/style.css" in zipfile.ZipFile(wheels["whitenorm"]).namelist()
    names = zipfile.ZipFile(wheels["whitenorm_lab"]).namelist()
    assert "whitenorm_lab/assets/digits.bin.gz" in names
    assert any(name.endswith("licenses/src/whitenorm_lab/assets/NOTICE.md") for name in names)


def test_metadata_of_the_library(site_packages):
    metadata, entry_points = read_metadata(site_packages, "whitenorm")
    assert (metadata["Name"], metadata["Version"]) == ("whitenorm", whitenorm.__version__)
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Provides-Extra")) == {"inspect", "docs", "dev"}
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert [re.match(r"\w+", line)[0] for line in required] == ["torch"]
    assert "whitenorm = whitenorm.cli:main" in entry_points


def test_metadata_of_the_lab(site_packages):
    metadata, entry_points = read_metadata(site_packages, "whitenorm_lab")
    assert (metadata["Name"], metadata["Version"]) == ("whitenorm-lab", whitenorm.__version__)
    assert metadata["License-Expression"] == "MIT"
    assert any(line.startswith("whitenorm[inspect]") for line in metadata.get_all("Requires-Dist"))
    assert "whitenorm-lab = whitenorm_lab.cli:main" in entry_points


def test_the_wheels_work_outside_a_checkout(site_packages):
    pytest.importorskip("lightning")
    environment = {**os.environ, "PYTHONPATH": str(site_packages)}
    smoke = [sys.executable, str(ROOT / "tools" / "smoke.py"), "inspect", "lab"]
    result = subprocess.run(smoke, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "works: library, inspect, lab" in result.stdout
