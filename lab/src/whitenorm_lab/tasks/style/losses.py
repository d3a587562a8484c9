"""Content, style and smoothness, as features of a trained network see them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from whitenorm_lab.tasks.style.features import Features


class Losses(NamedTuple):
    """One number an image, ``(N,)``, of each kind."""

    content: Tensor
    style: Tensor
    smooth: Tensor


class PerceptualLoss(nn.Module):
    r"""How far painted images y are from the content of images x, and from one image s in style.

    .. math::
        \text{content} = \frac{\overline{(\phi_c(y) - \phi_c(x))^2}}{\operatorname{Var} \phi_c(s)}, \qquad
        \text{style} = \frac{1}{|\ell|} \sum_\ell
            \frac{\lVert G_\ell(y) - G_\ell(s) \rVert_F^2}{\lVert G_\ell(s) \rVert_F^2}, \qquad
        G_\ell = \frac{1}{HW} \phi_\ell \phi_\ell^\top

    with φ the network's maps and G their Gram matrices (`Gatys et al. <https://arxiv.org/abs/1508.06576>`_, `Johnson et
    al. <https://arxiv.org/abs/1603.08155>`_). Both are relative to the style image's own, so that one set of weights
    does for any network, layer and style. Smoothness is the mean squared difference of neighbouring pixels.

    Args:
        features: of a trained network.
        style: ``(3, H, W)`` in [0, 1].

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
        for i, one in enumerate(maps):
            self.register_buffer(f"gram{i}", gram(one)[0], persistent=False)

    def forward(self, painted: Tensor, images: Tensor) -> Losses:
        maps = self.features(painted)
        with torch.no_grad():
            wanted = self.features.content_of(images)
        content = (maps[self.features.content] - wanted).square().mean((1, 2, 3)) / self.variance
        grams = [getattr(self, f"gram{i}") for i in range(len(maps))]
        style = [
            (gram(one) - target).square().sum((1, 2)) / target.square().sum()
            for one, target in zip(maps, grams, strict=True)
        ]
        return Losses(content, torch.stack(style).mean(0), variation(painted))


def gram(x: Tensor) -> Tensor:
    """Products of all pairs of channels, the mean over positions: ``(N, C, H, W)`` → ``(N, C, C)``.

    In float32 at least, also under autocast: sums over a whole map are beyond half precision.

    Example::

        >>> gram(torch.ones(1, 2, 3, 3))
        tensor([[[1., 1.],
                 [1., 1.]]])
    """
    with torch.autocast(x.device.type, enabled=False):
        rows = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x).flatten(2)
        return rows @ rows.mT / rows.shape[2]


def variation(images: Tensor) -> Tensor:
    """The mean squared difference of neighbours, across and down: ``(N, C, H, W)`` → ``(N,)``.

    Example::

        >>> variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]]))
        tensor([1.])
    """
    return images.diff(dim=3).square().mean((1, 2, 3)) + images.diff(dim=2).square().mean((1, 2, 3))
