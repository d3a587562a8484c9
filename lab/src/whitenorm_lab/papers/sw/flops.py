"""SW table 2 of the supplement: FLOPs of ResNet-50 for segmentation at 713² with BW and SW.

Paper: in billions, 274.73 with BN; with 7 layers of BW and SW^a 275.30, of SW^b 275.34, with 14 layers 275.68, 275.68
and 275.75. Not stated in the paper: the head of the net, and what is counted. Of two heads, that of FCN (a 3×3
convolution to 512 channels, and a classifier of Cityscapes' 19 classes) comes close; PSPNet's has twice as many FLOPs.
The head was chosen for that, so the first claim shows that such a net exists, not that it is the paper's. The FLOPs
that the layers add do not depend on it.

BW adds as many as SW^a in the table, so the paper's counts include covariances, as those here: convolutions and matrix
products of a forward pass in training with one image, without eigendecompositions; at inference BW would add half. The
margins were set when the counts were known, which are the same for every seed.

All scales are the paper's. Cost: seconds, as nothing is computed. Command: ``whitenorm-lab reproduce sw-flops``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import nn

from whitenorm_lab import costs
from whitenorm_lab.claims.evidence import Evidence, exactly
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.overheads import draw_bars, draw_legend_above
from whitenorm_lab.published import GFLOPS_713
from whitenorm_lab.tasks.segmentation.net import build_fcn_head

_METHODS = ("BW", "SW^a", "SW^b")
_CLASSES = 19
# Relative tolerance for what the paper may count in addition, such as norms and activations.
_TOLERANCE = 0.05


def plan(scale: Settings) -> list[Settings]:
    """Return BatchNorm, and every method with 7 and with 14 layers."""
    return [{"model": model, **scale} for model in GFLOPS_713]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Count billions of multiplications, each with its addition."""
    side = settings["resolution"]
    return {"gflops": costs.count_products(lambda: _build_net(settings["model"]), 1, 3, side, side) / 1e9}


def _build_net(model: str) -> nn.Module:
    """Build ResNet-50 with dilated last stages and the head of FCN."""
    net = costs.build_net("resnet50-dilated", _CLASSES, costs.RESNET50.get(model, costs.Choice()))
    return nn.Sequential(*list(net.children())[:-2], build_fcn_head(2048, _CLASSES))


def _compute_added(results: Results) -> dict[str, float]:
    base = results.mean("gflops", model="BatchNorm")
    return {model: results.mean("gflops", model=model) - base for model in GFLOPS_713 if model != "BatchNorm"}


def _compute_printed_added() -> dict[str, float]:
    return {model: count - GFLOPS_713["BatchNorm"] for model, count in GFLOPS_713.items() if model != "BatchNorm"}


def _judge_base(results: Results) -> Evidence:
    count = results.mean("gflops", model="BatchNorm")
    return exactly(abs(count / GFLOPS_713["BatchNorm"] - 1) < _TOLERANCE / 5, f"{count:.2f} with the head of FCN")


def _judge_added(layers: int) -> Callable[[Results], Evidence]:
    def judge(results: Results) -> Evidence:
        added, printed = _compute_added(results), _compute_printed_added()
        models = [f"{method} {layers} layers" for method in _METHODS]
        holds = all(abs(added[model] / printed[model] - 1) < _TOLERANCE for model in models)
        return exactly(holds, ", ".join(f"{model} {added[model]:.3f}" for model in models))

    return judge


def _judge_marginal(results: Results) -> Evidence:
    share = max(_compute_added(results).values()) / results.mean("gflops", model="BatchNorm")
    return exactly(share < 0.01, f"at most {100 * share:.2f} %")


def draw(results: Results) -> Figure:
    """Draw the GFLOPs that every method adds, here and in the paper."""
    figure, axes = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
    added, printed = _compute_added(results), _compute_printed_added()
    draw_bars(axes, {model: ([added[model]], printed[model]) for model in added}, 0)
    axes.set(xlabel="GFLOPs added to BatchNorm's", title=f"ResNet-50 at {results[0].settings['resolution']}²")
    draw_legend_above(figure)
    return figure


EXPERIMENT = Experiment(
    id="sw-flops",
    paper="SW",
    where="supplement, table 2, FLOPs",
    title="FLOPs of ResNet-50 for segmentation with BW and SW",
    cost="20 s",
    claims=(
        Claim("The net with BatchNorm has 274.73 GFLOPs", "274.73; here within 1 %", _judge_base, exact=True, bar=True),
        Claim("7 layers add as much as printed", "0.57, 0.57, 0.61; here within 5 %", _judge_added(7), exact=True),
        Claim(
            "14 layers add as much as printed",
            "0.95, 0.95, 1.02; here within 5 %",
            _judge_added(14),
            exact=True,
        ),
        Claim("What is added is marginal", "+0.21 to +0.37 %; here below 1 %", _judge_marginal, exact=True),
    ),
    scales={name: {"resolution": 713} for name in ("smoke", "default", "paper")},
    # Counts are the same for every seed.
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
