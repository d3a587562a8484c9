"""What the nets have in common: convolutions, activations, and the weights they begin with."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

Activation = Callable[[int], nn.Module]
"""From the number of channels to an activation function."""


class TReLU(nn.Module):
    r"""The translated ReLU, max(x, α), with an α a channel that is learnt: what is left of β where a ReLU follows.

    DBN, sec. 3.3, merges the learnable parameters into it. α begins at zero, as a ReLU.

    Example::

        >>> activation = TReLU(2)
        >>> activation.threshold.data = torch.tensor([-1.0, 0.5])
        >>> activation(torch.tensor([[-2.0, 2.0]]))
        tensor([[-1.,  2.]], grad_fn=...)
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(x, self.threshold.view(-1, *[1] * (x.dim() - 2)))


def relu(channels: int) -> nn.Module:
    """A ReLU, for any number of channels."""
    return nn.ReLU()


def conv(inputs: int, outputs: int, stride: int = 1, *, size: int = 3, bias: bool = False) -> nn.Conv2d:
    """A convolution that keeps the resolution, but for its stride. The norm after it has the bias."""
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias)


def lecun_(model: nn.Module) -> nn.Module:
    """LeCun's weights for convolutions and linear layers, as DBN's text says, and biases of zero.

    Uniform, with mean 0 and deviation m^(-1/2), m the number of inputs of a unit (LeCun et al., Efficient BackProp).

    Example::

        >>> round(float(lecun_(nn.Linear(400, 1000)).weight.detach().std()), 2)
        0.05
    """
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)):
            bound = math.sqrt(3 / module.weight[0].numel())
            nn.init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def initialise_(model: nn.Module) -> nn.Module:
    """He's normal weights for convolutions, from the fan out, as in the residual networks' own code."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model
