"""Images with label maps as tensors: checked reading, random scaling, cropping and flipping, and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as F  # noqa: N812

from whitenorm_lab.tasks.segmentation.classes import IGNORE
from whitenorm_lab.tasks.segmentation.datasets import UNKNOWN, Pair, SceneSet


class Scene(NamedTuple):
    """Image ``(3, H, W)`` and classes ``(H, W)``, both of bytes; with a leading N for a batch."""

    image: Tensor
    labels: Tensor


class SceneDataset:
    """Scenes of a data set, read from files on access.

    Args:
        scene_set: the data set.
        pairs: its files to use.
        transform: applied to each scene, such as :class:`Augment`.
    """

    def __init__(
        self, scene_set: SceneSet, pairs: Sequence[Pair], transform: Callable[[Scene], Scene] = lambda scene: scene
    ):
        self.scene_set, self.pairs, self.transform = scene_set, pairs, transform

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> Scene:
        return self.transform(read_scene(self.pairs[i], self.scene_set))


def read_scene(pair: Pair, scene_set: SceneSet) -> Scene:
    """Read an image and its classes; an OSError names a damaged or unexpected file."""
    image, labels = _read_pixels(pair.image, ("RGB",), convert=True), read_labels(pair, scene_set)
    if image.shape[:2] != labels.shape:
        sizes = ["×".join(map(str, (width, height))) for height, width in (image.shape[:2], labels.shape)]
        raise OSError(
            f"expected a label map of the image's size, {sizes[0]} (got {sizes[1]} in {pair.labels}, for {pair.image})"
        )
    return Scene(torch.from_numpy(image).permute(2, 0, 1), labels)


def read_labels(pair: Pair, scene_set: SceneSet) -> Tensor:
    """Read the classes ``(H, W)`` alone, as bytes."""
    numbers = _read_pixels(pair.labels, ("L", "P", "1"), convert=False)
    labels = scene_set.table[torch.from_numpy(numbers).long()]
    if bool((labels == UNKNOWN).any()):
        unknown = sorted(set(numbers[(labels == UNKNOWN).numpy()].tolist()))
        raise OSError(
            f"expected labels of the {len(scene_set.categories)} classes of {scene_set.name} (got also "
            f"{', '.join(map(str, unknown[:5]))} in {pair.labels})"
        )
    if bool((labels == IGNORE).all()):
        raise OSError(
            f"expected a label map with classes (got nothing but void in {pair.labels}); remove it and its image"
        )
    return labels.to(torch.uint8)


def _read_pixels(path: Path, modes: tuple[str, ...], convert: bool) -> np.ndarray:
    try:
        with Image.open(path) as image:
            mode = image.mode
            pixels = np.array(image.convert(modes[0]) if convert else image, np.uint8)
    # Pillow's errors for damaged images, and for images with too many pixels.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OSError(f"expected a complete image in {path} ({error}); download it again or remove it") from error
    if not convert and mode not in modes:
        raise OSError(f"expected a label map of one byte per pixel in {path} (got an image of mode {mode})")
    return pixels


def collate(scenes: list[Scene]) -> Scene:
    """Stack scenes of one size; an empty list gives an empty batch."""
    if not scenes:
        return Scene(torch.empty(0, 3, 1, 1, dtype=torch.uint8), torch.empty(0, 1, 1, dtype=torch.uint8))
    sizes = {tuple(scene.labels.shape) for scene in scenes}
    if len(sizes) > 1:
        raise ValueError(f"expected images of one size in a test batch (got {sorted(sizes)[:3]}); use --test-batch 1")
    return Scene(*(torch.stack(parts) for parts in zip(*scenes, strict=True)))


class CenterCrop:
    """Crop the center of an image, padded at the right and bottom if it is smaller.

    Args:
        size: height and width of the crop.
        fill: color of the padding, whose labels are void.
    """

    def __init__(self, size: int, fill: Sequence[int]) -> None:
        self.size, self.fill = size, list(fill)

    def __call__(self, scene: Scene) -> Scene:
        return self._crop(scene, 0.5, 0.5)

    def _crop(self, scene: Scene, down: float, right: float) -> Scene:
        """Crop at these fractions of the possible offsets."""
        height, width = scene.labels.shape
        padding = [0, 0, max(0, self.size - width), max(0, self.size - height)]
        top, left = (int(share * (max(0, side - self.size) + 1)) for share, side in ((down, height), (right, width)))
        image = F.pad(scene.image, padding, self.fill)
        labels = F.pad(scene.labels.unsqueeze(0), padding, IGNORE).squeeze(0)
        return Scene(*(F.crop(part, top, left, self.size, self.size) for part in (image, labels)))


class Augment(CenterCrop):
    """Scale an image at random, crop it at a random place, and flip it or not, with draws from torch's generator.

    Args:
        size: height and width of the crop.
        fill: color of the padding, whose labels are void.
        scales: the smallest and the largest scale.
        flip: flip half of the images.
    """

    def __init__(self, size: int, fill: Sequence[int], scales: tuple[float, float], flip: bool) -> None:
        super().__init__(size, fill)
        self.scales, self.flip = scales, flip

    def __call__(self, scene: Scene) -> Scene:
        # Always the same number of draws, so that no option changes the draws of another.
        share, down, right, flip = torch.rand(4).tolist()
        low, high = self.scales
        scene = self._crop(_rescale(scene, low + (high - low) * share), down, right)
        return Scene(scene.image.flip(-1), scene.labels.flip(-1)) if self.flip and flip < 0.5 else scene


def _rescale(scene: Scene, scale: float) -> Scene:
    size = [max(1, round(scale * side)) for side in scene.labels.shape]
    image = F.resize(scene.image, size, F.InterpolationMode.BILINEAR, antialias=True)
    labels = F.resize(scene.labels.unsqueeze(0), size, F.InterpolationMode.NEAREST_EXACT).squeeze(0)
    return Scene(image, labels)
