"""``whitenorm train``: image classification with any net, norm and recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from whitenorm.lab.training.config import Train
from whitenorm.lab.training.outcome import DivergenceError, Epoch, Outcome

if TYPE_CHECKING:
    from whitenorm.lab.training.run import fit

__all__ = ["DivergenceError", "Epoch", "Outcome", "Train", "fit"]


def __getattr__(name: str) -> Any:
    """``fit`` when it is asked for: lightning takes seconds to import, and the command line needs only fields."""
    if name != "fit":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from whitenorm.lab.training.run import fit

    return fit
