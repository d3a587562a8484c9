"""The papers' experiments, one file each, by id."""

from whitenorm.lab.experiments import dbn_axis_swap, gw_constraints
from whitenorm.lab.reproduce.experiment import Experiment

_MODULES = (dbn_axis_swap, gw_constraints)

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}

SETUPS: dict[str, str] = {module.EXPERIMENT.id: module.__doc__ or "" for module in _MODULES}
"""What each one does, in the words of its file."""
