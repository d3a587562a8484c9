"""``whitenorm-lab stylize``: an image painted by the net of a run of style transfer."""

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
    """Paint an image with the net that a run of whitenorm-lab train style has trained.

    An image of any size and shape is painted whole. Of a greyscale image all channels are that one, and what is
    transparent counts as white.
    """

    image: tyro.conf.Positional[Path]
    """The image's file."""
    model: Path
    """The folder of the run."""
    out: Path | None = None
    """Where to write; IMAGE-stylized.png in the present folder if not given."""
    size: int | None = None
    """Scale the image to so many pixels on its longer side first; strokes are as wide as in the training images."""
    device: str | None = None
    """cpu, cuda or another of torch's; a GPU where there is one if not given."""


def main(args: list[str]) -> None:
    """Parse the arguments and run."""
    run(tyro.cli(Stylize, prog="whitenorm-lab stylize", args=args))


def run(options: Stylize) -> None:
    """Paint, and say where the picture is."""
    print(f"{options.image} is painted in {stylize(options)}")


def stylize(options: Stylize) -> Path:
    """Paint, write, and return the file."""
    import torch

    from whitenorm_lab.tasks.style import pictures
    from whitenorm_lab.training.folder import RunFolder
    from whitenorm_lab.training.loading import load

    out = options.out or Path(f"{options.image.stem}-stylized.png")
    pictures.format_of(out)
    if out.resolve() == options.image.resolve():
        raise ValueError(f"expected another file to write than the image itself (got {out}); pass another --out")
    picture = _scaled(pictures.read(options.image), options.size)
    config = RunFolder(options.model).read_config()
    if config.task != "style":
        raise ValueError(f"expected a run of style transfer (got {options.model}, one of {config.task})")
    device = _device(options.device)
    net = load(options.model).to(device)
    example = next(net.parameters())
    with torch.no_grad():
        painted = net(pictures.tensor(picture).to(device, example.dtype)[None] / 255)[0]
    pictures.save(pictures.picture(painted), out)
    return out


def _scaled(picture: Image.Image, size: int | None) -> Image.Image:
    """The picture with a longer side of so many pixels."""
    from PIL import Image

    from whitenorm_lab.tasks.style.net import SMALLEST

    if size is None:
        return picture
    width, height = (round(side * size / max(picture.size)) for side in picture.size)
    if min(width, height) < SMALLEST:
        raise ValueError(
            f"expected a size that leaves at least {SMALLEST} pixels on the shorter side (got {size}, of which "
            f"{min(width, height)} are left); pass a larger --size"
        )
    return picture.resize((width, height), Image.Resampling.LANCZOS)


def _device(name: str | None) -> torch.device:
    import torch

    if name is None:
        found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        return found or torch.device("cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"expected a device that this machine has (got {name!r}): {error}") from error
