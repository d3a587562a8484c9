"""Image classification: cross-entropy, accuracy, and top-5 accuracy for many classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab import data, nets
from whitenorm_lab.tasks.classification.config import FOLDER, Train
from whitenorm_lab.tasks.classification.images import (
    Batch,
    build_loaders,
    compute_normalization,
    crop_and_flip,
    draw_mixup,
    resize,
)
from whitenorm_lab.training.loaders import DataLoaders
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task, forward_in_eval_mode

# Norms without population statistics, which change the output of a network trained with BatchNorm.
_WITHOUT_POPULATION = ("gw", "gn", "ln", "in", "iw")
# With fewer classes, the right one is nearly always among five.
_MIN_CLASSES_FOR_TOP5 = 50
_FORMATS = {"accuracy": "accuracy {:.2%}", "top5": "top-5 {:.2%}", "loss": "loss {:.4f}"}


class Classification(Task[Train]):
    """Batches are :class:`~.images.Batch`; ``fit`` takes a :class:`whitenorm_lab.data.Dataset`."""

    main_score: ClassVar[str] = "accuracy"
    mean: Tensor | None
    factor: Tensor
    top5 = False
    _loaders: DataLoaders | None = None

    def __init__(self, config: Train) -> None:
        super().__init__(config)
        for name in ("mean", "factor"):
            self.register_buffer(name, None, persistent=False)

    def build_loaders(
        self, dataset: data.Dataset | None, step: Callable[[], int], rank: int, world: int
    ) -> DataLoaders:
        config = self.config
        if dataset is None and config.dataset.startswith(FOLDER):
            from whitenorm_lab.tasks.classification import imagefolder

            loaders = imagefolder.build_loaders(config, config.dataset.removeprefix(FOLDER), step, rank, world)
        else:
            dataset = data.load(config.dataset, config.data) if dataset is None else dataset
            loaders = build_loaders(config, dataset, step, rank, world)
            self.set_normalization(loaders.train.split.images)
            if config.resize is not None:
                shape = (loaders.description["shape"][0], config.resize, config.resize)
                loaders = replace(loaders, description={**loaders.description, "shape": shape})
        self._loaders = loaders
        self.top5 = loaders.description["classes"] >= _MIN_CLASSES_FOR_TOP5
        return loaders

    def set_normalization(self, images: Tensor) -> None:
        """Compute the mean and the factor from training images of bytes."""
        self.mean, self.factor = compute_normalization(images, self.config.normalize)

    def build_model(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        net = nets.build(
            config.net,
            description["classes"],
            config.norm,
            config.where,
            shape=tuple(description["shape"]),
            activation=config.activation,
            width=config.width,
            dropout=config.dropout,
            norm_last=config.norm_last,
            init=config.init,
            norm_options=config.norm_options(),
            # A trained model is built without loaders, and its own weights are loaded later.
            weights=None if self._loaders is None else config.weights,
            images=self._load_calibration_images(),
        )
        return net.to(memory_format=self._memory_format())  # type: ignore[call-overload]

    def _memory_format(self) -> torch.memory_format:
        return torch.channels_last if self.config.channels_last else torch.preserve_format

    def _load_calibration_images(self) -> Tensor | None:
        """Return training images to calibrate a norm without population statistics with, given trained weights."""
        config = self.config
        if self._loaders is None or config.weights is None or config.norm not in _WITHOUT_POPULATION:
            return None
        if not config.calibrate:
            return None
        batches = self._loaders.build_calibration(config.calibrate)
        return torch.cat([self.inputs(self.prepare_batch(batch)) for batch in batches])

    def example_inputs(self, description: dict[str, Any], count: int) -> Tensor:
        return torch.randn(count, *description["shape"])

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        config, classes = self.config, description["classes"]
        try:
            logits = forward_in_eval_mode(model, torch.zeros(2, *description["shape"]))
        except RuntimeError as error:
            raise ValueError(
                f"expected a net for images of {'×'.join(map(str, description['shape']))} from {config.dataset} (got "
                f"{config.net}, which fails: {error}); choose another net"
            ) from error
        if logits.shape[1:] != (classes,):
            raise ValueError(
                f"expected a net with {classes} outputs, one per class of {config.dataset} (got outputs of shape "
                f"{tuple(logits.shape[1:])})"
            )

    def prepare_batch(self, batch: Any) -> Batch:
        batch = Batch(*batch)
        images = batch.images if self.mean is None else self._transform(batch, self.mean)
        return batch._replace(images=images.to(memory_format=self._memory_format()), draws=None)

    def _transform(self, batch: Batch, mean: Tensor) -> Tensor:
        """Normalize, augment and resize the images of a data set in memory, which are bytes."""
        images = (batch.images.to(mean.dtype) - mean) * self.factor
        if batch.draws is not None:
            images = crop_and_flip(images, batch.draws)
        return images if self.config.resize is None else resize(images, self.config.resize)

    def loss(self, model: nn.Module, batch: Batch, step: int, scores: Means) -> Tensor:
        images, labels, _ = batch
        config, smoothing = self.config, self.config.label_smoothing
        if config.mixup:
            weight, partners = draw_mixup(config.mixup, config.seed, step, batch_size=len(labels))
            partners = partners.to(labels.device)
            logits = model(torch.lerp(images[partners], images, weight))
            loss = weight * F.cross_entropy(logits, labels, label_smoothing=smoothing)
            loss = loss + (1 - weight) * F.cross_entropy(logits, labels[partners], label_smoothing=smoothing)
        else:
            logits = model(images)
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        self._update_scores(scores, loss.detach(), logits.detach(), labels)
        return loss

    def train_scores(self) -> Means:
        return Means(("accuracy", "top5", "loss") if self.top5 else ("accuracy", "loss"))

    def test_scores(self) -> Means:
        return self.train_scores()

    def test(self, model: nn.Module, batch: Batch, scores: Means) -> None:
        images, labels, _ = batch
        if len(labels):
            logits = model(images)
            self._update_scores(scores, F.cross_entropy(logits, labels), logits, labels)

    def _update_scores(self, scores: Means, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        totals = {"loss": loss * len(labels), "accuracy": (logits.argmax(1) == labels).sum()}
        if self.top5:
            totals["top5"] = (logits.topk(5).indices == labels.unsqueeze(1)).sum()
        scores.update(len(labels), **totals)

    def inputs(self, batch: Batch) -> Tensor:
        return batch.images

    def format_scores(self, scores: dict[str, float]) -> str:
        return ", ".join(_FORMATS[name].format(value) for name, value in scores.items())


TASK = Classification
