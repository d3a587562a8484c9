"""INTL against its formula in float64: values, gradients, its trace loss, collapse and errors."""

import math

import pytest
import torch

from tests.helpers import reference
from tests.helpers.cases import DEVICES, TOLERANCE, assert_close
from whitenorm.losses import INTLLoss

FLOAT64 = torch.float64
SIZES = {"features": (24, 5), "instances": (10, 40)}


def make_views(whitened, num_views=2, dtype=FLOAT64, device="cpu"):
    images, features = SIZES[whitened]
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(images, features, generator=generator, dtype=FLOAT64)
    noise = torch.randn(num_views, images, features, generator=generator, dtype=FLOAT64)
    scale = torch.linspace(0.5, 2, features, dtype=FLOAT64)
    return ((shared + 0.5 * noise) * scale + 1).to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("num_views", "steps", "weight", "eps"), [(2, 4, 0.05, 0), (3, 1, 0.0, 0.1), (4, 7, 1.0, 0)])
@pytest.mark.parametrize("whitened", SIZES)
def test_agrees_with_the_papers_formula(whitened, num_views, steps, weight, eps, dtype, device):
    x = make_views(whitened, num_views, dtype, device).requires_grad_()
    exact = x.detach().cpu().double().requires_grad_()
    actual = INTLLoss(whitened, steps, weight, eps)(x)
    expected = reference.intl(exact, whitened, steps, weight, eps)
    actual.backward()
    expected.backward()
    assert actual.dtype == (FLOAT64 if dtype == FLOAT64 else torch.float32)
    assert_close(actual, expected, actual.dtype)
    assert_close(x.grad, exact.grad, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("whitened", SIZES)
def test_gradients(whitened):
    x = make_views(whitened, 3)[..., :6].clone().requires_grad_() if whitened == "instances" else make_views(whitened)
    assert torch.autograd.gradcheck(INTLLoss(whitened, eps=0.1, trace_weight=0.3), x.requires_grad_())


def test_default_weight_grows_with_the_covariance():
    """It is 0.01·(log₂ K - 3), and not negative."""
    x = torch.randn(2, 64, 16, dtype=FLOAT64)
    for loss, size in ((INTLLoss("features"), 16), (INTLLoss(), 64)):
        explicit = INTLLoss(loss.whitened, trace_weight=0.01 * (math.log2(size) - 3))
        torch.testing.assert_close(loss(x), explicit(x))
    torch.testing.assert_close(INTLLoss("features")(x[..., :4]), INTLLoss("features", trace_weight=0)(x[..., :4]))


@pytest.mark.parametrize("whitened", SIZES)
def test_trace_loss_is_zero_for_equal_eigenvalues_only(whitened):
    images, features = SIZES[whitened]
    columns, size = (features, images) if whitened == "instances" else (images, features)
    # Orthonormal columns without a mean.
    raw = torch.randn(columns, size, dtype=FLOAT64)
    x = torch.linalg.qr(raw - raw.mean(0)).Q.T
    x = x if whitened == "instances" else x.T
    loss = INTLLoss(whitened, steps=9, trace_weight=1)
    assert loss(x, x).item() == pytest.approx(0, abs=1e-9)
    stretched = x * torch.linspace(1, 100, x.shape[1], dtype=FLOAT64) if whitened == "features" else x.clone()
    stretched[0] *= 1000
    assert loss(stretched, stretched) > 0.01


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.0])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("whitened", SIZES)
def test_collapsed_embeddings_have_finite_gradients(whitened, dtype, value):
    x = torch.full((2, *SIZES[whitened]), value, dtype=dtype, requires_grad=True)
    loss = INTLLoss(whitened)(x)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def test_autocast():
    x = make_views("features", dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = INTLLoss("features")(x)
    assert torch.equal(actual, INTLLoss("features")(x))


def test_has_no_state_but_its_options():
    assert not INTLLoss().state_dict()
    assert repr(INTLLoss("features", 3)) == "INTLLoss(whitened='features', steps=3, trace_weight=None, eps=0.0)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"whitened": "rows"}, '"instances" or "features"'),
        ({"steps": -1}, "steps"),
        ({"trace_weight": -1.0}, "trace_weight"),
        ({"eps": 2.0}, "authors use 0"),
    ],
)
def test_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        INTLLoss(**options)


@pytest.mark.parametrize(
    ("whitened", "shape"), [("features", (2, 1, 4)), ("instances", (2, 4, 1)), ("instances", (2, 0, 4))]
)
def test_refuses_views_that_have_no_covariance(whitened, shape):
    with pytest.raises(ValueError, match="at least 2"):
        INTLLoss(whitened)(torch.randn(shape))
