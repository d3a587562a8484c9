"""IterNorm figures 4 and 5, and figure 2 of its supplement: conditioning against stochastic disturbance (SND).

Paper: 60,000 samples of a Gaussian. At B = 1024, over d = 2, 4, …, 512, the condition number of the output's covariance
and the SND of BN, DBN and IterNorm with T = 5 and other steps; then SND over B at d = 128, and over d at B = 2;
averages of 10 runs. DBN has condition number 1 and by far the largest SND at high d; IterNorm is better conditioned
than BN with a smaller SND than DBN, and both grow with T. The figures have no printed numbers. Command:
``whitenorm-lab reproduce iternorm-snd``. The default scale is the paper's, with its 10 runs. Not stated there: the
Gaussian's covariance (here I), ε (1e-5 for all), and how many batches and samples SND is taken over (10 batches for
each of 100 samples; at paper scale 100 and 1,000). Whitening is of all features at once.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

import whitenorm
from whitenorm.diagnostics import condition_number, stochastic_disturbance
from whitenorm.diagnostics.disturbance import Operation
from whitenorm_lab.claims.evidence import Evidence, every, exactly, lower, rising
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_shared_legend
from whitenorm_lab.claims.results import Results

_STEPS = (1, 3, 5, 7, 9)
_NORMS = ("BN", "DBN", *(f"IterNorm T={steps}" for steps in _STEPS))
_MAIN = "IterNorm T=5"


def make(name: str, features: int) -> Operation:
    """A norm by its name in the figures."""
    if name == "BN":
        return nn.BatchNorm1d(features, eps=1e-5)
    if name == "DBN":
        return whitenorm.BatchWhitening(features, solver="zca", eps=1e-5)
    return whitenorm.IterNorm(features, features, steps=int(name.removeprefix("IterNorm T=")), eps=1e-5)


def plan(scale: Settings) -> list[Settings]:
    """The sweep of figure 4 for every norm, those of figure 5 for BN and IterNorm."""
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
    """SND, and in the first sweep the condition number of one batch's output."""
    generator = torch.Generator().manual_seed(context.seed)
    data = torch.randn(settings["data"], settings["features"], generator=generator)
    norm = make(settings["norm"], settings["features"])
    batch, samples, repeats = (settings[name] for name in ("batch", "samples", "repeats"))
    values = {"snd": stochastic_disturbance(norm, data, batch, samples, repeats, generator=generator).operation}
    if settings["sweep"] == "features":
        with torch.no_grad():
            values["condition"] = condition_number(norm.train()(data[:batch]))
    return values


def _exactly_one(results: Results) -> Evidence:
    worst = max(results.values("condition", sweep="features", norm="DBN"))
    return exactly(worst < 1.01, f"at most {worst:.5f}")


def _largest(results: Results) -> Evidence:
    found = _widest(results)
    dbn = found.values("snd", norm="DBN")
    return every(*(lower(found.values("snd", norm=norm), dbn, (norm, "DBN")) for norm in ("BN", _MAIN)))


def _reduced(results: Results) -> Evidence:
    found = _widest(results)
    ours = found.values("snd", norm=_MAIN)
    return every(*(lower(ours, found.values("snd", norm=norm), (_MAIN, norm)) for norm in ("BN", "DBN")))


def _better_conditioned(results: Results) -> Evidence:
    found = results.where(sweep="features")
    return every(
        *(
            lower(
                found.values("condition", norm=_MAIN, features=d),
                found.values("condition", norm="BN", features=d),
                (f"d={d}: {_MAIN}", "BN"),
            )
            for d in found.levels("features")
        )
    )


def _with_steps(name: str, falls: bool) -> Any:
    def judge(results: Results) -> Evidence:
        found = _widest(results)
        norms = [f"IterNorm T={steps}" for steps in (reversed(_STEPS) if falls else _STEPS)]
        return rising(norms, [found.values(name, norm=norm) for norm in norms])

    return judge


def _bn_over_batch(results: Results) -> Evidence:
    found = results.where(sweep="batch", norm="BN")
    batches = sorted(found.levels("batch"), reverse=True)
    return rising([f"B={b}" for b in batches], [found.values("snd", batch=b) for b in batches])


def _bn_over_features(results: Results) -> Evidence:
    found = results.where(sweep="features at 2", norm="BN")
    ends = min(found.levels("features")), max(found.levels("features"))
    return rising([f"d={d}" for d in ends], [found.values("snd", features=d) for d in ends])


def _small_batch(results: Results) -> Evidence:
    found = results.where(sweep="batch", batch=min(results.where(sweep="batch").levels("batch")))
    return lower(found.values("snd", norm=_MAIN), found.values("snd", norm="BN"), (_MAIN, "BN"))


def _stable(results: Results) -> Evidence:
    """By how much SND grows from the smallest to the largest d."""
    found = results.where(sweep="features at 2")
    first, last = min(found.levels("features")), max(found.levels("features"))
    growth = {
        norm: [
            high / low
            for low, high in zip(
                found.values("snd", norm=norm, features=first),
                found.values("snd", norm=norm, features=last),
                strict=True,
            )
        ]
        for norm in (_MAIN, "BN")
    }
    return lower(growth[_MAIN], growth["BN"], (f"{_MAIN} times", "BN times"))


def _widest(results: Results) -> Results:
    found = results.where(sweep="features")
    return found.where(features=max(found.levels("features")))


def draw(results: Results) -> Figure:
    """Condition number and SND over d, and SND over B and over d at B = 2."""
    figure, axes = plt.subplots(2, 2, figsize=(10, 7.4), layout="constrained")
    _panel(axes[0, 0], results, "features", "features", "condition")
    _panel(axes[0, 1], results, "features", "features", "snd")
    _panel(axes[1, 0], results, "batch", "batch", "snd")
    _panel(axes[1, 1], results, "features at 2", "features", "snd")
    add_shared_legend(figure, axes.flat)
    return figure


def _panel(axes: Axes, results: Results, sweep: str, over: str, value: str) -> None:
    found = results.where(sweep=sweep)
    levels = found.levels(over)
    for norm in found.levels("norm"):
        style = "-" if norm in ("BN", "DBN", _MAIN) else "--"
        means = [found.mean(value, norm=norm, **{over: level}) for level in levels]
        axes.plot(levels, means, style, marker=".", color=f"C{_NORMS.index(norm)}", label=norm)
    other = "batch" if over == "features" else "features"
    letters = {"batch": "B", "features": "d"}
    names = {"condition": "condition number", "snd": "SND"}
    axes.set(xscale="log", yscale="log", xlabel="dimension d" if over == "features" else "batch size B")
    axes.set_xscale("log", base=2)
    axes.set(ylabel=names[value], title=f"{letters[other]} = {found[0].settings[other]}")


EXPERIMENT = Experiment(
    id="iternorm-snd",
    paper="IterNorm",
    where="fig. 4 and 5, supplement fig. 2",
    title="Conditioning and stochastic disturbance over dimension and batch size",
    cost="4 min",
    claims=(
        Claim("DBN's output has condition number 1 at every d", "exactly 1", _exactly_one),
        Claim("At the highest d DBN has the largest SND", "DBN significantly enlarges SND", _largest),
        Claim("At the highest d IterNorm's SND is below BN's and DBN's", "reduced at high d", _reduced),
        Claim("IterNorm is better conditioned than BN at every d", "consistently improved", _better_conditioned),
        Claim(
            "More steps condition IterNorm better, highest d", "better with T = 1 … 9", _with_steps("condition", True)
        ),
        Claim("More steps disturb more, highest d", "increasing with T = 1 … 9", _with_steps("snd", False)),
        Claim("BN's SND falls as the batch grows, d = 128", "gradually reduced", _bn_over_batch),
        Claim(
            "BN's SND is larger at the highest d than at the lowest, B = 2",
            "reduced at low, increased at high d",
            _bn_over_features,
        ),
        Claim("At the smallest batch IterNorm's SND is below BN's", "much less sensitive", _small_batch),
        Claim("At B = 2 IterNorm's SND grows less over all d than BN's", "more stable", _stable),
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
        "default": {
            "data": 60000,
            "samples": 100,
            "repeats": 10,
            "features": [2**i for i in range(1, 10)],
            "batch": 1024,
            "width": 128,
            "batches": [2**i for i in range(1, 11)],
        },
        "paper": {
            "data": 60000,
            "samples": 1000,
            "repeats": 100,
            "features": [2**i for i in range(1, 10)],
            "batch": 1024,
            "width": 128,
            "batches": [2**i for i in range(1, 11)],
        },
    },
    seeds={"smoke": 1, "default": 10, "paper": 10},
    first_seed=20,
    reduction="SND is taken here over 10 batches for each of 100 samples; the text does not say over how many.",
    plan=plan,
    run=run,
    draw=draw,
)
