"""Draw the pictures of docs/more-methods.md with the variables of its code: ``python tools/docs/pictures.py``."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

PAGE = Path(__file__).parents[2] / "docs" / "more-methods.md"


def read_code() -> str:
    """Return all Python code of the page."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))


def digest() -> str:
    """Return a digest of the page's code, which the pictures carry."""
    return hashlib.sha256(read_code().encode()).hexdigest()[:16]


def draw_colours(page: dict[str, Any]) -> Figure:
    images = {"style": page["sunset"][0], **{f"α = {alpha}": image for alpha, image in page["colored"].items()}}
    figure, axes = plt.subplots(1, len(images), figsize=(6, 1.8), dpi=110, layout="constrained")
    for axis, (title, image) in zip(axes, images.items(), strict=True):
        axis.imshow(image.clamp(0, 1).permute(1, 2, 0))
        axis.set_title(title, fontsize=9)
        axis.axis("off")
    return figure


def draw_concepts(page: dict[str, Any]) -> Figure:
    images, largest, shown = page["test"].images, page["largest"][:12], page["shown"]
    figure, axes = plt.subplots(len(shown), len(largest), figsize=(6, 1.7), dpi=110, layout="constrained")
    for row, digit in enumerate(shown):
        for axis, index in zip(axes[row], largest[:, row], strict=True):
            axis.imshow(images[index, 0], cmap="gray_r")
            axis.set(xticks=[], yticks=[])
        axes[row, 0].set_ylabel(f"“{digit}”", rotation=0, labelpad=12, va="center")
    return figure


PICTURES = {"colours": draw_colours, "concepts": draw_concepts}


def picture_path(name: str) -> Path:
    return PAGE.with_name(f"{PAGE.stem}-{name}.png")


def main() -> None:
    page: dict[str, Any] = {}
    exec(compile(read_code(), str(PAGE), "exec"), page)
    for name, draw in PICTURES.items():
        draw(page).savefig(picture_path(name), metadata={"Software": None, "Source": digest()})


if __name__ == "__main__":
    main()
