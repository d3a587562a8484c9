"""Names that the examples in docstrings may use."""

import pytest
import torch

import whitenorm


@pytest.fixture(autouse=True)
def _names_in_examples(doctest_namespace):
    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, nn=torch.nn, whitenorm=whitenorm)
