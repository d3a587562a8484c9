"""DBN figure 5: VGG-A on CIFAR-10 with DBN against BN, under SGD, Adam, ELU, and with the norm after ReLU.

Paper: batch 256, momentum 0.9, weight decay 5e-4, LeCun's initial weights; DBN without γ and β, groups of 16. The
learning rate, of {1, 2, 4, 8} for SGD and {0.001, 0.005, 0.01, 0.05} for Adam, is halved every T steps, T of {1000,
2000, 4000, 8000}, both chosen by the error on 5,000 held-out images. The test error falls by 0.61, 1.34, 1.44 and 0.38
points.

Here the learning rate of each norm and case is chosen on held-out images by the mean over the seeds. The rates of SGD
are a tenth of the paper's, because its SGD (Torch's) scales the gradient by 1 - momentum by default. T is 2,000 for
all.

Default scale: a net of 12 channels in its first layer, groups of 3, 10,000 images for 10 epochs of 39 steps, two
learning rates per norm, and T = 80, a fifth of all steps, so that the learning rate ends at a sixteenth. Seeds start at
20: an earlier set-up had one learning rate, halved every 15 of 234 steps, which left BN a thirty-second of it after the
first third.
Cost: 2.2 h of one core. Command: ``whitenorm-lab reproduce dbn-vgg --data ROOT``.
"""

from __future__ import annotations

from typing import Any

from whitenorm_lab.papers.shared.classification import FEW, build_experiment, lower_error, variants
from whitenorm_lab.tasks.classification.presets.dbn import DbnVgg

_CASES: dict[str, dict[str, Any]] = {
    "SGD": {},
    "Adam": {"optimizer": "adam"},
    "ELU": {"activation": "elu"},
    "norm after ReLU": {"norm_last": True},
}
_POINTS = {"SGD": 0.61, "Adam": 1.34, "ELU": 1.44, "norm after ReLU": 0.38}

_NORMS: dict[str, dict[str, Any]] = {"BN": {"norm": "bn", "affine": True}, "DBN": {"group_size": 16}}

EXPERIMENT = build_experiment(
    "dbn-vgg",
    variants(DbnVgg(validation_images=5000), _CASES, _NORMS),
    (
        *(
            lower_error(f"DBN, {case}", f"BN, {case}", f"by {points} points of test error")
            for case, points in _POINTS.items()
        ),
        *(lower_error(f"DBN, {case}", f"BN, {case}", "a picture: converges faster", "train_error") for case in _POINTS),
    ),
    rates={"sgd": (0.1, 0.2, 0.4, 0.8), "adam": (0.001, 0.005, 0.01, 0.05)},
    reduced={
        "rates": {"sgd": [0.1, 0.4], "adam": [0.001, 0.01]},
        "width": 12,
        "group_share": 0.1875,
        "train_images": 10000,
        "epochs": 10,
        "every": 80,
        "test_every": 5,
        "channels_last": True,
    },
    smoke={
        "rates": {"sgd": [0.1, 0.4], "adam": [0.001]},
        "width": 4,
        "group_share": 0.125,
        "validation_images": 16,
        **FEW,
    },
    first_seed=20,
    paper="DBN",
    where="fig. 5",
    title="VGG-A on CIFAR-10: optimizer, activation, place of the norm",
    cost="2.2 h of one core",
    data=("cifar10",),
)
