"""DBN figure 6b: at four times the learning rate, DBN still trains where BN degrades.

Paper: S-plain of width 42 on CIFAR-10 at lr 0.4, divided by 5 at epochs 60, 100, 140 and 180, LeCun's weights at the
start; DBN's training accuracy is well above BN's. Not stated there: the depth (here 20), the epochs (200), and the
groups of DBN: 42 is no multiple of 16, here 14, a third of the channels. The default scale has width 21, groups of 7,
and 10,000 images at 16² for 20 epochs. Seeds are new: a first set-up of 6 epochs whitened all of 14 channels at once.
Command: ``whitenorm-lab reproduce dbn-lr --data ROOT``.
"""

from __future__ import annotations

from whitenorm_lab.papers.shared.classification import FEW, build_experiment, lower_error, variants
from whitenorm_lab.tasks.classification.presets.dbn import DbnRate

EXPERIMENT = build_experiment(
    "dbn-lr",
    variants(DbnRate(), {"": {}}, {"BN": {"norm": "bn", "affine": True}, "DBN": {"group_size": 14}}),
    (lower_error("DBN", "BN", "a picture: training accuracy significantly better", "train_error"),),
    reduced={
        "width": 21,
        "group_share": 0.5,
        "resize": 16,
        "train_images": 10000,
        "test_images": 5000,
        "epochs": 20,
        "test_every": 5,
        "channels_last": True,
    },
    smoke={"width": 6, "group_share": 0.15, "resize": 16, **FEW},
    first_seed=20,
    paper="DBN",
    where="fig. 6b",
    title="Four times the learning rate",
    cost="1.4 h of one core",
    data=("cifar10",),
)
