"""Stacks of 3×3 convolutions without shortcuts: VGG, S-plain and GW's CNN."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from whitenorm_lab.nets.layers import Activation, conv, init_he_, relu

# Channels of each convolution; 0 is a max pooling that halves the resolution.
VGG_A = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
# IterNorm's supplement, table 2: sixteen convolutions, with average instead of max pooling at the end.
VGG_16CONV = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512)


def vgg(
    num_classes: int,
    shape: tuple[int, int, int],
    *,
    plan: Sequence[int],
    width: int = 64,
    activation: Activation = relu,
    norm_last: bool = False,
    bias: bool = False,
) -> nn.Sequential:
    """Build a VGG net for 32×32 images: convolutions with norms, global average pooling and a linear classifier.

    Args:
        num_classes: number of classes.
        shape: image shape, ``(C, H, W)``.
        plan: :data:`VGG_A` (DBN, fig. 5) or :data:`VGG_16CONV` (IterNorm, fig. 6 and 7).
        width: channels of the first convolution; the other widths scale with it.
        activation: function from the number of channels to the activation; ELU in DBN's fig. 5c.
        norm_last: place the norm after the activation (DBN, fig. 5d).
        bias: give the convolutions a bias, for nets without norms.

    Example::

        >>> sum(isinstance(layer, nn.Conv2d) for layer in vgg(10, (3, 32, 32), plan=VGG_16CONV))
        16
    """
    layers: list[nn.Module] = []
    in_channels = shape[0]
    for channels in plan:
        if channels == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        out_channels = channels * width // 64
        norm_and_activation = [nn.BatchNorm2d(out_channels), activation(out_channels)]
        layers.append(conv(in_channels, out_channels, bias=bias))
        layers += reversed(norm_and_activation) if norm_last else norm_and_activation
        in_channels = out_channels
    return _add_classifier(layers, in_channels, num_classes)


def s_plain(
    num_classes: int,
    shape: tuple[int, int, int],
    *,
    depth: int,
    width: int = 48,
    activation: Activation = relu,
    bias: bool = False,
) -> nn.Sequential:
    """Build S-plain (DBN, fig. 6): a CIFAR ResNet of this depth without shortcuts and of constant width.

    It has three stages of (depth - 2) / 3 convolutions; the second and third begin with a stride of 2.

    Example::

        >>> sum(isinstance(layer, nn.Conv2d) for layer in s_plain(10, (3, 32, 32), depth=20))
        19
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"expected a depth of 6n + 2, such as 20, 32 or 44 (got {depth})")
    stage = (depth - 2) // 3
    strides = [1] + [2 if i in (stage, 2 * stage) else 1 for i in range(3 * stage)]
    return _stack_convolutions(num_classes, shape[0], strides, width, activation, bias)


def cnn(
    num_classes: int,
    shape: tuple[int, int, int],
    *,
    depth: int,
    width: int = 16,
    activation: Activation = relu,
    bias: bool = False,
) -> nn.Sequential:
    """Build a CNN of ``depth`` convolutions at full resolution (GW, appendix E).

    Example::

        >>> cnn(10, (3, 32, 32), depth=1)[0]
        Conv2d(3, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)
    """
    return _stack_convolutions(num_classes, shape[0], [1] * depth, width, activation, bias)


def _stack_convolutions(
    num_classes: int, in_channels: int, strides: list[int], width: int, activation: Activation, bias: bool
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, stride in enumerate(strides):
        convolution = conv(width if i else in_channels, width, stride, bias=bias)
        layers += [convolution, nn.BatchNorm2d(width), activation(width)]
    return _add_classifier(layers, width, num_classes)


def _add_classifier(layers: list[nn.Module], in_features: int, num_classes: int) -> nn.Sequential:
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(in_features, num_classes))
    init_he_(model)
    return model
