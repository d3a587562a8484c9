"""GW section 5.1 and appendix F.2: number and channels of the norms that each placement replaces by GW.

Paper: S1, S1-B1, S1-B2, S1-B3 and S1-B12 of ResNet-50 have 1, 17, 17, 17 and 33 modules. The third norm of a bottleneck
has 4 times the channels of the first and second, which is why S1-B3 costs more. Counted at 224²: the multiplications of
a forward pass in training, with GW of 64 groups by Newton's iteration.

All scales are the paper's. Cost: seconds, as nothing is computed. Command: ``whitenorm-lab reproduce gw-placement``.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

import whitenorm
from whitenorm_lab import costs
from whitenorm_lab.claims.evidence import Evidence, exactly
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results

_MODULES = {"S1": 1, "S1-B1": 17, "S1-B2": 17, "S1-B3": 17, "S1-B12": 33}
# Channels of the third norm of a bottleneck, relative to the first.
_EXPANSION = 4


def plan(scale: Settings) -> list[Settings]:
    """Return one setting per placement."""
    return [{"place": place, **scale} for place in _MODULES]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Return the channels of each GW, and the multiplications that they add to the net with BatchNorm."""
    choice, side = costs.RESNET50[f"GW {settings['place']}"], settings["resolution"]
    with torch.device("meta"):
        net = costs.build_net("resnet50", 1000, choice)
    layers = [module for module in net.modules() if isinstance(module, whitenorm.GroupWhitening)]
    with_gw, without = (
        costs.count_products(lambda: costs.build_net("resnet50", 1000, which), 1, 3, side, side)  # noqa: B023
        for which in (choice, costs.Choice())
    )
    return {"channels": [layer.num_channels for layer in layers], "added": with_gw - without, "base": without}


def _judge_counts(results: Results) -> Evidence:
    counts = {place: len(results.values("channels", place=place)[0]) for place in _MODULES}
    return exactly(counts == _MODULES, ", ".join(f"{place} {count}" for place, count in counts.items()))


def _judge_channels(results: Results) -> Evidence:
    # Without the first layer, which all placements share.
    sums = {place: sum(results.values("channels", place=place)[0][1:]) for place in ("S1-B1", "S1-B2", "S1-B3")}
    ratios = [sums["S1-B3"] / sums[place] for place in ("S1-B1", "S1-B2")]
    return exactly(ratios == [_EXPANSION] * 2, f"{ratios[0]:g} and {ratios[1]:g} times")


def _judge_costliest(results: Results) -> Evidence:
    percents = {place: _compute_added_percent(results, place) for place in _MODULES}
    words = ", ".join(f"{place} +{percent:.1f} %" for place, percent in percents.items())
    return exactly(max(percents, key=lambda place: percents[place]) == "S1-B3", words)


def _compute_added_percent(results: Results, place: str) -> float:
    return 100 * results.mean("added", place=place) / results.mean("base", place=place)


def draw(results: Results) -> Figure:
    """Draw the multiplications that each placement adds, with the number of its modules."""
    figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
    for row, place in enumerate(_MODULES):
        percent = _compute_added_percent(results, place)
        axes.barh(row, percent, color="tab:blue")
        axes.annotate(f" {len(results.values('channels', place=place)[0])} GW", (percent, row), va="center", fontsize=8)
    axes.set(
        yticks=range(len(_MODULES)), yticklabels=list(_MODULES), xlabel="multiplications added to BatchNorm's net, %"
    )
    axes.set(title=f"ResNet-50 at {results[0].settings['resolution']}²")
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    return figure


EXPERIMENT = Experiment(
    id="gw-placement",
    paper="GW",
    where="sec. 5.1, app. F.2",
    title="Modules and channels of each placement",
    cost="20 s",
    claims=(
        Claim("Modules of S1, S1-B1, S1-B2, S1-B3, S1-B12", "1, 17, 17, 17, 33", _judge_counts, exact=True),
        Claim(
            "The third norms have 4 times the channels of the first and second", "4 times", _judge_channels, exact=True
        ),
        Claim(
            "S1-B3 costs most",
            "51.3 % of time, S1-B12 40.6 %, the others 23.6 % and less",
            _judge_costliest,
            exact=True,
        ),
    ),
    scales={name: {"resolution": 224} for name in ("smoke", "default", "paper")},
    # Counts are the same for every seed.
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
