"""Perceptrons that differ in norm and learning rate alone, trained side by side: a layer of all of them is one product.

A step of one small net is mostly time between small products. Nets of one size that begin with the same weights and see
the same batches take theirs together, each with gradients and steps of its own: every one of them gets to where
:func:`whitenorm.lab.fitting.fit` would have taken it alone, but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm.lab.data import Split
from whitenorm.lab.fitting import batches, ends

Rows = Callable[[Tensor], Tensor]
"""A norm of ``(N, d)`` that takes each row by itself, without γ and β: the rows may be of several nets."""


class Curves(NamedTuple):
    """Of every net, in the order norm by norm and within it rate by rate."""

    step: list[int]
    loss: list[list[float]]
    error: list[list[float]]
    """In percent."""


class SideBySide(nn.Module):
    """Nets with the weights of one, each norm as often as there are learning rates.

    The norm, with γ and β, stands after every linear layer but the classifier, and after the classifier where it is the
    only one.

    Args:
        model: a perceptron without norms, whose linear layers have ReLUs between them.
        norms: of the nets; None is a net without one.
        copies: of each norm, which follow each other.

    Example::

        >>> nets = SideBySide(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), [None, torch.tanh], copies=3)
        >>> nets(torch.randn(5, 4)).shape
        torch.Size([6, 5, 2])
    """

    def __init__(self, model: nn.Module, norms: Sequence[Rows | None], copies: int) -> None:
        super().__init__()
        self.norms = norms
        self.copies = copies
        self.count = len(norms) * copies
        layers = [part for part in model.modules() if isinstance(part, nn.Linear)]
        normalised = layers[:-1] or layers
        self.weights = nn.ParameterList(self._each(layer.weight) for layer in layers)
        self.biases = nn.ParameterList(self._each(layer.bias) for layer in layers)
        self.scales = nn.ParameterList(self._each(torch.ones_like(layer.bias)) for layer in normalised)
        self.shifts = nn.ParameterList(self._each(torch.zeros_like(layer.bias)) for layer in normalised)

    def _each(self, one: Tensor) -> Tensor:
        return one.detach().repeat(self.count, *[1] * one.dim())

    def forward(self, x: Tensor) -> Tensor:
        """``(N, ...)``, the same for all nets, to logits ``(nets, N, classes)``."""
        y = self._first(x.flatten(1))
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if number:
                y = torch.baddbmm(bias.unsqueeze(1), y.relu(), weight.mT)
            if number < len(self.scales):
                y = self._normalised(y) * self.scales[number].unsqueeze(1) + self.shifts[number].unsqueeze(1)
        return y

    def _first(self, x: Tensor) -> Tensor:
        """The layer whose input all nets share: as one layer of all their units."""
        y = F.linear(x, self.weights[0].flatten(0, 1), self.biases[0].flatten())
        return y.unflatten(1, (self.count, -1)).transpose(0, 1)

    def _normalised(self, y: Tensor) -> Tensor:
        parts = zip(self.norms, y.split(self.copies), strict=True)
        return torch.cat([part if norm is None else _by_rows(norm, part) for norm, part in parts])

    def rates(self, lrs: Sequence[float]) -> list[tuple[Tensor, Tensor]]:
        """Every parameter with the rates of its nets; the γ and β of nets without norm stay as they are."""
        each = torch.tensor(lrs).repeat(len(self.norms))
        normed = each * torch.tensor([norm is not None for norm in self.norms]).repeat_interleave(self.copies)
        return [(parameter, each) for parameter in (*self.weights, *self.biases)] + [
            (parameter, normed) for parameter in (*self.scales, *self.shifts)
        ]


def _by_rows(norm: Rows, y: Tensor) -> Tensor:
    return norm(y.flatten(0, 1)).unflatten(0, y.shape[:2])


def fit_side_by_side(
    model: nn.Module,
    norms: Sequence[Rows | None],
    lrs: Sequence[float],
    train: Split,
    *,
    steps: int,
    batch_size: int,
    seed: int = 0,
    points: int = 50,
    progress: Callable[[float], None] = lambda share: None,
) -> Curves:
    """Plain SGD on the cross entropy of a net for every norm and learning rate; curves as those of ``fit``.

    A point is the mean over the steps since the last one; a net whose loss is not finite has infinity from there on,
    which the others take no notice of.

    Example::

        >>> train = Split(torch.randn(8, 1, 2, 2), torch.arange(8) % 2)
        >>> curves = fit_side_by_side(nn.Linear(4, 2), [None], [0.1, 1.0], train, steps=4, batch_size=2, points=2)
        >>> curves.step, len(curves.loss), len(curves.loss[0])
        ([2, 4], 2, 2)
    """
    nets = SideBySide(model, norms, len(lrs))
    rates = nets.rates(lrs)
    drawn = batches(train, batch_size, seed)
    found: list[Tensor] = []
    last = 0
    for end in ends(steps, points):
        since = torch.stack([_step(nets, rates, next(drawn)) for _ in range(last, end)])
        found.append(since.mean(0))
        last = end
        progress(end / steps)
    loss, error = _until_lost(torch.stack(found)).unbind(1)
    return Curves(ends(steps, points), loss.T.tolist(), (100 * error).T.tolist())


def _step(nets: SideBySide, rates: list[tuple[Tensor, Tensor]], batch: Split) -> Tensor:
    """One step of all; ``(2, nets)``, the loss before it and the share of images that were named wrongly."""
    logits = nets(batch.images)
    labels = batch.labels.expand(nets.count, -1)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels).mean(1)
    # The gradient of a sum is each net's own.
    gradients = torch.autograd.grad(loss.sum(), [parameter for parameter, _ in rates])
    with torch.no_grad():
        for (parameter, rate), gradient in zip(rates, gradients, strict=True):
            parameter.addcmul_(gradient, rate.view(-1, *[1] * (parameter.dim() - 1)), value=-1)
        return torch.stack([loss, (logits.argmax(2) != labels).float().mean(1)])


def _until_lost(curves: Tensor) -> Tensor:
    """``(points, 2, nets)``, with infinity from the first point of a net that is not finite."""
    lost = (~curves.isfinite().all(1, keepdim=True)).cumsum(0) > 0
    return curves.masked_fill(lost, math.inf)
