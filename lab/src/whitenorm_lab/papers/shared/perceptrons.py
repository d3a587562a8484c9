"""Build, run, compare and draw the experiments with perceptrons on MNIST.

The settings of a run name the ``norm`` with its options (``eps``, ``group_size``, ``affine``, ``groups``, ``T``), the
network (``hidden`` layers of ``width`` units), the number of training ``images``, ``lr`` and ``steps``. Optional are
``batch_size``, ``points`` of the curves, ``test_images``, and ``recalibrate``: tests then use population statistics of
all training images instead of running averages, which lag behind after few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from torch import nn

import whitenorm
from whitenorm.models import recalibrate_
from whitenorm_lab.claims.evidence import Evidence, alike, lower
from whitenorm_lab.claims.experiment import Context, Settings
from whitenorm_lab.claims.plots import plot_levels, plot_spread
from whitenorm_lab.claims.results import Results
from whitenorm_lab.data import Split
from whitenorm_lab.fitting import Measure, center_images, compute_error, fit
from whitenorm_lab.nets.mlp import mlp

Judge = Callable[[Results], Evidence]

_BATCH_WHITENING = {"DBN": "zca", "DBN-ZCA": "zca", "DBN-PCA": "pca", "BW": "zca", "BW-C16": "zca"}
_NORMS = ("plain", "BN", "GN", "GW", "IterNorm", *_BATCH_WHITENING)
_WITHOUT_POPULATION = ("plain", "GN", "GW")
# Images per batch when population statistics are recalibrated.
_RECALIBRATION_BATCH = 10000
# Error in percent of guessing one of ten classes.
CHANCE = 90.0
# How claims name the level of a setting.
LEVEL_PREFIXES = {"batch_size": "batches of", "groups": "g =", "num_groups": "g ="}


def build_norm(settings: Settings, width: int) -> nn.Module:
    """Build the norm that the settings of a run name.

    Example::

        >>> build_norm({"norm": "GW", "groups": 4, "eps": 1e-5}, 32)
        GroupWhitening(4, 32, solver=Newton(steps=5), eps=1e-05, affine=True, bias=True)
    """
    name, eps = settings["norm"], settings.get("eps", 1e-5)
    if name == "plain":
        return nn.Identity()
    if name == "BN":
        return nn.BatchNorm1d(width, eps)
    if name == "GN":
        return nn.GroupNorm(settings["groups"], width, eps)
    if name == "GW":
        return whitenorm.GroupWhitening(settings["groups"], width, eps=eps)
    if name == "IterNorm":
        return whitenorm.IterNorm(width, width, settings["T"], eps)
    if name in _BATCH_WHITENING:
        affine = settings.get("affine", True)
        return whitenorm.BatchWhitening(width, settings.get("group_size"), _BATCH_WHITENING[name], eps, affine=affine)
    raise ValueError(f"expected a norm of {', '.join(_NORMS)} (got {name!r})")


def load_mnist(context: Context, images: int, test_images: int) -> tuple[Split, Split]:
    """Load the first images of both splits and subtract the mean of the training images."""
    whole = context.load("mnist")
    train = Split(whole.train.images[:images], whole.train.labels[:images])
    mean = train.images.float().div(255).mean(0)
    test = Split(whole.test.images[:test_images], whole.test.labels[:test_images])
    return center_images(train, mean), center_images(test, mean)


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Train a perceptron; return its curves, and the final training loss, training error and test error (if any)."""
    train, test = load_mnist(context, settings["images"], settings.get("test_images", 0))
    hidden = [settings["width"]] * settings["hidden"]
    curves = fit(
        mlp(10, (1, 28, 28), hidden=hidden, norm=lambda width: build_norm(settings, width)),
        train,
        lr=settings["lr"],
        steps=settings["steps"],
        batch_size=settings.get("batch_size"),
        seed=context.seed,
        points=settings.get("points", 50),
        measure=_build_test_measure(train, test, settings) if len(test.labels) else None,
        progress=context.progress,
    )
    names = ("loss", "error", "test") if len(test.labels) else ("loss", "error")
    return {**curves, **{f"final_{name}": curves.get(name, [math.inf])[-1] for name in names}}


def _build_test_measure(train: Split, test: Split, settings: Settings) -> Measure:
    recalibrates = settings.get("recalibrate", False) and settings["norm"] not in _WITHOUT_POPULATION

    def measure(model: nn.Module) -> dict[str, float]:
        if recalibrates:
            # Training is not affected: it uses batch statistics.
            recalibrate_(model, train.images.split(_RECALIBRATION_BATCH), progress=False)
        return {"test": compute_error(model, test)}

    return measure


def select_best_lr(results: Results, by: str = "final_loss", **settings: Any) -> Results:
    """Select the runs with these settings at the learning rate with the lowest mean of a value."""
    return results.best("lr", by, **settings)


def select_best_lr_per_level(results: Results, over: str, by: str) -> Results:
    """Select the runs at every level of a setting, each at its own best learning rate."""
    return Results(run for level in results.levels(over) for run in select_best_lr(results, by, **{over: level}))


def format_method(settings: Settings) -> str:
    """Format the name of a method for a legend."""
    values = [f"{name} = {settings[name]}" for name in ("T", "groups") if name in settings]
    return ", ".join([settings["norm"], *values])


def expect_lower(value: str, one: Settings, other: Settings) -> Judge:
    """Build a judge that expects a lower value of one method than of another, each at its best learning rate."""

    def judge(results: Results) -> Evidence:
        small, large = (select_best_lr(results, **method).values(value) for method in (one, other))
        return lower(small, large, (format_method(one), format_method(other)))

    return judge


def expect_guessing(method: Settings, **settings: Any) -> Judge:
    """Build a judge that expects a method's training error to be within 10 points of guessing."""

    def judge(results: Results) -> Evidence:
        errors = select_best_lr(results, **method, **settings).values("final_error")
        return alike(errors, [CHANCE] * len(errors), (f"error in % of {method['norm']}", "guessing"), margin=10)

    return judge


def lower_at_best_other_level(results: Results, over: str, level: Any, value: str, what: str) -> Evidence:
    """Compare a value at one level of a setting with that at the best of its other levels, expected to be lower."""
    others = Results(run for run in results if run.settings[over] != level)
    best = others.best(over, value)
    prefix = LEVEL_PREFIXES.get(over, over)
    names = f"{what}, {prefix} {best.levels(over)[0]}", f"{prefix} {level}"
    return lower(best.values(value), results.where(**{over: level}).values(value), names)


def draw_best_curve(panel: Axes, results: Results, method: Settings, value: str = "loss", **style: Any) -> None:
    """Draw a curve of a method at its best learning rate, which the legend names unless ``style`` has a ``label``."""
    runs = select_best_lr(results, **method)
    style = {"label": f"{format_method(method)}, lr {runs.levels('lr')[0]}", **style}
    plot_spread(panel, runs[0].values["step"], runs.values(value), **style)


def draw_accuracy(panel: Axes, results: Results, over: str, value: str, name: str, **style: Any) -> None:
    """Draw the accuracy, 100 minus an error in percent, over the levels of a setting."""
    levels = sorted(results.levels(over))
    columns = [[100 - error for error in results.values(value, **{over: level})] for level in levels]
    plot_levels(panel, levels, columns, name, **style)
