"""Predictions to look at: a sheet of images, their labels and what a net makes of them."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from whitenorm_lab.tasks.segmentation.classes import IGNORE, Category
from whitenorm_lab.tasks.segmentation.scenes import Scene

# Names in a row of the legend.
_COLUMNS = 6


def coloured(labels: Tensor, categories: Sequence[Category]) -> Tensor:
    """A picture ``(H, W, 3)`` of a label map ``(H, W)``, void in black."""
    table = torch.zeros(256, 3, dtype=torch.uint8)
    table[: len(categories)] = torch.tensor([category.colour for category in categories], dtype=torch.uint8)
    return table[labels.long().cpu()]


def sheet(
    scenes: Sequence[Scene], predicted: Sequence[Tensor], names: Sequence[str], categories: Sequence[Category]
) -> bytes:
    """A PNG: a row a scene of image, label and prediction, and below them the classes that are in it."""
    there = sorted(
        {int(i) for maps in (*(scene.labels for scene in scenes), *predicted) for i in maps.unique()} - {IGNORE}
    )
    legend_rows = -(-(len(there) + 1) // _COLUMNS)
    figure = Figure(figsize=(10, 2.6 * len(scenes) + 0.3 + 0.22 * legend_rows), layout="constrained")
    panels = figure.subplots(len(scenes), 3, squeeze=False)
    for row, scene, prediction, name in zip(panels, scenes, predicted, names, strict=True):
        pictures = (scene.image.permute(1, 2, 0), coloured(scene.labels, categories), coloured(prediction, categories))
        for panel, picture, title in zip(row, pictures, (name, "label", "prediction"), strict=True):
            panel.imshow(picture.numpy())
            panel.set_title(title, fontsize=9)
            panel.set_axis_off()
    patches = [_patch(*categories[i]) for i in there] + [_patch("void", (0, 0, 0))]
    figure.legend(handles=patches, loc="outside lower center", ncols=_COLUMNS, fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, metadata={"Software": None})
    return buffer.getvalue()


def _patch(name: str, colour: tuple[int, int, int]) -> Patch:
    red, green, blue = (part / 255 for part in colour)
    return Patch(facecolor=(red, green, blue), label=name)
