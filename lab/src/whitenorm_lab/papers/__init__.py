"""Experiments of the papers: one folder per paper, one file per experiment; ``shared`` has their common parts."""

from importlib import import_module
from pkgutil import walk_packages

from whitenorm_lab.claims.experiment import Experiment

# Modules without EXPERIMENT are helpers of the others.
_MODULES = [
    module
    for name in sorted(info.name for info in walk_packages(__path__, f"{__name__}."))
    if hasattr(module := import_module(name), "EXPERIMENT")
]

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}

SETUPS: dict[str, str] = {module.EXPERIMENT.id: module.__doc__ or "" for module in _MODULES}
"""The set-up of each experiment in words: the docstring of its file."""
