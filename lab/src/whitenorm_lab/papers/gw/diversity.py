"""GW figure 4: how much of the space of two features GN and BN leave, as entropy over a grid.

Paper: 1,680,000 samples and 1000² bins; (a) a Gaussian, (b) the output of a one-layer MLP on it; over the channels c of
a group of GN and the batch size m of BN, with the features as they are as base. Diversity is low when c or m is small.
Command: ``whitenorm-lab reproduce gw-diversity``. The number of features is not printed: here 64, of which a few
drawn ones are looked at, in all pairs (3 at the default scale). The MLP is a linear layer of 64 features and a ReLU;
GN and BN are of its linear layer. Seeds start at 20: an earlier run used seeds 0 to 2.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from whitenorm_lab.papers.shared.gaussians import normalised

_SOURCES = {"gaussian": "Gaussian", "mlp": "one-layer MLP"}
_STYLES = {"GN": {"marker": "o"}, "BN": {"marker": "x", "linestyle": "--"}}
_SIZES = {"GN": "the channels c of a group", "BN": "the batch size m"}
# Samples that are made and normalised at a time; batches are whole in it.
_ROWS = 65_536


def plan(scale: Settings) -> list[Settings]:
    """Both sources: as they are, and by both methods at every size."""
    common = {name: scale[name] for name in ("samples", "features", "looked_at", "bins")}
    methods = [("base", 1), *((method, size) for method in ("GN", "BN") for size in scale["sizes"])]
    return [
        {"source": source, "method": method, "size": size, **common} for source in _SOURCES for method, size in methods
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Diversity of the features that are looked at."""
    features = torch.cat(list(_parts(settings, context)))
    count = settings["looked_at"]
    return {"diversity": diversity(features, settings["bins"], pairs=count * (count - 1) // 2)}


@torch.no_grad()
def _parts(settings: Settings, context: Context) -> Iterator[Tensor]:
    """Features ``(N, looked_at)`` a part at a time: all of them at once would take gigabytes."""
    generator = torch.Generator().manual_seed(context.seed)
    width = settings["features"]
    chosen = torch.randperm(width, generator=generator)[: settings["looked_at"]]
    weight = nn.init.kaiming_normal_(torch.empty(width, width), generator=generator)
    for start in range(0, settings["samples"], _ROWS):
        x = torch.randn(min(_ROWS, settings["samples"] - start), width, generator=generator)
        x = x @ weight.mT if settings["source"] == "mlp" else x
        if settings["method"] == "GN":
            y = normalised(x, "GN", settings["size"])[:, chosen]
        else:
            # In float64, as two values may be so near that float32 has no variance for them.
            y = normalised(x[:, chosen].double(), settings["method"], settings["size"])
        yield y.relu() if settings["source"] == "mlp" else y
        context.progress(min(1.0, (start + _ROWS) / settings["samples"]))


def _low(source: str, method: str) -> Any:
    def judge(results: Results) -> Evidence:
        found = results.where(source=source)
        sizes = results.where(method=method).levels("size")
        small, large = (found.values("diversity", method=method, size=size) for size in (min(sizes), max(sizes)))
        base = found.values("diversity", method="base")
        return every(
            lower(small, large, (f"{method} {min(sizes)}", f"{max(sizes)}")),
            lower(small, base, (f"{method} {min(sizes)}", "base")),
        )

    return judge


def draw(results: Results) -> Figure:
    """Diversity over c and m."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for panel, (source, title) in zip(axes, _SOURCES.items(), strict=True):
        found = results.where(source=source)
        for method in ("GN", "BN"):
            sizes = found.where(method=method).levels("size")
            by_size = [found.values("diversity", method=method, size=size) for size in sizes]
            name = f"{method}, over {_SIZES[method]}"
            plot_spread(panel, sizes, [list(curve) for curve in zip(*by_size, strict=True)], name, **_STYLES[method])
        panel.axhline(found.mean("diversity", method="base"), color="grey", linestyle=":", label="base")
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
            Claim(f"Low diversity of {method} when {letter} is 2, {name}", "low when it is small", _low(source, method))
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
