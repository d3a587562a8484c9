"""Residual nets for CIFAR: ResNet-20, 32, 44, 56, …, and with bottlenecks 29, 47, …; shortcuts have no parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab.nets.parts import Activation, conv, initialise_, relu


def shortcut(x: Tensor, stride: int, added: int) -> Tensor:
    """The input as the block's output has it: every so many pixels, and channels of zeros added (option A)."""
    if stride == 1 and not added:
        return x
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, added))


class BasicBlock(nn.Module):
    """Two convolutions, each with a norm, and a shortcut."""

    convolutions, expansion = 2, 1

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
        return self.activation2(y + shortcut(x, self.stride, self.added))


class Bottleneck(nn.Module):
    """Three convolutions, 1×1, 3×3 and 1×1 to four times the width, each with a norm, and a shortcut."""

    convolutions, expansion = 3, 4

    def __init__(self, inputs: int, width: int, stride: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = conv(inputs, width, size=1, bias=bias)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, stride, bias=bias)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, outputs, size=1, bias=bias)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.activation1, self.activation2 = activation(width), activation(width)
        self.activation3 = activation(outputs)
        self.stride = stride
        self.added = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation1(self.norm1(self.conv1(x)))
        y = self.activation2(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return self.activation3(y + shortcut(x, self.stride, self.added))


class ResNet(nn.Module):
    """Norms in the order of registration: 1 is the stem's, of basic blocks 2n and 2n + 1 are those of block n.

    Example::

        >>> net = ResNet(10, (3, 32, 32), depth=20)
        >>> sum(parameter.numel() for parameter in net.parameters())
        269722
        >>> net = ResNet(10, (3, 32, 32), depth=29, block=Bottleneck)
        >>> len(net.blocks), net.classifier.in_features
        (9, 256)
    """

    def __init__(
        self,
        classes: int,
        shape: tuple[int, int, int],
        *,
        depth: int,
        block: type[BasicBlock] | type[Bottleneck] = BasicBlock,
        width: int = 16,
        activation: Activation = relu,
        bias: bool = False,
    ) -> None:
        super().__init__()
        layers = 3 * block.convolutions
        if depth < layers + 2 or (depth - 2) % layers:
            known = ", ".join(str(layers * count + 2) for count in (3, 5, 7))
            raise ValueError(f"expected a depth of {layers}n + 2, such as {known} (got {depth})")
        self.conv = conv(shape[0], width, bias=bias)
        self.norm = nn.BatchNorm2d(width)
        self.activation = activation(width)
        blocks: list[nn.Module] = []
        inputs = width
        for stage in range(3):
            for number in range((depth - 2) // layers):
                stride = 2 if stage > 0 and number == 0 else 1
                blocks.append(block(inputs, width * 2**stage, stride, activation, bias))
                inputs = width * 2**stage * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, classes)
        initialise_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.norm(self.conv(x))))
        return self.classifier(torch.mean(x, (2, 3)))
