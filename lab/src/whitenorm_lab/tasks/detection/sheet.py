"""A picture of what a detector finds."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

_COLUMNS = 4
_COLOURS = 10
# Of a box that is shown, where one more likely than not is there; and how many of an image at most.
_SHOWN, _MOST = 0.5, 12


def sheet(images: Sequence[Tensor], found: Sequence[dict[str, Tensor]], names: Sequence[str]) -> bytes:
    """Images with boxes, names, scores and masks, as a PNG file.

    Args:
        images: ``(3, H, W)`` from 0 to 1.
        found: a detector's outputs.
        names: of the labels.
    """
    columns = min(_COLUMNS, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels:
        panel.axis("off")
    for panel, image, one in zip(panels, images, found, strict=False):
        _draw(panel, image.cpu(), {name: value.cpu() for name, value in one.items()}, names)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def _draw(panel: Axes, image: Tensor, one: dict[str, Tensor], names: Sequence[str]) -> None:
    chosen = [i for i, score in enumerate(one["scores"].tolist()) if score >= _SHOWN][:_MOST]
    pixels = image.permute(1, 2, 0).numpy()
    panel.imshow(pixels)
    for i in chosen:
        label = int(one["labels"][i])
        colour = f"C{label % _COLOURS}"
        x1, y1, x2, y2 = one["boxes"][i].tolist()
        panel.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, color=colour))
        words = f"{names[label]} {float(one['scores'][i]):.2f}"
        panel.text(
            x1, y1, words, fontsize=6, color="white", va="bottom", bbox={"color": colour, "pad": 1}, clip_on=True
        )
        if "masks" in one:
            panel.contour(one["masks"][i, 0].numpy(), levels=[0.5], colors=[colour], linewidths=1)
    panel.set_title(f"{len(chosen)} found", fontsize=8)
