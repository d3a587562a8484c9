"""Train many perceptrons of one size at once: one batched product per layer for all of them.

A step of one small net is mostly overhead between small products. Here the nets of several norms, learning rates and
seeds take their steps together. Nets of one seed start with the same weights and see the same batches. Gradients and
updates are separate, so every net ends where :func:`whitenorm_lab.fitting.fit` would have taken it alone, up to
rounding.

``torch.func.vmap`` over stacked module states is slower here (1.2 to 4 times for the nets of ``gw-capacity``): nets
with different norms differ in structure, so every norm needs products of its own, and the first layer cannot become
one product for all nets that share an input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab.data import Split
from whitenorm_lab.fitting import iterate_batches, logging_steps

RowNorm = Callable[[Tensor], Tensor]
"""A norm of ``(N, d)``, without γ and β, that treats every row separately: the rows may belong to several nets."""


class Curves(NamedTuple):
    """Curves of all nets of one seed, ordered by norm and then by learning rate."""

    step: list[int]
    loss: list[list[float]]
    error: list[list[float]]
    """In percent."""


class SideBySide(nn.Module):
    """Perceptrons of one size, for every seed, norm and learning rate.

    A norm with γ and β follows every linear layer except the classifier; a model that is only a classifier has it after
    that. Nets are ordered by seed, then by norm, then by copy.

    Args:
        models: one perceptron without norms per seed; its linear layers have ReLUs between them.
        norms: the norms of the nets; None for a net without norm.
        copies: number of nets per seed and norm.

    Example::

        >>> models = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for seed in range(5)]
        >>> nets = SideBySide(models, [None, torch.tanh], copies=3)
        >>> nets(torch.randn(5, 16, 4)).shape
        torch.Size([5, 6, 16, 2])
    """

    def __init__(self, models: Sequence[nn.Module], norms: Sequence[RowNorm | None], copies: int) -> None:
        super().__init__()
        self.norms = norms
        self.copies = copies
        self.num_seeds, self.nets_per_seed = len(models), len(norms) * copies
        linears = [[module for module in model.modules() if isinstance(module, nn.Linear)] for model in models]
        weights, biases = (
            [torch.stack([getattr(linear, name) for linear in layer]) for layer in zip(*linears, strict=True)]
            for name in ("weight", "bias")
        )
        normalized = biases[:-1] or biases
        self.weights = nn.ParameterList(map(self._repeat, weights))
        self.biases = nn.ParameterList(map(self._repeat, biases))
        self.scales = nn.ParameterList(self._repeat(torch.ones_like(bias)) for bias in normalized)
        self.shifts = nn.ParameterList(self._repeat(torch.zeros_like(bias)) for bias in normalized)

    def _repeat(self, per_seed: Tensor) -> Tensor:
        """Repeat ``(seeds, ...)`` for every net: ``(seeds · nets, ...)``."""
        return per_seed.detach().repeat_interleave(self.nets_per_seed, 0)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(seeds, N, ...)``, the input of all nets of a seed, to logits ``(seeds, nets, N, classes)``."""
        y = self._apply_first_layer(x.flatten(2))  # seeds · nets, N, d
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if i:
                y = torch.baddbmm(bias.unsqueeze(1), y.relu(), weight.mT)
            if i < len(self.scales):
                y = self._normalize(y) * self.scales[i].unsqueeze(1) + self.shifts[i].unsqueeze(1)
        return y.unflatten(0, (self.num_seeds, self.nets_per_seed))

    def _apply_first_layer(self, x: Tensor) -> Tensor:
        """Apply the first layers of all nets of a seed as one wide layer, since they share their input."""
        weight, bias = (p.unflatten(0, (self.num_seeds, -1)).flatten(1, 2) for p in (self.weights[0], self.biases[0]))
        y = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
        return y.unflatten(2, (self.nets_per_seed, -1)).transpose(1, 2).flatten(0, 1)

    def _normalize(self, y: Tensor) -> Tensor:
        """Apply each norm to the rows of all its nets at once; ``y`` is ``(seeds · nets, N, d)``."""
        parts = y.unflatten(0, (self.num_seeds, -1, self.copies)).unbind(1)
        outputs = [
            part if norm is None else norm(part.flatten(0, -2)).unflatten(0, part.shape[:-1])
            for norm, part in zip(self.norms, parts, strict=True)
        ]
        return torch.stack(outputs, 1).flatten(0, 2)

    def pair_with_rates(self, lrs: Sequence[float]) -> list[tuple[Tensor, Tensor]]:
        """Return every parameter with the learning rate of each net; zero for γ and β of nets without norm."""
        rates = torch.tensor(lrs, dtype=self.weights[0].dtype).repeat(len(self.norms))
        has_norm = torch.tensor([norm is not None for norm in self.norms]).repeat_interleave(self.copies)
        linear_rates, norm_rates = rates.repeat(self.num_seeds), (rates * has_norm).repeat(self.num_seeds)
        return [(parameter, linear_rates) for parameter in (*self.weights, *self.biases)] + [
            (parameter, norm_rates) for parameter in (*self.scales, *self.shifts)
        ]


def fit_side_by_side(
    models: Sequence[nn.Module],
    norms: Sequence[RowNorm | None],
    lrs: Sequence[float],
    trains: Sequence[Split],
    *,
    seeds: Sequence[int],
    steps: int,
    batch_size: int,
    points: int = 50,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Curves]:
    """Train a net for every seed, norm and learning rate with plain SGD on the cross entropy.

    Returns the curves of each seed; they have the same points as those of :func:`whitenorm_lab.fitting.fit`. A net
    whose loss is not finite has infinite points from there on and does not affect the other nets.

    Args:
        models: one perceptron without norms per seed.
        norms: the norms of the nets; None for a net without norm.
        lrs: learning rates; every norm is trained with each.
        trains: one training set per seed.
        seeds: of the order of the images.
        steps: number of SGD steps.
        batch_size: images per batch.
        points: number of points per curve.
        progress: called with the share of the steps that are done.

    Example::

        >>> train = Split(torch.randn(8, 1, 2, 2), torch.arange(8) % 2)
        >>> options = {"steps": 4, "batch_size": 2, "points": 2}
        >>> (curves,) = fit_side_by_side([nn.Linear(4, 2)], [None], [0.1, 1.0], [train], seeds=[0], **options)
        >>> curves.step, len(curves.loss), len(curves.loss[0])
        ([2, 4], 2, 2)
    """
    nets = SideBySide(models, norms, len(lrs))
    rates = nets.pair_with_rates(lrs)
    iterators = [iterate_batches(train, batch_size, seed) for train, seed in zip(trains, seeds, strict=True)]
    batches = zip(*iterators, strict=True)  # one batch per seed at a time
    means: list[Tensor] = []
    ends, previous = logging_steps(steps, points), 0
    for end in ends:
        means.append(torch.stack([_take_step(nets, rates, next(batches)) for _ in range(previous, end)]).mean(0))
        previous = end
        progress(end / steps)
    curves = _fill_after_divergence(torch.stack(means))  # points, 2, seeds, nets
    return [
        Curves(ends, loss.T.tolist(), (100 * error).T.tolist())
        for loss, error in (seed_curves.unbind(1) for seed_curves in curves.unbind(2))
    ]


def _take_step(nets: SideBySide, rates: list[tuple[Tensor, Tensor]], batch: Sequence[Split]) -> Tensor:
    """Take one step with all nets; return the losses and error rates before it, ``(2, seeds, nets)``."""
    logits = nets(torch.stack([split.images for split in batch]))
    labels = torch.stack([split.labels for split in batch]).unsqueeze(1).expand(logits.shape[:3])
    loss = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape).mean(2)
    # No net depends on another's parameters, so the gradient of the sum is the gradient of each net's loss.
    gradients = torch.autograd.grad(loss.sum(), [parameter for parameter, _ in rates])
    with torch.no_grad():
        for (parameter, rate), gradient in zip(rates, gradients, strict=True):
            parameter.addcmul_(gradient, rate.view(-1, *[1] * (parameter.dim() - 1)), value=-1)
        return torch.stack([loss, (logits.argmax(3) != labels).float().mean(2)])


def _fill_after_divergence(curves: Tensor) -> Tensor:
    """Set the points of each net to infinity from its first non-finite one on; ``(points, 2, seeds, nets)``."""
    has_diverged = (~curves.isfinite().all(1, keepdim=True)).cumsum(0) > 0
    return curves.masked_fill(has_diverged, math.inf)
