"""Semantic segmentation: cross-entropy a pixel, with that of a second head; mean intersection over union."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab.tasks.segmentation import net, pictures, predicting, reading
from whitenorm_lab.tasks.segmentation.backbones import normalisation
from whitenorm_lab.tasks.segmentation.classes import IGNORE
from whitenorm_lab.tasks.segmentation.config import Segment
from whitenorm_lab.tasks.segmentation.scenes import Scene, Scenes
from whitenorm_lab.tasks.segmentation.scores import PixelScores
from whitenorm_lab.tasks.segmentation.sets import SceneSet, load
from whitenorm_lab.training.checkpoints import write_atomically
from whitenorm_lab.training.loaders import DataLoaders
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task, forward_in_eval_mode

SHEET = "predictions.png"
# Rows of the sheet.
_SHOWN = 6
# The side of what a model is tried on.
_SIDE = 64


class Segmentation(Task[Segment]):
    """Batches are :class:`~.scenes.Scene`; ``fit`` takes a :class:`~.sets.SceneSet`."""

    main_score: ClassVar[str] = "miou"
    calibration_examples: ClassVar[int] = 500
    mean: Tensor
    deviation: Tensor
    class_weights: Tensor | None
    names: tuple[str, ...] = ()
    shown: Scenes | None = None

    def __init__(self, config: Segment) -> None:
        super().__init__(config)
        for name, value in zip(("mean", "deviation"), normalisation(config.net), strict=True):
            self.register_buffer(name, torch.tensor(value).view(3, 1, 1), persistent=False)
        self.register_buffer("class_weights", None, persistent=False)

    def build_loaders(self, dataset: SceneSet | None, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
        found = load(self.config.dataset, self.config.data) if dataset is None else dataset
        self.names = tuple(category.name for category in found.categories)
        self.shown = Scenes(found, reading.spread(found.tests["test"], _SHOWN))
        self.class_weights = (
            reading.class_weights(found, self.config.balance).to(self.mean) if self.config.balance else None
        )
        fill = [round(255 * part) for part in self.mean.flatten().tolist()]
        return reading.build_loaders(self.config, found, fill, step, rank, world)

    def build_model(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        # To load a model there are no loaders, and what it was trained from may be gone.
        weights = None if self.shown is None else config.weights
        return net.build(
            config.net,
            len(description["classes"]),
            config.head,
            config.norm,
            config.where,
            stride=config.stride,
            width=config.width,
            auxiliary=config.auxiliary > 0,
            weights=weights,
            norm_options=config.norm_options(),
        )

    def example_inputs(self, description: dict[str, Any], count: int) -> Tensor:
        return torch.randn(count, 3, _SIDE, _SIDE)

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        expected = (2, len(description["classes"]), _SIDE, _SIDE)
        scores = forward_in_eval_mode(model, torch.zeros(2, 3, _SIDE, _SIDE))
        if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"expected a model with outputs of shape {expected} in eval mode (got {got})")

    def prepare_batch(self, batch: Any) -> Scene:
        images, labels = batch
        return Scene((images.to(self.mean.dtype) / 255 - self.mean) / self.deviation, labels)

    def inputs(self, batch: Scene) -> Tensor:
        return batch.image

    def loss(self, model: nn.Module, batch: Scene, step: int, scores: Means) -> Tensor:
        outputs = model(batch.image)
        first, *others = (outputs,) if isinstance(outputs, Tensor) else outputs
        labels = batch.labels.long()
        pixels = (labels != IGNORE).sum()
        total = self._entropy(first, labels)
        total = total + self.config.auxiliary * sum(self._entropy(other, labels) for other in others)
        right = (first.detach().argmax(1) == labels).sum()
        scores.update(pixels, loss=total.detach(), accuracy=right)
        return total / _mean_over_processes(pixels).clamp_min(1)

    def _entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, summed over the pixels that have a class."""
        return F.cross_entropy(scores.float(), labels, self.class_weights, ignore_index=IGNORE, reduction="sum")

    def train_scores(self) -> Means:
        return Means(("loss", "accuracy"))

    def test_scores(self) -> PixelScores:
        return PixelScores(self.names)

    def test(self, model: nn.Module, batch: Scene, scores: PixelScores) -> None:
        if len(batch.labels):
            found, labels = self.predict(model, batch.image), batch.labels.long()
            scores.update(found, labels, F.nll_loss(found, labels, ignore_index=IGNORE))

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """Logarithms of the classes' probabilities, in the configuration's way."""
        if self.config.test == "sliding":
            return predicting.sliding(model, images, self.config.crop)
        return predicting.whole(model, images)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        backbone = getattr(model, "backbone", model)
        first = {id(parameter) for parameter in backbone.parameters()}
        heads = [parameter for parameter in model.parameters() if id(parameter) not in first]
        groups = [{"params": list(backbone.parameters())}]
        return [*groups, {"params": heads, "lr": self.config.lr * self.config.head_lr}] if heads else groups

    def format_scores(self, numbers: dict[str, float]) -> str:
        shown = {"miou": "mIoU {:.2%}", "accuracy": "pixel accuracy {:.2%}", "loss": "loss {:.4f}"}
        return ", ".join(words.format(numbers[name]) for name, words in shown.items() if name in numbers)

    def finish(self, model: nn.Module, loaders: DataLoaders, folder: Path) -> None:
        """A sheet of test images, labels and predictions."""
        assert self.shown is not None
        scenes = [self.shown[i] for i in range(len(self.shown))]
        predicted = []
        for scene in scenes:
            images = self.prepare_batch((scene.image.unsqueeze(0).to(self.mean.device), None)).image
            predicted.append(self.predict(model, images)[0].argmax(0).cpu())
        names = [pair.image.stem for pair in self.shown.pairs]
        write_atomically(folder / SHEET, pictures.sheet(scenes, predicted, names, self.shown.of.categories))


def _mean_over_processes(pixels: Tensor) -> Tensor:
    """Processes have different numbers of labelled pixels, and average their gradients as if they had not."""
    if not (dist.is_available() and dist.is_initialized()):
        return pixels
    total = pixels.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


TASK = Segmentation
