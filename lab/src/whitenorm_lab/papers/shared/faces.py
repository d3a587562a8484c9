"""Run and compare the DBN paper's two experiments with perceptrons on faces.

The hyper-parameters of each method and seed are those with the lowest training loss after the last step: the learning
rate, and for NNN also the damping ε and the interval T. As in the paper, DBN has no γ and β, and the initial weights
are LeCun's.

Methods are compared over time. Step times are measured in separate runs at the end of a plan, in which the steps of all
methods take turns, so that training may run beside other work. Nothing else may run during these last runs.
"""

from __future__ import annotations

import copy
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor, nn

import whitenorm
from whitenorm_lab.claims.evidence import Evidence, every, lower
from whitenorm_lab.claims.experiment import Context, Settings
from whitenorm_lab.claims.plots import plot_spread
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.data import Split
from whitenorm_lab.fitting import fit, make_step
from whitenorm_lab.nets.layers import init_lecun_
from whitenorm_lab.nets.mlp import mlp
from whitenorm_lab.nets.nnn import NaturalNetwork
from whitenorm_lab.timing import time_interleaved

METHODS = ("plain", "NNN", "LN", "BN", "DBN")
SHAPE = (1, 32, 32)
# Images from which NNN takes its statistics at a refresh; the paper does not state how many.
_NNN_SAMPLES = 2000
# The settings of a method that decide the time of its steps.
_TIMING_KEYS = ("method", "hidden", "batch_size", "group_size", "samples")
# NNN's steps and refreshes are timed separately: with this interval only the first step has a refresh.
_NEVER = 2**62


def build_search_settings(name: str, scale: Settings, group_size: int | None = None) -> Settings:
    """Build the settings of the grid search of one method."""
    settings = {key: scale[key] for key in ("lrs", "steps", "points", "batch_size", "hidden")}
    if name == "NNN":
        settings |= {"dampings": scale["dampings"], "intervals": scale["intervals"], "samples": _NNN_SAMPLES}
    if name == "DBN":
        settings |= {"group_size": group_size}
    return {"method": name, **settings}


def build_timing_settings(methods: Sequence[Settings], rounds: int) -> Settings:
    """Build the settings of the runs that time the steps of these methods."""
    return {"timed": [_select_timing_keys(settings) for settings in methods], "rounds": rounds}


def _select_timing_keys(settings: Settings) -> Settings:
    return {key: settings[key] for key in _TIMING_KEYS if key in settings}


def search(
    settings: Settings, context: Context, train: Split, classes: int
) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
    """Train at every point of the grid and keep the run with the lowest final loss.

    Returns:
        Its curves, with ``final`` loss, ``chosen`` hyper-parameters and the losses of all points of the grid
        (``tried``); and the model's state at every point of the curves.
    """
    grid = list(itertools.product(settings["lrs"], settings.get("dampings", [None]), settings.get("intervals", [None])))
    best: tuple[dict[str, Any], list[dict[str, Tensor]]] | None = None
    tried = []
    for i, (lr, damping, interval) in enumerate(grid):
        states: list[dict[str, Tensor]] = []
        curves = fit(
            build_network(settings, train.images, classes, damping, interval),
            train,
            lr=lr,
            steps=settings["steps"],
            batch_size=settings["batch_size"],
            seed=context.seed,
            points=settings["points"],
            measure=_build_state_recorder(states),
            progress=lambda share, i=i: context.progress((i + share) / len(grid)),  # type: ignore[misc]
        )
        tried.append(curves["loss"][-1])
        if best is None or tried[-1] < best[0]["final"]:
            chosen = {"lr": lr} | ({} if damping is None else {"damping": damping, "interval": interval})
            best = {**curves, "final": tried[-1], "chosen": chosen}, states
    assert best is not None
    return {**best[0], "tried": tried}, best[1]


def _build_state_recorder(states: list[dict[str, Tensor]]) -> Callable[[nn.Module], dict[str, float]]:
    def record(model: nn.Module) -> dict[str, float]:
        states.append(copy.deepcopy(model.state_dict()))
        return {}

    return record


def build_network(
    settings: Settings, images: Tensor, classes: int, damping: float | None = None, interval: int | None = None
) -> nn.Module:
    """Build a perceptron with the method's norms; a natural one if a damping and an interval are given."""
    norms: dict[str, Callable[[int], nn.Module]] = {
        "LN": nn.LayerNorm,
        "BN": nn.BatchNorm1d,
        "DBN": lambda width: whitenorm.DecorrelatedBatchNorm(width, settings["group_size"], affine=False),
    }
    norm = norms.get(settings["method"], lambda width: nn.Identity())
    layers = mlp(classes, SHAPE, hidden=settings["hidden"], norm=norm)
    init_lecun_(layers)
    if damping is None or interval is None:
        return layers
    return NaturalNetwork(layers, images, damping=damping, interval=interval, samples=settings["samples"])


def measure_step_times(settings: Settings, train: Split, classes: int) -> dict[str, Any]:
    """Measure the seconds of one step of each method in ``timed``, and of one refresh of NNN."""
    runs: dict[str, Callable[[], object]] = {}
    for i, method in enumerate(settings["timed"]):
        natural = {"damping": 1.0, "interval": _NEVER} if method["method"] == "NNN" else {}
        model = build_network(method, train.images, classes, **natural)  # type: ignore[arg-type]
        runs[str(i)] = make_step(model, train, lr=0.01, batch_size=method["batch_size"])
        if isinstance(model, NaturalNetwork):
            runs["refresh"] = model.refresh
    seconds = {name: statistics.median(times) for name, times in time_interleaved(runs, settings["rounds"]).items()}
    refresh = seconds.pop("refresh", 0.0)
    return {"step_seconds": list(seconds.values()), "refresh_seconds": refresh}


def add_seconds(results: Results) -> Results:
    """Return the training runs with ``seconds``: the time of each point of the curves, from the seed's step times."""
    times = {run.seed: run for run in results if "timed" in run.settings}
    return Results(
        replace(run, values={**run.values, "seconds": _compute_seconds(run, times[run.seed])})
        for run in results
        if "method" in run.settings
    )


def _compute_seconds(run: Run, times: Run) -> list[float]:
    step_seconds = times.values["step_seconds"][times.settings["timed"].index(_select_timing_keys(run.settings))]
    interval = run.values["chosen"].get("interval", _NEVER)
    refresh_seconds = times.values["refresh_seconds"] if interval < _NEVER else 0.0
    # Steps 0, T, 2T, ... begin with a refresh.
    return [steps * step_seconds + math.ceil(steps / interval) * refresh_seconds for steps in run.values["step"]]


def lower_after_equal_time(results: Results, quick: str, slow: Sequence[str], **settings: Any) -> Evidence:
    """Compare the training loss of one method with others after equal time, expected to be lower.

    The time is that of the shortest run that did not diverge: since all runs have the same number of steps, this is the
    end of the fastest method.

    Args:
        results: of training and timing runs.
        quick: the method expected to have the lower loss.
        slow: the other methods.
        settings: of the runs with DBN.
    """
    results = add_seconds(results)
    runs = {name: results.where(method=name, **(settings if name == "DBN" else {})) for name in (quick, *slow)}
    finite = [run for of_method in runs.values() for run in of_method if math.isfinite(run.values["final"])]
    budget = min((run.values["seconds"][-1] for run in finite), default=0.0)
    losses = {name: [interpolate_loss(run, budget) for run in of_method] for name, of_method in runs.items()}
    evidence = every(*(lower(losses[quick], losses[name], (quick, name)) for name in slow))
    return replace(evidence, prefix=f"after {budget:.3g} s: ")


def interpolate_loss(run: Run, seconds: float) -> float:
    """Return the training loss at a time, linear between the points of the curve; infinite if the run diverged.

    Example::

        >>> interpolate_loss(Run({}, 0, {"seconds": [1.0, 2.0], "loss": [4.0, 3.0]}, 0.0), 1.5)
        3.5
    """
    times, losses = run.values["seconds"], run.values["loss"]
    if not all(map(math.isfinite, losses)):
        return math.inf
    return float(np.interp(seconds, times, losses))


def draw_loss_over_time(panel: Axes, runs_by_name: dict[str, Results], title: str) -> None:
    """Draw the training loss of each method over the mean time of its seeds.

    Args:
        panel: to draw in.
        runs_by_name: runs of :func:`add_seconds`, by the method's name in the legend.
        title: of the panel.
    """
    for name, runs in runs_by_name.items():
        seconds = np.mean(runs.values("seconds"), 0).tolist()
        plot_spread(panel, seconds, runs.values("loss"), f"{name}, {format_chosen(runs)}")
    panel.set(xlabel="seconds in steps", ylabel="training loss", yscale="log", title=title)


def format_chosen(runs: Results) -> str:
    """Format the hyper-parameters that the seeds of a method chose."""
    symbols = {"lr": "lr", "damping": "ε", "interval": "T"}
    chosen = runs.values("chosen")
    parts = [
        f"{symbol} {'/'.join(f'{value:g}' for value in sorted({one[key] for one in chosen}))}"
        for key, symbol in symbols.items()
        if key in chosen[0]
    ]
    return ", ".join(parts)
