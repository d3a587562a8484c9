"""Perceptrons of one size, trained side by side: a layer of all of them is one product.

A step of one small net is mostly time between small products. Nets of several norms and learning rates, which begin
with the same weights and see the same batches, and those of several seeds, which do not, take theirs together, each
with gradients and steps of its own: every one of them gets to where :func:`whitenorm_lab.fitting.fit` would have taken
it alone, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab.data import Split
from whitenorm_lab.fitting import batches, ends

Rows = Callable[[Tensor], Tensor]
"""A norm of ``(N, d)`` that takes each row by itself, without γ and β: the rows may be of several nets."""


class Curves(NamedTuple):
    """Of every net of a seed, in the order norm by norm and within it rate by rate."""

    step: list[int]
    loss: list[list[float]]
    error: list[list[float]]
    """In percent."""


class SideBySide(nn.Module):
    """For every seed, nets with the weights of one, each norm as often as there are learning rates.

    The norm, with γ and β, stands after every linear layer but the classifier, and after the classifier where it is the
    only one. Nets are in the order seed by seed, within it norm by norm.

    Args:
        models: a perceptron without norms for each seed, whose linear layers have ReLUs between them.
        norms: of the nets; None is a net without one.
        copies: of each norm, which follow each other.

    Example::

        >>> models = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)) for seed in range(5)]
        >>> nets = SideBySide(models, [None, torch.tanh], copies=3)
        >>> nets(torch.randn(5, 16, 4)).shape
        torch.Size([5, 6, 16, 2])
    """

    def __init__(self, models: Sequence[nn.Module], norms: Sequence[Rows | None], copies: int) -> None:
        super().__init__()
        self.norms = norms
        self.copies = copies
        self.seeds, self.count = len(models), len(norms) * copies
        each = [[part for part in model.modules() if isinstance(part, nn.Linear)] for model in models]
        layers = list(zip(*each, strict=True))
        weights, biases = ([torch.stack([getattr(one, name) for one in layer]) for layer in layers] for name in _LINEAR)
        normalised = biases[:-1] or biases
        self.weights = nn.ParameterList(map(self._each, weights))
        self.biases = nn.ParameterList(map(self._each, biases))
        self.scales = nn.ParameterList(self._each(torch.ones_like(bias)) for bias in normalised)
        self.shifts = nn.ParameterList(self._each(torch.zeros_like(bias)) for bias in normalised)

    def _each(self, ones: Tensor) -> Tensor:
        """What each seed has one of, for every net."""
        return ones.detach().repeat_interleave(self.count, 0)

    def forward(self, x: Tensor) -> Tensor:
        """``(seeds, N, ...)``, the same for all nets of a seed, to logits ``(seeds, nets, N, classes)``."""
        y = self._first(x.flatten(2))
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if number:
                y = torch.baddbmm(bias.unsqueeze(1), y.relu(), weight.mT)
            if number < len(self.scales):
                y = self._normalised(y) * self.scales[number].unsqueeze(1) + self.shifts[number].unsqueeze(1)
        return y.unflatten(0, (self.seeds, self.count))

    def _first(self, x: Tensor) -> Tensor:
        """The layer whose input all nets of a seed share: as one layer of all their units."""
        weight, bias = (one.unflatten(0, (self.seeds, -1)).flatten(1, 2) for one in (self.weights[0], self.biases[0]))
        y = torch.baddbmm(bias.unsqueeze(1), x, weight.mT)
        return y.unflatten(2, (self.count, -1)).transpose(1, 2).flatten(0, 1)

    def _normalised(self, y: Tensor) -> Tensor:
        """Of ``(seeds · nets, N, d)``, all nets of a norm at once."""
        parts = zip(self.norms, y.unflatten(0, (self.seeds, -1, self.copies)).unbind(1), strict=True)
        return torch.stack([part if norm is None else _by_rows(norm, part) for norm, part in parts], 1).flatten(0, 2)

    def rates(self, lrs: Sequence[float]) -> list[tuple[Tensor, Tensor]]:
        """Every parameter with the rates of its nets; the γ and β of nets without norm stay as they are."""
        each = torch.tensor(lrs, dtype=self.weights[0].dtype).repeat(len(self.norms))
        normed = each * torch.tensor([norm is not None for norm in self.norms]).repeat_interleave(self.copies)
        each, normed = (rates.repeat(self.seeds) for rates in (each, normed))
        return [(parameter, each) for parameter in (*self.weights, *self.biases)] + [
            (parameter, normed) for parameter in (*self.scales, *self.shifts)
        ]


_LINEAR = ("weight", "bias")


def _by_rows(norm: Rows, y: Tensor) -> Tensor:
    return norm(y.flatten(0, -2)).unflatten(0, y.shape[:-1])


def fit_side_by_side(
    models: Sequence[nn.Module],
    norms: Sequence[Rows | None],
    lrs: Sequence[float],
    trains: Sequence[Split],
    *,
    seeds: Sequence[int],
    steps: int,
    batch_size: int,
    points: int = 50,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Curves]:
    """Plain SGD on the cross entropy of a net for every seed, norm and learning rate; curves as those of ``fit``.

    Each seed has a model, a set, and batches of its own, which all its nets see. A point is the mean over the steps
    since the last one; a net whose loss is not finite has infinity from there on, which the others take no notice of.

    Example::

        >>> train = Split(torch.randn(8, 1, 2, 2), torch.arange(8) % 2)
        >>> options = {"steps": 4, "batch_size": 2, "points": 2}
        >>> (curves,) = fit_side_by_side([nn.Linear(4, 2)], [None], [0.1, 1.0], [train], seeds=[0], **options)
        >>> curves.step, len(curves.loss), len(curves.loss[0])
        ([2, 4], 2, 2)
    """
    nets = SideBySide(models, norms, len(lrs))
    rates = nets.rates(lrs)
    drawn = zip(*(batches(train, batch_size, seed) for train, seed in zip(trains, seeds, strict=True)), strict=True)
    found: list[Tensor] = []
    last = 0
    for end in ends(steps, points):
        since = torch.stack([_step(nets, rates, next(drawn)) for _ in range(last, end)])
        found.append(since.mean(0))
        last = end
        progress(end / steps)
    each = _until_lost(torch.stack(found)).unbind(2)  # a seed: points, 2, nets
    return [
        Curves(ends(steps, points), loss.T.tolist(), (100 * error).T.tolist())
        for loss, error in (curves.unbind(1) for curves in each)
    ]


def _step(nets: SideBySide, rates: list[tuple[Tensor, Tensor]], batch: Sequence[Split]) -> Tensor:
    """One step of all; ``(2, seeds, nets)``, the loss before it and the share of images that were named wrongly."""
    logits = nets(torch.stack([split.images for split in batch]))
    labels = torch.stack([split.labels for split in batch]).unsqueeze(1).expand(logits.shape[:3])
    loss = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view(labels.shape).mean(2)
    # The gradient of a sum is each net's own.
    gradients = torch.autograd.grad(loss.sum(), [parameter for parameter, _ in rates])
    with torch.no_grad():
        for (parameter, rate), gradient in zip(rates, gradients, strict=True):
            parameter.addcmul_(gradient, rate.view(-1, *[1] * (parameter.dim() - 1)), value=-1)
        return torch.stack([loss, (logits.argmax(3) != labels).float().mean(2)])


def _until_lost(curves: Tensor) -> Tensor:
    """``(points, 2, seeds, nets)``, with infinity from the first point of a net that is not finite."""
    lost = (~curves.isfinite().all(1, keepdim=True)).cumsum(0) > 0
    return curves.masked_fill(lost, math.inf)
