"""DBN figure 6a: nets without shortcuts train deeper with DBN than with BN.

Paper: S-plain of 20, 32 and 44 layers of width 48 on CIFAR-10, batch 128, lr 0.1 divided by 5 at epochs 80 and 120 of
160, LeCun's initial weights; with depth, BN's training accuracy falls and DBN's falls less.

Not stated in the paper: data augmentation, and the group size of DBN (here 16, a third of the channels).

Default scale: 20 and 44 layers of width 12, groups of 4, and 10,000 images at 16² for 30 epochs. Seeds start at 20: an
earlier set-up of width 16, with 4,000 images and 6 epochs, whitened all channels at once, and there DBN was behind BN.
In a probe of 20 layers with groups of 4 it was not (65.5 and 69.3 % of the training images wrong).
Cost: 1.8 h of one core. Command: ``whitenorm-lab reproduce dbn-deep --data ROOT``.
"""

from __future__ import annotations

from whitenorm_lab.claims.evidence import Evidence, lower
from whitenorm_lab.claims.experiment import Claim
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.classification import FEW, build_experiment, get_final_values, lower_error, variants
from whitenorm_lab.tasks.classification.presets.dbn import DbnDeep

_DEPTHS = (20, 32, 44)


def _check_rises_less(results: Results) -> Evidence:
    """Compare how much the training error rises from 20 to 44 layers, seed by seed."""
    rises = {}
    for norm in ("DBN", "BN"):
        errors = [get_final_values(results, "train_error", f"{norm}, {depth} layers") for depth in (20, 44)]
        rises[norm] = [deep - shallow for shallow, deep in zip(*errors, strict=True)]
    return lower(rises["DBN"], rises["BN"], ("DBN's rise", "BN's rise"))


EXPERIMENT = build_experiment(
    "dbn-deep",
    variants(
        DbnDeep(),
        {f"{depth} layers": {"net": f"s-plain-{depth}"} for depth in _DEPTHS},
        {"BN": {"norm": "bn", "affine": True}, "DBN": {"group_size": 16}},
    ),
    (
        *(
            lower_error(f"DBN, {depth} layers", f"BN, {depth} layers", "a picture: DBN above BN", "train_error")
            for depth in _DEPTHS
        ),
        Claim("From 20 to 44 layers DBN's training error rises less than BN's", "a picture", _check_rises_less),
    ),
    reduced={
        "cases": ["20 layers", "44 layers"],
        "width": 12,
        "group_share": 0.25,
        "resize": 16,
        "train_images": 10000,
        "test_images": 5000,
        "epochs": 30,
        "test_every": 10,
    },
    smoke={"width": 4, "group_share": 0.125, "resize": 16, **FEW},
    first_seed=20,
    paper="DBN",
    where="fig. 6a",
    title="Deeper nets without shortcuts",
    cost="1.8 h of one core",
    data=("cifar10",),
)
