"""The training program ``whitenorm-lab train``, shared by all of :mod:`whitenorm_lab.tasks`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from whitenorm_lab.training.config import NormOptions, RunConfig
from whitenorm_lab.training.result import DivergenceError, Epoch, TrainingResult

if TYPE_CHECKING:
    from whitenorm_lab.tasks.classification.config import Train
    from whitenorm_lab.training.loading import load
    from whitenorm_lab.training.run import fit

__all__ = ["DivergenceError", "Epoch", "NormOptions", "RunConfig", "Train", "TrainingResult", "fit", "load"]
_LAZY = {
    "Train": "whitenorm_lab.tasks.classification.config",
    "fit": "whitenorm_lab.training.run",
    "load": "whitenorm_lab.training.loading",
}


def __getattr__(name: str) -> Any:
    """Import names on demand: their modules import this package, or Lightning, which takes seconds."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
