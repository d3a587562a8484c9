"""GW figures A4 and A5: gain of GN by the number of groups, and of BN by batch size, over a CNN without norms.

Paper: CIFAR-10, n convolutions of 16 channels, average pooling and a linear layer; SGD with momentum 0.9, 160 epochs,
the learning rate divided by 5 at epochs 60 and 120, the best training accuracy among the learning rates {0.001, 0.01,
0.05, 0.1, 0.5}; GN with batches of 256. GN is worse than no norm ('Base') with as many groups as channels, BN with
batches of 2 or 4; both gain more in deeper nets. Not stated in the paper: the depths (here 2, 4, 8 and 16), the batch
size of Base beside BN (here BN's), and weight decay (here none).

Default scale: 1,000 images, 10 epochs, depths 2 and 6, learning rates {0.001, 0.01, 0.1}, BN with batches of 2 and 32,
GN with batches of 32 and {1, 4, 16} groups. Training errors are those of the last epoch's steps. The seeds begin at 20:
an earlier set-up did not have the learning rate 0.001, which Base needs for batches of 2; it diverged or hardly learnt.

Cost: 1.5 hours on one core. Command: ``whitenorm-lab reproduce gw-capacity-cnn --data ROOT``.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, every, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend, plot_levels
from whitenorm_lab.claims.results import Results
from whitenorm_lab.claims.rules import MIN_SEEDS
from whitenorm_lab.papers.shared import classification
from whitenorm_lab.papers.shared.perceptrons import (
    LEVEL_PREFIXES,
    Judge,
    lower_at_best_other_level,
    select_best_lr,
    select_best_lr_per_level,
)

_CHANNELS = 16
_ERROR = "final_error"
# The setting that is varied for each norm.
_OVER = {"gn": "num_groups", "bn": "batch_size"}


def plan(scale: Settings) -> list[Settings]:
    """Return, for every depth, Base and BN over batch sizes and GN over groups, each at all learning rates."""
    norms = [{"norm": norm, "batch_size": size} for norm in ("none", "bn") for size in scale["batches"]]
    norms += [{"norm": "gn", "num_groups": g, "batch_size": max(scale["batches"])} for g in scale["groups"]]
    return [
        {"net": f"cnn-{depth}", "width": _CHANNELS, **norm, "lr": lr, "factor": 0.2, **_build_schedule(scale)}
        for depth in scale["depths"]
        for norm in norms
        for lr in scale["lrs"]
    ]


def _build_schedule(scale: Settings) -> Settings:
    epochs = scale["epochs"]
    # At the same fractions of the training as in the paper.
    milestones = sorted({max(1, round(epochs * epoch / 160)) for epoch in (60, 120)})
    # The test error is not judged: test on few images, once.
    test = {"test_images": 100, "test_every": epochs}
    return {"epochs": epochs, "milestones": milestones, "train_images": scale["images"], **test}


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Train a CNN; return its curves and the training error of the last epoch."""
    values = classification.run(settings, context)
    return {**values, _ERROR: values["train_error"][-1]}


def _select_best(results: Results, net: str, norm: str) -> Results:
    """Return a norm's runs at the best learning rate of each group number or batch size."""
    return select_best_lr_per_level(results.where(net=net, norm=norm), _OVER[norm], _ERROR)


def _compute_gains(results: Results, net: str, norm: str, level: int) -> list[float]:
    """Return, for each seed, how many points the error is below that of Base with the same batch size."""
    runs = _select_best(results, net, norm).where(**{_OVER[norm]: level})
    base = select_best_lr(results, _ERROR, net=net, norm="none", batch_size=runs[0].settings["batch_size"])
    return [before - after for before, after in zip(base.values(_ERROR), runs.values(_ERROR), strict=True)]


def _compute_best_gains(results: Results, net: str, norm: str) -> list[float]:
    levels = _select_best(results, net, norm).levels(_OVER[norm])
    return max((_compute_gains(results, net, norm, level) for level in levels), key=sum)


def _find_worst_level(runs: Results, norm: str) -> int:
    """Return the largest number of groups or the smallest batch size."""
    levels = runs.levels(_OVER[norm])
    return max(levels) if norm == "gn" else min(levels)


def _judge_worst_level(norm: str) -> Judge:
    """Judge whether the error with the most groups, or in the smallest batches, is above that at the best other."""

    def judge_net(results: Results, net: str) -> Evidence:
        runs = _select_best(results, net, norm)
        return lower_at_best_other_level(runs, _OVER[norm], _find_worst_level(runs, norm), _ERROR, f"error in %, {net}")

    return lambda results: every(*(judge_net(results, net) for net in results.levels("net")))


def _judge_below_base(norm: str) -> Judge:
    def judge_net(results: Results, net: str) -> Evidence:
        level = _find_worst_level(_select_best(results, net, norm), norm)
        gains = _compute_gains(results, net, norm, level)
        names = f"points over Base, {net}, {LEVEL_PREFIXES[_OVER[norm]]} {level}", "none"
        return lower(gains, [0.0] * len(gains), names)

    return lambda results: every(*(judge_net(results, net) for net in results.levels("net")))


def _judge_depth(norm: str) -> Judge:
    """Judge whether the gain over Base is larger in the deepest net than in the shallowest."""

    def judge(results: Results) -> Evidence:
        nets = results.levels("net")
        shallow, deep = (_compute_best_gains(results, net, norm) for net in (nets[0], nets[-1]))
        return lower(shallow, deep, (f"points over Base, {nets[0]}", nets[-1]))

    return judge


def draw(results: Results) -> Figure:
    """Draw the gain in training accuracy over groups and batch sizes, with one line per depth."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    for panel, norm, xlabel in zip(axes, ("gn", "bn"), ("groups of GN", "batch size of BN"), strict=True):
        for net in results.levels("net"):
            levels = sorted(_select_best(results, net, norm).levels(_OVER[norm]))
            plot_levels(panel, levels, [_compute_gains(results, net, norm, level) for level in levels], net)
        panel.axhline(0, color="grey", linestyle="--")
        panel.set(xlabel=xlabel, ylabel="training accuracy less Base's, in points")
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
        Claim("GN falls at as many groups as channels", "significantly degenerated", _judge_worst_level("gn")),
        Claim("GN with as many groups as channels is below Base", "worse at g = d = 16", _judge_below_base("gn")),
        Claim("GN's gain over Base is larger in the deeper net", "amplified with depth", _judge_depth("gn")),
        Claim("BN falls in batches of 2", "significantly degenerated", _judge_worst_level("bn")),
        Claim("BN in batches of 2 is below Base", "worse at m = 2 and 4; judged at 2", _judge_below_base("bn")),
        Claim("BN's gain over Base is larger in the deeper net", "amplified with depth", _judge_depth("bn")),
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
    seeds={"smoke": 1, "default": MIN_SEEDS, "paper": MIN_SEEDS},
    first_seed=20,
    reduction=(
        "Run here with 1,000 instead of 50,000 training images, 10 instead of 160 epochs, 3 instead of 5 learning "
        "rates and batches of up to 32 instead of 256."
    ),
    plan=plan,
    run=run,
    draw=draw,
)
