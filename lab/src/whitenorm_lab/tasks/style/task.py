"""Style transfer: a net that paints, judged by the features of a trained one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whitenorm_lab.nets import place_
from whitenorm_lab.tasks.style import pictures
from whitenorm_lab.tasks.style.config import Style
from whitenorm_lab.tasks.style.features import features
from whitenorm_lab.tasks.style.losses import PerceptualLoss
from whitenorm_lab.tasks.style.net import TransformerNet
from whitenorm_lab.training.batches import check_batch_size, draw_calibration_rows
from whitenorm_lab.training.loaders import DataLoaders, FileLoader, TrainSampler, build_test_sampler
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task

SHEET = "stylized.png"
_ON_SHEET = 8


class StyleTransfer(Task[Style]):
    """Batches are images as bytes, and on the device in [0, 1].

    ``fit`` takes a pair of lists in place of folders: the files to train on, and to test on.
    """

    calibration_examples: ClassVar[int] = 500
    judge: PerceptualLoss
    style: Tensor
    shown: Sequence[Path] = ()
    """Test images that are on the sheet."""

    def build_loaders(
        self, dataset: tuple[Sequence[Path], Sequence[Path]] | None, step: Callable[[], int], rank: int, world: int
    ) -> DataLoaders:
        config = self.config
        self._learn(config)
        train, test = dataset or _files(config)
        self.shown = test[:_ON_SHEET]
        batch_size = check_batch_size(config.batch_size, len(train), world)
        opened: list[FileLoader] = []

        def loader(paths: Sequence[Path], crop: int, order: Any) -> FileLoader:
            examples = pictures.Squares(paths, config.image_size, crop, draw=isinstance(order, TrainSampler))
            opened.append(FileLoader(examples, order, config, _stacked))
            return opened[-1]

        def in_turn(paths: Sequence[Path], rows: Tensor, crop: int) -> FileLoader:
            return loader(paths, crop, build_test_sampler(rows, batch_size // world, rank, world))

        def close() -> None:
            for one in opened:
                one.close()

        order = TrainSampler(torch.arange(len(train)), batch_size, config.seed, step, rank, world)
        return DataLoaders(
            {},
            loader(train, config.crop, order),
            {"test": in_turn(test, torch.arange(len(test)), config.image_size)},
            lambda number: in_turn(train, draw_calibration_rows(len(train), number, config.seed, world), config.crop),
            batch_size,
            close,
        )

    def _learn(self, config: Style) -> None:
        """Look at the style image."""
        if config.style is None:
            raise ValueError("expected an image to take the style from (got none): pass --style FILE")
        image = pictures.tensor(pictures.scaled(pictures.read(config.style), config.style_size))
        self.register_buffer("style", image, persistent=False)
        self.judge = PerceptualLoss(features(config.vgg), image / 255)

    def build_model(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        net = TransformerNet(config.width, config.blocks, bias=config.norm == "none")
        # Convolutions with few channels, as the first and the last, are faster so, on CPUs too.
        placed = place_(net, config.norm, config.where, **config.norm_options())
        return placed.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def example_inputs(self, description: dict[str, Any], count: int) -> Tensor:
        return torch.rand(count, 3, self.config.crop, self.config.crop)

    def prepare_batch(self, batch: Tensor) -> Tensor:
        return batch.to(self.judge.variance.dtype, memory_format=torch.channels_last) / 255

    def loss(self, model: nn.Module, batch: Tensor, step: int, scores: Means) -> Tensor:
        return self._judged(model, batch, scores).mean()

    def train_scores(self) -> Means:
        return Means(("loss", "content", "style"))

    def test_scores(self) -> Means:
        return self.train_scores()

    def test(self, model: nn.Module, batch: Tensor, scores: Means) -> None:
        if len(batch):
            self._judged(model, batch, scores)

    def _judged(self, model: nn.Module, images: Tensor, scores: Means) -> Tensor:
        """The weighted loss of every image, counted."""
        config, losses = self.config, self.judge(model(images), images)
        total = config.content_weight * losses.content + config.style_weight * losses.style
        total = total + config.smooth_weight * losses.smooth
        numbers = {"loss": total, "content": losses.content, "style": losses.style}
        scores.update(len(images), **{name: value.detach().sum() for name, value in numbers.items()})
        return total

    def inputs(self, batch: Tensor) -> Tensor:
        return batch

    def finish(self, model: nn.Module, loaders: DataLoaders, folder: Path) -> None:
        """A sheet: the style, and the first test images above what the net makes of them."""
        squares = pictures.Squares(self.shown, self.config.image_size, self.config.image_size, draw=False)
        images = [squares[i] for i in range(len(squares))]
        device = next(model.parameters()).device
        painted = [model(self.prepare_batch(image[None].to(device)))[0] for image in images]
        style = pictures.scaled(pictures.picture(self.style), self.config.image_size)
        rows = [[style], [*map(pictures.picture, images)], [*map(pictures.picture, painted)]]
        pictures.save(pictures.sheet(rows), folder / SHEET)


def _stacked(images: list[Tensor]) -> Tensor:
    """A batch, which of a process's share of few test images may be empty."""
    return torch.stack(images) if images else torch.empty(0, 3, 1, 1, dtype=torch.uint8)


def _files(config: Style) -> tuple[Sequence[Path], Sequence[Path]]:
    """The images to train and to test on."""
    train, number = pictures.files(config.dataset, config.data), config.test_images
    if config.test is not None:
        return train, pictures.files(config.test, config.data)[:number]
    if number >= len(train):
        raise ValueError(
            f"expected more images in {config.dataset} than test_images (got {len(train)}, of which {number} are held "
            "out); give fewer, or a folder to test on by --test folder:PATH"
        )
    return train[:-number], train[-number:]


TASK = StyleTransfer
