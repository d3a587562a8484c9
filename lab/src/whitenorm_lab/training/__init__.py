"""``whitenorm-lab train``: one program for all of ``lab/tasks``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from whitenorm_lab.training.config import NormOptions, RunConfig
from whitenorm_lab.training.outcome import DivergenceError, Epoch, Outcome

if TYPE_CHECKING:
    from whitenorm_lab.tasks.classification.config import Train
    from whitenorm_lab.training.loading import load
    from whitenorm_lab.training.run import fit

__all__ = ["DivergenceError", "Epoch", "NormOptions", "Outcome", "RunConfig", "Train", "fit", "load"]
_LATER = {
    "Train": "whitenorm_lab.tasks.classification.config",
    "fit": "whitenorm_lab.training.run",
    "load": "whitenorm_lab.training.loading",
}


def __getattr__(name: str) -> Any:
    """What imports this package itself, or lightning, which takes seconds and the command line needs not."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)
