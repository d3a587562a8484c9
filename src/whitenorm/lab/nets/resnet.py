"""Residual nets for CIFAR: ResNet-20, 32, 44, 56, …, with shortcuts that have no parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm.lab.nets.parts import Activation, conv, initialise_, relu


class BasicBlock(nn.Module):
    """Two convolutions, each with a norm, and a shortcut.

    Where the resolution halves, the shortcut takes every second pixel and adds channels of zeros (option A).
    """

    def __init__(self, inputs: int, width: int, stride: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        self.conv1 = conv(inputs, width, stride, bias=bias)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, bias=bias)
        self.norm2 = nn.BatchNorm2d(width)
        self.activation1, self.activation2 = activation(width), activation(width)
        self.stride = stride
        self.added = width - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation1(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.stride > 1 or self.added:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return self.activation2(y + x)


class ResNet(nn.Module):
    """Norms in the order of registration: 1 is the stem's, 2n and 2n + 1 those of block n.

    Example::

        >>> net = ResNet(10, (3, 32, 32), depth=20)
        >>> sum(parameter.numel() for parameter in net.parameters())
        269722
    """

    def __init__(
        self,
        classes: int,
        shape: tuple[int, int, int],
        *,
        depth: int,
        width: int = 16,
        activation: Activation = relu,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"expected a depth of 6n + 2, such as 20, 32, 44 or 56 (got {depth})")
        self.conv = conv(shape[0], width, bias=bias)
        self.norm = nn.BatchNorm2d(width)
        self.activation = activation(width)
        blocks = []
        inputs = width
        for stage in range(3):
            for block in range((depth - 2) // 6):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(BasicBlock(inputs, width * 2**stage, stride, activation, bias))
                inputs = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, classes)
        initialise_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.norm(self.conv(x))))
        return self.classifier(torch.mean(x, (2, 3)))
