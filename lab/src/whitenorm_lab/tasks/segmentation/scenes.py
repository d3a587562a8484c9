"""Images and label maps as tensors: read with checks, and scaled, cropped and flipped at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as images

from whitenorm_lab.tasks.segmentation.classes import IGNORE
from whitenorm_lab.tasks.segmentation.sets import UNKNOWN, Pair, SceneSet


class Scene(NamedTuple):
    """Images as bytes ``(3, H, W)`` and classes as bytes ``(H, W)``, of one or, with N before, of a batch."""

    image: Tensor
    labels: Tensor


class Scenes:
    """Some pairs of a set, read one at a time.

    Args:
        of: the set.
        pairs: which of its files.
        change: what is done to each, such as :class:`Augment`.
    """

    def __init__(self, of: SceneSet, pairs: Sequence[Pair], change: Callable[[Scene], Scene] = lambda scene: scene):
        self.of, self.pairs, self.change = of, pairs, change

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, i: int) -> Scene:
        return self.change(read(self.pairs[i], self.of))


def read(pair: Pair, of: SceneSet) -> Scene:
    """An image and its classes; an OSError that names the file where they are not what they should be."""
    image, labels = _opened(pair.image, ("RGB",), convert=True), read_labels(pair, of)
    if image.shape[:2] != labels.shape:
        sizes = ["×".join(map(str, (width, height))) for height, width in (image.shape[:2], labels.shape)]
        raise OSError(
            f"expected a label map of the image's size, {sizes[0]} (got {sizes[1]} in {pair.labels}, for {pair.image})"
        )
    return Scene(torch.from_numpy(image).permute(2, 0, 1), labels)


def read_labels(pair: Pair, of: SceneSet) -> Tensor:
    """The classes alone, ``(H, W)`` as bytes."""
    numbers = _opened(pair.labels, ("L", "P", "1"), convert=False)
    labels = of.table[torch.from_numpy(numbers).long()]
    if bool((labels == UNKNOWN).any()):
        wrong = sorted(set(numbers[(labels == UNKNOWN).numpy()].tolist()))
        raise OSError(
            f"expected labels of the {len(of.categories)} classes of {of.name} (got also "
            f"{', '.join(map(str, wrong[:5]))} in {pair.labels})"
        )
    if bool((labels == IGNORE).all()):
        raise OSError(
            f"expected a label map with classes (got nothing but void in {pair.labels}); remove it and its image"
        )
    return labels.to(torch.uint8)


def _opened(path: Path, modes: tuple[str, ...], convert: bool) -> np.ndarray:
    try:
        with Image.open(path) as opened:
            mode = opened.mode
            pixels = np.array(opened.convert(modes[0]) if convert else opened, np.uint8)
    # Pillow's decoders raise these on damaged files.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise OSError(f"expected a whole image in {path} ({error}); get it again or remove it") from error
    if not convert and mode not in modes:
        raise OSError(f"expected a label map of one byte a pixel in {path} (got an image of mode {mode})")
    return pixels


def collate(scenes: list[Scene]) -> Scene:
    """Scenes of one size as a batch; of none, an empty one."""
    if not scenes:
        return Scene(torch.empty(0, 3, 1, 1, dtype=torch.uint8), torch.empty(0, 1, 1, dtype=torch.uint8))
    sizes = {tuple(scene.labels.shape) for scene in scenes}
    if len(sizes) > 1:
        raise ValueError(f"expected images of one size in a test batch (got {sorted(sizes)[:3]}); use --test-batch 1")
    return Scene(*(torch.stack(parts) for parts in zip(*scenes, strict=True)))


class Centre:
    """The middle of an image, or all of it with a border, as a square.

    Args:
        size: of the square, in pixels.
        fill: red, green and blue of the border, whose labels are void.
    """

    def __init__(self, size: int, fill: Sequence[int]) -> None:
        self.size, self.fill = size, torch.tensor(fill, dtype=torch.uint8).view(3, 1, 1)

    def __call__(self, scene: Scene) -> Scene:
        return self._cut(scene, 0.5, 0.5)

    def _cut(self, scene: Scene, down: float, right: float) -> Scene:
        """A square at shares of the way that there is."""
        height, width = scene.labels.shape
        border = [0, max(0, self.size - width), 0, max(0, self.size - height)]
        top, left = (int(share * (max(0, side - self.size) + 1)) for share, side in ((down, height), (right, width)))
        labels = F.pad(scene.labels, border, value=IGNORE)
        image = self.fill.expand(3, *labels.shape).clone()
        image[:, :height, :width] = scene.image
        window = (slice(top, top + self.size), slice(left, left + self.size))
        return Scene(image[(slice(None), *window)], labels[window])


class Augment(Centre):
    """A random square of an image at a random scale, flipped or not, drawn from torch's random numbers.

    Args:
        size: of the square, in pixels.
        fill: as of :class:`Centre`.
        scales: the smallest and the largest.
        flip: half of them are flipped.
    """

    def __init__(self, size: int, fill: Sequence[int], scales: tuple[float, float], flip: bool) -> None:
        super().__init__(size, fill)
        self.scales, self.flip = scales, flip

    def __call__(self, scene: Scene) -> Scene:
        # Always as many numbers, so that no option changes what another draws.
        share, down, right, flip = torch.rand(4).tolist()
        low, high = self.scales
        scene = self._cut(_scaled(scene, low + (high - low) * share), down, right)
        return Scene(scene.image.flip(-1), scene.labels.flip(-1)) if self.flip and flip < 0.5 else scene


def _scaled(scene: Scene, scale: float) -> Scene:
    size = [max(1, round(scale * side)) for side in scene.labels.shape]
    image = images.resize(scene.image, size, images.InterpolationMode.BILINEAR, antialias=True)
    labels = images.resize(scene.labels.unsqueeze(0), size, images.InterpolationMode.NEAREST_EXACT).squeeze(0)
    return Scene(image, labels)
