"""Whitening losses against float64 formulas: values, gradients, invariances, collapse and errors."""

import pytest
import torch

from tests.helpers import reference
from tests.helpers.cases import DEVICES, SOLVERS, TOLERANCE, assert_close
from whitenorm.losses import WMSELoss
from whitenorm.losses.views import draw_permutations

FLOAT64 = torch.float64


def make_views(num_views=2, images=24, features=5, dtype=FLOAT64, device="cpu"):
    """Return views with correlated features and a shared part."""
    generator = torch.Generator().manual_seed(0)
    shared, noise = torch.randn(images, features, generator=generator), torch.randn(num_views, images, features)
    mixing = torch.randn(features, features, generator=generator)
    return ((shared + 0.5 * noise) @ mixing + 3).to(device, dtype)


def compute_seeded(loss, x, seed=1):
    """Return the loss, and the orders in which it took the images."""
    torch.manual_seed(seed)
    orders = draw_permutations(loss.iterations, x.shape[1], x.device).cpu()
    torch.manual_seed(seed)
    return loss(x), orders


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("num_views", "size", "iterations"), [(2, None, 1), (2, 24, 1), (3, 8, 2), (4, 12, 3)])
def test_agrees_with_the_papers_formula(num_views, size, iterations, normalize, dtype, device):
    x = make_views(num_views, 30 if size is None else 24, dtype=dtype, device=device).requires_grad_()
    loss = WMSELoss(size, iterations, 0.01, normalize=normalize)
    actual, orders = compute_seeded(loss, x)
    exact = x.detach().cpu().double().requires_grad_()
    expected = reference.w_mse(exact, orders, size or 10, 0.01, normalize)
    actual.backward()
    expected.backward()
    assert actual.dtype == (FLOAT64 if dtype == FLOAT64 else torch.float32)
    # The loss is float32 for half inputs too.
    assert_close(actual, expected, actual.dtype)
    assert_close(x.grad, exact.grad, dtype)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_gradients(solver):
    x = make_views(3, 12, 4).requires_grad_()
    loss = WMSELoss(6, 2, 0.1, solver=solver)
    assert torch.autograd.gradcheck(lambda x: compute_seeded(loss, x)[0], x)


def test_views_as_arguments_in_a_list_or_in_one_tensor():
    x = make_views(3)
    loss = WMSELoss(12, 2)
    expected = compute_seeded(loss, x)[0]
    for arguments in (x.unbind(), [x], [list(x)], [tuple(x)]):
        torch.manual_seed(1)
        assert torch.equal(loss(*arguments), expected)


def test_the_order_of_views_does_not_matter():
    x = make_views(3)
    loss = WMSELoss(12)
    assert_close(compute_seeded(loss, x)[0], compute_seeded(loss, x.flip(0))[0], FLOAT64)


@pytest.mark.parametrize("normalize", [True, False])
def test_invariance_to_a_triangular_map_of_one_views_features(normalize):
    """Whitening undoes shifts, and with Cholesky's factor every triangular map with a positive diagonal."""
    x = make_views(2)
    loss = WMSELoss(12, 2, normalize=normalize)
    mapped = x.clone()
    triangle = torch.randn(5, 5, dtype=FLOAT64).tril(-1) + torch.rand(5, dtype=FLOAT64).add(0.5).diag()
    mapped[1] = x[1] @ triangle.T + 100 * torch.randn(5, dtype=FLOAT64)
    assert_close(compute_seeded(loss, mapped)[0], compute_seeded(loss, x)[0], FLOAT64)


def test_order_of_images_does_not_matter_if_all_are_whitened_together():
    x = make_views(2)
    loss = WMSELoss(24, 2)
    shuffled = x[:, torch.randperm(24)]
    assert_close(compute_seeded(loss, x, 1)[0], compute_seeded(loss, shuffled, 2)[0], FLOAT64)


def test_sub_batches_are_random():
    x = make_views(2)
    loss = WMSELoss(12)
    assert not torch.allclose(compute_seeded(loss, x, 1)[0], compute_seeded(loss, x, 2)[0])


def test_loss_of_equal_unrelated_and_collapsed_views():
    """Zero for views that agree, 2 for unrelated ones, also if they have collapsed."""
    generator = torch.Generator().manual_seed(0)
    one, other = torch.randn(2, 4096, 8, generator=generator)
    loss = WMSELoss(1024)
    assert loss(one, one).item() == 0
    assert loss(one, other).item() == pytest.approx(2, abs=0.05)
    assert loss(1 + 1e-3 * one, 1 + 1e-3 * other).item() == pytest.approx(2, abs=0.05)


@pytest.mark.parametrize("x", [torch.ones(2, 16, 4), torch.zeros(2, 16, 4)], ids=["ones", "zeros"])
@pytest.mark.parametrize("eps", [0, 1e-4])
def test_constant_embeddings_have_finite_gradients(x, eps):
    x = x.requires_grad_()
    loss = WMSELoss(eps=eps)(x)
    loss.backward()
    assert loss.isfinite()
    assert x.grad.isfinite().all()


def point(generator):
    return torch.randn(8, generator=generator, dtype=FLOAT64).expand(2, 128, 8)


def two_points(generator):
    return torch.randn(2, 8, generator=generator, dtype=FLOAT64)[torch.arange(128) % 2].expand(2, 128, 8)


def line(generator):
    """Return embeddings along one feature, in two views that agree up to noise of a tenth."""
    x = torch.zeros(2, 128, 8, dtype=FLOAT64)
    shared, noise = torch.randn(128, generator=generator), torch.randn(2, 128, generator=generator)
    x[..., 3] = shared + 0.1 * noise
    return x + 1


COLLAPSED = [point, two_points, line]


def compute_with_gradient(loss, x, seed=0):
    x = x.detach().requires_grad_()
    torch.manual_seed(seed)
    value = loss(x)
    value.backward()
    return value.item(), x.grad


@pytest.mark.parametrize("offset", [0, 1000])
@pytest.mark.parametrize("collapsed", COLLAPSED)
def test_collapse_up_to_noise_has_a_large_loss(collapsed, offset):
    """Check float32 and float64 with noise of 20 rounding errors of the offset."""
    generator = torch.Generator().manual_seed(0)
    noise = 2e-6 * max(1, offset) * torch.randn(2, 128, 8, generator=generator, dtype=FLOAT64)
    x = collapsed(generator) + noise + offset
    exact, _ = compute_with_gradient(WMSELoss(), x)
    actual, grad = compute_with_gradient(WMSELoss(), x.float())
    assert exact > 1.5
    assert actual == pytest.approx(exact, abs=0.05)
    assert grad.isfinite().all()
    assert grad.any()


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("collapsed", COLLAPSED)
def test_exact_collapse(collapsed, dtype):
    """The loss is 0, or compares only the sides of the mean."""
    x = collapsed(torch.Generator().manual_seed(0)).to(dtype)
    loss, grad = compute_with_gradient(WMSELoss(whitening_size=128), x)
    sides = (x[..., 3] > x[..., 3].mean(1, keepdim=True)).double()
    expected = 4 * (sides[0] - sides[1]).abs().mean().item() if collapsed is line else 0
    assert loss == pytest.approx(expected, abs=1e-3)
    assert grad.isfinite().all()
    if collapsed is not line:
        assert not grad.any()


@pytest.mark.parametrize("value", [0.0, 0.1, 1000.0])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_gradients_are_finite_if_one_view_has_collapsed(dtype, normalize, value):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 128, 8, generator=generator, dtype=FLOAT64)
    x[0] = value
    loss, grad = compute_with_gradient(WMSELoss(normalize=normalize), x.to(dtype))
    assert 0.5 < loss < 2.5
    assert grad.isfinite().all()


def test_gradients_are_finite_with_noise_of_one_rounding_error():
    """In one direction, one view varies by a unit in the last place and the other view is constant."""
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        x = two_points(generator) + 1e-6 * torch.randn(2, 128, 8, generator=generator, dtype=FLOAT64)
        assert compute_with_gradient(WMSELoss(), x.half())[1].isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_autocast(dtype, device):
    x = make_views(2, dtype=dtype, device=device)
    loss = WMSELoss(12, eps=1e-3)
    with torch.autocast(device, dtype=torch.bfloat16):
        actual, _ = compute_seeded(loss, x)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, compute_seeded(loss, x)[0])


@pytest.mark.filterwarnings("ignore")
def test_compiles_without_graph_breaks():
    torch._dynamo.reset()
    x = make_views(2, 24, dtype=torch.float32).requires_grad_()
    # Whiten all images together, because compiled code may draw them in another order.
    loss = WMSELoss(24, 2)
    actual = torch.compile(loss, fullgraph=True, backend="aot_eager")(*x)
    expected = loss(*x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    grads = [torch.autograd.grad(value, x)[0] for value in (actual, expected)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-4)


def test_repr():
    assert repr(WMSELoss(128, 4)) == (
        "WMSELoss(whitening_size=128, iterations=4, eps=0.0, normalize=True, solver=Cholesky())"
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([], "two or more views"),
        ([(16, 4)], "two or more views"),
        ([(16, 4, 1), (16, 4, 1)], "flatten features"),
        ([(1, 16, 4)], r"got 1 of shape \(16, 4\)"),
        ([(16, 4), (8, 4)], "one shape"),
        ([(16, 4), (16, 3)], "one shape"),
        ([(20, 4), (20, 4)], r"sub-batches of 8 images divide \(got 20 images.*whitening_size of \[5, 10, 20\]"),
        ([(3, 4), (3, 4)], "a batch of more than 4 images"),
        ([(0, 4), (0, 4)], "a batch of more than 4 images"),
    ],
)
def test_refuses_views_of_wrong_shapes(shapes, message):
    with pytest.raises(ValueError, match=message):
        WMSELoss()(*[torch.randn(shape) for shape in shapes])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([[torch.ones(16, 4)]], r"got shapes \[\(16, 4\)\]"),
        ([[]], "in a list"),
        ([[torch.ones(16, 4)] * 2, torch.ones(16, 4)], r"got \['list', \(16, 4\)\]"),
        ([None, torch.ones(16, 4)], r"got \['NoneType', \(16, 4\)\]"),
    ],
)
def test_refuses_arguments_that_are_not_views(arguments, message):
    with pytest.raises(ValueError, match=message):
        WMSELoss()(*arguments)


def test_refuses_views_that_cannot_be_whitened():
    with pytest.raises(ValueError, match="larger than the 8 features"):
        WMSELoss(8)(torch.randn(2, 16, 8))
    with pytest.raises(ValueError, match="floating-point"):
        WMSELoss()(torch.ones(2, 16, 4, dtype=torch.long))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"whitening_size": 0}, "whitening_size"),
        ({"iterations": 0}, "iterations"),
        ({"eps": 2.0}, "authors use 0"),
        ({"eps": -1e-3}, "from 0 to 1"),
        ({"solver": "qr"}, "solver"),
    ],
)
def test_refuses_options(options, message):
    with pytest.raises(ValueError, match=message):
        WMSELoss(**options)
