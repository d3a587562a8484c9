"""Multilayer perceptrons: linear layer, norm, activation, as often as there are hidden widths, and a classifier."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from whitenorm_lab.nets.parts import Activation, relu


def mlp(
    classes: int,
    shape: tuple[int, int, int],
    *,
    hidden: Sequence[int],
    norm: Callable[[int], nn.Module] = nn.BatchNorm1d,
    activation: Activation = relu,
) -> nn.Sequential:
    """Images ``(N, C, H, W)`` as vectors, through hidden layers of these widths.

    The papers count the classifier as a layer: "a 5-layer MLP with {128, 64, 48, 48}".

    Example::

        >>> [type(layer).__name__ for layer in mlp(10, (1, 28, 28), hidden=[100])]
        ['Flatten', 'Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = math.prod(shape)
    for width in hidden:
        layers += [nn.Linear(inputs, width), norm(width), activation(width)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))
