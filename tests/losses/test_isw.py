"""ISW against its formula in float64: values, gradients, the selection of pairs, state and errors."""

import pytest
import torch

from tests.helpers import reference
from tests.helpers.cases import DEVICES, TOLERANCE, assert_close
from whitenorm.losses import InstanceSelectiveWhiteningLoss
from whitenorm.losses.isw import _cluster

FLOAT64 = torch.float64


def make_features(images=3, channels=6, dtype=FLOAT64, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(channels, channels, generator=generator, dtype=FLOAT64)
    x = torch.randn(images, channels, 5, 4, generator=generator, dtype=FLOAT64)
    return (torch.einsum("ij,njhw->nihw", mixing, x) + 3).to(device, dtype)


def augment(x):
    """Change the covariances of the first three channels from image to image."""
    x = x.clone()
    x[:, 0] += x[:, 1] * torch.linspace(-2, 2, len(x), dtype=x.dtype)[:, None, None]
    x[:, 2] -= 2 * x[:, 0]
    return x


def select(loss, x):
    loss.observe(x, augment(x))
    return loss.select_()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("is_selected", [False, True])
def test_agrees_with_the_papers_formula(is_selected, dtype, device):
    x = make_features(dtype=dtype, device=device).requires_grad_()
    loss = InstanceSelectiveWhiteningLoss(6).to(device)
    if is_selected:
        select(loss, x.detach())
    exact = x.detach().cpu().double().requires_grad_()
    actual, expected = loss(x), reference.isw(exact, loss.mask.cpu(), loss.eps)
    actual.backward()
    expected.backward()
    assert actual.dtype == (FLOAT64 if dtype == FLOAT64 else torch.float32)
    assert_close(actual, expected, actual.dtype)
    assert_close(x.grad, exact.grad, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-10, atol=1e-10)


def test_gradients():
    x = make_features().requires_grad_()
    assert torch.autograd.gradcheck(InstanceSelectiveWhiteningLoss(6), x)


def test_several_maps_are_averaged_over_images():
    x, other = make_features(3), make_features(6)[..., :3]
    loss = InstanceSelectiveWhiteningLoss(6)
    torch.testing.assert_close(loss(x, other), (loss(x) + 2 * loss(other)) / 3)


def test_invariance_to_scale_and_shift_of_channels():
    loss, x = InstanceSelectiveWhiteningLoss(6, eps=0), make_features()
    scale = torch.linspace(0.1, 10, 6, dtype=FLOAT64)[:, None, None]
    torch.testing.assert_close(loss(scale * x + 7), loss(x))


def test_variance_is_that_of_the_covariances_over_views():
    views = [make_features(5), augment(make_features(5)), 2 * make_features(5).flip(-1) ** 2]
    expected = 0
    for images in zip(*views, strict=True):
        covs = torch.stack([reference.correlation(image, 1e-5) for image in images])
        expected = expected + ((covs - covs.mean(0)) ** 2).mean(0) / 5
    loss = InstanceSelectiveWhiteningLoss(6).double()
    for part in (slice(0, 2), slice(2, 5)):
        loss.observe(*(view[part] for view in views))
    assert loss.num_images == 5
    torch.testing.assert_close(loss.variance, expected, rtol=1e-10, atol=1e-12)


def test_selected_pairs_have_the_largest_variances():
    loss = select(InstanceSelectiveWhiteningLoss(6), make_features(8))
    upper = torch.ones(6, 6, dtype=torch.bool).triu(1)
    assert not loss.mask[~upper].any()
    kept, selected = loss.variance[upper & ~loss.mask], loss.variance[loss.mask]
    assert len(kept) > 0
    assert len(selected) > 0
    assert kept.max() < selected.min()
    # Channels 3 to 5 are the same in both views.
    assert not loss.mask[3:, 3:].any()
    everything = select(InstanceSelectiveWhiteningLoss(6, num_kept=0), make_features(8))
    assert torch.equal(everything.mask, upper)


@pytest.mark.parametrize("num_clusters", [1, 2, 3, 5])
def test_clusters_are_nearest_to_their_means(num_clusters):
    values = torch.randn(200, generator=torch.Generator().manual_seed(0), dtype=FLOAT64).exp()
    clusters = _cluster(values, num_clusters)
    means = torch.stack([values[clusters == i].mean() for i in range(num_clusters)])
    assert (means.diff() > 0).all()
    assert torch.equal((values[:, None] - means).abs().argmin(1), clusters)


def test_equal_variances_and_a_single_channel():
    x = make_features()
    loss = InstanceSelectiveWhiteningLoss(6)
    loss.observe(x, x)
    assert loss.select_()(x).isfinite()
    alone = InstanceSelectiveWhiteningLoss(1)
    alone.observe(x[:, :1], x[:, :1])
    assert alone.select_()(x[:, :1]) == 0


@pytest.mark.parametrize("value", [0.0, 1000.0])
def test_constant_channels_have_finite_gradients(value):
    x = torch.full((2, 6, 4, 4), value, requires_grad=True)
    loss = InstanceSelectiveWhiteningLoss(6)(x)
    loss.backward()
    assert loss == 0
    assert x.grad.isfinite().all()


def test_state_dict_keeps_observations_and_selection():
    loss = select(InstanceSelectiveWhiteningLoss(6), make_features(8))
    other = InstanceSelectiveWhiteningLoss(6)
    assert list(other.state_dict()) == ["mask", "variance", "num_images"]
    other.load_state_dict(loss.state_dict())
    x = make_features()
    assert torch.equal(other(x), loss(x))
    assert torch.equal(other.select_().mask, loss.mask)
    assert repr(loss) == "InstanceSelectiveWhiteningLoss(6, num_clusters=3, num_kept=1, eps=1e-05)"


def test_refuses():
    loss, x = InstanceSelectiveWhiteningLoss(6), make_features()
    with pytest.raises(ValueError, match="call observe first"):
        loss.select_()
    with pytest.raises(ValueError, match="two or more views of the same images"):
        loss.observe(x)
    with pytest.raises(ValueError, match="two or more views of the same images"):
        loss.observe(x, x[:2])
    with pytest.raises(ValueError, match="one or more feature maps"):
        loss()
    with pytest.raises(ValueError, match="expected 6 channels"):
        loss(x[:, :3])
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        loss(x[..., :1, :1])
    with pytest.raises(ValueError, match="num_kept from 0 to num_clusters - 1 = 2"):
        InstanceSelectiveWhiteningLoss(6, num_kept=3)
