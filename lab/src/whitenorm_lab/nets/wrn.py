"""Wide residual nets for CIFAR: norm and activation before each convolution."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from whitenorm_lab.nets.parts import Activation, conv, initialise_, relu


class PreactivationBlock(nn.Module):
    """Norm, activation, convolution, twice, with dropout between.

    Where the shape changes, the shortcut is a 1×1 convolution of what comes after the first norm and activation, which
    so stand before the whole block.
    """

    def __init__(
        self, inputs: int, width: int, stride: int, activation: Activation, dropout: float, bias: bool
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, width, stride, bias=bias)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, bias=bias)
        self.activation1, self.activation2 = activation(inputs), activation(width)
        self.dropout = nn.Dropout(dropout)
        self.changes_shape = inputs != width or stride != 1
        shortcut = [conv(inputs, width, stride, size=1, bias=bias)] if self.changes_shape else []
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation1(self.norm1(x))
        x = self.shortcut(y if self.changes_shape else x)
        y = self.dropout(self.activation2(self.norm2(self.conv1(y))))
        return x + self.conv2(y)


class WideResNet(nn.Module):
    """WRN-d-k: depth d = 6n + 4, three stages of n blocks with 16k, 32k and 64k channels.

    Example::

        >>> with torch.device("meta"):
        ...     net = WideResNet(10, (3, 32, 32), depth=28, width=10)
        >>> sum(parameter.numel() for parameter in net.parameters())
        36479194
    """

    def __init__(
        self,
        classes: int,
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
        inputs = 16
        for stage in range(3):
            outputs = 16 * width * 2**stage
            for block in range((depth - 4) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(PreactivationBlock(inputs, outputs, stride, activation, dropout, bias))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.activation = activation(inputs)
        self.classifier = nn.Linear(inputs, classes)
        initialise_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm(self.blocks(self.conv(x))))
        return self.classifier(torch.mean(x, (2, 3)))
