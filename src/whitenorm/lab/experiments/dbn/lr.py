"""DBN figure 6b: at four times the learning rate, DBN still trains where BN degrades.

Paper: S-plain of width 42 on CIFAR-10 at lr 0.4, divided by 5 at epochs 60, 100, 140 and 180; DBN's training accuracy
is well above BN's. Not stated there: the depth (here 20), the epochs (200), and the groups of DBN: 42 is no multiple of
16, here 14. The default scale has width 14, 10,000 images and 6 epochs. Command:
``whitenorm reproduce dbn-lr --data ROOT``.
"""

from __future__ import annotations

from whitenorm.lab.experiments.shared.classification import entry, lower_error, variants
from whitenorm.lab.tasks.classification.presets.dbn import DbnRate

EXPERIMENT = entry(
    "dbn-lr",
    variants(DbnRate(), {"": {}}, {"BN": {"norm": "bn", "affine": True, "group_size": None}, "DBN": {}}),
    (lower_error("DBN", "BN", "a picture: training accuracy significantly better", "train_error"),),
    reduced={"width": 14, "train_images": 10000, "test_images": 2000, "epochs": 6},
    smoke={"width": 14, "train_images": 64, "test_images": 16, "epochs": 1, "batch_size": 32},
    paper="DBN",
    where="fig. 6b",
    title="Four times the learning rate",
    cost="16 min",
    data=("cifar10",),
)
