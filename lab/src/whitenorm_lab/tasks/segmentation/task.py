"""The semantic segmentation task."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab.tasks.segmentation.backbones import load_normalization
from whitenorm_lab.tasks.segmentation.classes import IGNORE
from whitenorm_lab.tasks.segmentation.config import Segment
from whitenorm_lab.tasks.segmentation.datasets import SceneSet, load
from whitenorm_lab.tasks.segmentation.drawing import draw_predictions
from whitenorm_lab.tasks.segmentation.loaders import build_loaders, compute_class_weights, select_evenly
from whitenorm_lab.tasks.segmentation.net import build_segmenter
from whitenorm_lab.tasks.segmentation.prediction import predict_sliding, predict_whole
from whitenorm_lab.tasks.segmentation.scenes import Scene, SceneDataset
from whitenorm_lab.tasks.segmentation.scores import PixelScores
from whitenorm_lab.training.checkpoints import write_atomically
from whitenorm_lab.training.loaders import DataLoaders
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task, forward_in_eval_mode

SHEET = "predictions.png"
_SHEET_ROWS = 6
# Height and width of example inputs.
_SIDE = 64


class Segmentation(Task[Segment]):
    """Cross-entropy per pixel, with that of an auxiliary head, and mean intersection over union.

    Batches are :class:`~.scenes.Scene`; ``fit`` takes a :class:`~.datasets.SceneSet`.
    """

    main_score: ClassVar[str] = "miou"
    calibration_examples: ClassVar[int] = 500
    mean: Tensor
    deviation: Tensor
    class_weights: Tensor | None
    names: tuple[str, ...] = ()
    drawn_scenes: SceneDataset | None = None

    def __init__(self, config: Segment) -> None:
        super().__init__(config)
        for name, value in zip(("mean", "deviation"), load_normalization(config.net), strict=True):
            self.register_buffer(name, torch.tensor(value).view(3, 1, 1), persistent=False)
        self.register_buffer("class_weights", None, persistent=False)

    def build_loaders(self, dataset: SceneSet | None, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
        config = self.config
        scene_set = load(config.dataset, config.data) if dataset is None else dataset
        self.names = tuple(category.name for category in scene_set.categories)
        self.drawn_scenes = SceneDataset(scene_set, select_evenly(scene_set.tests["test"], _SHEET_ROWS))
        self.class_weights = compute_class_weights(scene_set, config.balance).to(self.mean) if config.balance else None
        fill = [round(255 * part) for part in self.mean.flatten().tolist()]
        return build_loaders(config, scene_set, fill, step, rank, world)

    def build_model(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        # A trained model is built without loaders, and the file of its initial weights may no longer exist.
        weights = None if self.drawn_scenes is None else config.weights
        return build_segmenter(
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
        main, *auxiliary = (outputs,) if isinstance(outputs, Tensor) else outputs
        labels = batch.labels.long()
        pixels = (labels != IGNORE).sum()
        total = self._sum_cross_entropy(main, labels)
        total = total + self.config.auxiliary * sum(self._sum_cross_entropy(other, labels) for other in auxiliary)
        correct = (main.detach().argmax(1) == labels).sum()
        scores.update(pixels, loss=total.detach(), accuracy=correct)
        return total / _mean_over_processes(pixels).clamp_min(1)

    def _sum_cross_entropy(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy, summed over labeled pixels."""
        return F.cross_entropy(scores.float(), labels, self.class_weights, ignore_index=IGNORE, reduction="sum")

    def train_scores(self) -> Means:
        return Means(("loss", "accuracy"))

    def test_scores(self) -> PixelScores:
        return PixelScores(self.names)

    def test(self, model: nn.Module, batch: Scene, scores: PixelScores) -> None:
        if len(batch.labels):
            prediction, labels = self.predict(model, batch.image), batch.labels.long()
            scores.update(prediction, labels, F.nll_loss(prediction, labels, ignore_index=IGNORE))

    def predict(self, model: nn.Module, images: Tensor) -> Tensor:
        """Return log-probabilities of the classes, by whole images or sliding windows as configured."""
        if self.config.test == "sliding":
            return predict_sliding(model, images, self.config.crop)
        return predict_whole(model, images)

    def parameter_groups(self, model: nn.Module) -> list[dict[str, Any]]:
        backbone = getattr(model, "backbone", model)
        backbone_ids = {id(parameter) for parameter in backbone.parameters()}
        heads = [parameter for parameter in model.parameters() if id(parameter) not in backbone_ids]
        groups = [{"params": list(backbone.parameters())}]
        return [*groups, {"params": heads, "lr": self.config.lr * self.config.head_lr}] if heads else groups

    def format_scores(self, scores: dict[str, float]) -> str:
        formats = {"miou": "mIoU {:.2%}", "accuracy": "pixel accuracy {:.2%}", "loss": "loss {:.4f}"}
        return ", ".join(template.format(scores[name]) for name, template in formats.items() if name in scores)

    def finish(self, model: nn.Module, loaders: DataLoaders, folder: Path) -> None:
        """Write ``predictions.png``: test images, labels and predictions."""
        dataset = self.drawn_scenes
        assert dataset is not None
        scenes = [dataset[i] for i in range(len(dataset))]
        predictions = []
        for scene in scenes:
            images = self.prepare_batch((scene.image.unsqueeze(0).to(self.mean.device), None)).image
            predictions.append(self.predict(model, images)[0].argmax(0).cpu())
        names = [pair.image.stem for pair in dataset.pairs]
        write_atomically(folder / SHEET, draw_predictions(scenes, predictions, names, dataset.scene_set.categories))


def _mean_over_processes(pixels: Tensor) -> Tensor:
    """Return the mean number of labeled pixels per process.

    Processes have different numbers, but their gradients are averaged with equal weights.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return pixels
    total = pixels.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


TASK = Segmentation
