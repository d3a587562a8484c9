"""ResNets for CIFAR, with basic blocks or bottlenecks and shortcuts without parameters."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab.nets.layers import Activation, conv, init_he_, relu


def shortcut(x: Tensor, stride: int, added_channels: int) -> Tensor:
    """Subsample the input and append channels of zeros, to match a block's output (option A of the ResNet paper)."""
    if stride == 1 and not added_channels:
        return x
    return F.pad(x[:, :, ::stride, ::stride], (0, 0, 0, 0, 0, added_channels))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with norms, and a shortcut."""

    convolutions, expansion = 2, 1

    def __init__(self, in_channels: int, width: int, stride: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        self.conv1 = conv(in_channels, width, stride, bias=bias)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, bias=bias)
        self.norm2 = nn.BatchNorm2d(width)
        self.activation1, self.activation2 = activation(width), activation(width)
        self.stride = stride
        self.added_channels = width - in_channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation1(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return self.activation2(y + shortcut(x, self.stride, self.added_channels))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions with norms, the last to four times the width, and a shortcut."""

    convolutions, expansion = 3, 4

    def __init__(self, in_channels: int, width: int, stride: int, activation: Activation, bias: bool) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = conv(in_channels, width, size=1, bias=bias)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, stride, bias=bias)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, out_channels, size=1, bias=bias)
        self.norm3 = nn.BatchNorm2d(out_channels)
        self.activation1, self.activation2 = activation(width), activation(width)
        self.activation3 = activation(out_channels)
        self.stride = stride
        self.added_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.activation1(self.norm1(self.conv1(x)))
        y = self.activation2(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return self.activation3(y + shortcut(x, self.stride, self.added_channels))


class ResNet(nn.Module):
    """CIFAR ResNet of depth 6n + 2 with basic blocks (20, 32, 44, …) or 9n + 2 with bottlenecks (29, 47, …).

    The norms are registered in the order they run in: norm 1 is the stem's, and norms 2n and 2n + 1 belong to the n-th
    basic block.

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
        num_classes: int,
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
            examples = ", ".join(str(layers * n + 2) for n in (3, 5, 7))
            raise ValueError(f"expected a depth of {layers}n + 2, such as {examples} (got {depth})")
        self.conv = conv(shape[0], width, bias=bias)
        self.norm = nn.BatchNorm2d(width)
        self.activation = activation(width)
        blocks: list[nn.Module] = []
        in_channels = width
        for stage in range(3):
            for i in range((depth - 2) // layers):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(block(in_channels, width * 2**stage, stride, activation, bias))
                in_channels = width * 2**stage * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(in_channels, num_classes)
        init_he_(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.activation(self.norm(self.conv(x))))
        return self.classifier(torch.mean(x, (2, 3)))
