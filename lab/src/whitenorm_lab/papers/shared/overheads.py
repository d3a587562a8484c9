"""Measure what a norm adds to the time of a net with BatchNorm, and compare it with the papers' tables of costs.

Each run times a net with BatchNorm and all models of a table in turns, in one process. A "seed" is a repetition; values
are percentages of BatchNorm's time. A training step is forward and backward, without the optimizer's part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from whitenorm.diagnostics import kernels_used
from whitenorm_lab import costs
from whitenorm_lab.claims.evidence import Evidence, at_most, every, rising
from whitenorm_lab.claims.experiment import Context, Settings
from whitenorm_lab.claims.results import Results, Run
from whitenorm_lab.costs import Choice
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved

_VALUE_NAMES = {"step": "training step", "inference": "inference"}
_BASE = "BatchNorm"


def build_settings(
    table: str,
    net: str,
    models: Mapping[str, Choice],
    scale: Settings,
    passes: Sequence[str] = tuple(_VALUE_NAMES),
) -> Settings:
    """Build the settings of a run.

    Args:
        table: of the paper.
        net: a name for :func:`whitenorm_lab.costs.build_net`.
        models: the norms, by their names in the table.
        scale: parameters of the scale, with ``batch``, ``resolution``, ``classes`` and ``rounds``.
        passes: what to time, of ``step`` and ``inference``.
    """
    names = ("batch", "resolution", "classes", "rounds")
    chosen = {model: choice._asdict() for model, choice in models.items()}
    return {"table": table, "net": net, "models": chosen, "passes": passes, **{name: scale[name] for name in names}}


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Measure the percentage that each norm adds to BatchNorm's time; the first repetition also names its kernels."""
    sizes = settings["batch"], settings["resolution"]
    nets = _build_nets(settings["net"], settings["classes"], json.dumps(settings["models"]))
    steps = {model: costs.build_training_step(net, *sizes, settings["classes"]) for model, net in nets.items()}
    forward = {model: costs.build_inference(net, *sizes) for model, net in nets.items()}
    values: dict[str, Any] = {}
    if context.seed == 0:
        # Not in each repetition, because it takes as long as a round.
        values["kernels"] = {model: " and ".join(kernels_used(steps[model])) for model in settings["models"]}
    for name in settings["passes"]:
        times = time_interleaved(steps if name == "step" else forward, settings["rounds"], budget=float("inf"))
        values[name] = {model: 100 * (median_ratio(times[model], times[_BASE]) - 1) for model in settings["models"]}
        values[f"{name}_batchnorm_ms"] = summarise(times[_BASE]).ms
    return values


# Keeps the nets over all repetitions.
@lru_cache(maxsize=1)
def _build_nets(net: str, classes: int, models: str) -> dict[str, nn.Module]:
    choices = {_BASE: Choice(), **{model: Choice(**options) for model, options in json.loads(models).items()}}
    return {model: costs.build_net(net, classes, choice) for model, choice in choices.items()}


def split_models(results: Results) -> Results:
    """Return one run per model; runs of a single model remain as they are."""
    singles = Results()
    for run in results:
        models = run.settings.get("models", ())
        singles += [_select_model(run, model) for model in models] if models else [run]
    return singles


def _select_model(run: Run, model: str) -> Run:
    values = {name: run.values[name][model] for name in run.settings["passes"]}
    return replace(run, settings={**run.settings, "model": model}, values=values)


def expect_at_most_printed(value: str, printed: Mapping[str, float], table: str) -> Callable[[Results], Evidence]:
    """Build a judge that expects every model that was run to add at most the printed percentage."""

    def judge(results: Results) -> Evidence:
        runs = split_models(results).where(table=table)
        models = [model for model in runs.levels("model") if model in printed]
        return every(
            *(
                at_most(runs.values(value, model=model), printed[model], (f"{model} adds %", "paper"))
                for model in models
            )
        )

    return judge


def expect_rising_step_times(models: Sequence[str], table: str) -> Callable[[Results], Evidence]:
    """Build a judge that expects each model to add less to a training step than the next one."""

    def judge(results: Results) -> Evidence:
        runs = split_models(results)
        return rising(models, [runs.values("step", table=table, model=model) for model in models])

    return judge


def draw_bars(axes: Axes, rows: Mapping[str, tuple[Sequence[float], float | None]], base: float) -> None:
    """Draw a bar per model with the range of all repetitions, and the printed value beside it.

    Args:
        axes: to draw in.
        rows: for each model the values of all repetitions, and the printed value if there is one.
        base: position of the vertical line.
    """
    for row, (values, printed) in enumerate(rows.values()):
        mean = sum(values) / len(values)
        axes.barh(row - 0.2, mean, 0.4, color="tab:blue", label="whitenorm, mean")
        axes.plot(
            [min(values), max(values)], [row - 0.2] * 2, color="black", linewidth=1, label="whitenorm, all repetitions"
        )
        if printed is not None:
            axes.barh(row + 0.2, printed, 0.4, color="lightgrey", label="paper")
    axes.axvline(base, color="black", linewidth=0.8)
    axes.set(yticks=range(len(rows)), yticklabels=list(rows))
    axes.invert_yaxis()
    axes.grid(alpha=0.3)


def draw_legend_above(figure: Figure) -> None:
    """Draw one legend above all panels, with every label once."""
    handles = {
        label: handle for panel in figure.axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=len(handles), fontsize=8)


def draw_overheads(panels: Sequence[tuple[Results, str, Mapping[str, float], str]]) -> Figure:
    """Draw panels of bars in two columns, each given as its runs, a value's name, the printed values, and a title."""
    panels = [(split_models(results), value, printed, title) for results, value, printed, title in panels]
    rows = -(-len(panels) // 2)
    height = max(1.2 + 0.42 * len(results.levels("model")) for results, *_ in panels)
    figure, axes = plt.subplots(rows, 2, figsize=(11, 0.3 + height * rows), layout="constrained")
    for panel, (results, value, printed, title) in zip(axes.flat, panels, strict=False):
        settings = results[0].settings
        models = results.levels("model")
        draw_bars(panel, {model: (results.values(value, model=model), printed.get(model)) for model in models}, 0)
        panel.set(
            title=f"{title}; batch {settings['batch']}, {settings['resolution']}²",
            xlabel=f"added to BatchNorm's {_VALUE_NAMES[value]}, %",
        )
    for panel in axes.flat[len(panels) :]:
        panel.axis("off")
    draw_legend_above(figure)
    return figure
