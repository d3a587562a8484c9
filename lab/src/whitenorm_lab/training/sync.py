"""Batch statistics over all processes, of whitening and of BatchNorm."""

from __future__ import annotations

import torch
from torch import nn

import whitenorm
from whitenorm.layers import PopulationWhitening
from whitenorm.models import replace_

_BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronise_(model: nn.Module, device: torch.device) -> nn.Module:
    """Let the model's norms use the statistics of all processes: whitenorm's own, and SyncBatchNorm on GPUs."""
    batch = [name for name, module in model.named_modules() if isinstance(module, _BATCH)]
    if batch and device.type != "cuda":
        raise ValueError(
            f"expected a GPU to synchronise BatchNorm on (got {device.type}, and BatchNorm at {', '.join(batch[:3])}): "
            "torch's SyncBatchNorm runs on GPUs alone. --norm iternorm --group-size 1 is BatchNorm too, and "
            "synchronises everywhere"
        )
    if any(isinstance(module, PopulationWhitening) for module in model.modules()):
        whitenorm.synchronize_(model)
    converted: dict[nn.Module, nn.Module] = {
        module: nn.SyncBatchNorm.convert_sync_batchnorm(module)
        for module in model.modules()
        if isinstance(module, _BATCH)
    }
    return replace_(model, converted)
