"""SW tables 1 and 2: FLOPs, and CPU time of forward, and of forward and backward, of ResNet-50 with BW and SW.

Paper: at 224², 7 layers: 4.143 GFLOPs with BN, 4.185 with BW and SW^a, 4.188 with SW^b; CPU seconds forward 0.210,
0.259, 0.262, 0.268, with backward 0.720, 0.793, 0.802, 0.817. At 713², batch 1, 7 layers 17.61 → 17.72, 17.89, 18.48,
14 layers 18.26, 18.49, 18.90. Command: ``whitenorm-lab reproduce sw-cost``. All whiten by ZCA; FLOPs are those of
convolutions and matrix products at inference, without eigendecompositions, and inference is what is timed as forward.
The second net is ResNet-50 with dilated last stages and without a segmentation head, at the default scale at 193².
Batch 1 in both. Table 2's FLOPs are counted in ``sw-flops``; the GPU's times of both tables are left out.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from whitenorm_lab import costs, published
from whitenorm_lab.claims.evidence import Evidence, every, exactly, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared import overheads

_KINDS = ("BW", "SW^a", "SW^b")
_LAYERS = {"1": (7,), "2": (7, 14)}
_SMALLER = "A matrix costs the same in images of any size: at a smaller size than the paper's 713² it weighs more."


def plan(scale: Settings) -> list[Settings]:
    """FLOPs, then each kind with 7 layers in both nets, and with 14 in the second."""
    return [
        {"table": "FLOPs", "net": "resnet50", "resolution": 224},
        *(
            overheads.settings(
                table, scale[table]["net"], f"{kind} {count} layers", _choice(kind, count), {**scale, **scale[table]}
            )
            for table, layers in _LAYERS.items()
            for count in layers
            for kind in _KINDS
        ),
    ]


def _choice(kind: str, layers: int) -> costs.Choice:
    return costs.RESNET50[f"{kind} {layers} layers"]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Added time; or FLOPs, which are counted without arithmetic."""
    if settings["table"] != "FLOPs":
        return overheads.run(settings, context)
    choices = {"BN": costs.Choice(), **{kind: _choice(kind, 7) for kind in _KINDS}}
    with torch.device("meta"):
        nets = {kind: costs.build_net(settings["net"], 1000, choice) for kind, choice in choices.items()}
        return {kind: costs.count_gflops(net, settings["resolution"]) for kind, net in nets.items()}


def _flops(results: Results) -> Evidence:
    """Percent of FLOPs added, against what the printed numbers add."""
    printed = published.GFLOPS
    counts = results.where(table="FLOPs")[0].values
    words = ", ".join(f"{kind} {counts[kind]:.3f} ({_added(counts[kind], counts['BN']):+.2f} %)" for kind in _KINDS)
    holds = all(
        _added(counts[kind], counts["BN"]) <= _added(printed[f"{kind} 7 layers"], printed["BatchNorm"])
        for kind in _KINDS
    )
    return exactly(holds, f"BN {counts['BN']:.3f}, {words}")


def _flops_order(results: Results) -> Evidence:
    counts = results.where(table="FLOPs")[0].values
    words = ", ".join(f"{kind} {count:.4f}" for kind, count in counts.items())
    return exactly(counts["BN"] < counts["BW"] <= counts["SW^a"] <= counts["SW^b"], words)


def _added(count: float, base: float) -> float:
    return 100 * (count / base - 1)


def _smaller_on_large_images(results: Results) -> Evidence:
    return every(
        *(
            lower(
                results.values("step", table="2", model=f"{kind} 7 layers"),
                results.values("step", table="1", model=f"{kind} 7 layers"),
                (f"{kind} adds %, segmentation", "ImageNet"),
            )
            for kind in _KINDS
        )
    )


def draw(results: Results) -> Figure:
    """Added time of both nets."""
    panels: list[Any] = []
    for table, size, step, inference in (
        ("1", 224, published.STEP_PERCENT, published.INFERENCE_PERCENT),
        ("2", 713, published.STEP_PERCENT_713, published.INFERENCE_PERCENT_713),
    ):
        found = results.where(table=table)
        ours = found[0].settings
        title = ours["net"] + (f" (paper: {size}²)" if size != ours["resolution"] else "")
        panels += [(found, "step", step, title), (found, "inference", inference, title)]
    return overheads.picture(panels)


EXPERIMENT = Experiment(
    id="sw-cost",
    paper="SW",
    where="supplement, tables 1 and 2",
    title="FLOPs and CPU time of ResNet-50 with BW and SW",
    cost="4 min",
    claims=(
        Claim(
            "FLOPs added by 7 layers are at most those printed",
            "4.143 → 4.185 (+1.01 %), 4.185, 4.188 (+1.09 %)",
            _flops,
            exact=True,
            reason="Products of every sample's covariance are counted here; the paper does not say what it counts.",
        ),
        Claim("BN has fewest FLOPs, then BW, SW^a, SW^b", "4.143 < 4.185 = 4.185 < 4.188", _flops_order, exact=True),
        Claim(
            "Forward and backward, ResNet-50, 7 layers: added time at most as printed",
            "+10.1, +11.4, +13.5 %",
            overheads.within("step", published.STEP_PERCENT, "1"),
            bar=True,
        ),
        Claim(
            "Forward, ResNet-50, 7 layers: added time at most as printed",
            "+23.3, +24.8, +27.6 %",
            overheads.within("inference", published.INFERENCE_PERCENT, "1"),
            bar=True,
        ),
        Claim(
            "Forward and backward, segmentation, 7 and 14 layers: added time at most as printed",
            "+0.6, +1.6, +4.9 %; +3.7, +5.0, +7.3 %",
            overheads.within("step", published.STEP_PERCENT_713, "2"),
            bar=True,
            reason=_SMALLER,
        ),
        Claim(
            "Forward, segmentation, 7 and 14 layers: added time at most as printed",
            "+1.6, +2.8, +4.9 %; +2.8, +6.2, +7.1 %",
            overheads.within("inference", published.INFERENCE_PERCENT_713, "2"),
            bar=True,
            reason=_SMALLER,
        ),
        Claim("The added share is smaller on the large images", "+1.6 against +11.4 %", _smaller_on_large_images),
        *(
            Claim(
                f"{kind} with 14 layers adds more than with 7",
                "17.72 and 18.26, 17.89 and 18.49, 18.48 and 18.90 s",
                overheads.ordered([f"{kind} 7 layers", f"{kind} 14 layers"], "2"),
            )
            for kind in _KINDS
        ),
        Claim(
            "BW adds least, then SW^a, SW^b",
            "+10.1, +11.4, +13.5 %",
            overheads.ordered([f"{kind} 7 layers" for kind in _KINDS], "1"),
        ),
    ),
    scales={
        "smoke": {
            "1": {"net": "resnet-tiny", "resolution": 64},
            "2": {"net": "resnet-tiny", "resolution": 65},
            "batch": 2,
            "classes": 10,
            "rounds": 2,
        },
        "default": {
            "1": {"net": "resnet50", "resolution": 224},
            "2": {"net": "resnet50-dilated", "resolution": 193},
            "batch": 1,
            "classes": 1000,
            "rounds": 3,
        },
        "paper": {
            "1": {"net": "resnet50", "resolution": 224},
            "2": {"net": "resnet50-dilated", "resolution": 713},
            "batch": 1,
            "classes": 1000,
            "rounds": 100,
        },
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    plan=plan,
    run=run,
    draw=draw,
    reduction="Times are of another CPU than the paper's Xeon E5-2682: only ratios and orders compare. The second net "
    "is at 193² for 713² and without a segmentation head; 3 rounds a repetition for 100.",
)
