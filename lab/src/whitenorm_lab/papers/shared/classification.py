"""Build experiments that train image classifiers: variants of a configuration, runs, claims about errors, pictures.

The paper scale has the papers' configurations. Smaller scales have smaller nets and data sets and fewer epochs; the
milestones of the learning rate move with the number of epochs.

Where a paper tunes the learning rate of each norm on held-out images, an experiment has runs at several rates; claims
compare the runs at the rate with the lowest mean error on the held-out images.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from whitenorm_lab.claims.evidence import Evidence, every, lower, not_run
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.claims.rules import MIN_SEEDS
from whitenorm_lab.papers.shared.scaling import Rates, describe_reduction, format_net, reduce_config, rename_as_run
from whitenorm_lab.papers.shared.training_runs import (
    context_fields,
    fit_or_diverge,
    highest_throughput,
    require_data_root,
)
from whitenorm_lab.training import Train, TrainingResult

# The error of the last test on held-out images.
_HELD_OUT = "held_out_error"
_LINE_STYLES: dict[str, Literal["-", "--"]] = {"train_error": "-", "test_error": "--"}
_CURVE_NAMES = {"train_error": "training", "test_error": "test"}
_MAX_COLUMNS, _MAX_LEGEND_COLUMNS = 4, 7

Panels = Mapping[str, Mapping[str, Train]]
"""Configurations by case (a panel of the picture) and by variant."""
FEW: Settings = {"train_images": 64, "test_images": 16, "epochs": 1, "batch_size": 32}
"""Smoke scale of the experiments on CIFAR: one epoch of two steps."""


def variants(
    base: Train, cases: Mapping[str, Mapping[str, Any]], norms: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Train]]:
    """Combine every case with every norm, as changes of one configuration; each case is a panel."""
    return {
        case: {
            f"{norm}, {case}" if case else norm: dataclasses.replace(base, **{**changes, **options})
            for norm, options in norms.items()
        }
        for case, changes in cases.items()
    }


def lower_error(small: str, large: str, paper: str, which: str = "test_error") -> Claim:
    """Claim that the final error of one variant is below that of another.

    Example::

        >>> lower_error("DBN, 20 layers", "BN, 20 layers", "a picture", "train_error").text
        '20 layers: DBN has a lower train error than BN'
    """
    one, other = _strip_common_case(small, large)
    case = small.removeprefix(one).removeprefix(", ")
    text = f"{one} has a lower {which.replace('_', ' ')} than {other}"
    return Claim(f"{case}: {text}" if case else text, paper, errors_below([(small, large)], which))


def errors_below(pairs: Sequence[tuple[str, str]], which: str) -> Callable[[Results], Evidence]:
    """Build a judge that expects the first variant of each pair to have the lower final error."""

    def compare(results: Results, small: str, large: str) -> Evidence:
        if not {small, large} <= set(results.levels("variant")):
            return not_run()
        low, high = (get_final_values(results, which, variant) for variant in (small, large))
        evidence = lower(low, high, _strip_common_case(small, large))
        return dataclasses.replace(evidence, prefix=_format_rates(results, small, large))

    return lambda results: every(*(compare(results, *pair) for pair in pairs))


def _strip_common_case(small: str, large: str) -> tuple[str, str]:
    """Return the names of two variants, without their case if it is the same.

    Example::

        >>> _strip_common_case("DBN, 20 layers", "BN, 20 layers")
        ('DBN', 'BN')
    """
    (norm, _, case), (other, _, its_case) = small.partition(", "), large.partition(", ")
    return (norm, other) if case == its_case else (small, large)


def _format_rates(results: Results, *variants: str) -> str:
    """Format the tuned learning rates of variants, as a prefix of their numbers; empty if there was no choice."""
    if any(len(results.where(variant=variant).levels("lr")) < 2 for variant in variants):
        return ""
    return f"lr {' and '.join(str(select_tuned_runs(results, variant).levels('lr')[0]) for variant in variants)}: "


def select_tuned_runs(results: Results, variant: str) -> Results:
    """Select the runs of a variant, at the learning rate that did best on held-out images if there are several."""
    runs = results.where(variant=variant)
    return runs.best("lr", _HELD_OUT) if len(runs.levels("lr")) > 1 else runs


def get_final_values(results: Results, which: str, variant: str) -> list[float]:
    """Return the last value of a curve for every seed."""
    return [curve[-1] for curve in select_tuned_runs(results, variant).values(which)]


def errors_below_bn(printed: Mapping[str, Mapping[str, float]]) -> tuple[Claim, ...]:
    """Claim for every case that the test error of each norm is below that of BN, given the printed errors.

    Example::

        >>> [claim.paper for claim in errors_below_bn({"Res-20": {"BN": 7.94, "DBN-scale-L1": 7.77}})]
        ['BN 7.94 %, DBN-scale-L1 7.77 %']
    """
    return tuple(
        lower_error(f"{name}, {case}", f"BN, {case}", f"BN {errors['BN']} %, {name} {error} %")
        for case, errors in printed.items()
        for name, error in errors.items()
        if name != "BN"
    )


def build_experiment(
    id: str,
    panels: Panels,
    claims: tuple[Claim, ...],
    reduced: Settings,
    smoke: Settings,
    rates: Rates | None = None,
    **facts: Any,
) -> Experiment:
    """Build an experiment whose runs train image classifiers.

    Args:
        id: of the experiment.
        panels: the configurations at paper scale.
        claims: of the experiment.
        reduced: changes of every configuration at the default scale (see :func:`reduce_config`). Its ``cases`` and
            ``variants`` list the panels and runs of this scale, its ``rates`` the learning rates.
        smoke: the same for the smoke scale.
        rates: learning rates of the paper's grid, if it has one.
        facts: further fields of the experiment. By default ``reduction`` and ``stand_ins`` are derived from
            ``reduced``.
    """

    def plan(scale: Settings) -> list[Settings]:
        changes = {name: value for name, value in scale.items() if name not in ("cases", "variants", "rates")}
        return [
            settings
            for case in scale.get("cases", panels)
            for name, config in panels[case].items()
            if name in scale.get("variants", panels[case])
            for settings in _build_settings(name, reduce_config(config, changes), scale.get("rates", rates))
        ]

    def draw(results: Results) -> Figure:
        available, shown = results.levels("variant"), defaultdict[str, dict[str, Results]](dict)
        for case, name, config in ((case, *pair) for case, panel in panels.items() for pair in panel.items()):
            if name in available:
                runs = select_tuned_runs(results, name)
                title, label = (rename_as_run(text, config, runs[0].settings) for text in (case, name))
                shown[title][label.removesuffix(f", {title}")] = runs
        return draw_curves(shown)

    first = next(iter(next(iter(panels.values())).values()))
    derived: dict[str, Any] = {
        "reduction": describe_reduction(first, reduced, rates),
        "stand_ins": {format_net(net): format_net(instead) for net, instead in reduced.get("nets", {}).items()},
    }
    return Experiment(
        id=id,
        claims=claims,
        scales={"smoke": smoke, "default": reduced, "paper": {}},
        seeds={"smoke": 1, "default": MIN_SEEDS, "paper": MIN_SEEDS},
        plan=plan,
        run=run,
        draw=draw,
        **{**derived, **facts},
    )


def _build_settings(variant: str, config: Train, rates: Rates | None) -> list[Settings]:
    """Return the settings of one run, or of one run per learning rate, with the fields that are not at their default.

    ``recalibrate`` and the learning rates of a grid are always named.
    """
    defaults = Train().to_dict()
    changes = {name: value for name, value in config.to_dict().items() if value != defaults[name]}
    settings = {"variant": variant, "recalibrate": config.recalibrate, **changes}
    return [settings] if rates is None else [{**settings, "lr": lr} for lr in rates[config.optimizer]]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Train a classifier and return its errors and losses by epoch; they are infinite once it has diverged."""
    fields = {name: value for name, value in settings.items() if name != "variant"}
    fields["milestones"] = tuple(fields.get("milestones", ()))
    config = Train(**fields, **context_fields(context))
    dataset = None
    if config.dataset.startswith("imagefolder:"):
        name = config.dataset.removeprefix("imagefolder:")
        root = require_data_root(context, f"{name}/train and {name}/val")
        config = dataclasses.replace(config, dataset=f"imagefolder:{root / name}")
    else:
        dataset = context.load(config.dataset)
    result, _ = fit_or_diverge(config, context, dataset)
    return _collect_values(result, config)


def _collect_values(result: TrainingResult, config: Train) -> dict[str, Any]:
    epochs = result.epochs
    tests = [epoch.test_accuracy for epoch in epochs if epoch.test_accuracy is not None]
    missing_epochs = config.epochs - len(epochs)
    missing_tests = math.ceil(config.epochs / config.test_every) - len(tests)
    values = {
        "train_loss": [epoch.train_loss for epoch in epochs] + [math.inf] * missing_epochs,
        "train_error": [_error(epoch.train_accuracy) for epoch in epochs] + [math.inf] * missing_epochs,
        "test_error": [_error(accuracy) for accuracy in tests] + [math.inf] * missing_tests,
        "images_per_second": highest_throughput(result),
    }
    if config.validation_images:
        accuracy = None if missing_epochs else result.validation_accuracy
        values[_HELD_OUT] = math.inf if accuracy is None else _error(accuracy)
    return values


def _error(accuracy: float) -> float:
    return 100 * (1 - accuracy)


def draw_curves(panels: Mapping[str, Mapping[str, Results]]) -> Figure:
    """Draw training and test errors by epoch, one panel per case, with one legend for all panels.

    Args:
        panels: the runs of each variant, by case and by the variant's name in the legend.
    """
    columns = min(len(panels), _MAX_COLUMNS)
    rows = math.ceil(len(panels) / columns)
    size = max(5.0, 3.4 * columns), 3.2 * rows + 0.5
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    names = dict.fromkeys(name for variants in panels.values() for name in variants)
    colors = {name: f"C{i}" for i, name in enumerate(names)}
    for panel, (case, runs_by_name) in zip(axes.flat, panels.items(), strict=False):
        for name, runs in runs_by_name.items():
            _draw_errors(panel, runs, colors[name])
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set(xlabel="epoch", ylabel="error (%)", title=case)
        panel.grid(alpha=0.3)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    handles = [Line2D([], [], color=color, label=name) for name, color in colors.items()]
    handles += [
        Line2D([], [], color="black", linestyle=style, label=_CURVE_NAMES[which])
        for which, style in _LINE_STYLES.items()
    ]
    ncols = min(len(handles), _MAX_LEGEND_COLUMNS if columns > 1 else _MAX_LEGEND_COLUMNS // 2 + 1)
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, fontsize=8)
    return figure


def _draw_errors(panel: Axes, runs: Results, color: str) -> None:
    epochs = len(runs[0].values["train_error"])
    for which, style in _LINE_STYLES.items():
        points = len(runs[0].values[which])
        # Tests are at regular intervals of epochs, and after the last epoch.
        x = [math.ceil(epochs / points) * (i + 1) for i in range(points - 1)] + [epochs]
        marker = "." if points == 1 else None
        plot_spread(panel, x, runs.values(which), "", color=color, linestyle=style, marker=marker)
