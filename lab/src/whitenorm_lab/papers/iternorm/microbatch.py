"""IterNorm figure 3b: with two images per batch, BN hardly learns, and a network without norm does.

Paper: MNIST, a 4-layer MLP with 100 units in each hidden layer, batches of 2, the best of the learning rates {0.005,
0.01, 0.02, 0.05, 0.1} by training loss. BN's results are those of guessing; the plain network learns well. The
classifier counts as a layer.

Not stated in the paper: the number of steps, and the scaling of the images (here [0, 1], minus the mean image).

Default scale: 10,000 steps, one pass over a third of the images. Seeds start at 20, because an earlier run used seeds 0
to 2.
Cost: 3 min. Command: ``whitenorm-lab reproduce iternorm-microbatch --data ROOT``.
"""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, lower
from whitenorm_lab.claims.experiment import Claim, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.perceptrons import (
    CHANCE,
    draw_best_curve,
    expect_guessing,
    expect_lower,
    run,
    select_best_lr,
)

_PLAIN: Settings = {"norm": "plain"}
_BN: Settings = {"norm": "BN", "eps": 1e-5}
_LRS = [0.005, 0.01, 0.02, 0.05, 0.1]


def plan(scale: Settings) -> list[Settings]:
    """Plan a run of both networks at every learning rate."""
    network = {"hidden": 3, "width": 100, "batch_size": 2, "points": 25, "images": scale["images"]}
    return [{**norm, **network, "steps": scale["steps"], "lr": lr} for norm in (_PLAIN, _BN) for lr in scale["lrs"]]


def _check_plain_learns(results: Results) -> Evidence:
    errors = select_best_lr(results, **_PLAIN).values("final_error")
    return lower(errors, [CHANCE / 2] * len(errors), ("error in % of plain", "half of guessing"))


def draw(results: Results) -> Figure:
    """Draw the training loss at the best learning rates."""
    figure, panel = plt.subplots(figsize=(5, 3.8), layout="constrained")
    for norm in (_PLAIN, _BN):
        draw_best_curve(panel, results, norm)
    panel.axhline(math.log(10), color="grey", linestyle=":", label="guessing")
    panel.set(xlabel="step", ylabel="training loss", title="batches of 2")
    panel.set_ylim(bottom=0)
    add_grid_and_legend(panel)
    return figure


EXPERIMENT = Experiment(
    id="iternorm-microbatch",
    paper="IterNorm",
    where="fig. 3b",
    title="Batches of two images",
    cost="3 min",
    data=("mnist",),
    reduction="One pass over 20,000 images of 60,000; the paper prints no number of steps.",
    claims=(
        Claim(
            "BN trains worse than no norm", "training loss far above plain's", expect_lower("final_loss", _PLAIN, _BN)
        ),
        Claim(
            "BN's results are those of guessing", "random results; here within 10 points of 90 %", expect_guessing(_BN)
        ),
        Claim("The network without norm learns", "learns well; here below half of 90 %", _check_plain_learns),
    ),
    scales={
        "smoke": {"images": 200, "steps": 20, "lrs": [0.01]},
        "default": {"images": 20000, "steps": 10000, "lrs": _LRS},
        "paper": {"images": 60000, "steps": 300000, "lrs": _LRS},
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    first_seed=20,
    plan=plan,
    run=run,
    draw=draw,
)
