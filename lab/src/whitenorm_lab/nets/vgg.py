"""VGG nets for images of 32²."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from whitenorm_lab.nets.parts import Activation, conv, initialise_, relu

# Channels of the convolutions; 0 halves the resolution.
VGG_A = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)
# IterNorm's supplement, table 2: sixteen convolutions, and the last pooling takes the average.
VGG_16CONV = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512)


def vgg(
    classes: int,
    shape: tuple[int, int, int],
    *,
    plan: Sequence[int],
    width: int = 64,
    activation: Activation = relu,
    norm_last: bool = False,
    bias: bool = False,
) -> nn.Sequential:
    """3×3 convolutions with norms, halved between, the mean over what positions are left, and a linear classifier.

    Args:
        classes: of the classifier.
        shape: of an image, ``(C, H, W)``.
        plan: :data:`VGG_A` (DBN, fig. 5) or :data:`VGG_16CONV` (IterNorm, fig. 6 and 7).
        width: of the first convolution; the others keep their ratio to it.
        activation: from a width; ELU for DBN's fig. 5c.
        norm_last: the norm after the activation (DBN, fig. 5d).
        bias: of the convolutions, where no norm follows that has one.

    Example::

        >>> sum(isinstance(layer, nn.Conv2d) for layer in vgg(10, (3, 32, 32), plan=VGG_16CONV))
        16
    """
    layers: list[nn.Module] = []
    inputs = shape[0]
    for channels in plan:
        if channels == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        outputs = channels * width // 64
        pair = [nn.BatchNorm2d(outputs), activation(outputs)]
        layers += [conv(inputs, outputs, bias=bias), *(reversed(pair) if norm_last else pair)]
        inputs = outputs
    return initialise_(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)))  # type: ignore[return-value]
