"""Synchronize the statistics of a model's layers over the ranks of a process group."""

from __future__ import annotations

import warnings

import torch.distributed as dist
from torch import nn

from whitenorm.layers import PopulationWhitening, Whitening
from whitenorm.models.replace import replace_
from whitenorm.ops.distributed import Group

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronize_(model: nn.Module, process_group: Group = None) -> nn.Module:
    """Use the statistics of all ranks' batches in a model's whitening layers, in place, and return the model.

    This does for whitening what ``SyncBatchNorm.convert_sync_batchnorm`` does for BatchNorm: with few samples per
    process, a covariance over one rank's batch is singular or noisy. Ranks may have batches of different sizes, and
    empty ones. Each layer needs one all-reduce in the forward and one in the backward of a training step, and none in
    eval mode. It works with DDP and FSDP2; apply them afterwards.

    Layers with statistics of the sample (GW, IW) have nothing to synchronize; a model that has no others is not
    changed, with a warning. BatchNorms beside whitening layers become ``SyncBatchNorm``, which trains on GPUs only: on
    a CPU they stay local, with a warning.

    The gradients are those of the sum of all ranks' losses, as in a single process with the combined batch.

    Args:
        model: with :class:`BatchWhitening`, :class:`IterNorm`, :class:`DecorrelatedBatchNorm` or
            :class:`SwitchableWhitening` layers.
        process_group: the ranks; all by default.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise RuntimeError(
            "expected an initialized process group (got none); call torch.distributed.init_process_group first, in a "
            "program started by torchrun, or leave synchronize_ out in a single process"
        )
    layers = [module for module in model.modules() if isinstance(module, PopulationWhitening)]
    if not layers:
        if any(isinstance(module, Whitening) for module in model.modules()):
            warnings.warn(
                f"nothing is synchronized: the whitening layers of {type(model).__name__} use statistics of each "
                "sample, which are the same in one process and in several",
                stacklevel=2,
            )
            return model
        raise ValueError(
            f"expected a model with batch whitening layers (got {type(model).__name__} without any); use convert_ first"
        )
    group = dist.group.WORLD if process_group is None else process_group
    for layer in layers:
        layer.process_group = group
    return _synchronize_batch_norms(model, group)


def _synchronize_batch_norms(model: nn.Module, group: Group) -> nn.Module:
    norms = {name: module for name, module in model.named_modules() if type(module) in _BATCH_NORMS}
    local = [name for name, module in norms.items() if any(tensor.is_cpu for tensor in module.state_dict().values())]
    if local:
        warnings.warn(
            f"{len(local)} BatchNorms stay local ({', '.join(local[:3])}{', …' if len(local) > 3 else ''}): torch's "
            "SyncBatchNorm trains only on GPUs; move the model to its GPU first, or convert them, as "
            'convert_(model, "iternorm", group_size=1) is BatchNorm too',
            stacklevel=3,
        )
    replacements = {
        norm: nn.SyncBatchNorm.convert_sync_batchnorm(norm, group) for name, norm in norms.items() if name not in local
    }
    return replace_(model, replacements)
