"""Image classification: cross-entropy, accuracy, and top-5 accuracy where there are many classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from whitenorm_lab import data, nets
from whitenorm_lab.tasks.classification import memory
from whitenorm_lab.tasks.classification.config import FOLDER, Train
from whitenorm_lab.tasks.classification.images import Batch, crop_and_flip, mixing, normalisation, resized
from whitenorm_lab.training.loaders import DataLoaders
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task, forward_in_eval_mode

# They change what a trained net computes.
_WITHOUT_POPULATION = ("gw", "gn", "ln", "in", "iw")
# Of fewer classes, the right one is hardly ever not among five.
_CLASSES_FOR_TOP5 = 50
_WORDS = {"accuracy": "accuracy {:.2%}", "top5": "top-5 {:.2%}", "loss": "loss {:.4f}"}


class Classification(Task[Train]):
    """Batches are :class:`~.images.Batch`; ``fit`` takes a :class:`whitenorm_lab.data.Dataset`."""

    main_score: ClassVar[str] = "accuracy"
    mean: Tensor | None
    factor: Tensor
    top5 = False
    _source: DataLoaders | None = None

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

            batches = imagefolder.build_loaders(config, config.dataset.removeprefix(FOLDER), step, rank, world)
        else:
            dataset = data.load(config.dataset, config.data) if dataset is None else dataset
            batches = memory.build_loaders(config, dataset, step, rank, world)
            self.normalise_by(batches.train.split.images)
            if config.resize is not None:
                shape = (batches.description["shape"][0], config.resize, config.resize)
                batches = replace(batches, description={**batches.description, "shape": shape})
        self._source = batches
        self.top5 = batches.description["classes"] >= _CLASSES_FOR_TOP5
        return batches

    def normalise_by(self, images: Tensor) -> None:
        """Take the mean and the factor from training images as bytes."""
        self.mean, self.factor = normalisation(images, self.config.normalize)

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
            # Of a run that was trained, they are loaded after this.
            weights=None if self._source is None else config.weights,
            images=self._calibration(),
        )
        return net.to(memory_format=self._format())  # type: ignore[call-overload]

    def _format(self) -> torch.memory_format:
        return torch.channels_last if self.config.channels_last else torch.preserve_format

    def _calibration(self) -> Tensor | None:
        """Training images that a norm without population is set by, in a net that begins with trained weights."""
        config = self.config
        if self._source is None or config.weights is None or config.norm not in _WITHOUT_POPULATION:
            return None
        if not config.calibrate:
            return None
        return torch.cat(
            [self.inputs(self.prepare_batch(batch)) for batch in self._source.build_calibration(config.calibrate)]
        )

    def example_inputs(self, description: dict[str, Any], count: int) -> Tensor:
        return torch.randn(count, *description["shape"])

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        config, classes = self.config, description["classes"]
        try:
            logits = forward_in_eval_mode(model, torch.zeros(2, *description["shape"]))
        except RuntimeError as error:
            raise ValueError(
                f"expected a net that takes images of {'×'.join(map(str, description['shape']))}, as {config.dataset} "
                f"has (got {config.net}, which fails: {error}); choose another net"
            ) from error
        if logits.shape[1:] != (classes,):
            raise ValueError(
                f"expected a net with {classes} outputs, as {config.dataset} has classes (got outputs of shape "
                f"{tuple(logits.shape[1:])})"
            )

    def prepare_batch(self, batch: Any) -> Batch:
        batch = Batch(*batch)
        images = batch.images if self.mean is None else self._prepared(batch, self.mean)
        return batch._replace(images=images.to(memory_format=self._format()), draws=None)

    def _prepared(self, batch: Batch, mean: Tensor) -> Tensor:
        """Images of a set in memory, which come as bytes."""
        images = (batch.images.to(mean.dtype) - mean) * self.factor
        if batch.draws is not None:
            images = crop_and_flip(images, batch.draws)
        return images if self.config.resize is None else resized(images, self.config.resize)

    def loss(self, model: nn.Module, batch: Batch, step: int, scores: Means) -> Tensor:
        images, labels, _ = batch
        config, smoothing = self.config, self.config.label_smoothing
        if config.mixup:
            share, order = mixing(config.mixup, config.seed, step, number=len(labels))
            order = order.to(labels.device)
            logits = model(torch.lerp(images[order], images, share))
            loss = share * F.cross_entropy(logits, labels, label_smoothing=smoothing)
            loss = loss + (1 - share) * F.cross_entropy(logits, labels[order], label_smoothing=smoothing)
        else:
            logits = model(images)
            loss = F.cross_entropy(logits, labels, label_smoothing=smoothing)
        self._count(scores, loss.detach(), logits.detach(), labels)
        return loss

    def train_scores(self) -> Means:
        return Means(("accuracy", "top5", "loss") if self.top5 else ("accuracy", "loss"))

    def test_scores(self) -> Means:
        return self.train_scores()

    def test(self, model: nn.Module, batch: Batch, scores: Means) -> None:
        images, labels, _ = batch
        if len(labels):
            logits = model(images)
            self._count(scores, F.cross_entropy(logits, labels), logits, labels)

    def _count(self, scores: Means, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        totals = {"loss": loss * len(labels), "accuracy": (logits.argmax(1) == labels).sum()}
        if self.top5:
            totals["top5"] = (logits.topk(5).indices == labels.unsqueeze(1)).sum()
        scores.update(len(labels), **totals)

    def inputs(self, batch: Batch) -> Tensor:
        return batch.images

    def format_scores(self, numbers: dict[str, float]) -> str:
        return ", ".join(_WORDS[name].format(value) for name, value in numbers.items())


TASK = Classification
