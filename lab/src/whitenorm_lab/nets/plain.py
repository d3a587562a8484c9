"""Nets of 3×3 convolutions of one width, without shortcuts."""

from __future__ import annotations

from torch import nn

from whitenorm_lab.nets.parts import Activation, conv, initialise_, relu


def s_plain(
    classes: int,
    shape: tuple[int, int, int],
    *,
    depth: int,
    width: int = 48,
    activation: Activation = relu,
    bias: bool = False,
) -> nn.Sequential:
    """S-plain (DBN, fig. 6): a CIFAR ResNet of this depth without identity maps, with the same width everywhere.

    Three stages of (depth - 2) / 3 convolutions, the second and third at half the resolution of the one before.

    Example::

        >>> sum(isinstance(layer, nn.Conv2d) for layer in s_plain(10, (3, 32, 32), depth=20))
        19
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"expected a depth of 6n + 2, such as 20, 32 or 44 (got {depth})")
    stage = (depth - 2) // 3
    strides = [1] + [2 if i in (stage, 2 * stage) else 1 for i in range(3 * stage)]
    return _stack(classes, shape[0], strides, width, activation, bias)


def cnn(
    classes: int,
    shape: tuple[int, int, int],
    *,
    depth: int,
    width: int = 16,
    activation: Activation = relu,
    bias: bool = False,
) -> nn.Sequential:
    """As many convolutions as the depth says, at full resolution (GW, appendix E).

    Example::

        >>> cnn(10, (3, 32, 32), depth=1)[0]
        Conv2d(3, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    return _stack(classes, shape[0], [1] * depth, width, activation, bias)


def _stack(
    classes: int, inputs: int, strides: list[int], width: int, activation: Activation, bias: bool
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, stride in enumerate(strides):
        layers += [conv(width if i else inputs, width, stride, bias=bias), nn.BatchNorm2d(width), activation(width)]
    return initialise_(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)))  # type: ignore[return-value]
