"""DBN figure 2: PCA whitening swaps axes from step to step and ruins training; ZCA does not.

Paper: MNIST, MLPs of 2 and 4 layers with 100 units in each hidden layer, full-batch gradient descent, the best of the
learning rates {0.1, 0.5, 1, 5} by training loss. PCA is clearly worse than no whitening and at 4 layers like guessing;
ZCA is clearly better than both. The classifier counts as a layer, as in the paper's "5-layer MLP" of four hidden ones.
Not stated there: the number of steps, ε (here 1e-3), γ and β (here none), and how images are scaled (here [0, 1] less
the mean image). Default scale: a twelfth of the images, 100 steps. Seeds start at 20: an earlier run used seeds 0 to 2.
Command: ``whitenorm-lab reproduce dbn-axis-swap --data ROOT``.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, alike
from whitenorm_lab.claims.experiment import Claim, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend, plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.perceptrons import Judge, below, run, tuned

_PLAIN: Settings = {"norm": "plain"}
_PCA: Settings = {"norm": "DBN-PCA", "eps": 1e-3, "affine": False}
_ZCA: Settings = {"norm": "DBN-ZCA", "eps": 1e-3, "affine": False}
_CHANCE = 90.0


def plan(scale: Settings) -> list[Settings]:
    """Every depth, method and learning rate."""
    return [
        {**norm, "hidden": hidden, "width": 100, "lr": lr, "steps": scale["steps"], "images": scale["images"]}
        for hidden in (1, 3)
        for norm in (_PLAIN, _PCA, _ZCA)
        for lr in scale["lrs"]
    ]


def _below(hidden: int, one: Settings, other: Settings) -> Judge:
    return below("final_loss", {**one, "hidden": hidden}, {**other, "hidden": hidden})


def _guesses(results: Results) -> Evidence:
    errors = tuned(results, hidden=3, **_PCA).values("final_error")
    return alike(errors, [_CHANCE] * len(errors), ("error in % of DBN-PCA", "guessing"), margin=10)


def draw(results: Results) -> Figure:
    """Training loss of each method's best learning rate, mean and spread over the seeds."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for panel, hidden in zip(axes, (1, 3), strict=True):
        for norm in (_PLAIN, _PCA, _ZCA):
            found = tuned(results, hidden=hidden, **norm)
            name = f"{norm['norm']}, lr {found.levels('lr')[0]}"
            plot_spread(panel, found[0].values["step"], found.values("loss"), name)
        panel.set(xlabel="step", ylabel="training loss", yscale="log", title=f"{hidden + 1} layers")
        add_grid_and_legend(panel)
    return figure


EXPERIMENT = Experiment(
    id="dbn-axis-swap",
    paper="DBN",
    where="fig. 2",
    title="PCA against ZCA whitening of perceptrons",
    cost="4 min",
    data=("mnist",),
    reduction="5,000 images of 60,000 as the full batch; 100 steps, of which the paper prints no number.",
    claims=(
        Claim("PCA is worse than no whitening, 2 layers", "loss clearly above plain's", _below(1, _PLAIN, _PCA)),
        Claim("PCA is worse than no whitening, 4 layers", "loss clearly above plain's", _below(3, _PLAIN, _PCA)),
        Claim("PCA at 4 layers is like guessing", "like random guessing; here within 10 points of 90 %", _guesses),
        Claim("ZCA is better than no whitening, 2 layers", "loss clearly below plain's", _below(1, _ZCA, _PLAIN)),
        Claim("ZCA is better than no whitening, 4 layers", "loss clearly below plain's", _below(3, _ZCA, _PLAIN)),
        Claim("ZCA is better than PCA, 2 layers", "loss clearly below PCA's", _below(1, _ZCA, _PCA)),
        Claim("ZCA is better than PCA, 4 layers", "loss clearly below PCA's", _below(3, _ZCA, _PCA)),
    ),
    scales={
        "smoke": {"images": 200, "steps": 4, "lrs": [0.5]},
        "default": {"images": 5000, "steps": 100, "lrs": [0.1, 0.5, 1, 5]},
        "paper": {"images": 60000, "steps": 500, "lrs": [0.1, 0.5, 1, 5]},
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    first_seed=20,
    plan=plan,
    run=run,
    draw=draw,
)
