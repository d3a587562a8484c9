"""Names that the examples in docstrings may use, and which tests are left without the lab."""

import ast
import functools
import importlib.util
from pathlib import Path

import pytest
import torch

import whitenorm

HERE = Path(__file__).parent
TESTS = HERE / "tests"


@functools.cache
def needs_lab(path):
    """Whether a file imports, itself or by a helper beside it, the lab or a package that is not installed."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith(("whitenorm.lab", "whitenorm.cli", "benchmarks")):
                return True
            first = name.split(".")[0]
            helper = TESTS / f"{first}.py"
            if needs_lab(helper) if helper.exists() else importlib.util.find_spec(first) is None:
                return True
    return False


collect_ignore = []
if importlib.util.find_spec("triton") is None:
    collect_ignore += ["src/whitenorm/kernels/triton"]

for library in ("timm", "lightning", "transformers"):
    if importlib.util.find_spec(library) is None:
        collect_ignore.append(f"src/whitenorm/integrations/{library}.py")

# As in `make test-torch`: the library's own tests.
if importlib.util.find_spec("lightning") is None:
    collect_ignore += ["src/whitenorm/lab", "src/whitenorm/cli.py", "src/whitenorm/__main__.py"]
    collect_ignore += [str(path) for path in TESTS.rglob("*.py") if needs_lab(path)]


def pytest_collection_modifyitems(items):
    """The longest come first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.path.name != "test_triton.py" and item.name != "test_the_package_is_typed")


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=torch.nn, whitenorm=whitenorm)
