"""The net that paints: the feed-forward transformer net of the perceptual-loss recipe, for images of any size."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

# Two convolutions of stride 2: what is painted has sides of this multiple, before the margin is cut off.
_STRIDE = 4
SMALLEST = 16
"""The shortest side that the net takes: reflected margins, and instance statistics, need some pixels."""


class TransformerNet(nn.Module):
    r"""An image in, the same image in another style out.

    `Perceptual Losses for Real-Time Style Transfer and Super-Resolution <https://arxiv.org/abs/1603.08155>`_, with what
    users of the recipe have settled on: reflected margins in place of zeros, and a nearest resize with a convolution in
    place of a transposed convolution, which leaves a checkerboard. With width w:

    .. math:: 9{\times}9, w \to 3{\times}3/2, 2w \to 3{\times}3/2, 4w \to \text{residual blocks}, 4w
              \to {\times}2, 2w \to {\times}2, w \to 9{\times}9, 3

    Every convolution but the last has a norm, which are BatchNorm until :func:`whitenorm_lab.nets.place_` puts another
    in their place, and a ReLU, but for the second ones of the blocks.

    Args:
        width: of the first layer: 32 in the paper.
        blocks: residual blocks: 5 in the paper.
        bias: of the convolutions before norms, for where there is no norm.

    Shape:
        ``(N, 3, H, W)`` from 0 to 1, and the output the same, of any H and W from 16 on.

    Example::

        >>> TransformerNet(width=8, blocks=1)(torch.rand(1, 3, 33, 50)).shape
        torch.Size([1, 3, 33, 50])
    """

    def __init__(self, width: int = 32, blocks: int = 5, *, bias: bool = False) -> None:
        super().__init__()
        layer = partial(_layer, bias=bias)
        self.down = nn.Sequential(
            *layer(3, width, 9), *layer(width, 2 * width, 3, stride=2), *layer(2 * width, 4 * width, 3, stride=2)
        )
        self.blocks = nn.Sequential(*(Residual(4 * width, bias) for _ in range(blocks)))
        self.up = nn.Sequential(
            *(nn.Upsample(scale_factor=2), *layer(4 * width, 2 * width, 3)),
            *(nn.Upsample(scale_factor=2), *layer(2 * width, width, 3)),
        )
        self.paint = _conv(width, 3, 9, bias=True)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        if min(height, width) < SMALLEST:
            raise ValueError(f"expected images of at least {SMALLEST}×{SMALLEST} (got {height}×{width}); enlarge them")
        x = F.pad(images, (0, -width % _STRIDE, 0, -height % _STRIDE), mode="reflect")
        x = self.paint(self.up(self.blocks(self.down(x - 0.5))))
        return x[:, :, :height, :width].sigmoid()


class Residual(nn.Module):
    """Two convolutions with norms beside a shortcut, and no ReLU after the sum."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_layer(width, width, 3, bias=bias), *_layer(width, width, 3, bias=bias)[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _layer(inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool) -> list[nn.Module]:
    return [_conv(inputs, outputs, size, stride, bias=bias), nn.BatchNorm2d(outputs), nn.ReLU()]


def _conv(inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias, padding_mode="reflect")
