"""Kernels that whiten one sample per program, against the definition in float64 with autograd's gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from whitenorm.ops.triton.per_sample import is_supported, whiten_samples, whiten_samples_backward

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
NAMES = ("y", "dx", "dweight", "dbias")


def reference(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, steps: int) -> Tensor:
    """Whiten the K features of each sample by IterNorm's algorithm 1, in the coupled form, which is stable."""
    rows = x.squeeze(1).flatten(2)
    rows = rows - rows.mean(-1, keepdim=True)
    eye = torch.eye(rows.shape[1], dtype=x.dtype)
    cov = rows @ rows.mT / rows.shape[2] + eps * eye
    trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    root, inverse = cov / trace, eye.expand_as(cov)
    for _ in range(steps):
        change = (3 * eye - inverse @ root) / 2
        root, inverse = root @ change, change @ inverse
    y = (inverse / trace.sqrt() @ rows).reshape(x.shape)
    y = y if weight is None else y * weight.unsqueeze(-1)
    return y if bias is None else y + bias.unsqueeze(-1)


def run_reference(grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, steps: int):
    leaves = [None if tensor is None else tensor.double().requires_grad_() for tensor in (x, weight, bias)]
    y = reference(*leaves, eps, steps)
    grads = iter(torch.autograd.grad(y, [leaf for leaf in leaves if leaf is not None], grad.double()))
    return [y.detach(), *(None if leaf is None else next(grads) for leaf in leaves)]


def run_kernels(grad: Tensor, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, steps: int):
    y = torch.empty_like(x)
    assert whiten_samples(x, weight, bias, eps, steps, y) == ()
    dx = torch.empty_like(x)
    return [y, dx, *whiten_samples_backward(grad, x, weight, bias, eps, steps, (), dx)]


def samples(n: int, k: int, j: int, p: int = 1, offset: float = 0.0) -> Tensor:
    """Return samples with correlated features."""
    mixed = torch.randn(k, k) @ torch.randn(n, k, j * p) + offset * k**0.5
    return mixed.reshape(n, 1, k, j, p)


def parameters(k: int, j: int) -> tuple[Tensor, Tensor]:
    return torch.randn(1, k, j) + 1, torch.randn(1, k, j)


def channels_last(x: Tensor) -> Tensor:
    """Return the same values with neighbouring channels next to each other in memory."""
    n, _, k, j, p = x.shape
    return x.permute(0, 1, 4, 2, 3).contiguous().permute(0, 1, 3, 4, 2).reshape(n, 1, k, j, p)


def assert_agree(grad: Tensor, x: Tensor, weight=None, bias=None, eps=1e-5, steps=5, tolerance=None) -> None:
    tolerance = TOLERANCE[x.dtype] if tolerance is None else tolerance
    results = run_kernels(grad, x, weight, bias, eps, steps)
    for name, got, want in zip(NAMES, results, run_reference(grad, x, weight, bias, eps, steps), strict=True):
        assert (got is None) == (want is None), name
        if got is None:
            continue
        assert got.shape == want.shape, name
        assert got.dtype == (x.dtype if name in ("y", "dx") else torch.float32), name
        error = (got.double() - want).norm() / want.norm().clamp_min(1e-30)
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("k", "j"), [(1, 33), (3, 5), (12, 16), (16, 24), (17, 19), (24, 32), (32, 32), (32, 63), (32, 127), (5, 101)]
)
def test_tokens_of_every_size(k: int, j: int) -> None:
    x = samples(3, k, j)
    assert is_supported(x.shape, 5)
    assert_agree(torch.randn_like(x), x, *parameters(k, j))


def test_two_values_per_feature() -> None:
    # Without ε, y is ±1 for every x, and dx is 0.
    x = samples(3, 1, 2)
    assert_agree(torch.randn_like(x), x, *parameters(1, 2), eps=0.5)


@pytest.mark.parametrize(("k", "j", "p"), [(4, 3, 4), (16, 7, 4), (24, 2, 9)])
@pytest.mark.parametrize("last", [False, True])
def test_positions(k: int, j: int, p: int, last: bool) -> None:
    x = samples(2, k, j, p)
    x = channels_last(x) if last else x
    assert_agree(torch.randn_like(x), x, *parameters(k, j))


@pytest.mark.parametrize(("k", "j", "p"), [(6, 2, 1), (32, 24, 1), (64, 12, 1), (100, 3, 4), (17, 4, 4)])
def test_fewer_values_than_features(k: int, j: int, p: int) -> None:
    x = samples(2, k, j, p)
    assert is_supported(x.shape, 5)
    assert_agree(torch.randn_like(x), x, *parameters(k, j), eps=1e-2)
    assert_agree(torch.randn_like(x), channels_last(x), *parameters(k, j), eps=1e-5, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("weight", "bias"), [(True, True), (True, False), (False, True), (False, False)])
def test_dtypes_and_parameters(dtype: torch.dtype, weight: bool, bias: bool) -> None:
    gamma, beta = parameters(6, 9)
    x = samples(3, 6, 9).to(dtype)
    assert_agree(torch.randn_like(x), x, gamma if weight else None, beta if bias else None)


@pytest.mark.parametrize("n", [0, 1, 5, 37])
def test_numbers_of_samples(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Few programs, so that each has several samples.
    monkeypatch.setattr("whitenorm.ops.triton.per_sample._count_programs", lambda device, tile: 4)
    x = samples(n, 4, 6)
    assert_agree(torch.randn_like(x), x, *parameters(4, 6))


@pytest.mark.parametrize("steps", [0, 1, 2, 9, 40])
def test_steps(steps: int) -> None:
    x = samples(2, 5, 40)
    assert_agree(torch.randn_like(x), x, *parameters(5, 40), steps=steps)


@pytest.mark.parametrize(("k", "j"), [(6, 30), (24, 10)])
def test_far_from_zero(k: int, j: int) -> None:
    x = samples(2, k, j, offset=1000.0)
    assert_agree(torch.randn_like(x), x, *parameters(k, j), eps=1e-2, tolerance=2e-4)


@pytest.mark.parametrize(("k", "j"), [(6, 30), (30, 6)])
@pytest.mark.parametrize("eps", [1e-5, 0.0])
def test_constant_samples(k: int, j: int, eps: float) -> None:
    x = torch.full((2, 1, k, j, 1), 3.7)
    weight, bias = parameters(k, j)
    y, dx, dweight, dbias = run_kernels(torch.randn_like(x), x, weight, bias, eps, 5)
    torch.testing.assert_close(y, bias.unsqueeze(-1).expand_as(y).unsqueeze(0)[0], atol=1e-4, rtol=1e-4)
    assert all(tensor.isfinite().all() for tensor in (dx, dweight, dbias))
    if eps:
        assert_agree(torch.randn_like(x), x, weight, bias, eps=eps)


def test_gradient_of_a_sum() -> None:
    # An expanded tensor, as autograd passes it: all strides are 0.
    x = samples(2, 5, 7)
    assert_agree(torch.ones(()).expand_as(x), x, *parameters(5, 7), tolerance=1e-3)


def test_large_samples_do_not_fit() -> None:
    assert not is_supported((1, 1, 64, 64, 1), 5)
    assert not is_supported((1, 1, 4, 16, 196), 5)
    assert not is_supported((1, 1, 128, 128, 1), 5)
