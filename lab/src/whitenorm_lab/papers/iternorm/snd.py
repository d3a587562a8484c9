"""IterNorm figures 4 and 5, and supplement figure 2: conditioning against stochastic disturbance (SND).

Paper: 60,000 samples of a Gaussian. At B = 1024, over d = 2, 4, …, 512, the condition number of the output's covariance
and the SND of BN, DBN and IterNorm with T = 5 and other steps; then SND over B at d = 128, and over d at B = 2;
averages of 10 runs. DBN has condition number 1 and by far the largest SND at high d; IterNorm is better conditioned
than BN with a smaller SND than DBN, and both grow with T. The figures have no printed numbers.

Not stated in the paper: the Gaussian's covariance (here I), ε (1e-5 for all), and the number of batches and samples for
SND (10 batches for each of 100 samples; at paper scale 100 and 1,000). All features are whitened together.

Default scale: that of the paper, with its 10 runs.
Cost: 4 min. Command: ``whitenorm-lab reproduce iternorm-snd``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import whitenorm
from whitenorm.diagnostics import condition_number, stochastic_disturbance
from whitenorm_lab.claims.evidence import Evidence, every, exactly, lower, rising
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_shared_legend
from whitenorm_lab.claims.results import Results

_STEPS = (1, 3, 5, 7, 9)
_NORMS = ("BN", "DBN", *(f"IterNorm T={steps}" for steps in _STEPS))
_MAIN = "IterNorm T=5"


def build_norm(name: str, features: int) -> whitenorm.BatchWhitening | nn.BatchNorm1d:
    """Build a norm by its name in the figures."""
    if name == "BN":
        return nn.BatchNorm1d(features, eps=1e-5)
    if name == "DBN":
        return whitenorm.BatchWhitening(features, solver="zca", eps=1e-5)
    return whitenorm.IterNorm(features, features, steps=int(name.removeprefix("IterNorm T=")), eps=1e-5)


def plan(scale: Settings) -> list[Settings]:
    """Plan the sweep of figure 4 for every norm, and those of figure 5 for BN and IterNorm."""
    common = {name: scale[name] for name in ("data", "samples", "repeats")}
    wide = [(norm, d, scale["batch"]) for d in scale["features"] for norm in _NORMS]
    small = [(norm, scale["width"], b) for b in scale["batches"] for norm in ("BN", _MAIN)]
    micro = [(norm, d, 2) for d in scale["features"] for norm in ("BN", _MAIN)]
    return [
        {"sweep": sweep, "norm": norm, "features": features, "batch": batch, **common}
        for sweep, points in (("features", wide), ("batch", small), ("features at 2", micro))
        for norm, features, batch in points
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Measure the SND, and in the first sweep the condition number of one batch's output."""
    generator = torch.Generator().manual_seed(context.seed)
    data = torch.randn(settings["data"], settings["features"], generator=generator)
    norm = build_norm(settings["norm"], settings["features"])
    batch, samples, repeats = (settings[name] for name in ("batch", "samples", "repeats"))
    values = {"snd": stochastic_disturbance(norm, data, batch, samples, repeats, generator=generator).operation}
    if settings["sweep"] == "features":
        with torch.no_grad():
            values["condition"] = condition_number(norm.train()(data[:batch]))
    return values


def _check_dbn_is_one(results: Results) -> Evidence:
    worst = max(results.values("condition", sweep="features", norm="DBN"))
    return exactly(worst < 1.01, f"at most {worst:.5f}")


def _expect_lower_snd(*pairs: tuple[str, str]) -> Callable[[Results], Evidence]:
    """Build a judge that expects the first norm of each pair to have the lower SND at the highest d."""

    def judge(results: Results) -> Evidence:
        runs = _select_highest_d(results)
        return every(
            *(lower(runs.values("snd", norm=low), runs.values("snd", norm=high), (low, high)) for low, high in pairs)
        )

    return judge


def _check_better_conditioned(results: Results) -> Evidence:
    runs = results.where(sweep="features")
    return every(
        *(
            lower(
                runs.values("condition", norm=_MAIN, features=d),
                runs.values("condition", norm="BN", features=d),
                (f"d={d}: {_MAIN}", "BN"),
            )
            for d in runs.levels("features")
        )
    )


def _expect_trend_over_steps(value: str, falls: bool) -> Callable[[Results], Evidence]:
    def judge(results: Results) -> Evidence:
        runs = _select_highest_d(results)
        norms = [f"IterNorm T={steps}" for steps in (reversed(_STEPS) if falls else _STEPS)]
        return rising(norms, [runs.values(value, norm=norm) for norm in norms])

    return judge


def _check_bn_over_batch(results: Results) -> Evidence:
    runs = results.where(sweep="batch", norm="BN")
    batches = sorted(runs.levels("batch"), reverse=True)
    return rising([f"B={b}" for b in batches], [runs.values("snd", batch=b) for b in batches])


def _check_bn_over_features(results: Results) -> Evidence:
    runs = results.where(sweep="features at 2", norm="BN")
    extremes = min(runs.levels("features")), max(runs.levels("features"))
    return rising([f"d={d}" for d in extremes], [runs.values("snd", features=d) for d in extremes])


def _check_small_batch(results: Results) -> Evidence:
    runs = results.where(sweep="batch")
    runs = runs.where(batch=min(runs.levels("batch")))
    return lower(runs.values("snd", norm=_MAIN), runs.values("snd", norm="BN"), (_MAIN, "BN"))


def _check_grows_less(results: Results) -> Evidence:
    """Compare the factors by which the SND grows from the lowest to the highest d."""
    runs = results.where(sweep="features at 2")
    extremes = min(runs.levels("features")), max(runs.levels("features"))
    growth = {}
    for norm in (_MAIN, "BN"):
        first, last = (runs.values("snd", norm=norm, features=d) for d in extremes)
        growth[norm] = [high / low for low, high in zip(first, last, strict=True)]
    return lower(growth[_MAIN], growth["BN"], (f"{_MAIN} times", "BN times"))


def _select_highest_d(results: Results) -> Results:
    runs = results.where(sweep="features")
    return runs.where(features=max(runs.levels("features")))


def draw(results: Results) -> Figure:
    """Draw condition number and SND over d, and SND over B and over d at B = 2."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.4), layout="constrained")
    _draw_sweep(axes[0, 0], results, "features", "features", "condition")
    _draw_sweep(axes[0, 1], results, "features", "features", "snd")
    _draw_sweep(axes[1, 0], results, "batch", "batch", "snd")
    _draw_sweep(axes[1, 1], results, "features at 2", "features", "snd")
    add_shared_legend(figure, axes.flat)
    return figure


def _draw_sweep(axes: Axes, results: Results, sweep: str, over: str, value: str) -> None:
    runs = results.where(sweep=sweep)
    levels = runs.levels(over)
    for norm in runs.levels("norm"):
        style = "-" if norm in ("BN", "DBN", _MAIN) else "--"
        means = [runs.mean(value, norm=norm, **{over: level}) for level in levels]
        axes.plot(levels, means, style, marker=".", color=f"C{_NORMS.index(norm)}", label=norm)
    fixed = "batch" if over == "features" else "features"
    symbols = {"batch": "B", "features": "d"}
    names = {"condition": "condition number", "snd": "SND"}
    axes.set(xscale="log", yscale="log", xlabel="dimension d" if over == "features" else "batch size B")
    axes.set_xscale("log", base=2)
    axes.set(ylabel=names[value], title=f"{symbols[fixed]} = {runs[0].settings[fixed]}")


_FULL: Settings = {
    "data": 60000,
    "features": [2**i for i in range(1, 10)],
    "batch": 1024,
    "width": 128,
    "batches": [2**i for i in range(1, 11)],
}

EXPERIMENT = Experiment(
    id="iternorm-snd",
    paper="IterNorm",
    where="fig. 4 and 5, supplement fig. 2",
    title="Conditioning and stochastic disturbance over dimension and batch size",
    cost="4 min",
    claims=(
        Claim("DBN's output has condition number 1 at every d", "exactly 1", _check_dbn_is_one),
        Claim(
            "At the highest d DBN has the largest SND",
            "DBN significantly enlarges SND",
            _expect_lower_snd(("BN", "DBN"), (_MAIN, "DBN")),
        ),
        Claim(
            "At the highest d IterNorm's SND is below BN's and DBN's",
            "reduced at high d",
            _expect_lower_snd((_MAIN, "BN"), (_MAIN, "DBN")),
        ),
        Claim("IterNorm is better conditioned than BN at every d", "consistently improved", _check_better_conditioned),
        Claim(
            "More steps condition IterNorm better, highest d",
            "better with T = 1 … 9",
            _expect_trend_over_steps("condition", falls=True),
        ),
        Claim(
            "More steps disturb more, highest d",
            "increasing with T = 1 … 9",
            _expect_trend_over_steps("snd", falls=False),
        ),
        Claim("BN's SND falls as the batch grows, d = 128", "gradually reduced", _check_bn_over_batch),
        Claim(
            "BN's SND is larger at the highest d than at the lowest, B = 2",
            "reduced at low, increased at high d",
            _check_bn_over_features,
        ),
        Claim("At the smallest batch IterNorm's SND is below BN's", "much less sensitive", _check_small_batch),
        Claim("At B = 2 IterNorm's SND grows less over all d than BN's", "more stable", _check_grows_less),
    ),
    scales={
        "smoke": {
            "data": 300,
            "samples": 10,
            "repeats": 3,
            "features": [2, 8],
            "batch": 64,
            "width": 8,
            "batches": [2, 16],
        },
        "default": {**_FULL, "samples": 100, "repeats": 10},
        "paper": {**_FULL, "samples": 1000, "repeats": 100},
    },
    seeds={"smoke": 1, "default": 10, "paper": 10},
    first_seed=20,
    reduction="SND is taken here over 10 batches for each of 100 samples; the text does not say over how many.",
    plan=plan,
    run=run,
    draw=draw,
)
