"""The layers: parameters and running statistics around the functions of :mod:`whitenorm.functional`."""

from whitenorm.layers.base import PopulationWhitening, Whitening, unchanged_buffers
from whitenorm.layers.batch import BatchWhitening, DecorrelatedBatchNorm, IterNorm
from whitenorm.layers.sample import GroupWhitening, InstanceWhitening, LayerWhitening
from whitenorm.layers.switchable import SwitchableWhitening
from whitenorm.layers.whitener import Whitener

__all__ = [
    "BatchWhitening",
    "DecorrelatedBatchNorm",
    "GroupWhitening",
    "InstanceWhitening",
    "IterNorm",
    "LayerWhitening",
    "PopulationWhitening",
    "SwitchableWhitening",
    "Whitener",
    "Whitening",
    "unchanged_buffers",
]
