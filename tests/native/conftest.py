"""Skips this folder where the kernels are not compiled, and selects them for all of its tests."""

import pytest

import whitenorm
from whitenorm.ops.native.library import load_library


@pytest.fixture(autouse=True)
def _native():
    library = load_library()
    if library.functions is None:
        pytest.skip(f"the CPU kernels are {library.description}")
    whitenorm.set_kernels("native")
    yield
    whitenorm.set_kernels("auto")
