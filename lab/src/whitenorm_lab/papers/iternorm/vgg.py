"""IterNorm figure 6: VGG on CIFAR-10 with BN, DBN and IterNorm over batch sizes and learning rates.

Paper: 16 convolutions, 160 epochs, lr 0.1 divided by 5 at 60 and 120, batch 256; batch 1024 at lr 0.4, batch 16 at lr
0.0125, and batch 256 at lr 1. IterNorm's test error is below BN's by 0.79, 0.53, 1.11 and 0.75 points, below DBN's by
0.22, 0.37, 1.05 and 0.58. IterNorm whitens all channels together, DBN groups of 16.

Default scale: batches of 256 at both learning rates, a net of 12 channels in its first layer and 96 in its last, groups
of 3 for DBN, and 20,000 images at 16² for 15 epochs. A step of the last layers has 256 values for 96 channels; in the
paper it has 1,024 for 512. Seeds start at 20: an earlier set-up had all four cases on 5,000 images for 5 epochs, and
tested with running statistics, whose lag caused most of the error at batch 1024.
Cost: 3 h of one core. Command: ``whitenorm-lab reproduce iternorm-vgg --data ROOT``.
"""

from __future__ import annotations

from typing import Any

from whitenorm_lab.claims.experiment import Claim
from whitenorm_lab.papers.shared.classification import FEW, build_experiment, errors_below, lower_error, variants
from whitenorm_lab.tasks.classification.presets.iternorm import IternormVgg

_CASES: dict[str, dict[str, Any]] = {
    "batch 256": {},
    "batch 1024": {"batch_size": 1024, "lr": 0.4},
    "batch 16": {"batch_size": 16, "lr": 0.0125},
    "10 × lr": {"lr": 1.0},
}
_POINTS = dict(zip(_CASES, ((0.79, 0.22), (0.53, 0.37), (1.11, 1.05), (0.75, 0.58)), strict=True))
_NORMS: dict[str, dict[str, Any]] = {
    "BN": {"norm": "bn", "group_size": None},
    "DBN": {"norm": "dbn", "group_size": 16},
    "IterNorm": {},
}

EXPERIMENT = build_experiment(
    "iternorm-vgg",
    variants(IternormVgg(), _CASES, _NORMS),
    (
        *(
            lower_error(f"IterNorm, {case}", f"{other}, {case}", f"by {points} points of test error")
            for case, pair in _POINTS.items()
            for other, points in zip(("BN", "DBN"), pair, strict=True)
        ),
        *(
            Claim(
                f"{case}: IterNorm has a lower train error than BN and DBN",
                "a picture: converges the fastest",
                errors_below([(f"IterNorm, {case}", f"{other}, {case}") for other in ("BN", "DBN")], "train_error"),
            )
            for case in _CASES
        ),
        *(
            lower_error(f"DBN, {case}", f"BN, {case}", "a picture: DBN is better than BN", which)
            for which in ("train_error", "test_error")
            for case in _CASES
        ),
    ),
    reduced={
        "cases": ["batch 256", "10 × lr"],
        "width": 12,
        "group_share": 0.1875,
        "resize": 16,
        "train_images": 20000,
        "epochs": 15,
        "test_every": 5,
    },
    smoke={"cases": ["batch 256"], "width": 4, "group_share": 0.125, "resize": 16, **FEW},
    first_seed=20,
    paper="IterNorm",
    where="fig. 6",
    title="VGG on CIFAR-10: batch size and learning rate",
    cost="3 h of one core",
    data=("cifar10",),
)
