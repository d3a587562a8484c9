"""Pictures in files: found, read as RGB of bytes, cut to squares, put on sheets, and written whole."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from whitenorm_lab.data import ROOT_VARIABLE, root_folder
from whitenorm_lab.tasks.style.net import SMALLEST
from whitenorm_lab.training.checkpoints import write_atomically

FOLDER = "folder:"
SETS = {"coco": "coco/train2017", "coco128": "coco128/images"}
"""Where content images are in a data root."""
_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
_GAP = 4


def files(dataset: str, root: Path | None) -> list[Path]:
    """The images of a set by name, or of a folder and those in it, in the order of their names."""
    folder = _folder(dataset, root)
    if not folder.is_dir():
        raise OSError(f"expected a folder of images for {dataset} (got no {folder})")
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    if not found:
        raise OSError(f"expected images ({', '.join(sorted(_SUFFIXES))}) in {folder} (got none)")
    return found


def _folder(dataset: str, root: Path | None) -> Path:
    if dataset.startswith(FOLDER):
        return Path(dataset.removeprefix(FOLDER)).expanduser()
    if dataset not in SETS:
        raise ValueError(f"expected content images of {', '.join(SETS)} or {FOLDER}PATH (got {dataset!r})")
    root = root_folder(root)
    if root is None:
        raise OSError(f"{dataset} needs a data root with {SETS[dataset]}: pass --data or set ${ROOT_VARIABLE}")
    return root / SETS[dataset]


def read(path: Path) -> Image.Image:
    """An image as RGB, the right way up; what is transparent is white, and of several frames it is the first."""
    if not path.is_file():
        raise OSError(f"expected an image in {path} (got no such file)")
    try:
        with Image.open(path) as image:
            picture = _rgb(ImageOps.exif_transpose(image))
    # Damaged files of some formats fail as a syntax error, or by what their numbers lead to.
    except (OSError, SyntaxError, ValueError, OverflowError, MemoryError, Image.DecompressionBombError) as error:
        raise OSError(f"expected a whole image in {path} ({error}); get it again or remove it") from error
    if min(picture.size) < SMALLEST:
        raise OSError(
            f"expected images of at least {SMALLEST}×{SMALLEST} pixels (got {picture.width}×{picture.height} in "
            f"{path}); remove it"
        )
    return picture


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        # Greys of 16 bits, of which a plain conversion would keep the darkest alone.
        image = Image.fromarray((np.asarray(image) >> 8).clip(0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def scaled(picture: Image.Image, short: int) -> Image.Image:
    """The whole picture, with a shorter side of so many pixels."""
    factor = short / min(picture.size)
    return picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.Resampling.LANCZOS)


class Squares:
    """Squares out of images in files, as bytes ``(3, crop, crop)``.

    The image counts as scaled to a shorter side of ``size``; the square is its middle, or if ``draw`` is set anywhere,
    and flipped or not. It is cut out first and scaled then, so that long images take no more time.
    """

    def __init__(self, paths: Sequence[Path], size: int, crop: int, draw: bool) -> None:
        self.paths, self.size, self.crop, self.draw = paths, size, crop, draw

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Tensor:
        picture = read(self.paths[i])
        side = min(picture.size) * self.crop / self.size
        place = torch.rand(3) if self.draw else torch.tensor([0.5, 0.5, 0.0])
        left, top = (float(at) * (length - side) for at, length in zip(place, picture.size, strict=False))
        box = (left, top, left + side, top + side)
        square = tensor(picture.resize((self.crop, self.crop), Image.Resampling.LANCZOS, box))
        return square.flip(2) if place[2] > 0.5 else square


def tensor(picture: Image.Image) -> Tensor:
    """A picture as bytes, ``(3, H, W)``."""
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def picture(image: Tensor) -> Image.Image:
    """An image ``(3, H, W)`` of bytes, or in [0, 1], as a picture."""
    if image.dtype != torch.uint8:
        image = (image.float().clamp(0, 1) * 255).round().byte()
    return Image.fromarray(image.permute(1, 2, 0).cpu().numpy())


def sheet(rows: Sequence[Sequence[Image.Image]]) -> Image.Image:
    """Rows of pictures, one below the other, on white."""
    width = max(sum(one.width + _GAP for one in row) for row in rows) + _GAP
    height = sum(max(one.height for one in row) + _GAP for row in rows) + _GAP
    whole, top = Image.new("RGB", (width, height), "white"), _GAP
    for row in rows:
        left = _GAP
        for one in row:
            whole.paste(one, (left, top))
            left += one.width + _GAP
        top += max(one.height for one in row) + _GAP
    return whole


def save(picture: Image.Image, path: Path) -> None:
    """Write a picture in the format of the file's suffix, whole or not at all."""
    write_atomically(path, encoded(picture, format_of(path)))


def encoded(picture: Image.Image, format: str, **options: int) -> bytes:
    """The bytes of a picture's file."""
    content = io.BytesIO()
    picture.save(content, format, **options)
    return content.getvalue()


def format_of(path: Path) -> str:
    """Pillow's name of the format that a file's suffix stands for; a ValueError where there is none."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"expected a file of {', '.join(sorted(_SUFFIXES))} to write (got {path})")
    return Image.registered_extensions()[path.suffix.lower()]
