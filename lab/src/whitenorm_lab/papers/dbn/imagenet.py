"""DBN table 3: ImageNet ResNets with DBN-scale as their first norm.

Paper: 90 epochs, batch 256, single crop: top-1 errors of Res-18/34/50/101 30.21 → 29.87, 26.53 → 26.46, 24.87 → 24.29,
22.54 → 22.17.

Default scale: Res-18 at 64² for 5 epochs, on your own folder of images with ``imagenet/train`` and ``imagenet/val``
under the data root.
Cost: hours, by the number of images. Command: ``whitenorm-lab reproduce dbn-imagenet --data ROOT``.
"""

from __future__ import annotations

from whitenorm_lab.papers.shared.classification import build_experiment, errors_below_bn, variants
from whitenorm_lab.tasks.classification.presets.dbn import DbnImagenet

_PRINTED = {
    "Res-18": {"BN": 30.21, "DBN-scale-L1": 29.87},
    "Res-34": {"BN": 26.53, "DBN-scale-L1": 26.46},
    "Res-50": {"BN": 24.87, "DBN-scale-L1": 24.29},
    "Res-101": {"BN": 22.54, "DBN-scale-L1": 22.17},
}

EXPERIMENT = build_experiment(
    "dbn-imagenet",
    variants(
        DbnImagenet(),
        {case: {"net": case.lower().replace("-", "net")} for case in _PRINTED},
        {"BN": {"norm": "bn", "where": "all", "bias": True}, "DBN-scale-L1": {}},
    ),
    errors_below_bn(_PRINTED),
    reduced={"cases": ["Res-18"], "image_size": 64, "epochs": 5},
    smoke={"cases": ["Res-18"], "image_size": 16, "epochs": 1, "batch_size": 8, "workers": 0},
    paper="DBN",
    where="table 3",
    title="Residual nets on ImageNet, first norm only",
    cost="hours, by the number of images",
    data=("imagenet",),
)
