"""DBN table 1: CIFAR-10 ResNets with DBN-scale as their first norm; IterNorm beside it.

Paper: Res-20/32/44/56, 164 epochs, lr 0.1 divided by 10 at 81 and 122, mean of 5 seeds: test errors of BN 7.94, 7.31,
7.17, 7.21 and of DBN-scale-L1 7.77, 6.94, 6.83, 6.49. IterNorm, first norm only, is not in the table. The default scale
is Res-20 for 4 epochs on 20,000 images, 1 % of the paper's steps. Command:
``whitenorm reproduce dbn-resnet --data ROOT``.
"""

from __future__ import annotations

from whitenorm.lab.experiments.classification import below_bn, entry, variants
from whitenorm.lab.training.presets.dbn import DbnResnet

_PRINTED = {
    "Res-20": {"BN": 7.94, "DBN-scale-L1": 7.77},
    "Res-32": {"BN": 7.31, "DBN-scale-L1": 6.94},
    "Res-44": {"BN": 7.17, "DBN-scale-L1": 6.83},
    "Res-56": {"BN": 7.21, "DBN-scale-L1": 6.49},
}
_NORMS = {
    "BN": {"norm": "bn", "where": "all"},
    "DBN-scale-L1": {},
    "IterNorm-L1": {"norm": "iternorm"},
}

EXPERIMENT = entry(
    "dbn-resnet",
    variants(DbnResnet(), {case: {"net": case.lower().replace("-", "net")} for case in _PRINTED}, _NORMS),
    below_bn(_PRINTED),
    reduced={"cases": ["Res-20"], "train_images": 20000, "epochs": 4},
    smoke={"cases": ["Res-20"], "width": 4, "train_images": 64, "test_images": 16, "epochs": 1, "batch_size": 32},
    seeds=5,
    paper="DBN",
    where="table 1",
    title="Residual nets on CIFAR-10, first norm only",
    cost="30 min",
    data=("cifar10",),
)
