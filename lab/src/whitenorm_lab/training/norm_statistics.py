"""Statistics of a model's norms: batch statistics over all processes, and population statistics before a test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import whitenorm
from whitenorm.layers import PopulationWhitening
from whitenorm.models import recalibrate_, replace_
from whitenorm_lab.training.config import RunConfig

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronize_(model: nn.Module, device: torch.device) -> nn.Module:
    """Synchronize whitening layers over all processes, and replace BatchNorm by SyncBatchNorm, which needs GPUs."""
    batch_norms = {name: module for name, module in model.named_modules() if isinstance(module, _BATCH_NORMS)}
    if batch_norms and device.type != "cuda":
        raise ValueError(
            f"expected a GPU to synchronize BatchNorm (got {device.type}, and BatchNorm at "
            f"{', '.join(list(batch_norms)[:3])}): torch's SyncBatchNorm runs on GPUs only. --norm iternorm "
            "--group-size 1 is BatchNorm too, and synchronizes everywhere"
        )
    if any(isinstance(module, PopulationWhitening) for module in model.modules()):
        whitenorm.synchronize_(model)
    converted: dict[nn.Module, nn.Module] = {
        module: nn.SyncBatchNorm.convert_sync_batchnorm(module) for module in batch_norms.values()
    }
    return replace_(model, converted)


def count_calibration_examples(config: RunConfig, model: nn.Module, default: int) -> int:
    """Return how many training examples to recompute population statistics from; 0 keeps the running ones.

    Example::

        >>> count_calibration_examples(RunConfig(), nn.BatchNorm2d(4), 5000)
        0
        >>> count_calibration_examples(RunConfig(), whitenorm.IterNorm(4), 5000)
        5000
    """
    if config.recalibrate is None:
        return default if any(_has_population(module, PopulationWhitening) for module in model.modules()) else 0
    if config.recalibrate and not _find_layers(model):
        raise ValueError(
            f"expected a model with population statistics to recalibrate (got {type(model).__name__}, whose norms have "
            "none); leave --recalibrate out"
        )
    return config.recalibrate


def recalibrate(model: nn.Module, inputs: Iterator[Any]) -> None:
    """Recompute population statistics from inputs; layers that are not synchronized average over the processes."""
    recalibrate_(model, inputs, progress=False)
    if dist.is_available() and dist.is_initialized():
        for layer in _find_layers(model):
            for buffer in layer.buffers(recurse=False):
                if buffer.is_floating_point():
                    dist.all_reduce(buffer)
                    buffer /= dist.get_world_size()


def _find_layers(model: nn.Module) -> list[nn.Module]:
    types = (PopulationWhitening, nn.modules.batchnorm._BatchNorm)
    return [module for module in model.modules() if _has_population(module, types)]


def _has_population(module: nn.Module, types: Any) -> bool:
    return isinstance(module, types) and bool(module.track_running_stats)
