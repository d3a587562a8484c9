"""The messages between ranks: the same as those that torch packs, because ranks may use different kernels."""

import pytest
import torch

from whitenorm.ops.torch import messages as by_torch
from whitenorm.ops.triton import messages
from whitenorm.ops.types import AffineGrad, Moments

SIZES = [(1, 1), (3, 5), (2, 16), (1, 70)]


def symmetric(groups, features):
    x = torch.randn(1, groups, features, features)
    return x + x.mT


@pytest.mark.parametrize("number", [12, torch.tensor(3.0)], ids=["int", "tensor"])
@pytest.mark.parametrize(("groups", "features"), SIZES)
def test_moments(groups, features, number, launches):
    local = Moments(100 * torch.randn(1, groups, features), symmetric(groups, features), number)
    message = messages.pack_moments(local)
    expected = by_torch.pack_moments(local)
    torch.testing.assert_close(message, expected, rtol=1e-14, atol=1e-10)
    summed = 3 * message
    for actual, exact in zip(
        messages.unpack_moments(summed, local), by_torch.unpack_moments(summed, local), strict=True
    ):
        torch.testing.assert_close(actual, exact)
    assert len(launches) == 2


@pytest.mark.parametrize("number", [12, torch.tensor(3.0)], ids=["int", "tensor"])
@pytest.mark.parametrize(("groups", "features"), SIZES)
def test_gradient(groups, features, number, launches):
    mean = torch.randn(1, groups, features)
    local = AffineGrad(symmetric(groups, features), torch.randn(1, groups, features), mean, number)
    message = messages.pack_gradient(local)
    assert torch.equal(message, by_torch.pack_gradient(local))
    actual, expected = messages.unpack_gradient(message, local), by_torch.unpack_gradient(message, local)
    assert actual.mean is mean
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
    assert len(launches) == 2


def test_no_values_at_all():
    """The sum over ranks whose batches are all empty."""
    local = Moments(torch.randn(1, 2, 3), symmetric(2, 3), 4)
    mean, cov, count = messages.unpack_moments(torch.zeros_like(messages.pack_moments(local)), local)
    assert not mean.any()
    assert not cov.any()
    assert count == 0
