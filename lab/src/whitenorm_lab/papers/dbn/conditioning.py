"""DBN figure 3: conditioning of the last layer's Fisher information, and training loss over time.

Paper: Yale-B (2,414 faces of 38 people, 32×32, in [0, 1] minus the mean image), an MLP with hidden layers of 128, 64,
48 and 48, full-batch gradient descent, the best of the learning rates {0.1, 0.2, 0.5, 1, 2} by training loss; for NNN
also ε of {0.001, 0.01, 0.1, 1} and T of {20, 50, 100, 200, 500}; 5 seeds. All methods are better conditioned and faster
than the plain network, DBN most of all, although its step takes twice as long as BN's on CPUs. The paper prints no
numbers for the curves.

Not stated in the paper: the number of steps (here 3,000), ε of the norms (1e-3 for DBN), the number of images from
which NNN takes its statistics (2,000), and the groups of DBN (all features of a layer). Initial weights are LeCun's.

The condition number is measured during training at the chosen learning rate, with batch statistics on all images. If
the Fisher matrix is singular in float64, for example because a unit is never active, the largest condition number that
float64 can represent is used. Step times are measured in a separate minute at the end, when nothing else may run.

Default scale: all images and learning rates, 5 seeds, but 1,000 steps, and T of {20, 100, 500} for NNN.
Cost: 1.2 h of one core. Command: ``whitenorm-lab reproduce dbn-conditioning --data ROOT``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
from whitenorm_lab.fitting import center_images
from whitenorm_lab.papers.shared import faces

_NORMS = ("NNN", "LN", "BN", "DBN")


def plan(scale: Settings) -> list[Settings]:
    """Plan a search for every method, and a run that times their steps. DBN whitens all features of a layer."""
    methods = [faces.build_search_settings(name, scale) for name in faces.METHODS]
    searches = [{**method, "fisher_every": scale["fisher_every"]} for method in methods]
    return [*searches, faces.build_timing_settings(methods, scale["rounds"])]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Search the best learning rate and measure log10 of the condition numbers along its curve; or time the steps."""
    data = context.load("yaleb")
    train = center_images(data.train)
    if "timed" in settings:
        return faces.measure_step_times(settings, train, data.classes)
    values, states = faces.search(settings, context, train, data.classes)
    interval = settings["fisher_every"]
    natural = {name: value for name, value in values["chosen"].items() if name != "lr"}
    model = faces.build_network(settings, train.images, data.classes, **natural).train()
    return {
        **values,
        "fisher_step": values["step"][interval - 1 :: interval],
        "fisher": [_measure_log_condition(model, state, train.images) for state in states[interval - 1 :: interval]],
    }


def _measure_log_condition(model: nn.Module, state: dict[str, Tensor], images: Tensor) -> float:
    model.load_state_dict(state)
    *_, (name, layer) = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear))
    condition = fisher_condition_number(model, images, name)
    size = (layer.out_features - 1) * (layer.in_features + 1)
    return math.log10(min(condition, 1 / (size * torch.finfo(torch.float64).eps)))


def _mean_log_conditions(results: Results, method: str) -> list[float]:
    """Return the mean of log10 κ over the updates, for each seed."""
    return [float(np.mean(curve)) if curve else math.inf for curve in results.values("fisher", method=method)]


def _compare_conditions(results: Results, pairs: Sequence[tuple[str, str]]) -> Evidence:
    conditions = {name: _mean_log_conditions(results, name) for name in faces.METHODS}
    return every(*(lower(conditions[low], conditions[high], (low, high)) for low, high in pairs))


def _check_better_than_plain(results: Results) -> Evidence:
    return _compare_conditions(results, [(name, "plain") for name in _NORMS])


def _check_dbn_is_best(results: Results) -> Evidence:
    return _compare_conditions(results, [("DBN", name) for name in ("NNN", "LN", "BN")])


def _check_faster_than_plain(results: Results) -> Evidence:
    return every(*(faces.lower_after_equal_time(results, name, ["plain"]) for name in _NORMS))


def _check_dbn_is_fastest(results: Results) -> Evidence:
    return faces.lower_after_equal_time(results, "DBN", ["NNN", "LN", "BN"])


def _check_twice_the_time(results: Results) -> Evidence:
    with_seconds = faces.add_seconds(results)
    dbn, bn = (with_seconds.values("seconds", method=name) for name in ("DBN", "BN"))
    ratios = [seconds[-1] / base[-1] for seconds, base in zip(dbn, bn, strict=True)]
    return alike(ratios, [2.0] * len(ratios), ("time of a step over BN's", "the paper's"), margin=0.5)


def draw(results: Results) -> Figure:
    """Draw the condition number over updates and the training loss over time."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    with_seconds = faces.add_seconds(results)
    runs_by_method = {name: with_seconds.where(method=name) for name in results.levels("method")}
    for name, runs in runs_by_method.items():
        if all(runs.values("fisher")):
            curves = 10 ** np.array(runs.values("fisher"))
            label = f"{name}, {faces.format_chosen(runs)}"
            plot_spread(left, runs[0].values["fisher_step"], curves.tolist(), label, marker="o")
    faces.draw_loss_over_time(right, runs_by_method, "loss over time")
    left.set(xlabel="updates", ylabel="condition number", yscale="log", title="Fisher information of the last layer")
    add_shared_legend(figure, (left, right), columns=3)
    return figure


_FULL: Settings = {
    "hidden": [128, 64, 48, 48],
    "lrs": [0.1, 0.2, 0.5, 1, 2],
    "dampings": [0.001, 0.01, 0.1, 1],
    "batch_size": None,
    "rounds": 50,
}
_LEVEL = "mean of log10 κ over the updates"
_TIME = "training loss when the fastest of the compared has made all its steps"

EXPERIMENT = Experiment(
    id="dbn-conditioning",
    paper="DBN",
    where="fig. 3",
    title="Conditioning of the last layer's Fisher information",
    cost="1.2 h of one core",
    data=("yaleb",),
    reduction="1,000 steps, where the paper prints no number; NNN with three intervals of five.",
    claims=(
        Claim(
            "NNN, LN, BN and DBN are better conditioned than plain",
            f"below; judged: {_LEVEL}",
            _check_better_than_plain,
        ),
        Claim("DBN is better conditioned than NNN, LN and BN", f"lowest; judged: {_LEVEL}", _check_dbn_is_best),
        Claim(
            "NNN, LN, BN and DBN converge faster than plain",
            f"faster in time; judged: {_TIME}",
            _check_faster_than_plain,
        ),
        Claim(
            "DBN converges faster than NNN, LN and BN",
            f"significantly, in wall-clock time; judged: {_TIME}",
            _check_dbn_is_fastest,
        ),
        Claim(
            "A step with DBN takes twice the time of one with BN",
            "2×, on CPUs; judged: within 0.5",
            _check_twice_the_time,
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
        "default": {**_FULL, "intervals": [20, 100, 500], "steps": 1000, "points": 50, "fisher_every": 7},
        "paper": {**_FULL, "intervals": [20, 50, 100, 200, 500], "steps": 3000, "points": 150, "fisher_every": 3},
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    first_seed=20,
    plan=plan,
    run=run,
    draw=draw,
)
