"""Population statistics before a test: of the weights as they are, where the running ones lag behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from whitenorm.lab.training.config import Train
from whitenorm.layers.base import PopulationWhitening
from whitenorm.models.recalibrate import recalibrate_

IMAGES = 5000
_BATCH = nn.modules.batchnorm._BatchNorm


def images(config: Train, model: nn.Module) -> int:
    """How many training images the statistics are taken from; 0 leaves the running ones.

    Example::

        >>> images(Train(), nn.BatchNorm2d(4)), images(Train(), whitenorm.IterNorm(4))
        (0, 5000)
    """
    if config.recalibrate is None:
        return IMAGES if any(_keeps(module, PopulationWhitening) for module in model.modules()) else 0
    if config.recalibrate and not _layers(model):
        raise ValueError(
            f"expected a net with population statistics to recalibrate (got {config.net} with norm {config.norm}, "
            "which has none); leave --recalibrate out"
        )
    return config.recalibrate


def recalibrate(model: nn.Module, inputs: Iterator[Tensor]) -> None:
    """Take the statistics from inputs. Synchronised layers join their data; of others, processes take the average."""
    recalibrate_(model, inputs, progress=False)
    if dist.is_available() and dist.is_initialized():
        for layer in _layers(model):
            for buffer in layer.buffers(recurse=False):
                if buffer.is_floating_point():
                    dist.all_reduce(buffer)
                    buffer /= dist.get_world_size()


def _layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if _keeps(module, (PopulationWhitening, _BATCH))]


def _keeps(module: nn.Module, kinds: Any) -> bool:
    return isinstance(module, kinds) and bool(module.track_running_stats)
