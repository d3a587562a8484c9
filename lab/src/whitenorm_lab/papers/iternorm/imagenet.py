"""IterNorm tables 2 and 3: ImageNet ResNets with IterNorm first, everywhere, or first and before the classifier.

Paper: 100 epochs, batch 256, top-1 errors: Res-18 BN 29.76, DBN-L1 29.50, L1 29.34, full 29.30, L1 + DF 28.86; Res-50
BN 23.95, L1 23.28, L1 + DF 22.91; Res-101 22.45, 21.95, 21.77.

Default scale: Res-18 at 64² for 5 epochs, on your own folder of images with ``imagenet/train`` and ``imagenet/val``
under the data root.
Cost: hours, by the number of images. Command: ``whitenorm-lab reproduce iternorm-imagenet --data ROOT``.
"""

from __future__ import annotations

from whitenorm_lab.claims.evidence import Evidence, alike
from whitenorm_lab.claims.experiment import Claim
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.classification import (
    build_experiment,
    errors_below_bn,
    get_final_values,
    lower_error,
    variants,
)
from whitenorm_lab.tasks.classification.presets.iternorm import IternormImagenet

_NORMS = {
    "BN": {"norm": "bn", "where": "all"},
    "DBN-L1": {"norm": "dbn", "where": "l1"},
    "IterNorm-L1": {"where": "l1"},
    "IterNorm-full": {"where": "all"},
    "IterNorm-L1 + DF": {},
}
_PRINTED = {
    "Res-18": {"BN": 29.76, "DBN-L1": 29.50, "IterNorm-L1": 29.34, "IterNorm-full": 29.30, "IterNorm-L1 + DF": 28.86},
    "Res-50": {"BN": 23.95, "IterNorm-L1": 23.28, "IterNorm-L1 + DF": 22.91},
    "Res-101": {"BN": 22.45, "IterNorm-L1": 21.95, "IterNorm-L1 + DF": 21.77},
}
_PANELS = {
    case: variants(
        IternormImagenet(), {case: {"net": case.lower().replace("-", "net")}}, {name: _NORMS[name] for name in printed}
    )[case]
    for case, printed in _PRINTED.items()
}


def _check_full_is_like_first(results: Results) -> Evidence:
    """Expect both errors to be within half a point."""
    full, first = (
        get_final_values(results, "test_error", f"{name}, Res-18") for name in ("IterNorm-full", "IterNorm-L1")
    )
    return alike(full, first, ("IterNorm-full", "IterNorm-L1"), margin=0.5)


EXPERIMENT = build_experiment(
    "iternorm-imagenet",
    _PANELS,
    (
        *errors_below_bn(_PRINTED),
        lower_error("IterNorm-L1, Res-18", "DBN-L1, Res-18", "DBN-L1 29.50 %, IterNorm-L1 29.34 %: marginally better"),
        *(
            lower_error(f"IterNorm-L1 + DF, {case}", f"IterNorm-L1, {case}", "significantly improves")
            for case in _PRINTED
        ),
        Claim("IterNorm-full is no better than IterNorm-L1, Res-18", "29.30 and 29.34 %", _check_full_is_like_first),
    ),
    reduced={"cases": ["Res-18"], "image_size": 64, "epochs": 5},
    smoke={"cases": ["Res-18"], "image_size": 16, "epochs": 1, "batch_size": 8, "workers": 0},
    paper="IterNorm",
    where="tables 2 and 3",
    title="Residual nets on ImageNet",
    cost="hours, by the number of images",
    data=("imagenet",),
)
