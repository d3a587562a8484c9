"""The feed-forward style transfer net of Johnson et al., for images of any size."""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

# Images are padded to a multiple of the stride of two convolutions of stride 2.
_STRIDE = 4
MIN_SIZE = 16
"""Smallest height and width: reflection padding and instance statistics need several pixels."""


class TransformerNet(nn.Module):
    r"""Convert images to another style.

    From `Perceptual Losses for Real-Time Style Transfer and Super-Resolution <https://arxiv.org/abs/1603.08155>`_, with
    two common changes: reflection padding instead of zeros, and nearest upsampling with a convolution instead of a
    transposed convolution, which causes checkerboard artifacts. With width w:

    .. math:: 9{\times}9, w \to 3{\times}3/2, 2w \to 3{\times}3/2, 4w \to \text{residual blocks}, 4w
              \to {\times}2, 2w \to {\times}2, w \to 9{\times}9, 3

    Every convolution but the last is followed by BatchNorm, which :func:`whitenorm_lab.nets.place_` can replace, and by
    a ReLU, except the second one of each block.

    Args:
        width: channels of the first layer, 32 in the paper.
        blocks: number of residual blocks, 5 in the paper.
        bias: give the convolutions before norms a bias, for nets without norms.

    Shape:
        ``(N, 3, H, W)`` in [0, 1] to the same, for any H and W from 16 on.

    Example::

        >>> TransformerNet(width=8, blocks=1)(torch.rand(1, 3, 33, 50)).shape
        torch.Size([1, 3, 33, 50])
    """

    def __init__(self, width: int = 32, blocks: int = 5, *, bias: bool = False) -> None:
        super().__init__()
        layer = partial(_build_layer, bias=bias)
        self.down = nn.Sequential(
            *layer(3, width, 9), *layer(width, 2 * width, 3, stride=2), *layer(2 * width, 4 * width, 3, stride=2)
        )
        self.blocks = nn.Sequential(*(Residual(4 * width, bias) for _ in range(blocks)))
        self.up = nn.Sequential(
            *(nn.Upsample(scale_factor=2), *layer(4 * width, 2 * width, 3)),
            *(nn.Upsample(scale_factor=2), *layer(2 * width, width, 3)),
        )
        self.paint = _build_conv(width, 3, 9, bias=True)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[2:]
        if min(height, width) < MIN_SIZE:
            raise ValueError(f"expected images of at least {MIN_SIZE}×{MIN_SIZE} (got {height}×{width}); enlarge them")
        x = F.pad(images, (0, -width % _STRIDE, 0, -height % _STRIDE), mode="reflect")
        x = self.paint(self.up(self.blocks(self.down(x - 0.5))))
        return x[:, :, :height, :width].sigmoid()


class Residual(nn.Module):
    """Residual block of two convolutions with norms, without a ReLU after the sum."""

    def __init__(self, width: int, bias: bool) -> None:
        super().__init__()
        first, second = (_build_layer(width, width, 3, bias=bias) for _ in range(2))
        self.layers = nn.Sequential(*first, *second[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def _build_layer(inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool) -> list[nn.Module]:
    return [_build_conv(inputs, outputs, size, stride, bias=bias), nn.BatchNorm2d(outputs), nn.ReLU()]


def _build_conv(inputs: int, outputs: int, size: int, stride: int = 1, *, bias: bool) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=bias, padding_mode="reflect")
