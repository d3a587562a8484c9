"""GW tables 2, 3 and A4: ImageNet ResNets and ResNeXts with GW, BW, BW_Σ and GN, by placement and training recipe.

Paper: 100 epochs, batch 256, top-1 accuracy. Table 2 has ResNet-50 with GW, BW and BW_Σ at S1, S1-B1, S1-B2, S1-B3 and
S1-B12: all are above BN, GW is above the others everywhere except at S1, and a little lower at S1-B12 than at S1-B1 and
S1-B2. Table 3 has larger nets at S1-B2, with BW_Σ also before the classifier, and GN everywhere; table A4 has the same
with a cosine schedule, label smoothing and mixup. Not stated in the paper: the groups of GN (here 64), and the width of
the ResNeXts (here torchvision's, 32×4d and 32×8d).

Default scale: ResNet-50 at 64² at S1-B2 alone, on a folder of images of your own, for 5 epochs. Cost: hours, depending
on the number of images. Command: ``whitenorm-lab reproduce gw-imagenet --data ROOT``, with ROOT/imagenet/train and val.
"""

from __future__ import annotations

from typing import Any

from whitenorm_lab.claims.experiment import Claim
from whitenorm_lab.papers.shared.classification import build_experiment, errors_below, lower_error, variants
from whitenorm_lab.tasks.classification.presets.gw import GwAdvanced, GwImagenet

_NETS = {
    "ResNet-50": "resnet50",
    "ResNet-101": "resnet101",
    "ResNeXt-50": "resnext50_32x4d",
    "ResNeXt-101": "resnext101_32x8d",
}
_SIGMA: dict[str, Any] = {"norm": "bw-sigma"}
_NORMS: dict[str, dict[str, Any]] = {
    "BN": {"norm": "bn", "where": "all"},
    "GN": {"norm": "gn", "where": "all", "num_groups": 64},
    "BW_Σ": {**_SIGMA, "where": "s1-b2+df"},
    "GW": {},
}
PLACED: dict[str, dict[str, Any]] = {"BW": {"norm": "iternorm"}, "BW_Σ": _SIGMA, "GW": {}}
# Smoke scale of the experiments with ResNet-50 on ImageNet.
_SMOKE_NETS = {"resnet50": "resnet18"}
SMOKE: dict[str, Any] = {"image_size": 16, "epochs": 1, "batch_size": 8, "workers": 0, "nets": _SMOKE_NETS}
BN = 76.23
TABLE_2 = {
    "S1": {"BW": 76.58, "BW_Σ": 76.63, "GW": 76.76},
    "S1-B1": {"BW": 76.68, "BW_Σ": 76.80, "GW": 77.62},
    "S1-B2": {"BW": 76.86, "BW_Σ": 76.76, "GW": 77.72},
    "S1-B3": {"BW": 76.53, "BW_Σ": 76.52, "GW": 77.47},
    "S1-B12": {"BW": 76.60, "BW_Σ": 76.71, "GW": 77.45},
}
_TABLE_3 = {
    "ResNet-50": {"BN": BN, "GN": 75.71, "BW_Σ": 77.21, "GW": 77.72},
    "ResNet-101": {"BN": 77.69, "GN": 77.20, "BW_Σ": 78.27, "GW": 78.71},
    "ResNeXt-50": {"BN": 77.01, "GN": 75.69, "BW_Σ": 77.29, "GW": 78.43},
    "ResNeXt-101": {"BN": 79.29, "GN": 78.00, "BW_Σ": 79.43, "GW": 80.43},
}
_TABLE_A4 = {
    "ResNet-50, advanced": {"BN": 77.16, "GN": 76.09, "BW_Σ": 78.29, "GW": 78.46},
    "ResNeXt-50, advanced": {"BN": 78.84, "GN": 76.90, "BW_Σ": 79.55, "GW": 80.07},
}
_PANELS = {
    **variants(GwImagenet(), {case: {"net": _NETS[case]} for case in _TABLE_3}, _NORMS),
    **variants(GwImagenet(), {place: {"where": place.lower()} for place in TABLE_2}, PLACED),
    **variants(GwAdvanced(), {case: {"net": _NETS[case.split(",")[0]]} for case in _TABLE_A4}, _NORMS),
}
# Pairs of norms of one net that the paper compares, the better one first.
_PAIRS = (("GW", "BN"), ("GW", "GN"), ("GW", "BW_Σ"), ("BW_Σ", "BN"))


def _build_placement_claims() -> tuple[Claim, ...]:
    """Return the claims of table 2: all above BN, GW best within the blocks, and S1-B12 below S1-B1 and S1-B2."""
    below_bn = [
        lower_error(f"{norm}, {place}", "BN, ResNet-50", f"accuracy: BN {BN} %, {norm} {accuracy} %")
        for place, row in TABLE_2.items()
        for norm, accuracy in row.items()
    ]
    best = [
        Claim(
            f"{place}: GW has a lower test error than BW and BW_Σ",
            f"accuracy: BW {row['BW']} %, BW_Σ {row['BW_Σ']} %, GW {row['GW']} %",
            errors_below([(f"GW, {place}", f"{other}, {place}") for other in ("BW", "BW_Σ")], "test_error"),
        )
        for place, row in TABLE_2.items()
        if place != "S1"
    ]
    more_layers = Claim(
        "GW at S1-B12 has a higher test error than at S1-B1 and S1-B2",
        "accuracy: 77.45 % and 77.62, 77.72 %",
        errors_below([(f"GW, {place}", "GW, S1-B12") for place in ("S1-B1", "S1-B2")], "test_error"),
    )
    return (*below_bn, *best, more_layers)


EXPERIMENT = build_experiment(
    "gw-imagenet",
    _PANELS,
    (
        *(
            lower_error(
                f"{better}, {case}", f"{other}, {case}", f"accuracy: {other} {row[other]}, {better} {row[better]} %"
            )
            for case, row in {**_TABLE_3, **_TABLE_A4}.items()
            for better, other in _PAIRS
        ),
        *_build_placement_claims(),
    ),
    reduced={"cases": ["ResNet-50"], "image_size": 64, "epochs": 5},
    smoke={"cases": ["ResNet-50"], **SMOKE},
    paper="GW",
    where="tables 2, 3 and A4",
    title="Residual nets on ImageNet, by placement",
    cost="hours, by the number of images",
    data=("imagenet",),
)
