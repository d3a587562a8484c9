"""Which images are trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.training.batches import seeded_generator


def shares(number: int, config: Train) -> tuple[Tensor, Tensor]:
    """Which of so many images are trained on and which are held out, as the seed draws them.

    Example::

        >>> [len(share) for share in shares(100, Train(validation_images=20))]
        [80, 20]
    """
    held_out = config.validation_images
    train = number - held_out if config.train_images is None else config.train_images
    if train < 1 or train + held_out > number:
        asked = "" if not held_out else f" and validation_images={held_out}"
        raise ValueError(
            f"expected train_images up to the {number} there are, less those held out (got {config.train_images}"
            f"{asked})"
        )
    order = torch.randperm(number, generator=seeded_generator(config.seed))
    return order[:train], order[number - held_out :]
