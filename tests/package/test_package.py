"""The package as a whole: its public names, its commands, and tests that run without the lab."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import whitenorm
from whitenorm.cli.main import COMMANDS, main


def test_public_names_exist():
    for name in whitenorm.__all__:
        assert hasattr(whitenorm, name)


def test_the_help_lists_every_command(capsys):
    pytest.importorskip("tyro")
    for command in COMMANDS.values():
        assert callable(importlib.import_module(command.module).main)
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)


@pytest.mark.slow
def test_the_library_is_tested_without_the_lab():
    """Without the lab's packages, pytest collects the library's tests alone, as in ``make test-torch``."""
    code = """
import importlib.machinery, sys
import pytest
LAB = {"lightning", "matplotlib", "pandas", "PIL", "playwright", "pycocotools", "rich", "sacrebleu", "scipy",
       "sentencepiece", "timm", "torchmetrics", "torchvision", "transformers", "tyro", "whitenorm_lab"}
class Absent(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in LAB else super().find_spec(name, path, target)
# Without the finders of editable installations, which would find the lab.
sys.meta_path[:] = [*(finder for finder in sys.meta_path if finder.__module__.startswith("_frozen")), Absent]
sys.meta_path.remove(importlib.machinery.PathFinder)
sys.exit(pytest.main(["--collect-only", "--quiet", "--no-header", "-p", "no:cacheprovider", "tests", "src"]))
"""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:]
    assert "tests/solvers/test_solvers.py" in result.stdout
