"""The papers' formulations as printed, in plain PyTorch, which the layers are timed against.

Activations are unrolled to matrices by transposed copies, Newton runs uncoupled and saves all its iterates, DBN
computes one singular value decomposition per group, and SW whitens N·g matrices. γ and β are applied in separate
passes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Affine(nn.Module):
    """Base class with γ, β and the papers' running statistics."""

    def __init__(self, channels: int, groups: int, size: int) -> None:
        super().__init__()
        self.groups, self.size = groups, size
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(groups, size, 1))
        self.register_buffer("running_matrix", torch.eye(size).repeat(groups, 1, 1))

    def scale(self, y: Tensor) -> Tensor:
        return scale(y, self.weight, self.bias)

    @torch.no_grad()
    def record(self, mean: Tensor, matrix: Tensor) -> None:
        self.running_mean.mul_(0.9).add_(0.1 * mean)
        self.running_matrix.mul_(0.9).add_(0.1 * matrix)

    def unroll(self, x: Tensor) -> Tensor:
        """Return (N, C, ...) as (G, K, m), a transposed copy."""
        return x.transpose(0, 1).reshape(self.groups, self.size, -1).contiguous()

    def roll(self, y: Tensor, x: Tensor) -> Tensor:
        """Undo :meth:`unroll` by another transposed copy."""
        return y.view(x.shape[1], x.shape[0], *x.shape[2:]).transpose(0, 1).contiguous()


class IterNorm(Affine):
    """IterNorm by algorithms 1 and 2."""

    def __init__(self, channels: int, group_size: int = 64, steps: int = 5) -> None:
        size = min(group_size, channels)
        super().__init__(channels, channels // size, size)
        self.steps = steps

    def forward(self, x: Tensor) -> Tensor:
        columns = self.unroll(x)
        if not self.training:
            return self.scale(self.roll(self.running_matrix @ (columns - self.running_mean), x))
        y, mean, matrix = IterNormFunction.apply(columns, self.steps, 1e-5)
        self.record(mean, matrix)
        return self.scale(self.roll(y, x))


class IterNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, steps, eps):
        m = x.shape[-1]
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        eye = torch.eye(x.shape[1], dtype=x.dtype).expand(x.shape[0], -1, -1)
        cov = torch.baddbmm(eye, centred, centred.transpose(1, 2), beta=eps, alpha=1 / m)
        trace = (cov * eye).sum((1, 2), keepdim=True)
        scaled = cov / trace
        iterates = [eye]
        for _ in range(steps):
            p = iterates[-1]
            iterates.append(1.5 * p - 0.5 * torch.matrix_power(p, 3) @ scaled)
        whitening = iterates[-1] / trace.sqrt()
        ctx.save_for_backward(centred, cov, trace, scaled, whitening, *iterates)
        ctx.mark_non_differentiable(mean, whitening)
        return whitening @ centred, mean, whitening

    @staticmethod
    def backward(ctx, grad, *_):
        centred, cov, trace, scaled, whitening, *iterates = ctx.saved_tensors
        m = centred.shape[-1]
        grad_whitening = grad @ centred.transpose(1, 2)
        grad_p = grad_whitening / trace.sqrt()
        grad_scaled = 0
        for p in reversed(iterates[:-1]):
            square = p @ p
            grad_scaled = grad_scaled - 0.5 * (square @ p).transpose(1, 2) @ grad_p
            grad_p = (
                1.5 * grad_p
                - 0.5 * grad_p @ (square @ scaled).transpose(1, 2)
                - 0.5 * square.transpose(1, 2) @ grad_p @ scaled.transpose(1, 2)
                - 0.5 * p.transpose(1, 2) @ grad_p @ (p @ scaled).transpose(1, 2)
            )
        eye = iterates[0]
        inner = (grad_scaled * cov).sum((1, 2), keepdim=True)
        outer = (grad_whitening * iterates[-1]).sum((1, 2), keepdim=True)
        grad_cov = grad_scaled / trace - inner / trace**2 * eye - outer / (2 * trace**1.5) * eye
        grad_cov = (grad_cov + grad_cov.transpose(1, 2)) / m
        return whitening @ (grad - grad.mean(-1, keepdim=True)) + grad_cov @ centred, None, None


class DBN(Affine):
    """DBN, algorithms 1 and 2, one group after the other."""

    def __init__(self, channels: int, group_size: int = 16) -> None:
        size = min(group_size, channels)
        super().__init__(channels, channels // size, size)

    def forward(self, x: Tensor) -> Tensor:
        columns = self.unroll(x)
        if not self.training:
            return self.scale(self.roll(self.running_matrix @ (columns - self.running_mean), x))
        results = [DBNFunction.apply(group, 1e-3) for group in columns]
        outputs, means, matrices = (torch.stack(parts) for parts in zip(*results, strict=True))
        self.record(means, matrices)
        return self.scale(self.roll(outputs, x))


class DBNFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        mean = x.mean(-1, keepdim=True)
        centred = x - mean
        cov = centred @ centred.T / x.shape[-1] + eps * torch.eye(len(x), dtype=x.dtype)
        d, values, _ = torch.linalg.svd(cov)
        u = torch.diag(values**-0.5) @ d.T
        tilde = u @ centred
        ctx.save_for_backward(tilde, d, values)
        matrix = d @ u
        ctx.mark_non_differentiable(mean, matrix)
        return d @ tilde, mean, matrix

    @staticmethod
    def backward(ctx, grad, *_):
        tilde, d, values = ctx.saved_tensors
        m = tilde.shape[-1]
        grad_tilde = d.T @ grad
        f = grad_tilde.mean(-1, keepdim=True)
        f_c = grad_tilde @ tilde.T / m
        gap = values[:, None] - values[None, :]
        k = torch.where(gap == 0, 0, 1 / gap)
        root = values.sqrt()
        inner = k.T * (values[:, None] * f_c.T + root[:, None] * f_c * root[None, :])
        s = inner + inner.T
        total = grad_tilde - f + s.T @ tilde - torch.diag(torch.diag(f_c)) @ tilde
        return d @ torch.diag(values**-0.5) @ total, None


class SW(Affine):
    """SW with statistics {BW, IW}: N·g covariances, mixed and whitened by uncoupled Newton steps.

    Its text has ZCA, and a faster solver as future work; the layer's own is Newton, and like is timed with like.
    """

    def __init__(self, channels: int, group_size: int = 16, steps: int = 5) -> None:
        size = min(group_size, channels)
        super().__init__(channels, channels // size, size)
        self.steps = steps
        self.mean_logits = nn.Parameter(torch.ones(2))
        self.cov_logits = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        n, channels = x.shape[:2]
        samples = x.reshape(n * self.groups, self.size, -1)
        own_mean = samples.mean(-1, keepdim=True)
        centred = samples - own_mean
        own_cov = torch.bmm(centred, centred.transpose(1, 2)) / samples.shape[-1]
        if self.training:
            columns = self.unroll(x)
            mean = columns.mean(-1, keepdim=True)
            centred = columns - mean
            cov = torch.bmm(centred, centred.transpose(1, 2)) / columns.shape[-1]
            self.record(mean.detach(), cov.detach())
        else:
            mean, cov = self.running_mean, self.running_matrix
        mean_weights, cov_weights = self.mean_logits.softmax(0), self.cov_logits.softmax(0)
        mean = mean_weights[0] * mean.repeat(n, 1, 1) + mean_weights[1] * own_mean
        cov = cov_weights[0] * cov.repeat(n, 1, 1) + cov_weights[1] * own_cov
        cov = cov + 1e-5 * torch.eye(self.size)
        y = torch.bmm(newton(cov, self.steps), samples - mean)
        return self.scale(y.view(n, channels, *x.shape[2:]))


class IW(nn.Module):
    """The instance part of SW alone: N·g covariances, whitened by uncoupled Newton steps."""

    def __init__(self, channels: int, group_size: int = 16, steps: int = 5) -> None:
        super().__init__()
        self.size, self.steps = min(group_size, channels), steps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        samples = x.reshape(-1, self.size, math.prod(x.shape[2:]))
        centred = samples - samples.mean(-1, keepdim=True)
        cov = torch.bmm(centred, centred.transpose(1, 2)) / samples.shape[-1] + 1e-5 * torch.eye(self.size)
        return scale(torch.bmm(newton(cov, self.steps), centred).view_as(x), self.weight, self.bias)


class GW(nn.Module):
    """GW with γ and β, as in the listing of its appendix, with the ε of its algorithm 1."""

    def __init__(self, num_groups: int, channels: int, steps: int = 5) -> None:
        super().__init__()
        self.num_groups, self.steps = num_groups, steps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        groups = x.view(x.shape[0], self.num_groups, -1)
        centred = groups - groups.mean(-1, keepdim=True)
        cov = centred.matmul(centred.transpose(1, 2)) / groups.shape[-1] + 1e-5 * torch.eye(self.num_groups)
        return scale(newton(cov, self.steps).matmul(centred).view_as(x), self.weight, self.bias)


def scale(y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """γ and β in passes of their own."""
    shape = (1, -1, *[1] * (y.ndim - 2))
    return y * weight.view(shape) + bias.view(shape)


def newton(cov: Tensor, steps: int) -> Tensor:
    """The uncoupled iteration, for autograd to differentiate."""
    eye = torch.eye(cov.shape[-1], dtype=cov.dtype).expand(cov.shape)
    zero = torch.zeros_like(cov)
    inverse_trace = torch.addcmul(zero, cov, eye).sum((1, 2), keepdim=True).reciprocal()
    scaled = torch.addcmul(zero, cov, inverse_trace)
    p = eye
    for _ in range(steps):
        p = torch.baddbmm(p, torch.matrix_power(p, 3), scaled, beta=1.5, alpha=-0.5)
    return torch.addcmul(zero, p, inverse_trace.sqrt())
