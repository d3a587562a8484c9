"""Perceptual losses of content and style, and total variation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from whitenorm_lab.tasks.style.features import Features


class Losses(NamedTuple):
    """Losses per image, each ``(N,)``."""

    content: Tensor
    style: Tensor
    smooth: Tensor


class PerceptualLoss(nn.Module):
    r"""Content loss of stylized images y relative to images x, style loss relative to an image s, and smoothness.

    .. math::
        \text{content} = \frac{\overline{(\phi_c(y) - \phi_c(x))^2}}{\operatorname{Var} \phi_c(s)}, \qquad
        \text{style} = \frac{1}{|\ell|} \sum_\ell
            \frac{\lVert G_\ell(y) - G_\ell(s) \rVert_F^2}{\lVert G_\ell(s) \rVert_F^2}, \qquad
        G_\ell = \frac{1}{HW} \phi_\ell \phi_\ell^\top

    with φ the network's maps and G their Gram matrices (`Gatys et al. <https://arxiv.org/abs/1508.06576>`_, `Johnson et
    al. <https://arxiv.org/abs/1603.08155>`_). Both are relative to the style image's values, so that one set of weights
    suits any network, layer and style. Smoothness is the mean squared difference of neighboring pixels.

    Args:
        features: feature maps of a trained network.
        style: the style image ``(3, H, W)`` in [0, 1].

    Example::

        >>> style, images = torch.rand(3, 8, 8), torch.rand(2, 3, 16, 16)
        >>> loss = PerceptualLoss(Features([nn.Conv2d(3, 4, 3)], 0, (0.5,) * 3, (0.5,) * 3), style)
        >>> loss(images, images).content
        tensor([0., 0.])
        >>> loss(style[None], style[None]).style
        tensor([0.])
    """

    variance: Tensor

    def __init__(self, features: Features, style: Tensor) -> None:
        super().__init__()
        self.features = features
        with torch.no_grad():
            maps = features(style[None])
        self.register_buffer("variance", maps[features.content].var(correction=0), persistent=False)
        for i, x in enumerate(maps):
            self.register_buffer(f"gram{i}", compute_gram(x)[0], persistent=False)

    def forward(self, stylized: Tensor, images: Tensor) -> Losses:
        maps = self.features(stylized)
        with torch.no_grad():
            target = self.features.compute_content_map(images)
        content = (maps[self.features.content] - target).square().mean((1, 2, 3)) / self.variance
        grams = [getattr(self, f"gram{i}") for i in range(len(maps))]
        style = [
            (compute_gram(x) - gram).square().sum((1, 2)) / gram.square().sum()
            for x, gram in zip(maps, grams, strict=True)
        ]
        return Losses(content, torch.stack(style).mean(0), compute_variation(stylized))


def compute_gram(x: Tensor) -> Tensor:
    """Compute Gram matrices, divided by the number of positions: ``(N, C, H, W)`` → ``(N, C, C)``.

    At least in float32, also under autocast: half precision is too coarse for sums over a whole map.

    Example::

        >>> compute_gram(torch.ones(1, 2, 3, 3))
        tensor([[[1., 1.],
                 [1., 1.]]])
    """
    with torch.autocast(x.device.type, enabled=False):
        rows = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).flatten(2)
        return rows @ rows.mT / rows.shape[2]


def compute_variation(images: Tensor) -> Tensor:
    """Compute the mean squared difference of horizontal and vertical neighbors: ``(N, C, H, W)`` → ``(N,)``.

    Example::

        >>> compute_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
        tensor([1.])
    """
    return images.diff(dim=3).square().mean((1, 2, 3)) + images.diff(dim=2).square().mean((1, 2, 3))
