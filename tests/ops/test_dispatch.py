"""Which GPUs Triton's kernels run on."""

import pytest
import torch

from whitenorm.ops import dispatch


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (12, 0)])
def test_gpus_that_triton_does_not_support(capability, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    can_compile = dispatch._can_compile.__wrapped__
    if capability < (8, 0):
        with pytest.warns(UserWarning, match=r"compute capability 8.0 or newer .* \(got 7.5\)"):
            assert not can_compile(torch.device("cuda"))
    else:
        assert can_compile(torch.device("cuda"))
