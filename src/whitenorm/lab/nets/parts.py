"""What the nets have in common: convolution, norm, activation."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Activation = Callable[[], nn.Module]


def conv(inputs: int, outputs: int, stride: int = 1, *, size: int = 3, bias: bool = False) -> nn.Conv2d:
    """A convolution that keeps the resolution, but for its stride. The norm after it has the bias."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias)


def initialise_(model: nn.Module) -> nn.Module:
    """He's normal weights for convolutions, from the fan out, as in the residual networks' own code."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
