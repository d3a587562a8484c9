"""The style transfer task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from whitenorm_lab.nets import place_
from whitenorm_lab.tasks.style.config import Style
from whitenorm_lab.tasks.style.features import load_features
from whitenorm_lab.tasks.style.images import (
    SquareCrops,
    arrange_rows,
    list_images,
    read_image,
    resize_shorter_side,
    to_pil,
    to_tensor,
    write_image,
)
from whitenorm_lab.tasks.style.losses import PerceptualLoss
from whitenorm_lab.tasks.style.net import TransformerNet
from whitenorm_lab.training.loaders import DataLoaders, FileLoaders
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task

SHEET = "stylized.png"
_SHEET_COLUMNS = 8


class StyleTransfer(Task[Style]):
    """Batches are images of bytes, and once prepared images in [0, 1].

    ``fit`` takes a pair of lists: the files of training images and of test images.
    """

    calibration_examples: ClassVar[int] = 500
    perceptual_loss: PerceptualLoss
    style: Tensor
    sheet_paths: Sequence[Path] = ()
    """Test images on the sheet."""

    def build_loaders(
        self, dataset: tuple[Sequence[Path], Sequence[Path]] | None, step: Callable[[], int], rank: int, world: int
    ) -> DataLoaders:
        config = self.config
        self._read_style(config)
        train, test = dataset or _list_files(config)
        self.sheet_paths = test[:_SHEET_COLUMNS]
        loaders = FileLoaders(config, torch.arange(len(train)), step, rank, world, _collate)
        calibration = SquareCrops(train, config.image_size, config.crop, random=False)
        tests = SquareCrops(test, config.image_size, config.image_size, random=False)
        return DataLoaders(
            {},
            loaders.build_train(SquareCrops(train, config.image_size, config.crop, random=True)),
            {"test": loaders.build_test(tests, torch.arange(len(test)))},
            lambda count: loaders.build_calibration(calibration, count),
            loaders.batch_size,
            loaders.close,
        )

    def _read_style(self, config: Style) -> None:
        """Read the style image and build the loss."""
        if config.style is None:
            raise ValueError("expected an image to take the style from (got none): pass --style FILE")
        image = to_tensor(resize_shorter_side(read_image(config.style), config.style_size))
        self.register_buffer("style", image, persistent=False)
        self.perceptual_loss = PerceptualLoss(load_features(config.vgg), image / 255)

    def build_model(self, description: dict[str, Any]) -> nn.Module:
        config = self.config
        net = TransformerNet(config.width, config.blocks, bias=config.norm == "none")
        model = place_(net, config.norm, config.where, **config.norm_options())
        # Convolutions with few channels, such as the first and the last, are faster in this format, also on CPUs.
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def example_inputs(self, description: dict[str, Any], count: int) -> Tensor:
        return torch.rand(count, 3, self.config.crop, self.config.crop)

    def prepare_batch(self, batch: Tensor) -> Tensor:
        return batch.to(self.perceptual_loss.variance.dtype, memory_format=torch.channels_last) / 255

    def loss(self, model: nn.Module, batch: Tensor, step: int, scores: Means) -> Tensor:
        return self._compute_loss(model, batch, scores).mean()

    def train_scores(self) -> Means:
        return Means(("loss", "content", "style"))

    def test_scores(self) -> Means:
        return self.train_scores()

    def test(self, model: nn.Module, batch: Tensor, scores: Means) -> None:
        if len(batch):
            self._compute_loss(model, batch, scores)

    def _compute_loss(self, model: nn.Module, images: Tensor, scores: Means) -> Tensor:
        """Return the weighted loss of every image, and add it to the scores."""
        config, losses = self.config, self.perceptual_loss(model(images), images)
        total = config.content_weight * losses.content + config.style_weight * losses.style
        total = total + config.smooth_weight * losses.smooth
        parts = {"loss": total, "content": losses.content, "style": losses.style}
        scores.update(len(images), **{name: value.detach().sum() for name, value in parts.items()})
        return total

    def inputs(self, batch: Tensor) -> Tensor:
        return batch

    def finish(self, model: nn.Module, loaders: DataLoaders, folder: Path) -> None:
        """Write ``stylized.png``: the style image, and the first test images above their stylized versions."""
        size = self.config.image_size
        crops = SquareCrops(self.sheet_paths, size, size, random=False)
        originals = [crops[i] for i in range(len(crops))]
        device = next(model.parameters()).device
        stylized = [model(self.prepare_batch(image[None].to(device)))[0] for image in originals]
        style = resize_shorter_side(to_pil(self.style), size)
        rows = [[style], [*map(to_pil, originals)], [*map(to_pil, stylized)]]
        write_image(arrange_rows(rows), folder / SHEET)


def _collate(examples: list[Tensor]) -> Tensor:
    """Stack images; the result is empty if a test batch has fewer images than there are processes."""
    return torch.stack(examples) if examples else torch.empty(0, 3, 1, 1, dtype=torch.uint8)


def _list_files(config: Style) -> tuple[Sequence[Path], Sequence[Path]]:
    """List the files of training images and of test images."""
    train, num_test = list_images(config.dataset, config.data), config.test_images
    if config.test is not None:
        return train, list_images(config.test, config.data)[:num_test]
    if num_test >= len(train):
        raise ValueError(
            f"expected more images in {config.dataset} than test_images (got {len(train)}, of which {num_test} are "
            "held out); pass fewer, or a folder of test images by --test folder:PATH"
        )
    return train[:-num_test], train[-num_test:]


TASK = StyleTransfer
