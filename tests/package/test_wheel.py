"""The wheel: what is in it, and that it works outside a checkout."""

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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built without a network, from a copy: setuptools leaves files beside what it builds."""
    copy = tmp_path_factory.mktemp("wheel") / "source"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, copy)
    built = subprocess.run([sys.executable, "-c", BUILD, ".."], cwd=copy, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = copy.parent.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def unpacked(wheel):
    folder = wheel.parent / "unpacked"
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def test_it_has_the_package_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    files = [path for path in (source / "whitenorm").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    info = f"whitenorm-{whitenorm.__version__}.dist-info"
    assert {name for name in names if not name.startswith(info)} == {str(path.relative_to(source)) for path in files}
    for name in ("py.typed", "diagnostics/page/style.css", "lab/assets/digits.bin.gz", "lab/assets/NOTICE.md"):
        assert f"whitenorm/{name}" in names
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/lab/src/whitenorm_lab/assets/NOTICE.md"} <= names
    # No results and no data sets: the largest file are the demo's digits.
    assert wheel.stat().st_size < 2_000_000


def test_its_metadata(unpacked):
    info = unpacked / f"whitenorm-{whitenorm.__version__}.dist-info"
    said = email.message_from_string((info / "METADATA").read_text())
    assert (said["Name"], said["Version"]) == ("whitenorm", whitenorm.__version__)
    assert said["License-Expression"] == "MIT"
    assert said["Description-Content-Type"] == "text/markdown"
    assert set(said.get_all("Provides-Extra")) == {"inspect", "lab", "docs", "dev"}
    needed = [words for words in said.get_all("Requires-Dist") if "extra ==" not in words]
    assert [re.match(r"\w+", words)[0] for words in needed] == ["torch"]
    assert "whitenorm = whitenorm.cli:main" in (info / "entry_points.txt").read_text()


def test_it_works_outside_a_checkout(unpacked):
    pytest.importorskip("lightning")
    environment = {**os.environ, "PYTHONPATH": str(unpacked)}
    smoke = [sys.executable, str(ROOT / "tools" / "smoke.py"), "inspect", "demo"]
    done = subprocess.run(smoke, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "works: library, inspect, demo" in done.stdout
