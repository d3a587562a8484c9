"""The papers' experiments, one file each, by id."""

from whitenorm.lab.experiments import (
    dbn_axis_swap,
    dbn_conditioning,
    dbn_cost,
    dbn_deep,
    dbn_group_size,
    dbn_imagenet,
    dbn_lr,
    dbn_resnet,
    dbn_vgg,
    dbn_wrn,
    gw_batch_group,
    gw_capacity,
    gw_conditioning,
    gw_constraints,
    gw_cost,
    gw_diversity,
    gw_groups_imagenet,
    gw_histogram,
    gw_imagenet,
    iternorm_cost,
    iternorm_imagenet,
    iternorm_microbatch,
    iternorm_mlp,
    iternorm_snd,
    iternorm_snd_picture,
    iternorm_vgg,
    iternorm_vgg_group,
    iternorm_vgg_t,
    iternorm_wrn,
    sw_cost,
    sw_placement,
)
from whitenorm.lab.reproduce.experiment import Experiment

_MODULES = (
    dbn_axis_swap,
    dbn_conditioning,
    dbn_cost,
    dbn_deep,
    dbn_group_size,
    dbn_imagenet,
    dbn_lr,
    dbn_resnet,
    dbn_vgg,
    dbn_wrn,
    gw_batch_group,
    gw_capacity,
    gw_conditioning,
    gw_constraints,
    gw_cost,
    gw_diversity,
    gw_groups_imagenet,
    gw_histogram,
    gw_imagenet,
    iternorm_cost,
    iternorm_imagenet,
    iternorm_microbatch,
    iternorm_mlp,
    iternorm_snd,
    iternorm_snd_picture,
    iternorm_vgg,
    iternorm_vgg_group,
    iternorm_vgg_t,
    iternorm_wrn,
    sw_cost,
    sw_placement,
)

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.id: module.EXPERIMENT for module in _MODULES}

SETUPS: dict[str, str] = {module.EXPERIMENT.id: module.__doc__ or "" for module in _MODULES}
"""What each one does, in the words of its file."""

MISSING: dict[str, tuple[str, str, str]] = {
    "gw-coco": ("GW", "tables 4 and 5", "Detection and segmentation on COCO"),
    "gw-nmt": ("GW", "app. G", "Translation with GW for LN in a transformer"),
    "sw-segmentation": ("SW", "app. C", "Segmentation with 7 and 14 layers"),
    "sw-style": ("SW", "fig. 1", "Image style transfer"),
}
"""Experiments of the papers that have no entry yet: paper, place, what."""
