"""mypy accepts the package and correct user code, and reports wrong user code."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")

ROOT = Path(__file__).parents[2]
MYPY = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context"]
# As --strict; the options of pyproject.toml are as strict but for these, and share the cache of `make lint`.
STRICT = "# mypy: disallow-untyped-calls, disallow-subclassing-any, warn-return-any\n"
RIGHT = """
import torch
from torch import Tensor, nn

import whitenorm
from whitenorm import diagnostics, functional, solvers

layer: nn.Module = whitenorm.IterNorm(64, group_size=16, momentum=0.1)
groups = whitenorm.GroupWhitening(8, 64, solver=solvers.Newton(5))
y: Tensor = functional.batch_whitening(torch.randn(8, 64, 4, 4))
model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64))
converted: nn.Module = whitenorm.convert_(model, "iternorm", "all")
folded: nn.Module = whitenorm.fold_(converted.eval())
inspection: diagnostics.Inspection = diagnostics.inspect(model, torch.randn(8, 3, 8, 8))
condition: float | None = inspection[0].condition_after
names: dict[str, list[str]] = inspection.advice()
version: str = whitenorm.__version__
"""
WRONG = """
import torch

import whitenorm

whitenorm.IterNorm("64")
whitenorm.IterNorm(64, groupsize=16)
whitenorm.convert_(torch.randn(3), "iternorm")
whitenorm.no_such_name
count: int = whitenorm.functional.batch_whitening(torch.randn(8, 4))
"""


def check_code(tmp_path, code):
    path = tmp_path / "user.py"
    path.write_text(STRICT + code)
    return subprocess.run([*MYPY, str(path)], cwd=ROOT, capture_output=True, text=True)


def test_the_package_is_typed():
    """Runs among the first of all tests (``conftest.py``), so that the others here find torch in mypy's cache."""
    result = subprocess.run(MYPY, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_right_use_is_accepted(tmp_path):
    result = check_code(tmp_path, RIGHT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_wrong_use_is_found(tmp_path):
    result = check_code(tmp_path, WRONG)
    assert result.returncode == 1, result.stdout + result.stderr
    for words in ("[arg-type]", "[call-arg]", "[attr-defined]", "[assignment]"):
        assert words in result.stdout, result.stdout
    assert len(result.stdout.splitlines()) >= 5
