"""IterNorm table 1: wide residual nets on CIFAR-10 with IterNorm at every norm.

Paper: groups of 64, mean of 5 seeds: WRN-28-10 3.89 → 3.56, WRN-40-10 3.82 → 3.59; the table's 3.79 and 3.74 of DBN are
those of its own paper, in ``dbn-wrn``. The schedule of 200 epochs and the dropout of 0.3 are those of the code it
cites.

Default scale: WRN-16-2, with the same dropout and groups of 16, on 10,000 images at 16² for 20 epochs. Seeds start at
20: an earlier set-up was WRN-16-1 without dropout, all channels whitened at once, on 5,000 images for 6 epochs. The
runs of BN are shared with ``dbn-wrn``.
Cost: 2.6 h of one core. Command: ``whitenorm-lab reproduce iternorm-wrn --data ROOT``.
"""

from __future__ import annotations

from whitenorm_lab.papers.shared.classification import FEW, build_experiment, errors_below_bn, lower_error, variants
from whitenorm_lab.tasks.classification.presets.iternorm import IternormWrn

_CASES = {"WRN-28-10": {}, "WRN-40-10": {"net": "wrn-40-10"}}
_PRINTED = {"WRN-28-10": {"BN": 3.89, "IterNorm": 3.56}, "WRN-40-10": {"BN": 3.82, "IterNorm": 3.59}}
_REDUCED = {"cases": ["WRN-28-10"], "nets": {"wrn-28-10": "wrn-16-2"}, "group_share": 0.25, "resize": 16}

EXPERIMENT = build_experiment(
    "iternorm-wrn",
    variants(IternormWrn(), _CASES, {"BN": {"norm": "bn"}, "IterNorm": {"group_size": 64}}),
    (
        *errors_below_bn(_PRINTED),
        *(lower_error(f"IterNorm, {case}", f"BN, {case}", "fig. 8: trains faster", "train_error") for case in _CASES),
    ),
    reduced={**_REDUCED, "train_images": 10000, "epochs": 20, "test_every": 5},
    smoke={**_REDUCED, **FEW},
    first_seed=20,
    paper="IterNorm",
    where="table 1",
    title="Wide residual nets",
    cost="2.6 h of one core",
    data=("cifar10",),
    shares=("dbn-wrn",),
)
