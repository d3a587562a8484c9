"""GW section 5.1 and appendix F.2: how many norms each placement of GW takes, and how many channels they have.

Paper: S1, S1-B1, S1-B2, S1-B3 and S1-B12 of ResNet-50 have 1, 17, 17, 17 and 33 modules; the third norm of a bottleneck
has 4 times the channels of the first and second, which is why S1-B3 costs more. Multiplications of a forward pass in
training, GW with 64 groups by Newton's iteration, are counted at 224². Command: ``whitenorm-lab reproduce
gw-placement``. Cost: seconds, as nothing is computed; all scales are the paper's.
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
# Channels of the third norm of a bottleneck for one of the first.
_TIMES = 4


def plan(scale: Settings) -> list[Settings]:
    """A run a placement."""
    return [{"place": place, **scale} for place in _MODULES]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """The channels of every GW, and the multiplications that they add to BatchNorm's net."""
    choice, side = costs.RESNET50[f"GW {settings['place']}"], settings["resolution"]
    with torch.device("meta"):
        net = costs.build_net("resnet50", 1000, choice)
    layers = [module for module in net.modules() if isinstance(module, whitenorm.GroupWhitening)]
    with_gw, without = (
        costs.count_products(lambda: costs.build_net("resnet50", 1000, which), 1, 3, side, side)  # noqa: B023
        for which in (choice, costs.Choice())
    )
    return {"channels": [layer.num_channels for layer in layers], "added": with_gw - without, "base": without}


def _counts(results: Results) -> Evidence:
    found = {place: len(results.values("channels", place=place)[0]) for place in _MODULES}
    return exactly(found == _MODULES, ", ".join(f"{place} {count}" for place, count in found.items()))


def _channels(results: Results) -> Evidence:
    """Without the first layer's, which is the same in all."""
    sums = {place: sum(results.values("channels", place=place)[0][1:]) for place in ("S1-B1", "S1-B2", "S1-B3")}
    ratios = [sums["S1-B3"] / sums[place] for place in ("S1-B1", "S1-B2")]
    return exactly(ratios == [_TIMES] * 2, f"{ratios[0]:g} and {ratios[1]:g} times")


def _dearest(results: Results) -> Evidence:
    added = {place: 100 * results.mean("added", place=place) / results.mean("base", place=place) for place in _MODULES}
    words = ", ".join(f"{place} +{percent:.1f} %" for place, percent in added.items())
    return exactly(max(added, key=lambda place: added[place]) == "S1-B3", words)


def draw(results: Results) -> Figure:
    """Multiplications that each placement adds, with the number of its modules."""
    figure, axes = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
    for row, place in enumerate(_MODULES):
        percent = 100 * results.mean("added", place=place) / results.mean("base", place=place)
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
        Claim("Modules of S1, S1-B1, S1-B2, S1-B3, S1-B12", "1, 17, 17, 17, 33", _counts, exact=True),
        Claim("The third norms have 4 times the channels of the first and second", "4 times", _channels, exact=True),
        Claim("S1-B3 costs most", "51.3 % of time, S1-B12 40.6 %, the others 23.6 % and less", _dearest, exact=True),
    ),
    scales={name: {"resolution": 224} for name in ("smoke", "default", "paper")},
    # Counts are the same for every seed.
    seeds={"smoke": 1, "default": 3, "paper": 3},
    plan=plan,
    run=run,
    draw=draw,
)
