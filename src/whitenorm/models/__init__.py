"""Whole models: put whitening in, fold it away, refresh its statistics, share them between processes."""

from whitenorm.models import recipes
from whitenorm.models.checkpoints import load_published
from whitenorm.models.convert import convert_
from whitenorm.models.fold import fold_
from whitenorm.models.recalibrate import recalibrate_
from whitenorm.models.record import conversion_of, load_converted
from whitenorm.models.synchronize import synchronize_

__all__ = [
    "conversion_of",
    "convert_",
    "fold_",
    "load_converted",
    "load_published",
    "recalibrate_",
    "recipes",
    "synchronize_",
]
