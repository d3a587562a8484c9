"""GW figures 2 and A3: how well-conditioned activations are after GN, GW and BN, over the group number.

Paper: activations X of 256 features and 1024 samples, from MLPs of 1 to 4 layers at their random start on Gaussian
input; κ_90 and κ_80 of the covariance of the normalised output. GW is far below GN, both fall with the group number, BN
is below both, BW's is 1. GW and BW whiten by ZCA. Command: ``whitenorm reproduce gw-conditioning``. The default scale
is the paper's, with 5 seeds.

The text leaves two things open. X is taken before an activation function, where norms stand. "Covariance" is read both
ways that are in use: about the mean, and as second moments E[xxᵀ], in which the mean counts too. GN and GW make each
group's mean zero, which leaves g of the directions without variance: κ_p exists for g < (1 - p)·d, and claims are
judged on the group numbers where κ_90 does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor, nn

from whitenorm.diagnostics import condition_number
from whitenorm.functional import batch_whitening, group_whitening
from whitenorm.lab.nets.mlp import mlp
from whitenorm.lab.reproduce.evidence import Evidence, every, exactly, lower
from whitenorm.lab.reproduce.experiment import Claim, Context, Experiment, Settings
from whitenorm.lab.reproduce.plots import finish, spread_line
from whitenorm.lab.reproduce.results import Results

_METHODS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "base": lambda x, groups: x,
    "BN": lambda x, groups: F.batch_norm(x, None, None, training=True),
    "GN": F.group_norm,
    "GW": lambda x, groups: group_whitening(x, groups, solver="zca"),
    "BW": lambda x, groups: batch_whitening(x, training=True, eps=0.0, solver="zca"),
}
_PERCENTS = (90, 80)
_READINGS = {"covariance": "covariance about the mean", "moments": "second moments"}


def plan(scale: Settings) -> list[Settings]:
    """Every depth and method, those of groups at every group number."""
    return [
        {"layers": layers, "features": scale["features"], "samples": scale["samples"], "method": method, "groups": g}
        for layers in scale["layers"]
        for method in _METHODS
        for g in (scale["groups"] if method in ("GN", "GW") else [1])
    ]


@torch.no_grad()
def run(settings: Settings, context: Context) -> dict[str, Any]:
    """log10 of the condition numbers; methods with the same seed see the same activations."""
    width = settings["features"]
    network = mlp(
        width, (1, 1, width), hidden=[width] * (settings["layers"] - 1), norm=lambda width: nn.Identity()
    ).double()
    x = network(torch.randn(settings["samples"], 1, 1, width, dtype=torch.float64))
    y = _METHODS[settings["method"]](x, settings["groups"])
    # With every sample's negative beside it the mean is zero, and the covariance E[xxᵀ].
    seen = {"covariance": y, "moments": torch.cat([y, -y])}
    return {
        f"{reading}_{percent}": float(np.log10(condition_number(seen[reading], percent)))
        for reading in _READINGS
        for percent in _PERCENTS
    }


def _judged_groups(results: Results) -> list[int]:
    features = results.levels("features")[0]
    return [g for g in results.where(method="GW").levels("groups") if 10 * g < features]


def _curves(results: Results, reading: str, percent: int, method: str, layers: int, groups: list[int]) -> np.ndarray:
    """log10 κ, seeds × group numbers."""
    return np.transpose(
        [results.values(f"{reading}_{percent}", method=method, layers=layers, groups=g) for g in groups]
    )


def _level(results: Results, reading: str, method: str, layers: int, groups: list[int]) -> list[float]:
    """For each seed the mean of log10 κ over the group numbers and both percentages."""
    curves = [_curves(results, reading, percent, method, layers, groups).mean(1) for percent in _PERCENTS]
    return np.mean(curves, 0).tolist()


def _whitened_below_grouped(reading: str) -> Callable[[Results], Evidence]:
    def judge(results: Results) -> Evidence:
        # At one group GW is GN.
        groups = [g for g in _judged_groups(results) if g > 1]
        return every(
            *(
                lower(
                    _level(results, reading, "GW", layers, groups),
                    _level(results, reading, "GN", layers, groups),
                    (f"{layers}-layer GW", "GN"),
                )
                for layers in results.levels("layers")
            )
        )

    return judge


def _falls_with_groups(reading: str, method: str) -> Callable[[Results], Evidence]:
    def judge(results: Results) -> Evidence:
        groups = _judged_groups(results)
        parts = []
        for layers in results.levels("layers"):
            curves = np.mean([_curves(results, reading, p, method, layers, groups) for p in _PERCENTS], 0)
            slopes = np.polyfit(np.log2(groups), curves.T, 1)[0].tolist()
            parts.append(lower(slopes, [0.0] * len(slopes), (f"{layers}-layer slope", "none")))
        return every(*parts)

    return judge


def _batch_below(reading: str, depths: tuple[int, ...]) -> Callable[[Results], Evidence]:
    def judge(results: Results) -> Evidence:
        groups = _judged_groups(results)
        return every(
            *(
                lower(
                    _level(results, reading, "BN", layers, [1]),
                    _level(results, reading, method, layers, groups),
                    (f"{layers}-layer BN", method),
                )
                for layers in results.levels("layers")
                if layers in depths
                for method in ("GN", "GW")
            )
        )

    return judge


def _is_one(results: Results) -> Evidence:
    """To 0.1 %: what rounding leaves grows with the condition number that there was before."""
    largest = 10 ** max(value for run in results.where(method="BW") for value in run.values.values())
    return exactly(largest < 1.001, f"at most 1 + {largest - 1:.1g}")


def _claims(reading: str) -> tuple[Claim, ...]:
    name = _READINGS[reading]
    rule = "log10 κ, mean over group numbers and of κ_90 and κ_80, at every depth"
    slope = "slope of log10 κ over log2 g below zero at every depth"
    better = "BN is better conditioned than GN and GW"
    return (
        Claim(f"GW is better conditioned than GN; {name}", f"far; judged: {rule}", _whitened_below_grouped(reading)),
        Claim(f"GN is better with more groups; {name}", f"κ falls; judged: {slope}", _falls_with_groups(reading, "GN")),
        Claim(f"GW is better with more groups; {name}", f"κ falls; judged: {slope}", _falls_with_groups(reading, "GW")),
        Claim(f"{better}, one layer; {name}", f"κ lowest; judged: {rule}", _batch_below(reading, (1,))),
        Claim(f"{better}, 2 to 4 layers; {name}", f"κ lowest; judged: {rule}", _batch_below(reading, (2, 3, 4))),
    )


def draw(results: Results) -> Figure:
    """As figure A3, a column a depth; its two rows for each of the two readings."""
    layers_all, groups = results.levels("layers"), results.where(method="GW").levels("groups")
    rows = [(reading, percent) for reading in _READINGS for percent in _PERCENTS]
    figure, axes = plt.subplots(len(rows), len(layers_all), figsize=(12, 11), layout="constrained", sharex=True)
    for line, (reading, percent) in zip(axes, rows, strict=True):
        for panel, layers in zip(line, layers_all, strict=True):
            _panel(panel, results, reading, percent, layers, groups)
        line[0].set_ylabel(f"κ_{percent}, {_READINGS[reading]}", fontsize=9)
    for panel in axes[-1]:
        panel.set(xlabel="group number", xticks=groups, xticklabels=groups)
    return figure


def _panel(panel: Any, results: Results, reading: str, percent: int, layers: int, groups: list[int]) -> None:
    for method, style in (("base", "k:"), ("BN", "k--")):
        value = 10 ** _curves(results, reading, percent, method, layers, [1]).mean()
        panel.plot(groups, [value] * len(groups), style, label=method)
    for method in ("GN", "GW"):
        curves = _curves(results, reading, percent, method, layers, groups)
        there = np.isfinite(curves).all(0)
        spread_line(panel, np.array(groups)[there].tolist(), (10 ** curves[:, there]).tolist(), method, marker="o")
    panel.set(xscale="log", yscale="log", title=f"{layers}-layer MLP")
    panel.xaxis.set_minor_locator(NullLocator())
    panel.tick_params(axis="y", which="both", labelsize=7)
    finish(panel)


EXPERIMENT = Experiment(
    id="gw-conditioning",
    paper="GW",
    where="fig. 2, A3",
    title="Conditioning of activations after GN, GW and BN",
    cost="20 s",
    claims=(
        *(claim for reading in _READINGS for claim in _claims(reading)),
        Claim("The condition number of BW is 1", "1", _is_one),
    ),
    scales={
        "smoke": {"layers": [1, 2], "features": 32, "samples": 64, "groups": [1, 2, 4]},
        "default": {"layers": [1, 2, 3, 4], "features": 256, "samples": 1024, "groups": [1, 2, 4, 8, 16, 32]},
        "paper": {"layers": [1, 2, 3, 4], "features": 256, "samples": 1024, "groups": [1, 2, 4, 8, 16, 32]},
    },
    seeds={"smoke": 1, "default": 5, "paper": 10},
    plan=plan,
    run=run,
    draw=draw,
)
