"""Fixtures of several folders."""

import pytest
import torch

import whitenorm
from whitenorm.ops import verified_gpus


@pytest.fixture
def torch_kernels():
    """Use torch's kernels on every device."""
    whitenorm.set_kernels("torch")
    yield
    whitenorm.set_kernels("auto")


@pytest.fixture
def gpu_record(monkeypatch, tmp_path):
    """Pretend to have a GPU, use an empty cache, and return the path of the record."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    pytest.importorskip("triton")
    verified_gpus._is_verified.cache_clear()
    yield tmp_path / "whitenorm" / "kernels.json"
    verified_gpus._is_verified.cache_clear()
