"""DBN figure 3: the conditioning of the last layer's Fisher information, and the training loss over time.

Paper: Yale-B (2,414 faces of 38 people, 32×32, in [0, 1] less the mean image), an MLP with hidden layers of 128, 64, 48
and 48, full-batch gradient descent, the best of the learning rates {0.1, 0.2, 0.5, 1, 2} by training loss; for NNN also
ε of {0.001, 0.01, 0.1, 1} and T of {20, 50, 100, 200, 500}; 5 seeds. All methods are better conditioned and faster than
plain, DBN most so, although its step takes twice BN's time on CPUs. The paper prints no numbers for the curves.
Command: ``whitenorm-lab reproduce dbn-conditioning --data ROOT``.

Not stated there: the length of training (here 3,000 steps), ε of the norms (1e-3 for DBN), the images in which NNN
takes its statistics (2,000), and the groups of DBN (all features of a layer together). Weights begin as LeCun's.

The default scale has all images and learning rates and 5 seeds, but 1,000 steps, and T of {20, 100, 500} for NNN. The
condition number is measured at the steps of the learning rate that was chosen, with batch statistics on all images. A
Fisher matrix that is singular in float64, as with a unit that is never active, counts with the largest number that
float64 can tell. Steps are timed apart, in a minute at the end in which nothing else may run (``shared.faces``).
"""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from whitenorm.diagnostics import fisher_condition_number
from whitenorm_lab.claims.evidence import Evidence, alike, every, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_shared_legend, plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.fitting import centred
from whitenorm_lab.papers.shared import faces

_NORMS = ("NNN", "LN", "BN", "DBN")


def plan(scale: Settings) -> list[Settings]:
    """Every method, of which DBN whitens all features of a layer together; then their times."""
    methods = [faces.method(name, scale) for name in faces.METHODS]
    searches = [{**method, "fisher_every": scale["fisher_every"]} for method in methods]
    return [*searches, faces.timing(methods, scale["rounds"])]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """The curve of the best learning rate, and log10 of the condition number at some of its points; or times."""
    data = context.load("yaleb")
    train = centred(data.train)
    if "timed" in settings:
        return faces.step_times(settings, train, data.classes)
    values, states = faces.search(settings, context, train, data.classes)
    every = settings["fisher_every"]
    model = faces.network(settings, train.images, data.classes, **_natural(values["chosen"])).train()
    return {
        **values,
        "fisher_step": values["step"][every - 1 :: every],
        "fisher": [_log_condition(model, state, train.images) for state in states[every - 1 :: every]],
    }


def _natural(chosen: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in chosen.items() if key != "lr"}


def _log_condition(model: nn.Module, state: dict[str, Tensor], images: Tensor) -> float:
    model.load_state_dict(state)
    *_, (last, layer) = ((name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear))
    number = fisher_condition_number(model, images, last)
    size = (layer.out_features - 1) * (layer.in_features + 1)
    return math.log10(min(number, 1 / (size * torch.finfo(torch.float64).eps)))


def _levels(results: Results, method: str) -> list[float]:
    """For each seed the mean of log10 κ over the updates where it was measured."""
    return [float(np.mean(curve)) if curve else math.inf for curve in results.values("fisher", method=method)]


def _better_than_plain(results: Results) -> Evidence:
    return every(*(lower(_levels(results, name), _levels(results, "plain"), (name, "plain")) for name in _NORMS))


def _dbn_best(results: Results) -> Evidence:
    others = ("NNN", "LN", "BN")
    return every(*(lower(_levels(results, "DBN"), _levels(results, name), ("DBN", name)) for name in others))


def _faster_than_plain(results: Results) -> Evidence:
    return every(*(faces.faster(results, name, ["plain"]) for name in _NORMS))


def _dbn_fastest(results: Results) -> Evidence:
    return faces.faster(results, "DBN", ["NNN", "LN", "BN"])


def _twice_the_time(results: Results) -> Evidence:
    ends = {name: faces.over_time(results).values("seconds", method=name) for name in ("BN", "DBN")}
    ratios = [dbn[-1] / bn[-1] for dbn, bn in zip(ends["DBN"], ends["BN"], strict=True)]
    return alike(ratios, [2.0] * len(ratios), ("time of a step over BN's", "the paper's"), margin=0.5)


def draw(results: Results) -> Figure:
    """Condition number over updates and training loss over time, mean and range of the seeds."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name in results.levels("method"):
        found = faces.over_time(results).where(method=name)
        label = f"{name}, {faces.describe(found)}"
        if all(found.values("fisher")):
            curves = 10 ** np.array(found.values("fisher"))
            plot_spread(left, found[0].values["fisher_step"], curves.tolist(), label, marker="o")
        plot_spread(right, np.mean(found.values("seconds"), 0).tolist(), found.values("loss"), label)
    left.set(xlabel="updates", ylabel="condition number", yscale="log", title="Fisher information of the last layer")
    right.set(xlabel="seconds in steps", ylabel="training loss", yscale="log", title="loss over time")
    add_shared_legend(figure, (left, right), columns=3)
    return figure


_LEVEL = "mean of log10 κ over the updates"
_TIME = "training loss when the fastest of the compared has made all its steps"

EXPERIMENT = Experiment(
    id="dbn-conditioning",
    paper="DBN",
    where="fig. 3",
    title="Conditioning of the last layer's Fisher information",
    cost="1.2 h of one core",
    data=("yaleb",),
    reduction=("1,000 steps, where the paper prints no number; NNN with three intervals of five."),
    claims=(
        Claim("NNN, LN, BN and DBN are better conditioned than plain", f"below; judged: {_LEVEL}", _better_than_plain),
        Claim("DBN is better conditioned than NNN, LN and BN", f"lowest; judged: {_LEVEL}", _dbn_best),
        Claim("NNN, LN, BN and DBN converge faster than plain", f"faster in time; judged: {_TIME}", _faster_than_plain),
        Claim(
            "DBN converges faster than NNN, LN and BN",
            f"significantly, in wall-clock time; judged: {_TIME}",
            _dbn_fastest,
        ),
        Claim(
            "A step with DBN takes twice the time of one with BN", "2×, on CPUs; judged: within 0.5", _twice_the_time
        ),
    ),
    scales={
        "smoke": {
            "hidden": [8, 4],
            "lrs": [0.5],
            "dampings": [0.1],
            "intervals": [2],
            "steps": 4,
            "points": 2,
            "fisher_every": 1,
            "batch_size": None,
            "rounds": 3,
        },
        "default": {
            "hidden": [128, 64, 48, 48],
            "lrs": [0.1, 0.2, 0.5, 1, 2],
            "dampings": [0.001, 0.01, 0.1, 1],
            "intervals": [20, 100, 500],
            "steps": 1000,
            "points": 50,
            "fisher_every": 7,
            "batch_size": None,
            "rounds": 50,
        },
        "paper": {
            "hidden": [128, 64, 48, 48],
            "lrs": [0.1, 0.2, 0.5, 1, 2],
            "dampings": [0.001, 0.01, 0.1, 1],
            "intervals": [20, 50, 100, 200, 500],
            "steps": 3000,
            "points": 150,
            "fisher_every": 3,
            "batch_size": None,
            "rounds": 50,
        },
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    first_seed=20,
    plan=plan,
    run=run,
    draw=draw,
)
