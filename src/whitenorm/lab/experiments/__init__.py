"""The papers' experiments, one file each, by id."""

from whitenorm.lab.experiments import (
    dbn_axis_swap,
    dbn_deep,
    dbn_imagenet,
    dbn_lr,
    dbn_resnet,
    dbn_vgg,
    dbn_wrn,
    gw_constraints,
    gw_groups_imagenet,
    gw_imagenet,
    iternorm_imagenet,
    iternorm_vgg,
    iternorm_vgg_group,
    iternorm_vgg_t,
    iternorm_wrn,
)
from whitenorm.lab.reproduce.experiment import Experiment

_MODULES = (
    dbn_axis_swap,
    dbn_deep,
    dbn_imagenet,
    dbn_lr,
    dbn_resnet,
    dbn_vgg,
    dbn_wrn,
    gw_constraints,
    gw_groups_imagenet,
    gw_imagenet,
    iternorm_imagenet,
    iternorm_vgg,
    iternorm_vgg_group,
    iternorm_vgg_t,
    iternorm_wrn,
)

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}
