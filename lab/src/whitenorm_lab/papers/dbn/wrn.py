"""DBN table 2: wide residual nets on CIFAR-10 and CIFAR-100 with DBN-scale as their first norm.

Paper: mean of 5 seeds; the schedule of 200 epochs and the dropout of 0.3 are those of the code it cites: WRN-28-10
3.99 → 3.79 and 18.75 → 18.36, WRN-40-10 3.80 → 3.74 and 18.7 → 18.27. The paper scale needs CIFAR-100 too.

Default scale: WRN-16-2, with the same dropout, on 10,000 images of CIFAR-10 at 16² for 20 epochs. Seeds start at 20: an
earlier set-up was WRN-16-1 without dropout for 6 epochs. The runs of BN are shared with ``iternorm-wrn``.
Cost: 2.1 h of one core. Command: ``whitenorm-lab reproduce dbn-wrn --data ROOT``.
"""

from __future__ import annotations

from whitenorm_lab.papers.shared.classification import FEW, build_experiment, errors_below_bn, variants
from whitenorm_lab.tasks.classification.presets.dbn import DbnWrn

_CASES = {
    "WRN-28-10, CIFAR-10": {},
    "WRN-40-10, CIFAR-10": {"net": "wrn-40-10"},
    "WRN-28-10, CIFAR-100": {"dataset": "cifar100"},
    "WRN-40-10, CIFAR-100": {"net": "wrn-40-10", "dataset": "cifar100"},
}
_PRINTED = {
    "WRN-28-10, CIFAR-10": {"BN": 3.99, "DBN-scale-L1": 3.79},
    "WRN-40-10, CIFAR-10": {"BN": 3.80, "DBN-scale-L1": 3.74},
    "WRN-28-10, CIFAR-100": {"BN": 18.75, "DBN-scale-L1": 18.36},
    "WRN-40-10, CIFAR-100": {"BN": 18.7, "DBN-scale-L1": 18.27},
}
_REDUCED = {"cases": ["WRN-28-10, CIFAR-10"], "nets": {"wrn-28-10": "wrn-16-2"}, "resize": 16}

EXPERIMENT = build_experiment(
    "dbn-wrn",
    variants(DbnWrn(), _CASES, {"BN": {"norm": "bn", "where": "all", "bias": True}, "DBN-scale-L1": {}}),
    errors_below_bn(_PRINTED),
    reduced={**_REDUCED, "train_images": 10000, "epochs": 20, "test_every": 5},
    smoke={**_REDUCED, **FEW},
    first_seed=20,
    paper="DBN",
    where="table 2",
    title="Wide residual nets, first norm only",
    cost="2.1 h of one core",
    data=("cifar10",),
    shares=("iternorm-wrn",),
)
