"""Functions on whole models: convert norms, fold layers, recompute statistics, synchronize ranks, load checkpoints."""

from whitenorm.models import recipes
from whitenorm.models.checkpoints import load_converted, load_published
from whitenorm.models.convert import convert_
from whitenorm.models.fold import fold_
from whitenorm.models.modules import Activated, BatchedIdentity, ChannelMap, LayerWhitening2d
from whitenorm.models.norms import Norm, find_norms
from whitenorm.models.recalibrate import recalibrate_
from whitenorm.models.recipes import Where
from whitenorm.models.record import conversion_of
from whitenorm.models.replace import replace_
from whitenorm.models.synchronize import synchronize_
from whitenorm.models.targets import WHITENING_NAMES, LayerLike

__all__ = [
    "WHITENING_NAMES",
    "Activated",
    "BatchedIdentity",
    "ChannelMap",
    "LayerLike",
    "LayerWhitening2d",
    "Norm",
    "Where",
    "conversion_of",
    "convert_",
    "find_norms",
    "fold_",
    "load_converted",
    "load_published",
    "recalibrate_",
    "recipes",
    "replace_",
    "synchronize_",
]
