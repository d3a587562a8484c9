"""The detection task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm_lab.tasks.detection.config import Detection
from whitenorm_lab.tasks.detection.dataset import (
    Batch,
    DetectionDataset,
    collate,
    read_datasets,
    select_training_images,
)
from whitenorm_lab.tasks.detection.drawing import draw_detections
from whitenorm_lab.tasks.detection.metric import AveragePrecision
from whitenorm_lab.tasks.detection.model import build_detector
from whitenorm_lab.tasks.detection.weights import load_classifier
from whitenorm_lab.training.checkpoints import write_atomically
from whitenorm_lab.training.loaders import DataLoaders, FileLoaders
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task, forward_in_eval_mode

# Our names of torchvision's losses.
_LOSSES = {
    "class": "loss_classifier",
    "box": "loss_box_reg",
    "object": "loss_objectness",
    "proposal": "loss_rpn_box_reg",
    "mask": "loss_mask",
}
_DRAWN_IMAGES = 8


class DetectionTask(Task[Detection]):
    """Detection of boxes, and optionally masks, with torchvision's losses and COCO's average precision.

    A model has the interface of torchvision's detectors: a list of images and, in training, of targets.
    """

    main_score = "ap"
    # True once a run has data; only then trained weights are read, as a loaded model has its own.
    is_training = False
    white: Tensor

    def __init__(self, config: Detection) -> None:
        super().__init__(config)
        # A buffer, so that it has the dtype of the run.
        self.register_buffer("white", torch.tensor(255.0), persistent=False)

    def build_loaders(self, dataset: Any, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
        """Return batches of COCO's files, or of ``dataset``, a pair of :class:`Coco` for training and test."""
        config, self.is_training = self.config, True
        train, test = read_datasets(config) if dataset is None else dataset
        images = select_training_images(train, config)
        # With one file, the training images are also the test images, which only shows that the model learns.
        test_images = (images if test is train else test.images)[: config.test_images]
        loaders = FileLoaders(config, torch.arange(len(images)), step, rank, world, collate)
        return DataLoaders(
            {"classes": train.classes, "names": train.names},
            loaders.build_train(DetectionDataset(images, config.masks, True, config.flip)),
            {
                "test": loaders.build_test(
                    DetectionDataset(test_images, config.masks, False, False), torch.arange(len(test_images))
                )
            },
            lambda count: loaders.build_calibration(DetectionDataset(images, False, True, False), count),
            loaders.batch_size,
            loaders.close,
        )

    def build_model(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        if self.is_training and config.freeze_bn and config.weights is None:
            raise ValueError("expected --weights with the statistics of the frozen BatchNorms (got none)")
        state = load_classifier(config.weights) if self.is_training and config.weights is not None else None
        return build_detector(config, description["classes"], state)

    def example_inputs(self, description: dict[str, Any], count: int) -> dict[str, Any]:
        return {"images": list(torch.rand(count, 3, self.config.min_size, self.config.min_size))}

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        """Run the model on one image only, as a large image takes seconds."""
        outputs = forward_in_eval_mode(model, self.example_inputs(description, 1))
        if not isinstance(outputs, list) or not {"boxes", "labels", "scores"} <= set(outputs[0]):
            raise ValueError(f"expected a detector with the outputs of torchvision's (got {type(model).__name__})")

    def prepare_batch(self, batch: Any) -> Batch:
        images, targets = batch
        return Batch([image.to(self.white.dtype) / self.white for image in images], targets)

    def loss(self, model: nn.Module, batch: Batch, step: int, scores: Means) -> Tensor:
        losses = model(batch.images, batch.targets)
        total: Tensor = sum(losses.values())
        size = len(batch.images)
        parts = {name: losses[_LOSSES[name]].detach() * size for name in scores.names if name != "loss"}
        scores.update(size, loss=total.detach() * size, **parts)
        return total

    def train_scores(self) -> Means:
        return Means(("loss", *(name for name in _LOSSES if self.config.masks or name != "mask")))

    def test_scores(self) -> AveragePrecision:
        return AveragePrecision(self.config.masks)

    def test(self, model: nn.Module, batch: Batch, scores: AveragePrecision) -> None:
        if batch.images:
            scores.update(model(batch.images), batch.targets)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return {"images": batch.images}

    def parameter_groups(self, model: nn.Module) -> Iterable[Any]:
        """Return all trainable parameters, or biases as a group with another learning rate and no weight decay."""
        config = self.config
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if config.bias_factor == 1:
            return [parameter for _, parameter in named]
        biases = [parameter for name, parameter in named if name.endswith("bias")]
        return [
            {"params": [parameter for name, parameter in named if not name.endswith("bias")]},
            {"params": biases, "lr": config.lr * config.bias_factor, "weight_decay": 0.0},
        ]

    def format_scores(self, scores: dict[str, float]) -> str:
        labels = {"loss": "loss", "ap": "AP", "ap50": "AP50", "ap75": "AP75", "mask_ap": "mask AP"}
        return ", ".join(
            f"{label} {scores[name]:.4f}" if name == "loss" else f"{label} {scores[name]:.2f} %"
            for name, label in labels.items()
            if name in scores
        )

    def finish(self, model: nn.Module, loaders: DataLoaders, folder: Path) -> None:
        """Write ``detections.png``: the first test images with the detected objects."""
        device = next(model.parameters()).device
        images = [image.to(device) for image in islice(self._iterate_test_images(loaders), _DRAWN_IMAGES)]
        with torch.no_grad():
            outputs = [model([image])[0] for image in images]
        write_atomically(folder / "detections.png", draw_detections(images, outputs, loaders.description["names"]))

    def _iterate_test_images(self, loaders: DataLoaders) -> Iterator[Tensor]:
        for batch in loaders.tests["test"]:
            yield from self.prepare_batch(batch).images


TASK = DetectionTask
