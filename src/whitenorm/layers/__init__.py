"""The layers: parameters and running statistics around the functions of :mod:`whitenorm.functional`."""

from whitenorm.layers.base import PopulationWhitening, Whitening, unchanged_buffers
from whitenorm.layers.batch import BatchWhitening, DecorrelatedBatchNorm, IterNorm
from whitenorm.layers.coloring import Coloring
from whitenorm.layers.concept import ConceptWhitening, align_concepts_, concept_activations
from whitenorm.layers.domain import DomainWhitening, use_domain
from whitenorm.layers.orthogonal import orthogonal_newton
from whitenorm.layers.pooling import CovariancePooling
from whitenorm.layers.sample import GroupWhitening, InstanceWhitening, LayerWhitening
from whitenorm.layers.switchable import SwitchableWhitening
from whitenorm.layers.whitener import Whitener

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
    "PopulationWhitening",
    "SwitchableWhitening",
    "Whitener",
    "Whitening",
    "align_concepts_",
    "concept_activations",
    "orthogonal_newton",
    "unchanged_buffers",
    "use_domain",
]
