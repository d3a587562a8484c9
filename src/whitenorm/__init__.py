"""Whitening normalization for PyTorch: BatchNorm, GroupNorm and LayerNorm that decorrelate.

>>> import torch, whitenorm
>>> layer = whitenorm.IterNorm(64)
>>> layer(torch.randn(8, 64, 14, 14)).shape
torch.Size([8, 64, 14, 14])
"""

from whitenorm import diagnostics, functional, losses, solvers
from whitenorm._version import __version__
from whitenorm.layers import (
    BatchWhitening,
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
    Whitener,
    Whitening,
)
from whitenorm.models import (
    conversion_of,
    convert_,
    fold_,
    load_converted,
    load_published,
    recalibrate_,
    recipes,
    synchronize_,
)
from whitenorm.ops.dispatch import set_kernels

__all__ = [
    "BatchWhitening",
    "DecorrelatedBatchNorm",
    "GroupWhitening",
    "InstanceWhitening",
    "IterNorm",
    "LayerWhitening",
    "SwitchableWhitening",
    "Whitener",
    "Whitening",
    "__version__",
    "conversion_of",
    "convert_",
    "diagnostics",
    "fold_",
    "functional",
    "load_converted",
    "load_published",
    "losses",
    "recalibrate_",
    "recipes",
    "set_kernels",
    "solvers",
    "synchronize_",
]
