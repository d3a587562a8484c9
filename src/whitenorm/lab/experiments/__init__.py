"""The papers' experiments, one file each, by id."""

from whitenorm.lab.experiments import (
    dbn_axis_swap,
    dbn_cost,
    gw_constraints,
    gw_cost,
    gw_diversity,
    gw_histogram,
    iternorm_cost,
    iternorm_snd,
    iternorm_snd_picture,
    sw_cost,
    sw_placement,
)
from whitenorm.lab.reproduce.experiment import Experiment

_MODULES = (
    dbn_axis_swap,
    dbn_cost,
    gw_constraints,
    gw_cost,
    gw_diversity,
    gw_histogram,
    iternorm_cost,
    iternorm_snd,
    iternorm_snd_picture,
    sw_cost,
    sw_placement,
)

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}
