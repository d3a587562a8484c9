"""DBN figure 6b: at four times the learning rate, DBN still trains while BN degrades.

Paper: S-plain of width 42 on CIFAR-10 at lr 0.4, divided by 5 at epochs 60, 100, 140 and 180, LeCun's initial weights;
DBN's training accuracy is well above BN's.

Not stated in the paper: the depth (here 20), the number of epochs (200), and the group size of DBN: 42 is not a
multiple of 16, here 14, a third of the channels.

Default scale: width 21, groups of 7, and 10,000 images at 16² for 20 epochs. Seeds start at 20: an earlier set-up of 6
epochs whitened all of 14 channels at once.
Cost: 1.4 h of one core. Command: ``whitenorm-lab reproduce dbn-lr --data ROOT``.
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
