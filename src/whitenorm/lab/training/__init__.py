"""``whitenorm train``: image classification with any net, norm and recipe."""

from whitenorm.lab.training.config import Train
from whitenorm.lab.training.fit import fit
from whitenorm.lab.training.module import Diverged
from whitenorm.lab.training.outcome import Epoch, Outcome

__all__ = ["Diverged", "Epoch", "Outcome", "Train", "fit"]
