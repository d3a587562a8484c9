"""GW tables 2 and 3: ImageNet ResNets and ResNeXts with GW, BW_Σ and GN by placement.

Paper: 100 epochs, batch 256, top-1 accuracy on ResNet-50: BN 76.23; GW at S1 76.76, S1-B1 77.62, S1-B2 77.72, S1-B3
77.47, S1-B12 77.45; GN everywhere 75.71; BW_Σ S1-B2 with one before the classifier 77.21. ResNet-101, ResNeXt-50 and
-101 at S1-B2: 77.69 → 78.71, 77.01 → 78.43, 79.29 → 80.43 (here 32×8d, which torchvision has, for 32×4d). The default
scale is ResNet-50 at 64² with S1-B2 alone on a folder of images of your own, for 5 epochs. Command:
``whitenorm reproduce gw-imagenet --data ROOT``, with ROOT/imagenet/train and val.
"""

from __future__ import annotations

from whitenorm.lab.experiments.classification import entry, lower_error, variants
from whitenorm.lab.training.presets.gw import GwImagenet

_BN = {"BN": {"norm": "bn", "where": "all"}}
_PLACES = {"S1-B2": 77.72, "S1": 76.76, "S1-B1": 77.62, "S1-B3": 77.47, "S1-B12": 77.45}
_LARGER = {"resnet101": (77.69, 78.71), "resnext50_32x4d": (77.01, 78.43), "resnext101_32x8d": (79.29, 80.43)}
_PANELS = {
    "ResNet-50": variants(
        GwImagenet(),
        {"ResNet-50": {}},
        {
            **_BN,
            "GN": {"norm": "gn", "where": "all", "num_groups": 64},
            "BW_Σ S1-B2": {"norm": "bw-sigma", "solver": "newton"},
            "GW S1-B2": {},
        },
    )["ResNet-50"],
    "places": variants(
        GwImagenet(),
        {"places": {}},
        {f"GW {place}": {"where": place.lower()} for place in _PLACES if place != "S1-B2"},
    )["places"],
    **variants(GwImagenet(), {net: {"net": net} for net in _LARGER}, {**_BN, "GW S1-B2": {}}),
}

_SMALL = {"resnet50": "resnet18"}

EXPERIMENT = entry(
    "gw-imagenet",
    _PANELS,
    (
        lower_error("GW S1-B2, ResNet-50", "BN, ResNet-50", "accuracy: BN 76.23 %, GW 77.72 %"),
        lower_error("GW S1-B2, ResNet-50", "GN, ResNet-50", "accuracy: GN 75.71 %, GW 77.72 %"),
        lower_error("GW S1-B2, ResNet-50", "BW_Σ S1-B2, ResNet-50", "accuracy: BW_Σ 77.21 %, GW 77.72 %"),
        *(
            lower_error(f"GW {place}, places", "BN, ResNet-50", f"accuracy: BN 76.23 %, GW {accuracy} %")
            for place, accuracy in _PLACES.items()
            if place != "S1-B2"
        ),
        *(
            lower_error(f"GW S1-B2, {net}", f"BN, {net}", f"accuracy: BN {bn} %, GW {gw} %")
            for net, (bn, gw) in _LARGER.items()
        ),
    ),
    reduced={"cases": ["ResNet-50"], "image_size": 64, "epochs": 5},
    smoke={"cases": ["ResNet-50"], "image_size": 16, "epochs": 1, "batch_size": 8, "workers": 0, "nets": _SMALL},
    seeds=1,
    paper="GW",
    where="tables 2 and 3",
    title="Residual nets on ImageNet, by placement",
    cost="hours, by the number of images",
    data=("imagenet",),
)
