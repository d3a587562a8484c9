"""Tests of the Triton kernels in Triton's interpreter, which has to be chosen before Triton is imported."""

import os
import sys

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["*.py"]


@pytest.fixture
def launches(monkeypatch):
    """The names of the kernels launched so far."""
    from whitenorm.kernels import triton as kernels
    from whitenorm.kernels.triton.tiles import launch

    names = []

    def noted(kernel, *arguments, **options):
        names.append(kernel.fn.__name__)
        launch(kernel, *arguments, **options)

    # The functions hide the modules of the same name.
    for operation in kernels.__all__:
        monkeypatch.setattr(sys.modules[f"{kernels.__name__}.{operation}"], "launch", noted)
    return names


@pytest.fixture(params=[False, True], ids=["whole", "split"])
def split(request, monkeypatch):
    """As few programs as there are matrices, or several for each."""
    if request.param:
        monkeypatch.setattr("whitenorm.kernels.triton.tiles.LEAST_TILES", 1)
    else:
        monkeypatch.setattr("whitenorm.kernels.triton.tiles.ENOUGH_PROGRAMS", 1)
        monkeypatch.setattr("whitenorm.kernels.triton.tiles.MANY_PROGRAMS", 1)
    return request.param
