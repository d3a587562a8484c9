"""One batch across processes: statistics over all ranks."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from whitenorm.core.ranks import Group
from whitenorm.layers.base import PopulationWhitening


def synchronize_(model: nn.Module, process_group: Group = None) -> nn.Module:
    """Let a model's whitening layers use the statistics of all ranks' batches in training, and return the model.

    What ``SyncBatchNorm.convert_sync_batchnorm`` is for BatchNorm, in place: with few samples a process, a covariance
    over one rank's batch is singular or noisy. Ranks may have batches of different sizes, also empty ones. Forward
    costs one all-reduce a layer, backward another; in eval mode there is none. Works under DDP and FSDP2, which are
    applied afterwards. Layers with statistics of the sample alone (GW, IW) have nothing to synchronise.

    The gradients are those of the sum of all ranks' losses, as one process on the joined batch would find them.

    Args:
        model: with :class:`BatchWhitening`, :class:`IterNorm`, :class:`DecorrelatedBatchNorm` or
            :class:`SwitchableWhitening` layers.
        process_group: the ranks; all of them by default.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "expected an initialised process group (got none); call torch.distributed.init_process_group first, in a "
            "program started by torchrun, or leave synchronize_ out in a single process"
        )
    layers = [module for module in model.modules() if isinstance(module, PopulationWhitening)]
    if not layers:
        raise ValueError(
            f"expected a model with batch whitening layers (got {type(model).__name__} without any); use convert_ first"
        )
    for layer in layers:
        layer.process_group = dist.group.WORLD if process_group is None else process_group
    return model
