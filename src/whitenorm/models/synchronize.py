"""One batch across processes: statistics over all ranks."""

from __future__ import annotations

import warnings

import torch.distributed as dist
from torch import nn

from whitenorm.layers.base import PopulationWhitening, Whitening
from whitenorm.models.replace import replace_
from whitenorm.ops.distributed import Group

_DIMENSIONS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def synchronize_(model: nn.Module, process_group: Group = None) -> nn.Module:
    """Let a model's whitening layers use the statistics of all ranks' batches in training, and return the model.

    What ``SyncBatchNorm.convert_sync_batchnorm`` is for BatchNorm, in place: with few samples a process, a covariance
    over one rank's batch is singular or noisy. Ranks may have batches of different sizes, also empty ones. Forward
    costs one all-reduce a layer, backward another; in eval mode there is none. Works under DDP and FSDP2, which are
    applied afterwards. Layers with statistics of the sample alone (GW, IW) have nothing to synchronise; a model that
    has no others is left as it is, with a warning. BatchNorms beside whitening layers become ``SyncBatchNorm``, which
    trains on GPUs alone: on a CPU they stay local, with a warning.

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
        if any(isinstance(module, Whitening) for module in model.modules()):
            warnings.warn(
                f"nothing is synchronised: the whitening layers of {type(model).__name__} use statistics of each "
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
    return _synchronise_batch_norms(model, group)


def _synchronise_batch_norms(model: nn.Module, group: Group) -> nn.Module:
    found = {name: module for name, module in model.named_modules() if type(module) in _DIMENSIONS}
    local = [name for name, module in found.items() if any(tensor.is_cpu for tensor in module.state_dict().values())]
    if local:
        warnings.warn(
            f"{len(local)} BatchNorms stay local ({', '.join(local[:3])}{', …' if len(local) > 3 else ''}): torch's "
            "SyncBatchNorm trains on GPUs alone; move the model to its GPU first, or convert them, as "
            'convert_(model, "iternorm", group_size=1) is BatchNorm too',
            stacklevel=3,
        )
    return replace_(
        model,
        {
            module: nn.SyncBatchNorm.convert_sync_batchnorm(module, group)
            for name, module in found.items()
            if name not in local
        },
    )
