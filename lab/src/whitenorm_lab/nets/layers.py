"""Layers and weight initializations shared by the networks."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

Activation = Callable[[int], nn.Module]
"""A function from the number of channels to an activation module."""


class TReLU(nn.Module):
    r"""Translated ReLU, max(x, α), with one learnable threshold α per channel (DBN, sec. 3.3).

    It takes the place of a norm's learnable scale and shift where a ReLU follows. α is 0 at first, as in a ReLU.

    Example::

        >>> activation = TReLU(2)
        >>> activation.threshold.data = torch.tensor([-1.0, 0.5])
        >>> activation(torch.tensor([[-2.0, 2.0]]))
        tensor([[-1.,  2.]], grad_fn=...)
    """

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(num_channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, self.threshold.view(-1, *[1] * (x.dim() - 2)))


def relu(num_channels: int) -> nn.Module:
    """Return a ReLU; a default of type :data:`Activation`."""
    return nn.ReLU()


def conv(in_channels: int, out_channels: int, stride: int = 1, *, size: int = 3, bias: bool = False) -> nn.Conv2d:
    """Return a convolution padded to keep the resolution, apart from its stride.

    It has no bias by default, because the norm after it has one.
    """
    return nn.Conv2d(in_channels, out_channels, size, stride, size // 2, bias=bias)


def init_lecun_(model: nn.Module) -> nn.Module:
    """Initialize convolutions and linear layers as DBN's text says, with biases of zero, and return the model.

    Weights are uniform with mean 0 and standard deviation m^(-1/2), where m is a unit's number of inputs (LeCun et al.,
    Efficient BackProp).

    Example::

        >>> round(float(init_lecun_(nn.Linear(400, 1000)).weight.detach().std()), 2)
        0.05
    """
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)):
            bound = math.sqrt(3 / module.weight[0].numel())
            nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def init_he_(model: nn.Module) -> nn.Module:
    """Initialize convolutions by He's normal distribution of the fan-out, as in the ResNet code; return the model."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
