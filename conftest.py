"""Names that docstring examples may use, and tests that are left out where a package is missing."""

import importlib.util

import pytest
import torch

import whitenorm


def _is_missing(package):
    return importlib.util.find_spec(package) is None


collect_ignore = []
if _is_missing("triton"):
    collect_ignore += ["src/whitenorm/ops/triton", "benchmarks"]
for library in ("timm", "lightning", "transformers"):
    if _is_missing(library):
        collect_ignore.append(f"src/whitenorm/integrations/{library}.py")
if _is_missing("whitenorm_lab"):
    collect_ignore += ["lab", "tests/benchmarks", "tests/docs", "tests/package"]
if _is_missing("tyro"):
    collect_ignore += ["tests/cli", "src/whitenorm/cli"]


def pytest_collection_modifyitems(items):
    """Start the longest tests first, so that no worker is left with one at the end."""
    items.sort(key=lambda item: item.path.name != "test_triton.py" and item.name != "test_the_package_is_typed")


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=torch.nn, whitenorm=whitenorm)
