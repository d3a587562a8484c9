"""GW figures A4 and A5: what GN over its groups and BN over batch sizes gain over a CNN without a norm.

Paper: CIFAR-10, n convolutions of 16 channels, average pooling and a linear layer; SGD with momentum 0.9, 160 epochs,
the learning rate divided by 5 at 60 and 120, the best training accuracy among {0.001, 0.01, 0.05, 0.1, 0.5}; GN with
batches of 256. GN is worse than no norm ('Base') with as many groups as channels, BN with batches of 2 or 4; both gain
more the deeper the net. Not stated there: the depths (here 2, 4, 8 and 16), the batch size of Base beside BN (here
BN's), and weight decay (here none). Default scale: 1,000 images, 10 epochs, depths 2 and 6, learning rates {0.001,
0.01, 0.1}, BN with batches of 2 and 32, GN with batches of 32 and {1, 4, 16} groups. Training errors are those of the
last epoch's steps. Seeds are new: a first set-up was without 0.001, and Base, which batches of 2 need it for, diverged
or hardly learnt. Command: ``whitenorm-lab reproduce gw-capacity-cnn --data ROOT``.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, every, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend, plot_levels
from whitenorm_lab.claims.results import Results
from whitenorm_lab.claims.rules import PAIRED_HOLM
from whitenorm_lab.papers.shared import classification
from whitenorm_lab.papers.shared.perceptrons import WORDS, Judge, over_levels, rest_below, tuned

_CHANNELS = 16
_VALUE = "final_error"
_OVER = {"gn": "num_groups", "bn": "batch_size"}


def plan(scale: Settings) -> list[Settings]:
    """For every depth: Base and BN over batch sizes, GN over groups, each at all learning rates."""
    kinds = [{"norm": norm, "batch_size": size} for norm in ("none", "bn") for size in scale["batches"]]
    kinds += [{"norm": "gn", "num_groups": g, "batch_size": max(scale["batches"])} for g in scale["groups"]]
    return [
        {"net": f"cnn-{depth}", "width": _CHANNELS, **kind, "lr": lr, "factor": 0.2, **_length(scale)}
        for depth in scale["depths"]
        for kind in kinds
        for lr in scale["lrs"]
    ]


def _length(scale: Settings) -> Settings:
    """The epochs, with the learning rate's milestones where the paper has them."""
    epochs = scale["epochs"]
    milestones = sorted({max(1, round(epochs * epoch / 160)) for epoch in (60, 120)})
    # What it tests on is not asked for here, and costs the least when it is little and once.
    test = {"test_images": 100, "test_every": epochs}
    return {"epochs": epochs, "milestones": milestones, "train_images": scale["images"], **test}


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """One training; the error of its last epoch."""
    values = classification.run(settings, context)
    return {**values, _VALUE: values["train_error"][-1]}


def _levels(results: Results, net: str, norm: str) -> Results:
    """A norm's runs at the best learning rate of each group number or batch size."""
    return over_levels(results.where(net=net, norm=norm), _OVER[norm], _VALUE)


def _gains(results: Results, net: str, norm: str, level: int) -> list[float]:
    """By how many points each seed's error is below that of Base in batches of the same size."""
    runs = _levels(results, net, norm).where(**{_OVER[norm]: level})
    base = tuned(results, _VALUE, net=net, norm="none", batch_size=runs[0].settings["batch_size"])
    return [one - other for one, other in zip(base.values(_VALUE), runs.values(_VALUE), strict=True)]


def _best_gains(results: Results, net: str, norm: str) -> list[float]:
    levels = _levels(results, net, norm).levels(_OVER[norm])
    return max((_gains(results, net, norm, level) for level in levels), key=sum)


def _falls(norm: str) -> Judge:
    """At the most groups, or in the smallest batches, the error is above that at the best of the others."""

    def part(results: Results, net: str) -> Evidence:
        found = _levels(results, net, norm)
        return rest_below(found, _OVER[norm], _worst(found, norm), _VALUE, f"error in %, {net}")

    return lambda results: every(*(part(results, net) for net in results.levels("net")))


def _below_base(norm: str) -> Judge:
    def part(results: Results, net: str) -> Evidence:
        level = _worst(_levels(results, net, norm), norm)
        gains = _gains(results, net, norm, level)
        names = f"points over Base, {net}, {WORDS[_OVER[norm]]} {level}", "none"
        return lower(gains, [0.0] * len(gains), names)

    return lambda results: every(*(part(results, net) for net in results.levels("net")))


def _worst(found: Results, norm: str) -> int:
    levels = found.levels(_OVER[norm])
    return max(levels) if norm == "gn" else min(levels)


def _deeper_more(norm: str) -> Judge:
    def judge(results: Results) -> Evidence:
        nets = results.levels("net")
        gains = [_best_gains(results, net, norm) for net in (nets[0], nets[-1])]
        return lower(gains[0], gains[1], (f"points over Base, {nets[0]}", nets[-1]))

    return judge


def draw(results: Results) -> Figure:
    """Training accuracy less Base's, over the group number and the batch size, a line a depth."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for panel, norm, what in zip(axes, ("gn", "bn"), ("groups of GN", "batch size of BN"), strict=True):
        for net in results.levels("net"):
            levels = sorted(_levels(results, net, norm).levels(_OVER[norm]))
            plot_levels(panel, levels, [_gains(results, net, norm, level) for level in levels], net)
        panel.axhline(0, color="grey", linestyle="--")
        panel.set(xlabel=what, ylabel="training accuracy less Base's, in points")
        add_grid_and_legend(panel)
    return figure


EXPERIMENT = Experiment(
    id="gw-capacity-cnn",
    paper="GW",
    where="fig. A4, A5",
    title="CNNs with GN and BN against none",
    cost="1.5 h of one core",
    data=("cifar10",),
    claims=(
        Claim("GN falls at as many groups as channels", "significantly degenerated", _falls("gn")),
        Claim("GN with as many groups as channels is below Base", "worse at g = d = 16", _below_base("gn")),
        Claim("GN's gain over Base is larger in the deeper net", "amplified with depth", _deeper_more("gn")),
        Claim("BN falls in batches of 2", "significantly degenerated", _falls("bn")),
        Claim("BN in batches of 2 is below Base", "worse at m = 2 and 4; judged at 2", _below_base("bn")),
        Claim("BN's gain over Base is larger in the deeper net", "amplified with depth", _deeper_more("bn")),
    ),
    scales={
        "smoke": {"depths": [1, 2], "batches": [2, 8], "groups": [1, 16], "lrs": [0.1], "images": 16, "epochs": 1},
        "default": {
            "depths": [2, 6],
            "batches": [2, 32],
            "groups": [1, 4, 16],
            "lrs": [0.001, 0.01, 0.1],
            "images": 1000,
            "epochs": 10,
        },
        "paper": {
            "depths": [2, 4, 8, 16],
            "batches": [2, 4, 8, 16, 32, 64, 128, 256],
            "groups": [1, 2, 4, 8, 16],
            "lrs": [0.001, 0.01, 0.05, 0.1, 0.5],
            "images": 50000,
            "epochs": 160,
        },
    },
    seeds={"smoke": 1, "default": PAIRED_HOLM.min_seeds, "paper": PAIRED_HOLM.min_seeds},
    first_seed=20,
    reduction=(
        "Run here with 1,000 instead of 50,000 training images, 10 instead of 160 epochs, 3 instead of 5 learning "
        "rates and batches of up to 32 instead of 256."
    ),
    plan=plan,
    run=run,
    draw=draw,
)
