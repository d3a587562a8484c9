"""Whitening normalization for PyTorch: BatchNorm, GroupNorm and LayerNorm that decorrelate.

>>> import torch, whitenorm
>>> layer = whitenorm.IterNorm(64)
>>> layer(torch.randn(8, 64, 14, 14)).shape
torch.Size([8, 64, 14, 14])
"""

from whitenorm import functional, solvers
from whitenorm._version import __version__
from whitenorm.layers import (
    BatchWhitening,
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
)

__all__ = [
    "BatchWhitening",
    "DecorrelatedBatchNorm",
    "GroupWhitening",
    "InstanceWhitening",
    "IterNorm",
    "LayerWhitening",
    "SwitchableWhitening",
    "__version__",
    "functional",
    "solvers",
]
