"""The papers' experiments: a folder a paper, a file each, by id. What several share is in ``shared``."""

from importlib import import_module
from pkgutil import walk_packages

from whitenorm_lab.claims.experiment import Experiment

# Those without an experiment of their own are what others use.
_MODULES = [
    module
    for name in sorted(info.name for info in walk_packages(__path__, f"{__name__}."))
    if hasattr(module := import_module(name), "EXPERIMENT")
]

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}

SETUPS: dict[str, str] = {module.EXPERIMENT.id: module.__doc__ or "" for module in _MODULES}
"""What each one does, in the words of its file."""
