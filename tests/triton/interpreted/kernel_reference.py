"""The six steps in plain float64, a whole training step by either, and their inputs."""

from typing import NamedTuple

import torch

from whitenorm.ops import dispatch
from whitenorm.ops.types import BATCH_STATISTICS, SAMPLE_STATISTICS, Method, Mixing, Moments
from whitenorm.solvers import Newton

# Relative to the largest value, against float64 for the same, already rounded, input.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 1e-2}
LAYOUTS = ("contiguous", "channels_last")


def view(shape, layout="contiguous", dtype=torch.float32, seed=0):
    """Return correlated values ``[N, G, K, J, P]``, a view of a tensor ``(N, C, P)`` of a layout."""
    generator = torch.Generator().manual_seed(seed)
    samples, groups, features, channels_per_feature, positions = shape
    channels = groups * features * channels_per_feature
    mixed = torch.eye(channels) + torch.randn(channels, channels, generator=generator) / channels**0.5
    x = (mixed @ torch.randn(samples, channels, positions, generator=generator)).to(dtype)
    if layout == "channels_last":
        x = x.mT.contiguous().mT
    return x.unflatten(1, (groups, features, channels_per_feature))


def vector(shape, seed):
    """Return values for γ, β or logits."""
    return 1 + 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def newton(cov, steps=5):
    trace = cov.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    p = torch.eye(cov.shape[-1], dtype=cov.dtype).expand_as(cov)
    for _ in range(steps):
        p = 1.5 * p - 0.5 * p @ p @ p @ cov / trace
    return p / trace**0.5


def moments(x, pooled):
    """Return mean and covariance of ``x[N, G, K, J, P]``, of each sample or of all."""
    x = x.flatten(3)
    x = x.permute(1, 2, 0, 3).flatten(2).unsqueeze(0) if pooled else x
    centred = x - x.mean(-1, keepdim=True)
    return Moments(x.mean(-1), centred @ centred.mT / x.shape[-1], x.shape[-1])


def statistic(name, sample, batch):
    if name in ("bw", "bn"):
        mean, cov, _ = batch
    else:
        mean, cov, _ = sample
    variance = cov.diagonal(dim1=-2, dim2=-1)
    if name == "ln":
        mean = mean.mean((1, 2), keepdim=True)
        variance = (variance + (sample.mean - mean) ** 2).mean((1, 2), keepdim=True)
        mean, variance = mean.expand_as(sample.mean), variance.expand_as(sample.mean)
    return mean, cov if name in ("bw", "iw") else torch.diag_embed(variance)


def pool(sample, batch, method, mixing):
    """Return the pooled mean, and the covariance to solve for."""
    means, covs = zip(*[statistic(name, sample, batch) for name in method.statistics], strict=True)
    if mixing is None:
        mean, cov = means[0], covs[0]
    else:
        mean = sum(weight * one for weight, one in zip(mixing.mean.softmax(0), means, strict=True))
        cov = sum(weight * one for weight, one in zip(mixing.cov.softmax(0), covs, strict=True))
    return mean, method.scale * cov + method.eps * torch.eye(cov.shape[-1], dtype=cov.dtype)


def multiply(matrix, x):
    """Return matrix @ x over the features of ``x[N, G, K, J, P]``."""
    return (matrix @ x.flatten(3)).view_as(x)


def column(tensor):
    """Return ``(..., G, K)`` in a shape that broadcasts with x."""
    return tensor[..., None, None]


class StepResult(NamedTuple):
    """Output and gradients of a training step."""

    y: torch.Tensor
    dx: torch.Tensor
    weight: torch.Tensor | None
    bias: torch.Tensor | None
    mean_logits: torch.Tensor | None
    cov_logits: torch.Tensor | None


def step(x, grad, method, weight=None, bias=None, mixing=None, population=None):
    """Run a training step by the six kernels; a population, if given, replaces the batch's moments."""
    kernels = dispatch._load_triton()
    statistics = kernels.moments(x, method.uses_sample, method.uses_batch and population is None)
    if population is not None:
        statistics = statistics._replace(batch=population)
    solved = kernels.solve(statistics, method, mixing, None)
    y = kernels.apply(x, solved.whitening, solved.mean, weight, bias, torch.empty_like(x))
    grads = kernels.map_gradients(grad, x, solved.whitening, solved.mean, weight, bias)
    result = kernels.solve_backward(grads, solved, statistics, method, weight, bias, mixing, population is not None)
    dx = kernels.input_gradient(grad, x, solved.whitening, weight, result.sample, result.batch, torch.empty_like(x))
    return StepResult(y, dx, result.weight, result.bias, *(result.mixing or (None, None)))


def reference_step(x, grad, method, weight=None, bias=None, mixing=None, population=None):
    """Run the same step by autograd in float64."""
    x, weight, bias, *logits = (
        None if part is None else part.double().requires_grad_()
        for part in (x, weight, bias, *(mixing or (None, None)))
    )
    sample = moments(x, pooled=False)
    batch = moments(x, pooled=True) if population is None else Moments(*(part.double() for part in population[:2]), 1)
    mean, cov = pool(sample, batch, method, None if mixing is None else Mixing(*logits))
    y = multiply(newton(cov, method.solver.steps), x - column(mean))
    y = y if weight is None else y * weight.unsqueeze(-1)
    y = y if bias is None else y + bias.unsqueeze(-1)
    y.backward(grad.double())
    return StepResult(y.detach(), *(None if part is None else part.grad for part in (x, weight, bias, *logits)))


def method(statistics, eps=1e-3, scale=1.0, steps=5):
    uses_batch = any(name in BATCH_STATISTICS for name in statistics)
    uses_sample = any(name in SAMPLE_STATISTICS for name in statistics)
    return Method(statistics, Newton(steps), eps, scale, uses_sample, uses_batch)


def assert_close(got, expected, tolerance, name=""):
    assert (got is None) == (expected is None), name
    if expected is None:
        return
    assert got.shape == expected.shape, (name, got.shape, expected.shape)
    error = (got.double() - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
    assert error <= tolerance, f"{name} is off by {error:.1e} of its largest value"


def assert_same_step(x, grad, *arguments, tolerance=None, **options):
    got = step(x, grad, *arguments, **options)
    expected = reference_step(x, grad, *arguments, **options)
    for name in StepResult._fields:
        # Only tensors of x's shape have the dtype of x.
        rounded = x.dtype if name in ("y", "dx") else torch.float32
        assert_close(getattr(got, name), getattr(expected, name), tolerance or TOLERANCE[rounded], name)
    assert got.y.stride() == got.dx.stride() == x.stride()
    assert got.y.dtype == got.dx.dtype == x.dtype
