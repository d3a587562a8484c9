"""Trained networks whose features the losses compare: VGG-16 from a file, or EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import whitenorm
from whitenorm_lab.nets import pretrained

# Of ImageNet's training images, as VGG-16 was trained.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Where VGG-16 is cut: after the ReLUs of conv1_2, 2_2, 3_3 and 4_3.
_VGG_CUTS = (4, 9, 16, 23)


class Features(nn.Module):
    """The maps after several stages of a network that is not trained any more.

    Args:
        stages: one after the other.
        content: the number of the stage whose map the content is compared by; the style is compared by all.
        mean, std: of the images in [0, 1] that the network was trained on.

    Shape:
        images ``(N, 3, H, W)`` in [0, 1]; a map ``(N, C, H', W')`` a stage.

    Example::

        >>> maps = Features([nn.Conv2d(3, 8, 1), nn.AvgPool2d(2)], 1, (0.5,) * 3, (0.5,) * 3)(torch.rand(2, 3, 4, 4))
        >>> [tuple(one.shape) for one in maps]
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
        return self._maps(images, len(self.stages))

    def content_of(self, images: Tensor) -> Tensor:
        """The map that the content is compared by, without those after it."""
        return self._maps(images, self.content + 1)[-1]

    def _maps(self, images: Tensor, number: int) -> list[Tensor]:
        x, maps = (images - self.mean) / self.std, []
        for stage in self.stages[:number]:
            x = stage(x)
            maps.append(x)
        return maps


def features(vgg: Path | None = None) -> Features:
    """VGG-16 with weights from a file, or without one EfficientNet-Lite0."""
    with torch.random.fork_rng(devices=[]):
        return _lite0() if vgg is None else _vgg16(vgg)


def _lite0() -> Features:
    """EfficientNet-Lite0 to an eighth of the resolution, with averages in place of strides.

    A stride takes every second pixel, and a painter that is judged by it hides a pattern in the others. So the
    convolutions with stride run at full resolution, and what comes out is averaged. The style is compared by the stem's
    map and those of the first three stages, which are linear: their Gram matrices of 16 to 40 channels tell strokes and
    colours well and cost little. The content is that of the last, which leaves room for strokes.
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


def _vgg16(path: Path) -> Features:
    """VGG-16 as the recipe has it: style by four maps, content by the second."""
    from torchvision.models import vgg16

    if not path.is_file():
        raise OSError(f"expected weights of torchvision's VGG-16 in {path} (got no such file)")
    # Without a classifier's hundred million weights, and without drawing what is loaded.
    with torch.device("meta"):
        layers = vgg16(weights=None, init_weights=False).features
    weights = {name.removeprefix("features."): value for name, value in pretrained.read_weights(path).items()}
    pretrained.load_tensors_(layers.to_empty(device="cpu"), weights, str(path))
    for layer in layers:
        if isinstance(layer, nn.ReLU):
            # A map that is compared must not change behind it.
            layer.inplace = False
    stages = [layers[start:end] for start, end in zip((0, *_VGG_CUTS), _VGG_CUTS, strict=False)]
    return Features(stages, 1, _MEAN, _STD)
