"""The papers' experiments, one file each, by id."""

from importlib import import_module
from pkgutil import iter_modules

from whitenorm.lab.reproduce.experiment import Experiment

# Those without an experiment of their own are what several share.
_MODULES = [
    module
    for name in sorted(info.name for info in iter_modules(__path__))
    if hasattr(module := import_module(f"{__name__}.{name}"), "EXPERIMENT")
]

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}

SETUPS: dict[str, str] = {module.EXPERIMENT.id: module.__doc__ or "" for module in _MODULES}
"""What each one does, in the words of its file."""
