"""Tests of the Triton kernels in Triton's interpreter, which has to be chosen before Triton is imported."""

import os

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*.py"]


@pytest.fixture
def launches():
    """The kernels launched so far."""
    from whitenorm.kernels.launches import counted

    with counted() as found:
        yield found


@pytest.fixture(params=[False, True], ids=["whole", "split"])
def split(request, monkeypatch):
    """As few programs as there are matrices, or several for each."""
    if request.param:
        monkeypatch.setattr("whitenorm.kernels.triton.tiles.LEAST_TILES", 1)
    else:
        monkeypatch.setattr("whitenorm.kernels.triton.tiles.ENOUGH_PROGRAMS", 1)
        monkeypatch.setattr("whitenorm.kernels.triton.tiles.MANY_PROGRAMS", 1)
    return request.param
