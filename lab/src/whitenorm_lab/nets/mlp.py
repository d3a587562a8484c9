"""Multilayer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import nn

from whitenorm_lab.nets.layers import Activation, relu


def mlp(
    num_classes: int,
    shape: tuple[int, int, int],
    *,
    hidden: Sequence[int],
    norm: Callable[[int], nn.Module] = nn.BatchNorm1d,
    activation: Activation = relu,
) -> nn.Sequential:
    """Build a perceptron on flattened images, with linear layer, norm and activation per hidden width.

    The papers count the classifier as a layer: "a 5-layer MLP with {128, 64, 48, 48}".

    Args:
        num_classes: number of classes.
        shape: image shape, ``(C, H, W)``.
        hidden: widths of the hidden layers; a linear classifier if empty.
        norm: function from the number of features to the norm.
        activation: function from the number of features to the activation.

    Example::

        >>> [type(layer).__name__ for layer in mlp(10, (1, 28, 28), hidden=[100])]
        ['Flatten', 'Linear', 'BatchNorm1d', 'ReLU', 'Linear']
    """
    layers: list[nn.Module] = [nn.Flatten()]
    in_features = math.prod(shape)
    for width in hidden:
        layers += [nn.Linear(in_features, width), norm(width), activation(width)]
        in_features = width
    return nn.Sequential(*layers, nn.Linear(in_features, num_classes))
