"""The papers' experiments, one file each, by id."""

from whitenorm.lab.experiments import dbn_axis_swap, gw_constraints
from whitenorm.lab.reproduce.experiment import Experiment

_MODULES = (dbn_axis_swap, gw_constraints)

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}
