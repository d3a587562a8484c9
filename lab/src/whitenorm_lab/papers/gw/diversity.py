"""GW figure 4: diversity of the outputs of GN and BN, as the entropy of pairs of features over a grid.

Paper: 1,680,000 samples and 1000² bins, for (a) Gaussian samples and (b) the output of a one-layer MLP on them, over
the channels c of a group of GN and the batch size m of BN, and for the features without norm. Diversity is low when c
or m is small. Not stated in the paper: the number of features. Here there are 64, and diversity is that of all pairs of
a few of them, drawn at random (3 at the default scale). The MLP is a linear layer of 64 features and a ReLU; GN and BN
are applied to the linear layer's output. Seeds start at 20: an earlier run used seeds 0 to 2.

Cost: 7 minutes. Command: ``whitenorm-lab reproduce gw-diversity``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from whitenorm.diagnostics import diversity
from whitenorm_lab.claims.evidence import Evidence, every, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_shared_legend, plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.gaussians import normalize

_SOURCES = {"gaussian": "Gaussian", "mlp": "one-layer MLP"}
_STYLES = {"GN": {"marker": "o"}, "BN": {"marker": "x", "linestyle": "--"}}
_SIZES = {"GN": "the channels c of a group", "BN": "the batch size m"}
# Samples per part; a multiple of every batch size.
_ROWS = 65_536


def plan(scale: Settings) -> list[Settings]:
    """Return both sources, without norm and with both methods at every size."""
    common = {name: scale[name] for name in ("samples", "features", "looked_at", "bins")}
    methods = [("base", 1), *((method, size) for method in ("GN", "BN") for size in scale["sizes"])]
    return [
        {"source": source, "method": method, "size": size, **common} for source in _SOURCES for method, size in methods
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Return the diversity of the features that are drawn."""
    features = torch.cat(list(_generate_parts(settings, context)))
    count = settings["looked_at"]
    return {"diversity": diversity(features, settings["bins"], pairs=count * (count - 1) // 2)}


@torch.no_grad()
def _generate_parts(settings: Settings, context: Context) -> Iterator[Tensor]:
    """Yield parts of the features ``(N, looked_at)``; computing all rows at once would take gigabytes."""
    generator = torch.Generator().manual_seed(context.seed)
    width = settings["features"]
    chosen = torch.randperm(width, generator=generator)[: settings["looked_at"]]
    weight = nn.init.kaiming_normal_(torch.empty(width, width), generator=generator)
    for start in range(0, settings["samples"], _ROWS):
        x = torch.randn(min(_ROWS, settings["samples"] - start), width, generator=generator)
        x = x @ weight.mT if settings["source"] == "mlp" else x
        if settings["method"] == "GN":
            y = normalize(x, "GN", settings["size"])[:, chosen]
        else:
            # In float64: two values may be so close that their variance is 0 in float32.
            y = normalize(x[:, chosen].double(), settings["method"], settings["size"])
        yield y.relu() if settings["source"] == "mlp" else y
        context.progress(min(1.0, (start + _ROWS) / settings["samples"]))


def _judge_low(source: str, method: str) -> Callable[[Results], Evidence]:
    """Judge whether the smallest size has a lower diversity than the largest and than no norm."""

    def judge(results: Results) -> Evidence:
        runs = results.where(source=source)
        sizes = results.where(method=method).levels("size")
        small, large = (runs.values("diversity", method=method, size=size) for size in (min(sizes), max(sizes)))
        base = runs.values("diversity", method="base")
        return every(
            lower(small, large, (f"{method} {min(sizes)}", f"{max(sizes)}")),
            lower(small, base, (f"{method} {min(sizes)}", "base")),
        )

    return judge


def draw(results: Results) -> Figure:
    """Draw diversity over c and m."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for panel, (source, title) in zip(axes, _SOURCES.items(), strict=True):
        runs = results.where(source=source)
        for method in ("GN", "BN"):
            sizes = runs.where(method=method).levels("size")
            by_size = [runs.values("diversity", method=method, size=size) for size in sizes]
            name = f"{method}, over {_SIZES[method]}"
            plot_spread(panel, sizes, [list(curve) for curve in zip(*by_size, strict=True)], name, **_STYLES[method])
        panel.axhline(runs.mean("diversity", method="base"), color="grey", linestyle=":", label="base")
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.set(xlabel="values normalised together", ylabel="diversity", title=title)
    add_shared_legend(figure, axes)
    return figure


EXPERIMENT = Experiment(
    id="gw-diversity",
    paper="GW",
    where="fig. 4",
    title="Diversity of features normalised over few values",
    cost="7 min",
    reduction="Pairs of 3 features; the paper prints no number, and the paper scale here has 8.",
    claims=(
        *(
            Claim(
                f"Low diversity of {method} when {letter} is 2, {name}",
                "low when it is small",
                _judge_low(source, method),
            )
            for source, name in _SOURCES.items()
            for method, letter in (("GN", "c"), ("BN", "m"))
        ),
    ),
    scales={
        "smoke": {"samples": 2048, "features": 8, "looked_at": 2, "bins": 50, "sizes": [2, 4]},
        "default": {
            "samples": 1_680_000,
            "features": 64,
            "looked_at": 3,
            "bins": 1000,
            "sizes": [2, 4, 8, 16, 32, 64],
        },
        "paper": {
            "samples": 1_680_000,
            "features": 64,
            "looked_at": 8,
            "bins": 1000,
            "sizes": [2, 4, 8, 16, 32, 64],
        },
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    first_seed=20,
    plan=plan,
    run=run,
    draw=draw,
)
