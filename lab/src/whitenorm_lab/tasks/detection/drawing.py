"""Figure of the outputs of a detector."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

_COLUMNS = 4
_COLORS = 10
# Lowest score of the boxes that are drawn, and their largest number per image.
_MIN_SCORE, _MAX_BOXES = 0.5, 12


def draw_detections(images: Sequence[Tensor], outputs: Sequence[dict[str, Tensor]], names: Sequence[str]) -> bytes:
    """Draw images with boxes, category names, scores and masks, and return a PNG file.

    Args:
        images: ``(3, H, W)`` from 0 to 1.
        outputs: the detector's outputs for the images.
        names: category names by label.
    """
    columns = min(_COLUMNS, len(images))
    rows = -(-len(images) // columns)
    figure = Figure(figsize=(3.2 * columns, 2.8 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels:
        panel.axis("off")
    for panel, image, output in zip(panels, images, outputs, strict=False):
        _draw_image(panel, image.cpu(), {name: value.cpu() for name, value in output.items()}, names)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, metadata={"Software": None})
    return content.getvalue()


def _draw_image(panel: Axes, image: Tensor, output: dict[str, Tensor], names: Sequence[str]) -> None:
    boxes = [i for i, score in enumerate(output["scores"].tolist()) if score >= _MIN_SCORE][:_MAX_BOXES]
    panel.imshow(image.permute(1, 2, 0).numpy())
    for i in boxes:
        label = int(output["labels"][i])
        color = f"C{label % _COLORS}"
        x1, y1, x2, y2 = output["boxes"][i].tolist()
        panel.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, color=color))
        text = f"{names[label]} {float(output['scores'][i]):.2f}"
        panel.text(x1, y1, text, fontsize=6, color="white", va="bottom", bbox={"color": color, "pad": 1}, clip_on=True)
        if "masks" in output:
            panel.contour(output["masks"][i, 0].numpy(), levels=[0.5], colors=[color], linewidths=1)
    panel.set_title(f"{len(boxes)} objects", fontsize=8)
