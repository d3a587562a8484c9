"""Batches of a folder of images, ``train/CLASS/…`` and ``val/CLASS/…``, read by several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from whitenorm.lab.training.batches import generator
from whitenorm.lab.training.config import Train
from whitenorm.lab.training.sources import Source, calibration_rows, shares

# Of ImageNet's training images.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# The share of an image's shorter side that the test crop takes: 224 of 256.
_CROP = 224 / 256


def source(config: Train, path: str, step: Callable[[], int], rank: int, world: int) -> Source:
    """The batches of a folder for one process, as bytes scaled and normalised by ImageNet's mean and deviation."""
    folder = Path(path)
    train = _folder(folder / "train", _transform(config, config.augment))
    test = _folder(folder / "val", _transform(config, False))
    if train.classes != test.classes:
        differing = sorted(set(train.classes) ^ set(test.classes))
        raise ValueError(
            f"expected the same classes in train/ and val/ of {folder} (got {len(train.classes)} and "
            f"{len(test.classes)}; only in one of them: {', '.join(differing[:5])})"
        )
    # The training images as tests see them.
    plain = copy(train)
    plain.transform = test.transform
    numbers, held_out = (share.sort().values for share in shares(len(train), config))
    batch_size = config.batch_size or len(numbers)
    if batch_size % world or batch_size > len(numbers):
        raise ValueError(
            f"expected batch_size up to the {len(numbers)} training images and a multiple of the {world} processes "
            f"(got {batch_size})"
        )
    opened = [_Loader(train, config, _Order(numbers, batch_size, config.seed, step, rank, world))]

    def tested(images: ImageFolder, rows: Tensor) -> _Loader:
        opened.append(_Loader(images, config, _in_order(rows, batch_size, rank, world)))
        return opened[-1]

    def close() -> None:
        for loader in opened:
            loader.close()

    tests = {"test": (test, torch.arange(len(test))[: config.test_images]), "validation": (plain, held_out)}
    return Source(
        len(train.classes),
        (3, config.image_size, config.image_size),
        batch_size,
        opened[0],
        {name: tested(images, rows) for name, (images, rows) in tests.items() if len(rows)},
        lambda number: tested(plain, numbers[calibration_rows(len(numbers), number, config.seed)]),
        None,
        close,
    )


def _in_order(rows: Tensor, batch_size: int, rank: int, world: int) -> list[list[tuple[int, int]]]:
    """This process's shares of batches of even sizes."""
    parts = rows.tensor_split(-(-len(rows) // batch_size))
    return [[(0, i) for i in part.tensor_split(world)[rank].tolist()] for part in parts]


def _transform(config: Train, augment: bool) -> v2.Transform:
    size = config.image_size
    crops = [v2.RandomResizedCrop(size), v2.RandomHorizontalFlip()]
    if not augment:
        crops = [v2.Resize(round(size / _CROP)), v2.CenterCrop(size)]
    return v2.Compose([v2.ToImage(), *crops, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)])


def _folder(path: Path, transform: v2.Transform) -> ImageFolder:
    if not path.is_dir():
        raise OSError(
            f"expected a folder of images with train/ and val/ inside, and in each a folder a class (got no {path})"
        )
    try:
        return ImageFolder(str(path), transform)
    except FileNotFoundError as error:
        raise OSError(f"expected folders of images, one a class, in {path} ({error})") from error


class _Seeded(Dataset[tuple[Tensor, int]]):
    """Images whose augmentation is drawn from the seed, their number and the epoch, in whatever process."""

    def __init__(self, images: ImageFolder, seed: int) -> None:
        self.images, self.seed = images, seed

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        epoch, i = key
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which would seed the GPUs too.
            torch.default_generator.manual_seed(generator(self.seed, epoch, i).initial_seed())
            try:
                return self.images[i]
            except OSError as error:
                raise OSError(
                    f"expected a whole image in {self.images.samples[i][0]} ({error}); get it again or remove it"
                ) from error


class _Order:
    """The batches of an epoch as (epoch, number of the image), from the step on that training is at."""

    def __init__(
        self, numbers: Tensor, batch_size: int, seed: int, step: Callable[[], int], rank: int, world: int
    ) -> None:
        self.numbers, self.batch_size, self.seed, self.step = numbers, batch_size, seed, step
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return len(self.numbers) // self.batch_size

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch, start = divmod(self.step(), len(self))
        order = self.numbers[torch.randperm(len(self.numbers), generator=generator(self.seed, epoch))]
        for batch in order.split(self.batch_size)[start : len(self)]:
            yield [(epoch, i) for i in batch[self.rank :: self.world].tolist()]


class _Loader:
    """A DataLoader that can go on in the middle of an epoch, as its order can."""

    def __init__(self, images: ImageFolder, config: Train, order: Any) -> None:
        self.order = order
        self.batches: Iterator[Any] | None = None
        self.loader: DataLoader[Any] | None = DataLoader(
            _Seeded(images, config.seed),
            batch_sampler=order,
            num_workers=config.workers,
            persistent_workers=config.workers > 0,
            pin_memory=torch.cuda.is_available(),
            # Otherwise each pass draws a number that training would notice.
            generator=torch.Generator(),
        )

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[Any]:
        self.batches = None
        return self

    def __next__(self) -> Any:
        if self.batches is None:
            # Not before the first batch is asked for, when the step count is known.
            assert self.loader is not None
            self.batches = iter(self.loader)
        try:
            return next(self.batches)
        except OSError as error:
            # From a worker it comes with the worker's traceback before it.
            raise OSError(str(error).strip().rsplit("OSError: ", 1)[-1]) from error

    def close(self) -> None:
        """End the workers now; left to the garbage collector, each is waited for in vain."""
        self.batches = self.loader = None

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load: the step count says it all."""
