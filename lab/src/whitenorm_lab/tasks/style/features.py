"""Trained networks for the losses' features: VGG-16 from a file, or EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import whitenorm
from whitenorm_lab.data import IMAGENET_MEAN, IMAGENET_STD
from whitenorm_lab.nets import pretrained

# Ends of VGG-16's stages: after the ReLUs of conv1_2, 2_2, 3_3 and 4_3.
_VGG_ENDS = (4, 9, 16, 23)


class Features(nn.Module):
    """Feature maps after each stage of a frozen network.

    Args:
        stages: the stages in order.
        content: index of the stage whose map the content loss compares; the style loss compares all.
        mean, std: normalization of images in [0, 1] for the network.

    Shape:
        images ``(N, 3, H, W)`` in [0, 1] to one map ``(N, C, H', W')`` per stage.

    Example::

        >>> maps = Features([nn.Conv2d(3, 8, 1), nn.AvgPool2d(2)], 1, (0.5,) * 3, (0.5,) * 3)(torch.rand(2, 3, 4, 4))
        >>> [tuple(x.shape) for x in maps]
        [(2, 8, 4, 4), (2, 8, 2, 2)]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, stages: Sequence[nn.Module], content: int, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.stages, self.content = nn.ModuleList(stages), content
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)
        self.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, images: Tensor) -> list[Tensor]:
        return self._compute_maps(images, len(self.stages))

    def compute_content_map(self, images: Tensor) -> Tensor:
        """Return the map of the content loss, without computing later ones."""
        return self._compute_maps(images, self.content + 1)[-1]

    def _compute_maps(self, images: Tensor, num_stages: int) -> list[Tensor]:
        x, maps = (images - self.mean) / self.std, []
        for stage in self.stages[:num_stages]:
            x = stage(x)
            maps.append(x)
        return maps


def load_features(vgg: Path | None = None) -> Features:
    """Load VGG-16 with weights from a file, or without a file EfficientNet-Lite0."""
    with torch.random.fork_rng(devices=[]):
        return _load_lite0() if vgg is None else _load_vgg16(vgg)


def _load_lite0() -> Features:
    """Load EfficientNet-Lite0 down to an eighth of the resolution, with average pooling instead of strides.

    A stride skips every second pixel, so that a net trained with these features could hide patterns in the others.
    Instead, these convolutions run at full resolution, followed by average pooling. The style loss uses the maps of the
    stem and of the first three stages, which are linear: their Gram matrices of 16 to 40 channels distinguish strokes
    and colors well at a low cost. The content loss uses the last map, which constrains strokes the least.
    """
    net = whitenorm.fold_(pretrained.efficientnet_lite0().eval(), batch_norms=True)
    first, second, third = list(net.blocks)[:3]  # type: ignore[arg-type]
    for stage in (second, third):
        stage[0].conv_dw.stride = (1, 1)
        stage[0].bn2 = nn.Sequential(stage[0].bn2, nn.AvgPool2d(2))
    net.get_submodule("conv_stem").stride = (1, 1)  # type: ignore[assignment]
    stem = nn.Sequential(net.conv_stem, net.bn1)  # type: ignore[arg-type]
    stages = [stem, nn.Sequential(nn.AvgPool2d(2), first), second, third]
    return Features(stages, 3, pretrained.MEAN, pretrained.STD)


def _load_vgg16(path: Path) -> Features:
    """Load VGG-16 as in Johnson et al.: the style loss uses four maps, the content loss the second."""
    from torchvision.models import vgg16

    if not path.is_file():
        raise OSError(f"expected weights of torchvision's VGG-16 in {path} (got no such file)")
    # On the meta device, to create neither the classifier nor random weights.
    with torch.device("meta"):
        layers = vgg16(weights=None, init_weights=False).features
    weights = {name.removeprefix("features."): value for name, value in pretrained.read_weights(path).items()}
    pretrained.load_tensors_(layers.to_empty(device="cpu"), weights, str(path))
    for layer in layers:
        if isinstance(layer, nn.ReLU):
            # An in-place ReLU would overwrite a map that the losses use.
            layer.inplace = False
    stages = [layers[start:end] for start, end in zip((0, *_VGG_ENDS), _VGG_ENDS, strict=False)]
    return Features(stages, 1, IMAGENET_MEAN, IMAGENET_STD)
