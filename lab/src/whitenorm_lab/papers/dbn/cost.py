"""DBN tables B.1, B.2 and B.4: the time that DBN adds to BatchNorm, in VGG-A by group size and once in residual nets.

Paper: VGG-A on CIFAR, seconds per epoch of training and inference: BN 163.68 and 11.47; DBN with groups of 8 707.47 and
15.50, 16 466.92 and 14.41, 64 297.25 and 13.70, 256 440.88 and 13.64, 512 1004 and 13.68. Residual nets with one DBN,
table B.2 (CIFAR) and B.4 (ImageNet, one GPU, batch 32): training +65 % (20 layers) to +25 % (56), +55 % (18) to +9 %
(101).

Table B.3, on several GPUs, is ``dbn-cost-parallel``. The 71 ms of full whitening beside 32 ms of a convolution are
measured in ``iternorm-cost``.

Default scale: smaller batches, images of 96² for ImageNet's nets, and no wide nets.
Cost: 3 min. Command: ``whitenorm-lab reproduce dbn-cost``.
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
    """Plan a run of VGG-A by group size, and of residual nets with one DBN; the latter are named after the net."""
    parameters = {table: {**scale, **scale[table]} for table in ("B.1", "B.2", "B.4")}
    return [
        overheads.build_settings("B.1", parameters["B.1"]["net"], VGG_A, parameters["B.1"]),
        *(
            overheads.build_settings(table, net, {net: Choice("dbn", "l1")}, parameters[table])
            for table in ("B.2", "B.4")
            for net in parameters[table]["nets"]
        ),
    ]


def _check_falls_with_depth(results: Results) -> Evidence:
    """Compare the deepest with the shallowest net, without the wide nets."""
    parts = []
    for table, nets in (("B.2", _CIFAR), ("B.4", _IMAGENET)):
        available = [net for net in nets if net in results.levels("net")]
        parts.append(overheads.expect_rising_step_times([available[-1], available[0]], table)(results))
    return every(*parts)


def _check_inference(results: Results) -> Evidence:
    return every(
        *(overheads.expect_at_most_printed("inference", _INFERENCE, table)(results) for table in ("B.2", "B.4"))
    )


def draw(results: Results) -> Figure:
    """Draw the overheads of training and inference, one row per table."""
    panels: list[Any] = []
    for table, title, training, inference in (
        ("B.1", "VGG-A by group size", STEP_PERCENT, INFERENCE_PERCENT),
        ("B.2", "one DBN, CIFAR nets", _TRAINING, _INFERENCE),
        ("B.4", "one DBN, ImageNet nets", _TRAINING, _INFERENCE),
    ):
        runs = results.where(table=table)
        panels += [(runs, "step", training, title), (runs, "inference", inference, title)]
    return overheads.draw_overheads(panels)


EXPERIMENT = Experiment(
    id="dbn-cost",
    paper="DBN",
    where="tables B.1, B.2 and B.4",
    title="Time with DBN by group size, and of residual nets",
    cost="3 min",
    claims=(
        Claim(
            "Training of VGG-A: added time at most as printed",
            "groups of 8 … 512: +332, +185, +82, +169, +513 %",
            overheads.expect_at_most_printed("step", STEP_PERCENT, "B.1"),
            bar=True,
        ),
        Claim(
            "Inference of VGG-A: added time at most as printed",
            "+35, +26, +19, +19, +19 %",
            overheads.expect_at_most_printed("inference", INFERENCE_PERCENT, "B.1"),
            bar=True,
        ),
        Claim(
            "Small groups cost more, down from 64",
            "64: +82 %, 16: +185 %, 8: +332 %, whitened one after the other",
            overheads.expect_rising_step_times(["DBN-G64", "DBN-G16", "DBN-G8"], "B.1"),
            reason="All groups are whitened at once, so many small ones cost no more than a few large ones.",
        ),
        Claim(
            "Large groups cost more, up from 64",
            "64: +82 %, 256: +169 %, 512: +513 %",
            overheads.expect_rising_step_times(["DBN-G64", "DBN-G256", "DBN-G512"], "B.1"),
        ),
        Claim(
            "Training of CIFAR nets with one DBN: added time at most as printed",
            "20 … 56 layers: +65, +42, +31, +25 %",
            overheads.expect_at_most_printed("step", _TRAINING, "B.2"),
            bar=True,
        ),
        Claim(
            "Training of ImageNet nets with one DBN: added time at most as printed",
            "18 … 101 layers: +55, +32, +16, +9 %",
            overheads.expect_at_most_printed("step", _TRAINING, "B.4"),
            bar=True,
        ),
        Claim(
            "Inference of residual nets with one DBN: added time at most as printed",
            "CIFAR +26, +19, +19, +12 %; ImageNet +29, +17, +16, +6 %",
            _check_inference,
            bar=True,
        ),
        Claim(
            "The share that one DBN adds falls with depth",
            "+65 to +25 %, +55 to +9 %",
            _check_falls_with_depth,
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
            "B.4": {"nets": _IMAGENET, "batch": 4, "resolution": 96, "classes": 1000},
            "rounds": 3,
        },
        "paper": {
            "B.1": {"net": "vgg-a", "batch": 256, "resolution": 32, "classes": 10},
            "B.2": {"nets": [*_CIFAR, "wrn-28-10", "wrn-40-10"], "batch": 128, "resolution": 32, "classes": 10},
            "B.4": {"nets": _IMAGENET, "batch": 32, "resolution": 224, "classes": 1000},
            "rounds": 10,
        },
    },
    seeds={"smoke": 1, "default": 10, "paper": 5},
    plan=plan,
    run=run,
    draw=draw,
    reduction="Times are of a CPU without the optimizer's part, the paper's of GPUs: only ratios and orders compare. "
    "Batches are 64 for 256 (VGG-A), 32 for 128 (CIFAR nets) and 4 for 32 (ImageNet nets, at 96² for 224²); no wide "
    "nets; 10 repetitions of 3 rounds.",
)
