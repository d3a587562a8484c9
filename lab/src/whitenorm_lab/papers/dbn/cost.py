"""DBN tables B.1, B.2 and B.4: what DBN adds to BatchNorm's time, by group size in VGG-A, and once in residual nets.

Paper: VGG-A on CIFAR, seconds an epoch of training and inference: BN 163.68 and 11.47; DBN with groups of 8 707.47 and
15.50, 16 466.92 and 14.41, 64 297.25 and 13.70, 256 440.88 and 13.64, 512 1004 and 13.68. Residual nets with one DBN,
table B.2 (CIFAR) and B.4 (ImageNet, one GPU, batch 32): training +65 % (20 layers) to +25 % (56), +55 % (18) to +9 %
(101). Command: ``whitenorm-lab reproduce dbn-cost``. The default scale has smaller batches, images of 128² for
ImageNet's
nets, and no wide nets. Table B.3, of several GPUs, is ``dbn-cost-parallel``; the 71 ms of a full whitening beside 32 ms
of a convolution are ``iternorm-cost``'s table, which has them anew.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, every
from whitenorm_lab.claims.experiment import Claim, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.costs import VGG_A, Choice
from whitenorm_lab.papers.shared import overheads
from whitenorm_lab.papers.shared.overheads import run
from whitenorm_lab.published import DBN_L1_PERCENT, INFERENCE_PERCENT, STEP_PERCENT

_CIFAR = ["resnet20", "resnet32", "resnet44", "resnet56"]
_IMAGENET = ["resnet18", "resnet34", "resnet50", "resnet101"]
_TRAINING = {net: percent for net, (percent, _) in DBN_L1_PERCENT.items()}
_INFERENCE = {net: percent for net, (_, percent) in DBN_L1_PERCENT.items()}


def plan(scale: Settings) -> list[Settings]:
    """Group sizes in VGG-A, and residual nets with one DBN, named after the net."""
    fed = {table: {**scale, **scale[table]} for table in ("B.1", "B.2", "B.4")}
    first = fed["B.1"]
    return [
        *(overheads.settings("B.1", first["net"], model, choice, first) for model, choice in VGG_A.items()),
        *(
            overheads.settings(table, net, net, Choice("dbn", "l1"), fed[table])
            for table in ("B.2", "B.4")
            for net in fed[table]["nets"]
        ),
    ]


def _falls(results: Results) -> Evidence:
    """The deepest net against the shallowest, without the wide ones."""
    judged = []
    for table, nets in (("B.2", _CIFAR), ("B.4", _IMAGENET)):
        run = [net for net in nets if net in results.levels("net")]
        judged.append(overheads.ordered([run[-1], run[0]], table)(results))
    return every(*judged)


def _inference(results: Results) -> Evidence:
    return every(*(overheads.within("inference", _INFERENCE, table)(results) for table in ("B.2", "B.4")))


def draw(results: Results) -> Figure:
    """Training and inference, a row a table."""
    panels: list[Any] = []
    for table, title, training, inference in (
        ("B.1", "VGG-A by group size", STEP_PERCENT, INFERENCE_PERCENT),
        ("B.2", "one DBN, CIFAR nets", _TRAINING, _INFERENCE),
        ("B.4", "one DBN, ImageNet nets", _TRAINING, _INFERENCE),
    ):
        found = results.where(table=table)
        panels += [(found, "step", training, title), (found, "inference", inference, title)]
    return overheads.picture(panels)


EXPERIMENT = Experiment(
    id="dbn-cost",
    paper="DBN",
    where="tables B.1, B.2 and B.4",
    title="Time with DBN by group size, and of residual nets",
    cost="4 min",
    claims=(
        Claim(
            "Training of VGG-A: added time at most as printed",
            "groups of 8 … 512: +332, +185, +82, +169, +513 %",
            overheads.within("step", STEP_PERCENT, "B.1"),
            bar=True,
        ),
        Claim(
            "Inference of VGG-A: added time at most as printed",
            "+35, +26, +19, +19, +19 %",
            overheads.within("inference", INFERENCE_PERCENT, "B.1"),
            bar=True,
        ),
        Claim(
            "Small groups cost more, down from 64",
            "64: +82 %, 16: +185 %, 8: +332 %, whitened one after the other",
            overheads.ordered(["DBN-G64", "DBN-G16", "DBN-G8"], "B.1"),
            reason="All groups are whitened at once, so many small ones cost no more than a few large ones.",
        ),
        Claim(
            "Large groups cost more, up from 64",
            "64: +82 %, 256: +169 %, 512: +513 %",
            overheads.ordered(["DBN-G64", "DBN-G256", "DBN-G512"], "B.1"),
        ),
        Claim(
            "Training of CIFAR nets with one DBN: added time at most as printed",
            "20 … 56 layers: +65, +42, +31, +25 %",
            overheads.within("step", _TRAINING, "B.2"),
            bar=True,
        ),
        Claim(
            "Training of ImageNet nets with one DBN: added time at most as printed",
            "18 … 101 layers: +55, +32, +16, +9 %",
            overheads.within("step", _TRAINING, "B.4"),
            bar=True,
        ),
        Claim(
            "Inference of residual nets with one DBN: added time at most as printed",
            "CIFAR +26, +19, +19, +12 %; ImageNet +29, +17, +16, +6 %",
            _inference,
            bar=True,
        ),
        Claim(
            "The share that one DBN adds falls with depth",
            "+65 to +25 %, +55 to +9 %",
            _falls,
        ),
    ),
    scales={
        "smoke": {
            "B.1": {"net": "cnn-4", "batch": 2, "resolution": 32, "classes": 10},
            "B.2": {"nets": ["resnet20"], "batch": 2, "resolution": 32, "classes": 10},
            "B.4": {"nets": ["resnet18"], "batch": 2, "resolution": 32, "classes": 10},
            "rounds": 2,
        },
        "default": {
            "B.1": {"net": "vgg-a", "batch": 64, "resolution": 32, "classes": 10},
            "B.2": {"nets": _CIFAR, "batch": 32, "resolution": 32, "classes": 10},
            "B.4": {"nets": _IMAGENET, "batch": 4, "resolution": 128, "classes": 1000},
            "rounds": 3,
        },
        "paper": {
            "B.1": {"net": "vgg-a", "batch": 256, "resolution": 32, "classes": 10},
            "B.2": {"nets": [*_CIFAR, "wrn-28-10", "wrn-40-10"], "batch": 128, "resolution": 32, "classes": 10},
            "B.4": {"nets": _IMAGENET, "batch": 32, "resolution": 224, "classes": 1000},
            "rounds": 10,
        },
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    plan=plan,
    run=run,
    draw=draw,
    reduction="Times are of a CPU without the optimizer's part, the paper's of GPUs: only ratios and orders compare. "
    "Batches are 64 for 256 (VGG-A), 32 for 128 (CIFAR nets) and 4 for 32 (ImageNet nets, at 128² for 224²); no wide "
    "nets; 3 rounds a repetition.",
)
