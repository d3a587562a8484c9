"""A figure of test images with their labels and predictions."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from whitenorm_lab.tasks.segmentation.classes import IGNORE, Category
from whitenorm_lab.tasks.segmentation.scenes import Scene

_LEGEND_COLUMNS = 6


def draw_predictions(
    scenes: Sequence[Scene], predictions: Sequence[Tensor], names: Sequence[str], categories: Sequence[Category]
) -> bytes:
    """Draw a PNG with image, label map and prediction of each scene in one row, and a legend of the classes in them."""
    classes = sorted(
        {int(i) for maps in (*(scene.labels for scene in scenes), *predictions) for i in maps.unique()} - {IGNORE}
    )
    legend_rows = -(-(len(classes) + 1) // _LEGEND_COLUMNS)
    figure = Figure(figsize=(10, 2.6 * len(scenes) + 0.3 + 0.22 * legend_rows), layout="constrained")
    panels = figure.subplots(len(scenes), 3, squeeze=False)
    for row, scene, prediction, name in zip(panels, scenes, predictions, names, strict=True):
        images = (
            scene.image.permute(1, 2, 0),
            _color_labels(scene.labels, categories),
            _color_labels(prediction, categories),
        )
        for panel, image, title in zip(row, images, (name, "label", "prediction"), strict=True):
            panel.imshow(image.numpy())
            panel.set_title(title, fontsize=9)
            panel.set_axis_off()
    patches = [_build_patch(*categories[i]) for i in classes] + [_build_patch("void", (0, 0, 0))]
    figure.legend(handles=patches, loc="outside lower center", ncols=_LEGEND_COLUMNS, fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _color_labels(labels: Tensor, categories: Sequence[Category]) -> Tensor:
    """Return a label map ``(H, W)`` as a color image ``(H, W, 3)``, with void in black."""
    table = torch.zeros(256, 3, dtype=torch.uint8)
    table[: len(categories)] = torch.tensor([category.color for category in categories], dtype=torch.uint8)
    return table[labels.long().cpu()]


def _build_patch(name: str, color: tuple[int, int, int]) -> Patch:
    red, green, blue = (part / 255 for part in color)
    return Patch(facecolor=(red, green, blue), label=name)
