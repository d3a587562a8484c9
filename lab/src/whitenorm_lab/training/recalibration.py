"""Population statistics before a test: of the weights as they are, where the running ones lag behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from whitenorm.layers import PopulationWhitening
from whitenorm.models import recalibrate_
from whitenorm_lab.training.config import RunConfig

_BATCH = nn.modules.batchnorm._BatchNorm


def examples(config: RunConfig, model: nn.Module, usual: int) -> int:
    """How many training examples the statistics are taken from; 0 leaves the running ones.

    Example::

        >>> examples(RunConfig(), nn.BatchNorm2d(4), 5000), examples(RunConfig(), whitenorm.IterNorm(4), 5000)
        (0, 5000)
    """
    if config.recalibrate is None:
        return usual if any(_keeps(module, PopulationWhitening) for module in model.modules()) else 0
    if config.recalibrate and not _layers(model):
        raise ValueError(
            f"expected a model with population statistics to recalibrate (got {type(model).__name__}, none of whose "
            "norms keeps any); leave --recalibrate out"
        )
    return config.recalibrate


def recalibrate(model: nn.Module, inputs: Iterator[Any]) -> None:
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
