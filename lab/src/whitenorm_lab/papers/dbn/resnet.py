"""DBN table 1: CIFAR-10 ResNets with DBN-scale as their first norm, and IterNorm for comparison.

Paper: Res-20/32/44/56, mean of 5 seeds: test errors of BN 7.94, 7.31, 7.17, 7.21, of DBN-scale-L1 7.77, 6.94, 6.83,
6.49, and of DBN-L1, without γ and β, 7.94, 7.28, 6.87, 6.63. The schedule (164 epochs, lr 0.1 divided by 10 at 81 and
122) is that of the code it cites. IterNorm as the first norm is not in the table.

Default scale: Res-20 without IterNorm, for 10 epochs on 20,000 images at 16², with the last learning rate from the
eighth epoch on. Seeds start at 20: an earlier set-up had 4 epochs and no DBN-L1.
Cost: 1.6 h of one core. Command: ``whitenorm-lab reproduce dbn-resnet --data ROOT``.
"""

from __future__ import annotations

from typing import Any

from whitenorm_lab.claims.evidence import Evidence, lower, not_run
from whitenorm_lab.claims.experiment import Claim
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.classification import (
    FEW,
    build_experiment,
    errors_below_bn,
    get_final_values,
    lower_error,
    variants,
)
from whitenorm_lab.tasks.classification.presets.dbn import DbnResnet

_PRINTED = {
    "Res-20": {"BN": 7.94, "DBN-scale-L1": 7.77},
    "Res-32": {"BN": 7.31, "DBN-scale-L1": 6.94},
    "Res-44": {"BN": 7.17, "DBN-scale-L1": 6.83},
    "Res-56": {"BN": 7.21, "DBN-scale-L1": 6.49},
}
_NORMS: dict[str, dict[str, Any]] = {
    "BN": {"norm": "bn", "where": "all", "bias": True},
    "DBN-scale-L1": {},
    "DBN-L1": {"affine": False},
    "IterNorm-L1": {"norm": "iternorm", "bias": True},
}

_NETS = {case: {"net": case.lower().replace("-", "net")} for case in _PRINTED}
_PRINTED_WITHOUT_SCALE = {"Res-20": 7.94, "Res-32": 7.28, "Res-44": 6.87, "Res-56": 6.63}
_WITHOUT_SCALE = tuple(
    lower_error(
        f"DBN-scale-L1, {case}",
        f"DBN-L1, {case}",
        f"DBN-L1 {error} %, DBN-scale-L1 {_PRINTED[case]['DBN-scale-L1']} %",
    )
    for case, error in _PRINTED_WITHOUT_SCALE.items()
)


def _check_gains_more(results: Results) -> Evidence:
    """Compare by how many points DBN-scale-L1 is below BN at 20 and at 56 layers, seed by seed."""
    if "BN, Res-56" not in results.levels("variant"):
        return not_run()
    errors = {name: get_final_values(results, "test_error", name) for name in results.levels("variant")}
    gains = [
        [bn - dbn for bn, dbn in zip(errors[f"BN, {case}"], errors[f"DBN-scale-L1, {case}"], strict=True)]
        for case in ("Res-20", "Res-56")
    ]
    return lower(gains[0], gains[1], ("points below BN, Res-20", "Res-56"))


_DEEPER = Claim("DBN-scale-L1 gains more on BN at 56 layers than at 20", "0.17 and 0.72 points", _check_gains_more)

EXPERIMENT = build_experiment(
    "dbn-resnet",
    variants(DbnResnet(), _NETS, _NORMS),
    (*errors_below_bn(_PRINTED), *_WITHOUT_SCALE, _DEEPER),
    reduced={
        "cases": ["Res-20"],
        "variants": [f"{norm}, Res-20" for norm in ("BN", "DBN-scale-L1", "DBN-L1")],
        "resize": 16,
        "train_images": 20000,
        "epochs": 10,
        "test_every": 2,
    },
    smoke={"cases": ["Res-20"], "width": 4, **FEW},
    first_seed=20,
    paper="DBN",
    where="table 1",
    title="Residual nets on CIFAR-10, first norm only",
    cost="1.6 h of one core",
    data=("cifar10",),
)
