"""DBN figure 2: PCA whitening swaps axes from step to step and ruins training; ZCA whitening does not.

Paper: MNIST, MLPs of 2 and 4 layers with 100 units in each hidden layer, full-batch gradient descent, the best of the
learning rates {0.1, 0.5, 1, 5} by training loss. PCA is clearly worse than no whitening, and with 4 layers it is like
guessing; ZCA is clearly better than both. The classifier counts as a layer, as in the paper's "5-layer MLP" with four
hidden layers.

Not stated in the paper: the number of steps, ε (here 1e-3), γ and β (here none), and the scaling of the images (here
[0, 1], minus the mean image).

Default scale: a twelfth of the images, 100 steps. Seeds start at 20, because an earlier run used seeds 0 to 2.
Cost: 4 min. Command: ``whitenorm-lab reproduce dbn-axis-swap --data ROOT``.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from whitenorm_lab.claims.experiment import Claim, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend
from whitenorm_lab.claims.results import Results
from whitenorm_lab.papers.shared.perceptrons import draw_best_curve, expect_guessing, expect_lower, run

_PLAIN: Settings = {"norm": "plain"}
_PCA: Settings = {"norm": "DBN-PCA", "eps": 1e-3, "affine": False}
_ZCA: Settings = {"norm": "DBN-ZCA", "eps": 1e-3, "affine": False}


def plan(scale: Settings) -> list[Settings]:
    """Plan a run for every depth, method and learning rate."""
    return [
        {**norm, "hidden": hidden, "width": 100, "lr": lr, "steps": scale["steps"], "images": scale["images"]}
        for hidden in (1, 3)
        for norm in (_PLAIN, _PCA, _ZCA)
        for lr in scale["lrs"]
    ]


def _claim_lower_loss(text: str, paper: str, one: Settings, other: Settings) -> list[Claim]:
    """Claim for both depths that one method has a lower training loss than another."""
    return [
        Claim(
            f"{text}, {hidden + 1} layers",
            paper,
            expect_lower("final_loss", {**one, "hidden": hidden}, {**other, "hidden": hidden}),
        )
        for hidden in (1, 3)
    ]


def draw(results: Results) -> Figure:
    """Draw the training loss of each method at its best learning rate."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    for panel, hidden in zip(axes, (1, 3), strict=True):
        for norm in (_PLAIN, _PCA, _ZCA):
            draw_best_curve(panel, results.where(hidden=hidden), norm)
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
        *_claim_lower_loss("PCA is worse than no whitening", "loss clearly above plain's", _PLAIN, _PCA),
        Claim(
            "PCA at 4 layers is like guessing",
            "like random guessing; here within 10 points of 90 %",
            expect_guessing(_PCA, hidden=3),
        ),
        *_claim_lower_loss("ZCA is better than no whitening", "loss clearly below plain's", _ZCA, _PLAIN),
        *_claim_lower_loss("ZCA is better than PCA", "loss clearly below PCA's", _ZCA, _PCA),
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
