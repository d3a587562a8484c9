"""The papers' experiments, one file each, by id."""

from whitenorm.lab.experiments import (
    dbn_axis_swap,
    gw_constraints,
    gw_diversity,
    gw_histogram,
    iternorm_snd,
    iternorm_snd_picture,
    sw_placement,
)
from whitenorm.lab.reproduce.experiment import Experiment

_MODULES = (
    dbn_axis_swap,
    gw_constraints,
    gw_diversity,
    gw_histogram,
    iternorm_snd,
    iternorm_snd_picture,
    sw_placement,
)

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}
