"""What the DBN paper's two experiments with perceptrons on faces share: the methods, their grid search, equal time.

Hyper-parameters are chosen for each method and seed by the training loss after the last step. The paper's grid is the
learning rate, and for NNN also the damping ε and the interval T. DBN has no γ and β, as in the paper, and weights begin
as LeCun's, as its text says.

Methods are compared over time, and times are taken apart from the training, which may so run beside other work: in runs
that come last in a plan, a step of every method is timed in turn with those of the others. It is only there that
nothing else may run.
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
from torch import Tensor, nn

import whitenorm
from whitenorm_lab.claims.evidence import Evidence, every, lower
from whitenorm_lab.claims.experiment import Context, Settings
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.data import Split
from whitenorm_lab.fitting import fit, stepping
from whitenorm_lab.nets.mlp import mlp
from whitenorm_lab.nets.nnn import NaturalNetwork
from whitenorm_lab.nets.parts import lecun_
from whitenorm_lab.timing import time_interleaved

METHODS = ("plain", "NNN", "LN", "BN", "DBN")
SHAPE = (1, 32, 32)
# Images in which NNN takes its statistics at a refresh; the paper names no number.
_NNN_SAMPLES = 2000
# Of a method's settings, what the time of its steps depends on.
_TIMED = ("method", "hidden", "batch_size", "group_size", "samples")
# NNN's steps and its refreshes are timed apart: no step has one after the first.
_NEVER = 2**62


def method(name: str, scale: Settings, group_size: int | None = None) -> Settings:
    """The settings of one method's search."""
    common = {key: scale[key] for key in ("lrs", "steps", "points", "batch_size", "hidden")}
    if name == "NNN":
        common |= {"dampings": scale["dampings"], "intervals": scale["intervals"], "samples": _NNN_SAMPLES}
    if name == "DBN":
        common |= {"group_size": group_size}
    return {"method": name, **common}


def timing(methods: Sequence[Settings], rounds: int) -> Settings:
    """The settings of the runs that time the steps of these methods."""
    return {"timed": [_timed(settings) for settings in methods], "rounds": rounds}


def _timed(settings: Settings) -> Settings:
    return {key: settings[key] for key in _TIMED if key in settings}


def search(
    settings: Settings, context: Context, train: Split, classes: int
) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
    """Train at every point of the grid; the best one's curve, with its hyper-parameters, and its states at the points.

    ``tried`` has the loss that every point of the grid reached.
    """
    grid = list(itertools.product(settings["lrs"], settings.get("dampings", [None]), settings.get("intervals", [None])))
    best: tuple[dict[str, Any], list[dict[str, Tensor]]] | None = None
    tried = []
    for number, (lr, damping, interval) in enumerate(grid):
        states: list[dict[str, Tensor]] = []
        curve = fit(
            network(settings, train.images, classes, damping, interval),
            train,
            lr=lr,
            steps=settings["steps"],
            batch_size=settings["batch_size"],
            seed=context.seed,
            points=settings["points"],
            measure=_keep(states),
            progress=lambda share, number=number: context.progress((number + share) / len(grid)),  # type: ignore[misc]
        )
        tried.append(curve["loss"][-1])
        if best is None or tried[-1] < best[0]["final"]:
            chosen = {"lr": lr} | ({} if damping is None else {"damping": damping, "interval": interval})
            best = {**curve, "final": tried[-1], "chosen": chosen}, states
    assert best is not None
    return {**best[0], "tried": tried}, best[1]


def _keep(states: list[dict[str, Tensor]]) -> Callable[[nn.Module], dict[str, float]]:
    def keep(model: nn.Module) -> dict[str, float]:
        states.append(copy.deepcopy(model.state_dict()))
        return {}

    return keep


def network(
    settings: Settings, images: Tensor, classes: int, damping: float | None = None, interval: int | None = None
) -> nn.Module:
    """A perceptron with the method's norms, or a natural one."""
    norms: dict[str, Callable[[int], nn.Module]] = {
        "LN": nn.LayerNorm,
        "BN": nn.BatchNorm1d,
        "DBN": lambda width: whitenorm.DecorrelatedBatchNorm(width, settings["group_size"], affine=False),
    }
    norm = norms.get(settings["method"], lambda width: nn.Identity())
    layers = mlp(classes, SHAPE, hidden=settings["hidden"], norm=norm)
    lecun_(layers)
    if damping is None or interval is None:
        return layers
    return NaturalNetwork(layers, images, damping=damping, interval=interval, samples=settings["samples"])


def step_times(settings: Settings, train: Split, classes: int) -> dict[str, Any]:
    """Seconds of a step of each method in ``timed``, in their order, and of a refresh of NNN."""
    runs: dict[str, Callable[[], object]] = {}
    for number, method in enumerate(settings["timed"]):
        natural = {"damping": 1.0, "interval": _NEVER} if method["method"] == "NNN" else {}
        model = network(method, train.images, classes, **natural)  # type: ignore[arg-type]
        runs[str(number)] = stepping(model, train, lr=0.01, batch_size=method["batch_size"])
        if isinstance(model, NaturalNetwork):
            runs["refresh"] = model.refresh
    seconds = {name: statistics.median(times) for name, times in time_interleaved(runs, settings["rounds"]).items()}
    refresh = seconds.pop("refresh", 0.0)
    return {"step_seconds": list(seconds.values()), "refresh_seconds": refresh}


def over_time(results: Results) -> Results:
    """The runs that trained, with ``seconds``: when each point of the curve was reached, by the times of its seed."""
    times = {run.seed: run for run in results if "timed" in run.settings}
    trained = [run for run in results if "method" in run.settings]
    return Results(
        replace(run, values={**run.values, "seconds": _seconds(run, times[run.seed], run.values["step"])})
        for run in trained
    )


def _seconds(run: Run, times: Run, steps: Sequence[int]) -> list[float]:
    step = times.values["step_seconds"][times.settings["timed"].index(_timed(run.settings))]
    interval = run.values["chosen"].get("interval", _NEVER)
    refresh = times.values["refresh_seconds"] if interval < _NEVER else 0.0
    # A step whose number, from 0 on, the interval divides begins with a refresh.
    return [number * step + math.ceil(number / interval) * refresh for number in steps]


def faster(results: Results, quick: str, slow: Sequence[str], **settings: Any) -> Evidence:
    """That one method is at a lower training loss than each of the others after an equal time spent in steps.

    The time is that of the shortest run of all of them that did not diverge: with an equal number of steps, the end of
    the fastest.
    """
    results = over_time(results)
    found = {name: results.where(method=name, **(settings if name == "DBN" else {})) for name in (quick, *slow)}
    finite = [run for runs in found.values() for run in runs if math.isfinite(run.values["final"])]
    budget = min((run.values["seconds"][-1] for run in finite), default=0.0)
    reached = {name: [loss_after(run, budget) for run in runs] for name, runs in found.items()}
    parts = every(*(lower(reached[quick], reached[name], (quick, name)) for name in slow))
    return replace(parts, prefix=f"after {budget:.3g} s: ")


def loss_after(run: Run, seconds: float) -> float:
    """The training loss at a time, between two points of the curve along a line; infinite once it has diverged.

    Example::

        >>> loss_after(Run({}, 0, {"seconds": [1.0, 2.0], "loss": [4.0, 3.0]}, 0.0), 1.5)
        3.5
    """
    times, losses = run.values["seconds"], run.values["loss"]
    if not all(map(math.isfinite, losses)):
        return math.inf
    return float(np.interp(seconds, times, losses))


def describe(runs: Results) -> str:
    """A method with the hyper-parameters that its seeds chose."""
    names = {"lr": "lr", "damping": "ε", "interval": "T"}
    chosen = runs.values("chosen")
    parts = [
        f"{sign} {'/'.join(f'{value:g}' for value in sorted({one[key] for one in chosen}))}"
        for key, sign in names.items()
        if key in chosen[0]
    ]
    return ", ".join(parts)
