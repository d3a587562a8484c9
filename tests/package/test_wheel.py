"""Contents and metadata of both wheels, which are built from a copy and used outside the checkout."""

import email
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import whitenorm

pytest.importorskip("setuptools", minversion="77")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
FILES = {
    "whitenorm": ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"),
    "whitenorm_lab": ("pyproject.toml", "README.md", "LICENSE"),
}
FOLDERS = {"whitenorm": ROOT, "whitenorm_lab": ROOT / "lab"}


def build_wheel(package, folder, **environment):
    """Build a wheel without a network from a copy of the source, because setuptools leaves files beside the source.

    Returns its path and the messages of the build.
    """
    source, copy = FOLDERS[package], folder / package
    shutil.copytree(source / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so"))
    for name in FILES[package]:
        shutil.copy(source / name, copy)
    command = [sys.executable, "-c", BUILD, ".."]
    built = subprocess.run(command, cwd=copy, capture_output=True, text=True, env={**os.environ, **environment})
    assert built.returncode == 0, built.stderr
    return next(folder.glob(f"{package}-*.whl")), built.stdout + built.stderr


def list_kernels(wheel):
    return [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Both wheels, without compiled kernels."""
    folder = tmp_path_factory.mktemp("wheels")
    return {package: build_wheel(package, folder, WHITENORM_NATIVE="0")[0] for package in FOLDERS}


def test_a_wheel_without_kernels_is_for_all_platforms(wheels):
    assert all(wheel.name.endswith("-py3-none-any.whl") for wheel in wheels.values())
    assert list_kernels(wheels["whitenorm"]) == []


@pytest.mark.skipif(shutil.which("g++") is None or platform.system() != "Linux", reason="needs g++ on Linux")
def test_a_wheel_with_kernels_is_for_its_platform(tmp_path):
    wheel, _ = build_wheel("whitenorm", tmp_path)
    assert re.search(r"-py3-none-linux_\w+\.whl$", wheel.name)
    assert list_kernels(wheel)
    assert wheel.stat().st_size < 2_000_000
    zipfile.ZipFile(wheel).extractall(tmp_path / "unpacked")
    info = [sys.executable, "-m", "whitenorm", "bench", "--info"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "unpacked")}
    result = subprocess.run(info, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert re.search(r"^native +kernels-", result.stdout, re.MULTILINE)


def test_a_build_without_a_compiler_goes_on(tmp_path):
    wheel, messages = build_wheel("whitenorm", tmp_path, CC="false", CXX="false")
    assert list_kernels(wheel) == []
    assert "torch's kernels are used" in messages


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
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".so", ".cpp", ".h")
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
