"""What a norm adds to BatchNorm's time in a net, as the papers' tables of costs have it, beside what they print.

Each run times a net with the norm and one with BatchNorm in turns, in one process: a "seed" is a repetition, and values
are percentages of BatchNorm's time. A training step is forward and backward, without the optimizer's part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from whitenorm.lab import costs
from whitenorm.lab.costs import Choice
from whitenorm.lab.reproduce.evidence import Evidence, at_most, every, rising
from whitenorm.lab.reproduce.experiment import Context, Settings
from whitenorm.lab.reproduce.plots import finish
from whitenorm.lab.reproduce.results import Results
from whitenorm.lab.timing import interleaved, ratio, summarise

NAMES = {"step": "training step", "inference": "inference"}


def settings(table: str, net: str, model: str, choice: Choice, scale: Settings) -> Settings:
    """Of a run: the table, the net, the name of the norm in the table, and what decides the time."""
    names = ("batch", "resolution", "classes", "rounds")
    return {"table": table, "net": net, "model": model, **choice._asdict(), **{name: scale[name] for name in names}}


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """What the norm adds to a training step and to inference in percent of BatchNorm's, and BatchNorm's times."""
    fed = settings["batch"], settings["resolution"]
    options = json.dumps(settings["options"])
    nets = {
        "base": _net(settings["net"], settings["classes"]),
        "norm": _net(settings["net"], settings["classes"], settings["norm"], settings["where"], options),
    }
    values = {}
    for name, runs in (
        ("step", {key: costs.training_step(net, *fed, settings["classes"]) for key, net in nets.items()}),
        ("inference", {key: costs.inference(net, *fed) for key, net in nets.items()}),
    ):
        times = interleaved(runs, settings["rounds"], budget=float("inf"))
        values[name] = 100 * (ratio(times["norm"], times["base"]) - 1)
        values[f"{name}_batchnorm_ms"] = summarise(times["base"]).ms
    return values


# The one with BatchNorm, and the present one, through all repetitions.
@lru_cache(maxsize=2)
def _net(net: str, classes: int, norm: str = "bn", where: str = "all", options: str = "{}") -> nn.Module:
    return costs.make(net, classes, Choice(norm, where, json.loads(options)))


def within(value: str, printed: Mapping[str, float], table: str) -> Callable[[Results], Evidence]:
    """Judges that each model that was run adds less than is printed for it."""

    def judge(results: Results) -> Evidence:
        found = results.where(table=table)
        models = [model for model in found.levels("model") if model in printed]
        return every(
            *(
                at_most(found.values(value, model=model), printed[model], (f"{model} adds %", "paper"))
                for model in models
            )
        )

    return judge


def ordered(models: Sequence[str], table: str) -> Callable[[Results], Evidence]:
    """Judges that each model adds less to a training step than the next."""

    def judge(results: Results) -> Evidence:
        return rising(models, [results.values("step", table=table, model=model) for model in models])

    return judge


def bars(axes: Axes, results: Results, value: str, printed: Mapping[str, float], title: str) -> None:
    """A bar a model, with the range of all repetitions, and what is printed beside it."""
    models = results.levels("model")
    for place, model in enumerate(models):
        values = results.values(value, model=model)
        mean = sum(values) / len(values)
        axes.barh(place - 0.2, mean, 0.4, color="tab:blue", label="whitenorm" if place == 0 else None)
        axes.plot([min(values), max(values)], [place - 0.2] * 2, color="black", linewidth=1)
        if model in printed:
            axes.barh(place + 0.2, printed[model], 0.4, color="lightgrey", label="paper" if place == 0 else None)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(yticks=range(len(models)), yticklabels=models, title=title)
    axes.set(xlabel=f"added to BatchNorm's {NAMES[value]}, %")
    axes.invert_yaxis()
    finish(axes)


def picture(panels: Sequence[tuple[Results, str, Mapping[str, float], str]], columns: int = 2) -> Figure:
    """Panels of bars."""
    rows = -(-len(panels) // columns)
    height = max(1.2 + 0.42 * len(results.levels("model")) for results, *_ in panels)
    figure, axes = plt.subplots(rows, columns, figsize=(5.5 * columns, height * rows), layout="constrained")
    for panel, content in zip(axes.flat, panels, strict=False):
        bars(panel, *content)
    for panel in axes.flat[len(panels) :]:
        panel.axis("off")
    return figure
