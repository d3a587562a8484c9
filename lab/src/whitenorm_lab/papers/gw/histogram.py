"""GW figure 3: what GN and BN leave of a Gaussian when they normalise few values at a time.

Paper: 1,680 samples of a Gaussian; GN with c channels a group, BN with m samples a batch; histograms of two outputs and
of one. Values are heavily constrained when c or m is small, -1 and +1 at 2, and not Gaussian; GN's outputs are more
correlated than BN's. The sizes are not all printed: here 2, 4, 8, 16 and 60, of 240 channels.
Command: ``whitenorm-lab reproduce gw-histogram``. Cost: seconds, at the paper's own scale.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from scipy import stats
from torch import Tensor

from whitenorm.diagnostics import correlation
from whitenorm_lab.claims.evidence import Evidence, every, exactly, lower, rising
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.gaussians import normalize

_METHODS = {"GN": "c", "BN": "m"}


def plan(scale: Settings) -> list[Settings]:
    """Both methods at every size."""
    return [
        {"method": method, "size": size, "samples": scale["samples"], "features": scale["features"]}
        for method in _METHODS
        for size in scale["sizes"]
    ]


def outputs(settings: Settings, seed: int) -> Tensor:
    """The first ``size`` features, for GN one group, as ``(N, size)``; the data are the same for all settings."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(settings["samples"], settings["features"], generator=generator, dtype=torch.float64)
    return normalize(x, settings["method"], settings["size"])[:, : settings["size"]]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """How many values are ±1, how far the first output is from a Gaussian, and how correlated the outputs are."""
    y = outputs(settings, context.seed)
    return {
        "ones": (y.abs() - 1).abs().lt(1e-3).double().mean().item(),
        "distance": float(stats.kstest(y[:, 0].numpy(), "norm").statistic),
        "correlation": correlation(y),
    }


def _ones(results: Results) -> Evidence:
    shares = {method: min(results.values("ones", method=method, size=2)) for method in _METHODS}
    words = ", ".join(f"{method} {100 * share:.2f} %" for method, share in shares.items())
    return exactly(min(shares.values()) == 1, f"values that are -1 or +1: {words}")


def _gaussian(results: Results) -> Evidence:
    """Nearer to a Gaussian from the smallest size to the largest."""
    first, last = min(results.levels("size")), max(results.levels("size"))
    return every(
        *(
            lower(
                results.values("distance", method=method, size=last),
                results.values("distance", method=method, size=first),
                (f"{method} {letter}={last}", f"{letter}={first}"),
            )
            for method, letter in _METHODS.items()
        )
    )


def _steadily(results: Results) -> Evidence:
    sizes = [size for size in reversed(results.levels("size")) if size <= 16]
    return every(
        *(
            rising(
                [f"{method} {letter}={size}" for size in sizes],
                [results.values("distance", method=method, size=size) for size in sizes],
            )
            for method, letter in _METHODS.items()
        )
    )


def _correlated(results: Results) -> Evidence:
    return every(
        *(
            lower(
                results.values("correlation", method="BN", size=size),
                results.values("correlation", method="GN", size=size),
                (f"BN m={size}", f"GN c={size}"),
            )
            for size in results.levels("size")
        )
    )


def draw(results: Results) -> Figure:
    """Two outputs in hexagonal bins, with the histogram of each at the sides; the first seed."""
    sizes = results.levels("size")
    figure = plt.figure(figsize=(2.4 * len(sizes), 5.8), layout="constrained")
    parts = figure.subfigures(2, len(sizes), squeeze=False)
    for row, (method, letter) in zip(parts, _METHODS.items(), strict=True):
        for part, size in zip(row, sizes, strict=True):
            one = results.where(method=method, size=size)[0]
            x, y = outputs(one.settings, one.seed)[:, :2].T.numpy()
            axes = part.subplots(2, 2, width_ratios=(4, 1), height_ratios=(1, 4), sharex="col", sharey="row")
            axes[0, 1].axis("off")
            reach = 3.5
            axes[1, 0].hexbin(
                x, y, gridsize=22, cmap="Blues", mincnt=1, bins="log", vmin=0.5, extent=(-reach, reach) * 2
            )
            axes[0, 0].hist(x, 40, range=(-reach, reach), color="tab:blue")
            axes[1, 1].hist(y, 40, range=(-reach, reach), color="tab:blue", orientation="horizontal")
            axes[1, 0].set(xlim=(-reach, reach), ylim=(-reach, reach))
            axes[0, 0].set_yticks([])
            axes[1, 1].set_xticks([])
            axes[1, 0].set(xlabel="one output", ylabel="another" if size == sizes[0] else "")
            axes[0, 0].set_title(f"{method}, {letter} = {size}", fontsize=10)
    return figure


EXPERIMENT = Experiment(
    id="gw-histogram",
    paper="GW",
    where="fig. 3",
    title="Histograms of outputs normalised over few values",
    cost="5 s",
    claims=(
        Claim("Over two values the outputs are -1 and +1", "constrained to {-1, +1}", _ones, exact=True),
        Claim("Outputs are not Gaussian when c or m is small", "visibly not, nearly so when large", _gaussian),
        Claim("The distance from a Gaussian falls with c and m, up to 16", "by eye", _steadily),
        Claim("GN's outputs are more correlated than BN's", "visibly", _correlated),
    ),
    scales={
        "smoke": {"samples": 240, "features": 16, "sizes": [2, 4]},
        "default": {"samples": 1680, "features": 240, "sizes": [2, 4, 8, 16, 60]},
        "paper": {"samples": 1680, "features": 240, "sizes": [2, 4, 8, 16, 60]},
    },
    seeds={"smoke": 1, "default": 10, "paper": 10},
    plan=plan,
    run=run,
    draw=draw,
)
