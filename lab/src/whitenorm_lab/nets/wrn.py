"""Wide ResNets for CIFAR, with norm and activation before each convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whitenorm_lab.nets.layers import Activation, conv, init_he_, relu


class PreactivationBlock(nn.Module):
    """Norm, activation and convolution, twice, with dropout between, and a shortcut.

    Where the shape changes, the shortcut is a 1×1 convolution of the first activation's output.
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, activation: Activation, dropout: float, bias: bool
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv(in_channels, width, stride, bias=bias)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, bias=bias)
        self.activation1, self.activation2 = activation(in_channels), activation(width)
        self.dropout = nn.Dropout(dropout)
        self.changes_shape = in_channels != width or stride != 1
        shortcut = [conv(in_channels, width, stride, size=1, bias=bias)] if self.changes_shape else []
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation1(self.norm1(x))
        x = self.shortcut(y if self.changes_shape else x)
        y = self.dropout(self.activation2(self.norm2(self.conv1(y))))
        return x + self.conv2(y)


class WideResNet(nn.Module):
    """WRN-d-k: depth d = 6n + 4, in three stages of n blocks with 16k, 32k and 64k channels.

    Example::

        >>> with torch.device("meta"):
        ...     net = WideResNet(10, (3, 32, 32), depth=28, width=10)
        >>> sum(parameter.numel() for parameter in net.parameters())
        36479194
    """

    def __init__(
        self,
        num_classes: int,
        shape: tuple[int, int, int],
        *,
        depth: int,
        width: int,
        activation: Activation = relu,
        dropout: float = 0.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"expected a depth of 6n + 4, such as 16, 28 or 40 (got {depth})")
        self.conv = conv(shape[0], 16, bias=bias)
        blocks = []
        in_channels = 16
        for stage in range(3):
            out_channels = 16 * width * 2**stage
            for i in range((depth - 4) // 6):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(PreactivationBlock(in_channels, out_channels, stride, activation, dropout, bias))
                in_channels = out_channels
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(in_channels)
        self.activation = activation(in_channels)
        self.classifier = nn.Linear(in_channels, num_classes)
        init_he_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm(self.blocks(self.conv(x))))
        return self.classifier(torch.mean(x, (2, 3)))
