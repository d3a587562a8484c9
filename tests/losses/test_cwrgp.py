"""CW-RGP against its formula in float64: values, gradients, random groups, collapse and errors."""

import pytest
import torch

from tests.helpers import reference
from tests.helpers.cases import DEVICES, TOLERANCE, assert_close
from whitenorm.losses import CWRGPLoss
from whitenorm.losses.views import draw_permutations

FLOAT64 = torch.float64


def make_views(num_views=2, images=8, features=48, dtype=FLOAT64, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    shared = torch.randn(images, features, generator=generator, dtype=FLOAT64)
    noise = torch.randn(num_views, images, features, generator=generator, dtype=FLOAT64)
    return (shared + 0.5 * noise + 1).to(device, dtype)


def compute_seeded(loss, x, seed=1):
    """Return the loss, and the orders of images and of the features of each view and sub-batch."""
    torch.manual_seed(seed)
    images = draw_permutations(loss.iterations, x.shape[1], x.device)
    parts = loss.iterations * x.shape[1] // (loss.whitening_size or x.shape[1])
    features = draw_permutations(len(x) * parts, x.shape[2], x.device).view(len(x), parts, -1)
    torch.manual_seed(seed)
    return loss(x), images.cpu(), features.cpu()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(
    ("num_views", "groups", "size", "iterations", "normalize"),
    [(2, 1, None, 1, True), (2, 4, 4, 2, False), (3, 2, 8, 2, True), (4, 3, 2, 1, True)],
)
def test_agrees_with_the_papers_formula(num_views, groups, size, iterations, normalize, dtype, device):
    x = make_views(num_views, dtype=dtype, device=device).requires_grad_()
    loss = CWRGPLoss(groups, size, iterations, 0.01, normalize=normalize)
    actual, images, features = compute_seeded(loss, x)
    exact = x.detach().cpu().double().requires_grad_()
    expected = reference.cw_rgp(exact, images, features, groups, size or 8, 0.01, normalize)
    actual.backward()
    expected.backward()
    assert actual.dtype == (FLOAT64 if dtype == FLOAT64 else torch.float32)
    assert_close(actual, expected, actual.dtype)
    assert_close(x.grad, exact.grad, dtype)
    if dtype == FLOAT64:
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("solver", ["zca", "newton", "cholesky"])
def test_gradients(solver):
    x = make_views(2, 4, 12).requires_grad_()
    loss = CWRGPLoss(2, 2, 2, 0.1, solver=solver)
    assert torch.autograd.gradcheck(lambda x: compute_seeded(loss, x)[0], x)


def test_images_are_white_in_every_group():
    """Without noise in the solver, the images of each group of features are orthogonal and of equal length."""
    loss = CWRGPLoss(2)
    x = make_views(2, 8, 64)
    _, order, features = compute_seeded(loss, x)
    torch.manual_seed(1)
    white = loss._whiten(x, 8)
    for v in range(2):
        for group in features[v, 0].split(32):
            gram = white[v][:, group] @ white[v][:, group].T / 31
            assert_close(gram, torch.eye(8), FLOAT64)
    assert sorted(order[0].tolist()) == list(range(8))


def test_groups_are_random():
    x, loss = make_views(2), CWRGPLoss(4)
    assert compute_seeded(loss, x, 1)[0] != compute_seeded(loss, x, 2)[0]


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.0])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_collapsed_embeddings_have_finite_gradients(dtype, value):
    x = torch.full((2, 8, 48), value, dtype=dtype, requires_grad=True)
    loss = CWRGPLoss()(x)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def test_identical_images_with_noise_have_a_large_loss():
    x = torch.randn(48, dtype=FLOAT64) + 1e-6 * torch.randn(2, 8, 48, dtype=FLOAT64)
    assert CWRGPLoss()(x) > 1.5


def test_autocast():
    x = make_views(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = compute_seeded(CWRGPLoss(), x)[0]
    assert torch.equal(actual, compute_seeded(CWRGPLoss(), x)[0])


def test_has_no_state_but_its_options():
    assert not CWRGPLoss().state_dict()
    assert repr(CWRGPLoss(4, 8)) == (
        "CWRGPLoss(num_groups=4, whitening_size=8, iterations=1, eps=0.0, normalize=True, solver=ZCA())"
    )


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"num_groups": 5}, (2, 4, 16), "to divide the 16 features"),
        ({}, (2, 16, 16), "at most 8 images together"),
        ({"num_groups": 1}, (2, 16, 16), "at most 15 images together"),
        ({"whitening_size": 4}, (2, 10, 16), r"got 10 images\); use whitening_size of \[1, 2, 5\]"),
        ({}, (2, 0, 16), "got 0 images"),
    ],
)
def test_refuses_views_that_cannot_be_whitened(options, shape, message):
    with pytest.raises(ValueError, match=message):
        CWRGPLoss(**options)(torch.randn(shape))


@pytest.mark.parametrize("options", [{"num_groups": 0}, {"whitening_size": 0}, {"iterations": 0}, {"eps": 2.0}])
def test_refuses_options(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        CWRGPLoss(**options)
