"""Names that the examples in docstrings may use, and which tests are left without the lab."""

import importlib.util
import re
from pathlib import Path

import pytest
import torch

import whitenorm

HERE = Path(__file__).parent
NEEDS_LAB = re.compile(r"^\s*(from|import) (whitenorm\.(lab|cli)|benchmarks|image_sets|browser|PIL)\b", re.MULTILINE)

collect_ignore = []
if importlib.util.find_spec("triton") is None:
    collect_ignore += ["src/whitenorm/kernels/triton"]

# As in `make test-torch`: the library's own tests.
if importlib.util.find_spec("lightning") is None:
    collect_ignore += ["src/whitenorm/lab", "src/whitenorm/cli.py", "src/whitenorm/__main__.py"]
    collect_ignore += [str(path) for path in (HERE / "tests").glob("*.py") if NEEDS_LAB.search(path.read_text())]


def pytest_collection_modifyitems(items):
    """The longest come first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.path.name != "test_triton.py")


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=torch.nn, whitenorm=whitenorm)
