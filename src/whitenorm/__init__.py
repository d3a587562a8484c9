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
    Coloring,
    ConceptWhitening,
    CovariancePooling,
    DecorrelatedBatchNorm,
    DomainWhitening,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
    Whitener,
    Whitening,
    align_concepts_,
    concept_activations,
    orthogonal_newton,
    use_domain,
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
    "Coloring",
    "ConceptWhitening",
    "CovariancePooling",
    "DecorrelatedBatchNorm",
    "DomainWhitening",
    "GroupWhitening",
    "InstanceWhitening",
    "IterNorm",
    "LayerWhitening",
    "SwitchableWhitening",
    "Whitener",
    "Whitening",
    "__version__",
    "align_concepts_",
    "concept_activations",
    "conversion_of",
    "convert_",
    "diagnostics",
    "fold_",
    "functional",
    "load_converted",
    "load_published",
    "losses",
    "orthogonal_newton",
    "recalibrate_",
    "recipes",
    "set_kernels",
    "solvers",
    "synchronize_",
    "use_domain",
]
