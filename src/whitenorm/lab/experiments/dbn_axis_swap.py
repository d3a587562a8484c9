"""DBN figure 2: PCA whitening swaps axes from step to step and ruins training; ZCA does not.

Paper: MNIST, MLPs of 2 and 4 layers of 100 units, full-batch gradient descent, the best of the learning rates
{0.1, 0.5, 1, 5} by training loss. PCA is worse than no whitening, at 4 layers near chance; ZCA is better than none.
Command: ``whitenorm reproduce dbn-axis-swap --data ROOT``. The default scale has a tenth of the images and fewer steps.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from torch import nn

import whitenorm
from whitenorm.lab.data import Split
from whitenorm.lab.fitting import centred, fit
from whitenorm.lab.nets.mlp import mlp
from whitenorm.lab.reproduce.experiment import Claim, Context, Experiment, Settings
from whitenorm.lab.reproduce.plots import finish, spread_line
from whitenorm.lab.reproduce.results import Results
from whitenorm.lab.reproduce.verdicts import Judgement, lower

_NORMS = {
    "plain": lambda width: nn.Identity(),
    "DBN-PCA": lambda width: whitenorm.BatchWhitening(width, solver="pca", eps=1e-3),
    "DBN-ZCA": lambda width: whitenorm.BatchWhitening(width, solver="zca", eps=1e-3),
}


def plan(scale: Settings) -> list[Settings]:
    """Every depth, method and learning rate."""
    return [
        {"layers": layers, "norm": norm, "lr": lr, "steps": scale["steps"], "images": scale["images"]}
        for layers in (2, 4)
        for norm in _NORMS
        for lr in scale["lrs"]
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """The curve of the training loss."""
    whole = context.load("mnist").train
    train = centred(Split(whole.images[: settings["images"]], whole.labels[: settings["images"]]))
    model = mlp(10, (1, 28, 28), hidden=[100] * settings["layers"], norm=_NORMS[settings["norm"]])
    curve = fit(model, train, lr=settings["lr"], steps=settings["steps"], progress=context.progress)
    return {**curve, "final": curve["loss"][-1]}


def _best(results: Results, layers: int, norm: str) -> Results:
    return results.best("lr", "final", layers=layers, norm=norm)


def _worse_than_plain(layers: int) -> Any:
    def judge(results: Results) -> Judgement:
        plain, pca = (_best(results, layers, norm).values("final") for norm in ("plain", "DBN-PCA"))
        return lower(plain, pca, ("plain", "DBN-PCA"))

    return judge


def _better_than_plain(layers: int) -> Any:
    def judge(results: Results) -> Judgement:
        plain, zca = (_best(results, layers, norm).values("final") for norm in ("plain", "DBN-ZCA"))
        return lower(zca, plain, ("DBN-ZCA", "plain"))

    return judge


def draw(results: Results) -> Figure:
    """Training loss of each method's best learning rate, mean and spread over the seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for panel, layers in zip(axes, (2, 4), strict=True):
        for norm in _NORMS:
            found = _best(results, layers, norm)
            spread_line(panel, found[0].values["step"], found.values("loss"), f"{norm}, lr {found.levels('lr')[0]}")
        panel.set(xlabel="step", ylabel="training loss", title=f"{layers} layers")
        finish(panel)
    return figure


EXPERIMENT = Experiment(
    id="dbn-axis-swap",
    paper="DBN",
    where="fig. 2",
    title="PCA against ZCA whitening of perceptrons",
    cost="5 min",
    data=("mnist",),
    claims=tuple(
        claim
        for layers in (2, 4)
        for claim in (
            Claim(f"PCA is worse than no whitening, {layers} layers", "clearly above plain", _worse_than_plain(layers)),
            Claim(
                f"ZCA is better than no whitening, {layers} layers", "clearly below plain", _better_than_plain(layers)
            ),
        )
    ),
    scales={
        "smoke": {"images": 200, "steps": 4, "lrs": [0.5]},
        "default": {"images": 6000, "steps": 150, "lrs": [0.1, 0.5, 1, 5]},
        "paper": {"images": 60000, "steps": 500, "lrs": [0.1, 0.5, 1, 5]},
    },
    seeds={"smoke": 1, "default": 3, "paper": 5},
    plan=plan,
    run=run,
    draw=draw,
)
