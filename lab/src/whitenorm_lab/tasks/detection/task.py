"""Detection as a task of the training program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm_lab.tasks.detection.config import Detection
from whitenorm_lab.tasks.detection.metric import AveragePrecision
from whitenorm_lab.tasks.detection.model import build
from whitenorm_lab.tasks.detection.pictures import Batch, Pictures, collate, sets, trained
from whitenorm_lab.tasks.detection.sheet import sheet
from whitenorm_lab.tasks.detection.weights import state_of
from whitenorm_lab.training.batches import check_batch_size, draw_calibration_rows
from whitenorm_lab.training.checkpoints import write_atomically
from whitenorm_lab.training.loaders import DataLoaders, FileLoader, TrainSampler, build_test_sampler
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task, forward_in_eval_mode

# torchvision's losses, by the names that they are shown with.
_LOSSES = {
    "class": "loss_classifier",
    "box": "loss_box_reg",
    "object": "loss_objectness",
    "proposal": "loss_rpn_box_reg",
    "mask": "loss_mask",
}
_SHOWN = 8


class DetectionTask(Task[Detection]):
    """Boxes of objects in images, and their masks: torchvision's losses, COCO's average precision.

    A model takes a list of images and, in training, targets, as torchvision's detectors do.
    """

    main_score = "ap"
    # Whether a run begins, for which trained weights are read; a model that is loaded has its own.
    begins = False
    white: Tensor

    def __init__(self, config: Detection) -> None:
        super().__init__(config)
        # A buffer, which has the type of the run's arithmetic.
        self.register_buffer("white", torch.tensor(255.0), persistent=False)

    def build_loaders(self, dataset: Any, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
        """Batches of COCO's files; in their place, ``dataset`` is two :class:`Coco`, to train and to test on."""
        config, self.begins = self.config, True
        train, test = sets(config) if dataset is None else dataset
        pictures = trained(train, config)
        # A set of one file is tested on what is trained on, which shows no more than that it learns.
        tested = (pictures if test is train else test.pictures)[: config.test_images]
        numbers = torch.arange(len(pictures))
        size = check_batch_size(config.batch_size, len(pictures), world)
        opened: list[FileLoader] = []

        def opening(examples: Pictures, order: Any) -> FileLoader:
            opened.append(FileLoader(examples, order, config, collate))
            return opened[-1]

        def calibration(number: int) -> FileLoader:
            rows = draw_calibration_rows(len(pictures), number, config.seed, world)
            return opening(Pictures(pictures, False, True, False), build_test_sampler(rows, size // world, rank, world))

        def close() -> None:
            for loader in opened:
                loader.close()

        return DataLoaders(
            {"classes": train.classes, "names": train.names},
            opening(
                Pictures(pictures, config.masks, True, config.flip),
                TrainSampler(numbers, size, config.seed, step, rank, world),
            ),
            {
                "test": opening(
                    Pictures(tested, config.masks, False, False),
                    build_test_sampler(torch.arange(len(tested)), size // world, rank, world),
                )
            },
            calibration,
            size,
            close,
        )

    def build_model(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        if self.begins and config.freeze_bn and config.weights is None:
            raise ValueError("expected --weights, which the frozen BatchNorms' statistics are of (got none)")
        state = state_of(config.weights) if self.begins and config.weights is not None else None
        return build(config, description["classes"], state)

    def example_inputs(self, description: dict[str, Any], count: int) -> dict[str, Any]:
        return {"images": list(torch.rand(count, 3, self.config.min_size, self.config.min_size))}

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        """One image is enough to tell, and takes seconds where images are large."""
        found = forward_in_eval_mode(model, self.example_inputs(description, 1))
        if not isinstance(found, list) or not {"boxes", "labels", "scores"} <= set(found[0]):
            raise ValueError(f"expected a detector in torchvision's manner (got {type(model).__name__})")

    def prepare_batch(self, batch: Any) -> Batch:
        images, targets = batch
        return Batch([image.to(self.white.dtype) / self.white for image in images], targets)

    def loss(self, model: nn.Module, batch: Batch, step: int, scores: Means) -> Tensor:
        losses = model(batch.images, batch.targets)
        total: Tensor = sum(losses.values())
        number = len(batch.images)
        parts = {name: losses[_LOSSES[name]].detach() * number for name in scores.names if name != "loss"}
        scores.update(number, loss=total.detach() * number, **parts)
        return total

    def train_scores(self) -> Means:
        return Means(("loss", *(name for name in _LOSSES if self.config.masks or name != "mask")))

    def test_scores(self) -> AveragePrecision:
        return AveragePrecision(self.config.masks)

    def test(self, model: nn.Module, batch: Batch, scores: AveragePrecision) -> None:
        if batch.images:
            scores.add(model(batch.images), batch.targets)

    def inputs(self, batch: Batch) -> dict[str, Any]:
        return {"images": batch.images}

    def parameter_groups(self, model: nn.Module) -> Iterable[Any]:
        """Biases may have a learning rate of their own, and then no decay."""
        config = self.config
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        if config.bias_factor == 1:
            return [parameter for _, parameter in named]
        biases = [parameter for name, parameter in named if name.endswith("bias")]
        return [
            {"params": [parameter for name, parameter in named if not name.endswith("bias")]},
            {"params": biases, "lr": config.lr * config.bias_factor, "weight_decay": 0.0},
        ]

    def format_scores(self, numbers: dict[str, float]) -> str:
        shown = {"loss": "loss", "ap": "AP", "ap50": "AP50", "ap75": "AP75", "mask_ap": "mask AP"}
        return ", ".join(
            f"{words} {numbers[name]:.4f}" if name == "loss" else f"{words} {numbers[name]:.2f} %"
            for name, words in shown.items()
            if name in numbers
        )

    def finish(self, model: nn.Module, loaders: DataLoaders, folder: Path) -> None:
        """A picture of the first test images with what is found in them: ``detections.png``."""
        device = next(model.parameters()).device
        images = [image.to(device) for image in islice(self._tested(loaders), _SHOWN)]
        with torch.no_grad():
            found = [model([image])[0] for image in images]
        write_atomically(folder / "detections.png", sheet(images, found, loaders.description["names"]))

    def _tested(self, loaders: DataLoaders) -> Iterator[Tensor]:
        for batch in loaders.tests["test"]:
            yield from self.prepare_batch(batch).images


TASK = DetectionTask
