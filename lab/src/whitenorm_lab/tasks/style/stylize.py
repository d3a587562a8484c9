"""``whitenorm-lab stylize``: apply the net of a style transfer run to an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

if TYPE_CHECKING:
    import torch
    from PIL import Image


@dataclass
class Stylize:
    """Apply the net of a whitenorm-lab train style run to an image of any size.

    Grayscale images are converted to RGB, and transparent pixels become white.
    """

    image: tyro.conf.Positional[Path]
    """Image file."""
    model: Path
    """Folder of the run."""
    out: Path | None = None
    """Output file; IMAGE-stylized.png in the current folder by default."""
    size: int | None = None
    """First resize the longer side of the image to this many pixels; the width of strokes does not depend on it."""
    device: str | None = None
    """cpu, cuda or another torch device; by default a GPU if available."""


def main(args: list[str]) -> None:
    """Parse the arguments, stylize the image, and print the output path."""
    options = tyro.cli(Stylize, prog="whitenorm-lab stylize", args=args)
    print(f"stylized {options.image}: {stylize(options)}")


def stylize(options: Stylize) -> Path:
    """Stylize an image, write the result, and return its path."""
    import torch

    from whitenorm_lab.tasks.style import images
    from whitenorm_lab.training.folder import RunFolder
    from whitenorm_lab.training.loading import load

    out = options.out or Path(f"{options.image.stem}-stylized.png")
    images.get_format(out)
    if out.resolve() == options.image.resolve():
        raise ValueError(f"expected another output file than the image itself (got {out}); pass another --out")
    image = _resize_longer_side(images.read_image(options.image), options.size)
    config = RunFolder(options.model).read_config()
    if config.task != "style":
        raise ValueError(f"expected a run of style transfer (got {options.model}, one of {config.task})")
    device = _get_device(options.device)
    net = load(options.model).to(device)
    dtype = next(net.parameters()).dtype
    with torch.no_grad():
        stylized = net(images.to_tensor(image).to(device, dtype)[None] / 255)[0]
    images.write_image(images.to_pil(stylized), out)
    return out


def _resize_longer_side(image: Image.Image, size: int | None) -> Image.Image:
    """Resize an image so that its longer side has ``size`` pixels, if given."""
    from PIL import Image

    from whitenorm_lab.tasks.style.net import MIN_SIZE

    if size is None:
        return image
    width, height = (round(side * size / max(image.size)) for side in image.size)
    if min(width, height) < MIN_SIZE:
        raise ValueError(
            f"expected a size with at least {MIN_SIZE} pixels on the shorter side (got {size}, which gives "
            f"{min(width, height)}); pass a larger --size"
        )
    return image.resize((width, height), Image.Resampling.LANCZOS)


def _get_device(name: str | None) -> torch.device:
    import torch

    if name is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return accelerator or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"expected an available device (got {name!r}): {error}") from error
