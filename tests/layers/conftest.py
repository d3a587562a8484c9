"""The backends that the layers' tests run over."""

import pytest

import whitenorm
from whitenorm.ops.native.library import load_library


# Per module, because Hypothesis runs many examples within one test.
@pytest.fixture(scope="module", params=["torch", "native"])
def kernels(request):
    """Run a test with torch's kernels, and again with the compiled ones where there are any."""
    if request.param == "native" and load_library().functions is None:
        pytest.skip(f"the CPU kernels are {load_library().description}")
    whitenorm.set_kernels(request.param)
    yield request.param
    whitenorm.set_kernels("auto")
