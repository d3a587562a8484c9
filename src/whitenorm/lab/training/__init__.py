"""``whitenorm train``: image classification with any net, norm and recipe."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from whitenorm.lab.training.config import Train
from whitenorm.lab.training.outcome import DivergenceError, Epoch, Outcome

if TYPE_CHECKING:
    from whitenorm.lab.training.loading import load
    from whitenorm.lab.training.run import fit

__all__ = ["DivergenceError", "Epoch", "Outcome", "Train", "fit", "load"]
_LATER = {"fit": "run", "load": "loading"}


def __getattr__(name: str) -> Any:
    """What lightning is imported for, when it is asked for: that takes seconds, and the command line needs none."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
