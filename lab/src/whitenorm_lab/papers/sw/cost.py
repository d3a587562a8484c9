"""SW tables 1 and 2 of the supplement: FLOPs and CPU time of ResNet-50 with BW and SW.

Paper: at 224², 7 layers: 4.143 GFLOPs with BN, 4.185 with BW and SW^a, 4.188 with SW^b; CPU seconds of the forward pass
0.210, 0.259, 0.262, 0.268, with backward 0.720, 0.793, 0.802, 0.817. At 713², batch 1: with 7 layers 17.61 → 17.72,
17.89, 18.48, with 14 layers 18.26, 18.49, 18.90.

Here all layers whiten by ZCA. FLOPs are those of convolutions and matrix products at inference, without
eigendecompositions, and the forward time is that of inference. The second net is ResNet-50 with dilated last stages and
without a segmentation head, at 161² in the default scale. The batch size is 1 in both. Table 2's FLOPs are counted in
``sw-flops``; the GPU times of both tables are omitted.

Cost: 3 minutes. Command: ``whitenorm-lab reproduce sw-cost``.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from matplotlib.figure import Figure

from whitenorm_lab import costs, published
from whitenorm_lab.claims.evidence import Evidence, every, exactly, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared import overheads

_METHODS = ("BW", "SW^a", "SW^b")
_LAYERS = {"1": (7,), "2": (7, 14)}
_NETS = {"1": "ResNet-50, 7 layers", "2": "segmentation, 7 and 14 layers"}
_PASSES = {"step": "Forward and backward", "inference": "Forward"}
# Added time in the paper, by table and value.
_PRINTED = {
    ("1", "step"): published.STEP_PERCENT,
    ("1", "inference"): published.INFERENCE_PERCENT,
    ("2", "step"): published.STEP_PERCENT_713,
    ("2", "inference"): published.INFERENCE_PERCENT_713,
}
_SMALL_IMAGES = (
    "A whitening matrix costs the same for images of any size: at a smaller size than the paper's 713² it is a larger "
    "share of the time."
)


def plan(scale: Settings) -> list[Settings]:
    """Return the FLOPs, then all methods with 7 layers in both nets, and with 14 in the second."""
    runs = [{"table": "FLOPs", "net": "resnet50", "resolution": 224}]
    for table, layers in _LAYERS.items():
        options = {**scale, **scale[table]}
        models = [f"{method} {count} layers" for count, method in itertools.product(layers, _METHODS)]
        chosen = {model: costs.RESNET50[model] for model in models}
        runs.append(overheads.build_settings(table, options["net"], chosen, options))
    return runs


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Time a net, or count its FLOPs on the meta device."""
    if settings["table"] != "FLOPs":
        return overheads.run(settings, context)
    choices = {"BN": costs.Choice(), **{method: costs.RESNET50[f"{method} 7 layers"] for method in _METHODS}}
    with torch.device("meta"):
        nets = {method: costs.build_net(settings["net"], 1000, choice) for method, choice in choices.items()}
        return {method: costs.count_gflops(net, settings["resolution"]) for method, net in nets.items()}


def _judge_flops(results: Results) -> Evidence:
    """Judge whether each method adds at most the percentage of FLOPs that it adds in the paper."""
    counts, printed = results.where(table="FLOPs")[0].values, published.GFLOPS
    added = {method: 100 * (counts[method] / counts["BN"] - 1) for method in _METHODS}
    printed_added = {method: 100 * (printed[f"{method} 7 layers"] / printed["BatchNorm"] - 1) for method in _METHODS}
    words = ", ".join(f"{method} {counts[method]:.3f} ({added[method]:+.2f} %)" for method in _METHODS)
    holds = all(added[method] <= printed_added[method] for method in _METHODS)
    return exactly(holds, f"BN {counts['BN']:.3f}, {words}")


def _judge_flops_order(results: Results) -> Evidence:
    counts = results.where(table="FLOPs")[0].values
    words = ", ".join(f"{method} {count:.4f}" for method, count in counts.items())
    return exactly(counts["BN"] < counts["BW"] <= counts["SW^a"] <= counts["SW^b"], words)


def _judge_image_size(results: Results) -> Evidence:
    runs = overheads.split_models(results)
    return every(
        *(
            lower(
                runs.values("step", table="2", model=f"{method} 7 layers"),
                runs.values("step", table="1", model=f"{method} 7 layers"),
                (f"{method} adds %, segmentation", "ImageNet"),
            )
            for method in _METHODS
        )
    )


def _claim_time(table: str, value: str) -> Claim:
    printed = _PRINTED[table, value]
    rows = [[printed[f"{method} {layers} layers"] for method in _METHODS] for layers in _LAYERS[table]]
    return Claim(
        f"{_PASSES[value]}, {_NETS[table]}: added time at most as printed",
        "; ".join(", ".join(f"{percent:+.1f}" for percent in row) + " %" for row in rows),
        overheads.expect_at_most_printed(value, printed, table),
        bar=True,
        reason=_SMALL_IMAGES if table == "2" else "",
    )


def draw(results: Results) -> Figure:
    """Draw the added time of both nets."""
    panels: list[Any] = []
    for table, size in (("1", 224), ("2", 713)):
        runs = results.where(table=table)
        settings = runs[0].settings
        title = settings["net"] + (f" (paper: {size}²)" if size != settings["resolution"] else "")
        panels += [(runs, value, _PRINTED[table, value], title) for value in _PASSES]
    return overheads.draw_overheads(panels)


EXPERIMENT = Experiment(
    id="sw-cost",
    paper="SW",
    where="supplement, tables 1 and 2",
    title="FLOPs and CPU time of ResNet-50 with BW and SW",
    cost="3 min",
    claims=(
        Claim(
            "FLOPs added by 7 layers are at most those printed",
            "4.143 → 4.185 (+1.01 %), 4.185, 4.188 (+1.09 %)",
            _judge_flops,
            exact=True,
            reason="Products of every sample's covariance are counted here; the paper does not say what it counts.",
        ),
        Claim(
            "BN has fewest FLOPs, then BW, SW^a, SW^b", "4.143 < 4.185 = 4.185 < 4.188", _judge_flops_order, exact=True
        ),
        *(_claim_time(table, value) for table, value in _PRINTED),
        Claim("The added share is smaller on the large images", "+1.6 against +11.4 %", _judge_image_size),
        *(
            Claim(
                f"{method} with 14 layers adds more than with 7",
                "17.72 and 18.26, 17.89 and 18.49, 18.48 and 18.90 s",
                overheads.expect_rising_step_times([f"{method} 7 layers", f"{method} 14 layers"], "2"),
            )
            for method in _METHODS
        ),
        Claim(
            "BW adds least, then SW^a, SW^b",
            "+10.1, +11.4, +13.5 %",
            overheads.expect_rising_step_times([f"{method} 7 layers" for method in _METHODS], "1"),
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
            "2": {"net": "resnet50-dilated", "resolution": 161},
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
    seeds={"smoke": 1, "default": 10, "paper": 5},
    plan=plan,
    run=run,
    draw=draw,
    reduction=(
        "Times are of another CPU than the paper's Xeon E5-2682: only ratios and orders can be compared. The second "
        "net is at 161² instead of 713² and without a segmentation head; 10 repetitions of 3 instead of 100 rounds."
    ),
)
