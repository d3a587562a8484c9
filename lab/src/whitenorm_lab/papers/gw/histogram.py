"""GW figure 3: histograms of Gaussian samples after GN and BN over few values.

Paper: 1,680 samples of a Gaussian; GN with c channels per group, BN with m samples per batch; histograms of two outputs
and of one. Outputs are heavily constrained when c or m is small, -1 and +1 at 2, and not Gaussian; GN's outputs are
more correlated than BN's. The paper does not print all sizes: here they are 2, 4, 8, 16 and 60, of 240 channels.

The default scale is the paper's. Cost: seconds. Command: ``whitenorm-lab reproduce gw-histogram``.
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
    """Return both methods at every size."""
    return [
        {"method": method, "size": size, "samples": scale["samples"], "features": scale["features"]}
        for method in _METHODS
        for size in scale["sizes"]
    ]


def _compute_outputs(settings: Settings, seed: int) -> Tensor:
    """Return the first ``size`` features, ``(N, size)``, which are one group of GN; all settings share the input."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(settings["samples"], settings["features"], generator=generator, dtype=torch.float64)
    return normalize(x, settings["method"], settings["size"])[:, : settings["size"]]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Return the fraction of ±1, the first output's distance from a Gaussian, and the correlation of the outputs."""
    y = _compute_outputs(settings, context.seed)
    return {
        "ones": (y.abs() - 1).abs().lt(1e-3).double().mean().item(),
        "distance": float(stats.kstest(y[:, 0].numpy(), "norm").statistic),
        "correlation": correlation(y),
    }


def _judge_ones(results: Results) -> Evidence:
    shares = {method: min(results.values("ones", method=method, size=2)) for method in _METHODS}
    words = ", ".join(f"{method} {100 * share:.2f} %" for method, share in shares.items())
    return exactly(min(shares.values()) == 1, f"values that are -1 or +1: {words}")


def _judge_gaussian(results: Results) -> Evidence:
    """Judge whether outputs are closer to a Gaussian at the largest size than at the smallest."""
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


def _judge_each_size(results: Results) -> Evidence:
    """Judge whether outputs are closer to a Gaussian at each larger size up to 16."""
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


def _judge_correlation(results: Results) -> Evidence:
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
    """Draw two outputs of the first seed in hexagonal bins, with the histogram of each at the sides."""
    sizes = results.levels("size")
    figure = plt.figure(figsize=(2.4 * len(sizes), 5.8), layout="constrained")
    parts = figure.subfigures(2, len(sizes), squeeze=False)
    for row, (method, letter) in zip(parts, _METHODS.items(), strict=True):
        for part, size in zip(row, sizes, strict=True):
            run = results.where(method=method, size=size)[0]
            x, y = _compute_outputs(run.settings, run.seed)[:, :2].T.numpy()
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
        Claim("Over two values the outputs are -1 and +1", "constrained to {-1, +1}", _judge_ones, exact=True),
        Claim("Outputs are not Gaussian when c or m is small", "visibly not, nearly so when large", _judge_gaussian),
        Claim("The distance from a Gaussian falls with c and m, up to 16", "by eye", _judge_each_size),
        Claim("GN's outputs are more correlated than BN's", "visibly", _judge_correlation),
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
