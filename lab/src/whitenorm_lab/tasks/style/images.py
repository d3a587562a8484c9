"""Images in files: list, read, crop, arrange on a sheet, and write."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms.v2 import functional as F  # noqa: N812

from whitenorm_lab.data import ROOT_VARIABLE, root_folder
from whitenorm_lab.tasks.style.net import MIN_SIZE
from whitenorm_lab.training.checkpoints import write_atomically

FOLDER = "folder:"
SETS = {"coco": "coco/train2017", "coco128": "coco128/images"}
"""Folders of content images under the data root."""
_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
_GAP = 4


def list_images(dataset: str, root: Path | None) -> list[Path]:
    """List the images of a data set by name, or of ``folder:PATH`` and its subfolders, sorted by path."""
    folder = _find_folder(dataset, root)
    if not folder.is_dir():
        raise OSError(f"expected a folder of images for {dataset} (got no {folder})")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not paths:
        raise OSError(f"expected images ({', '.join(sorted(_SUFFIXES))}) in {folder} (got none)")
    return paths


def _find_folder(dataset: str, root: Path | None) -> Path:
    if dataset.startswith(FOLDER):
        return Path(dataset.removeprefix(FOLDER)).expanduser()
    if dataset not in SETS:
        raise ValueError(f"expected content images of {', '.join(SETS)} or {FOLDER}PATH (got {dataset!r})")
    root = root_folder(root)
    if root is None:
        raise OSError(f"{dataset} needs a data root with {SETS[dataset]}: pass --data or set ${ROOT_VARIABLE}")
    return root / SETS[dataset]


def read_image(path: Path) -> Image.Image:
    """Read the first frame of an image as RGB, rotated by its EXIF orientation, with transparency on white."""
    if not path.is_file():
        raise OSError(f"expected an image in {path} (got no such file)")
    try:
        with Image.open(path) as file:
            image = _convert_to_rgb(ImageOps.exif_transpose(file))
    # Pillow's errors for damaged images of all formats, and for images with too many pixels.
    except (OSError, SyntaxError, ValueError, OverflowError, MemoryError, Image.DecompressionBombError) as error:
        raise OSError(f"expected a complete image in {path} ({error}); download it again or remove it") from error
    if min(image.size) < MIN_SIZE:
        raise OSError(
            f"expected images of at least {MIN_SIZE}×{MIN_SIZE} pixels (got {image.width}×{image.height} in {path}); "
            "remove it"
        )
    return image


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Pillow's conversion of 16-bit gray values would clip them to 255.
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def resize_shorter_side(image: Image.Image, size: int) -> Image.Image:
    """Resize an image so that its shorter side has ``size`` pixels."""
    factor = size / min(image.size)
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.LANCZOS)


class SquareCrops:
    """Square crops of image files, as bytes ``(3, crop, crop)``.

    The crop is taken from the image resized to a shorter side of ``size``: its center, or with ``random`` any place,
    flipped or not. The image is cropped first and then resized, so that the cost does not depend on its aspect ratio.
    """

    def __init__(self, paths: Sequence[Path], size: int, crop: int, random: bool) -> None:
        self.paths, self.size, self.crop, self.random = paths, size, crop, random

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        image = read_image(self.paths[i])
        side = min(image.size) * self.crop / self.size
        draws = torch.rand(3) if self.random else torch.tensor([0.5, 0.5, 0.0])
        left, top = (float(share) * (length - side) for share, length in zip(draws, image.size, strict=False))
        box = (left, top, left + side, top + side)
        crop = to_tensor(image.resize((self.crop, self.crop), Image.Resampling.LANCZOS, box))
        return crop.flip(2) if draws[2] > 0.5 else crop


def to_tensor(image: Image.Image) -> Tensor:
    """Convert an image to a contiguous tensor of bytes ``(3, H, W)``."""
    return F.pil_to_tensor(image).contiguous()


def to_pil(image: Tensor) -> Image.Image:
    """Convert a tensor ``(3, H, W)`` of bytes, or of numbers in [0, 1], to an image."""
    if image.dtype != torch.uint8:
        image = (image.float().clamp(0, 1) * 255).round().byte()
    return F.to_pil_image(image.cpu())


def arrange_rows(rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """Arrange rows of images on a white sheet."""
    width = max(sum(image.width + _GAP for image in row) for row in rows) + _GAP
    height = sum(max(image.height for image in row) + _GAP for row in rows) + _GAP
    sheet, top = Image.new("RGB", (width, height), "white"), _GAP
    for row in rows:
        left = _GAP
        for image in row:
            sheet.paste(image, (left, top))
            left += image.width + _GAP
        top += max(image.height for image in row) + _GAP
    return sheet


def write_image(image: Image.Image, path: Path) -> None:
    """Write an image atomically, in the format of the file's suffix."""
    write_atomically(path, encode_image(image, get_format(path)))


def encode_image(image: Image.Image, format: str, **options: int) -> bytes:
    """Encode an image as the bytes of a file."""
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()


def get_format(path: Path) -> str:
    """Return Pillow's name of the format of a file's suffix; raise a ValueError for an unknown suffix."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"expected a file of {', '.join(sorted(_SUFFIXES))} to write (got {path})")
    return Image.registered_extensions()[path.suffix.lower()]
