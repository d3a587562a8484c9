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

from whitenorm_lab import costs
from whitenorm_lab.claims.evidence import Evidence, at_most, every, rising
from whitenorm_lab.claims.experiment import Context, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.costs import Choice
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved

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
        ("step", {key: costs.build_training_step(net, *fed, settings["classes"]) for key, net in nets.items()}),
        ("inference", {key: costs.build_inference(net, *fed) for key, net in nets.items()}),
    ):
        times = time_interleaved(runs, settings["rounds"], budget=float("inf"))
        values[name] = 100 * (median_ratio(times["norm"], times["base"]) - 1)
        values[f"{name}_batchnorm_ms"] = summarise(times["base"]).ms
    return values


# The one with BatchNorm, and the present one, through all repetitions.
@lru_cache(maxsize=2)
def _net(net: str, classes: int, norm: str = "bn", where: str = "all", options: str = "{}") -> nn.Module:
    return costs.build_net(net, classes, Choice(norm, where, json.loads(options)))


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


Rows = Mapping[str, tuple[Sequence[float], float | None]]
"""By model, a number a repetition, and what is printed for it, if anything is."""


def bars(axes: Axes, rows: Rows, base: float) -> None:
    """A bar a model from a base, with the range of all repetitions, and what is printed beside it."""
    for place, (values, printed) in enumerate(rows.values()):
        mean = sum(values) / len(values)
        axes.barh(place - 0.2, mean, 0.4, color="tab:blue", label="whitenorm, mean")
        axes.plot(
            [min(values), max(values)],
            [place - 0.2] * 2,
            color="black",
            linewidth=1,
            label="whitenorm, all repetitions",
        )
        if printed is not None:
            axes.barh(place + 0.2, printed, 0.4, color="lightgrey", label="paper")
    axes.axvline(base, color="black", linewidth=0.8)
    axes.set(yticks=range(len(rows)), yticklabels=list(rows))
    axes.invert_yaxis()
    axes.grid(alpha=0.3)


def one_legend(figure: Figure) -> None:
    """What the bars of all panels are, above them."""
    known = {
        label: handle for panel in figure.axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(known.values(), known, loc="outside upper center", ncols=len(known), fontsize=8)


def picture(panels: Sequence[tuple[Results, str, Mapping[str, float], str]], columns: int = 2) -> Figure:
    """Panels of bars, each of some runs: a value of them, what is printed, and a title."""
    rows = -(-len(panels) // columns)
    height = max(1.2 + 0.42 * len(results.levels("model")) for results, *_ in panels)
    figure, axes = plt.subplots(rows, columns, figsize=(5.5 * columns, 0.3 + height * rows), layout="constrained")
    for panel, (results, value, printed, title) in zip(axes.flat, panels, strict=False):
        fed = results[0].settings
        found = {model: (results.values(value, model=model), printed.get(model)) for model in results.levels("model")}
        bars(panel, found, 0)
        panel.set(
            title=f"{title}; batch {fed['batch']}, {fed['resolution']}²",
            xlabel=f"added to BatchNorm's {NAMES[value]}, %",
        )
    for panel in axes.flat[len(panels) :]:
        panel.axis("off")
    one_legend(figure)
    return figure
