"""What the experiments with perceptrons on MNIST share: norms by name, one run, and claims between tuned methods.

The settings of a run have ``norm`` and what that norm takes (``eps``, ``group_size``, ``affine``, ``groups``, ``T``),
the network (``hidden`` layers of ``width`` units), ``images`` of the training set, ``lr``, ``steps``, and where they
are used ``batch_size``, ``points`` of the curves, ``test_images``, and ``recalibrate``, whether a test begins with
population statistics of all training images instead of running averages, which lag behind after few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from torch import nn

import whitenorm
from whitenorm.models import recalibrate_
from whitenorm_lab.claims.evidence import Evidence, lower
from whitenorm_lab.claims.experiment import Context, Settings
from whitenorm_lab.claims.plots import plot_levels
from whitenorm_lab.claims.results import Results
from whitenorm_lab.data import Split
from whitenorm_lab.fitting import Measure, centred, error, fit
from whitenorm_lab.nets.mlp import mlp

Judge = Callable[[Results], Evidence]

_BATCH_WHITENING = {"DBN": "zca", "DBN-ZCA": "zca", "DBN-PCA": "pca", "BW": "zca", "BW-C16": "zca"}
_NORMS = ("plain", "BN", "GN", "GW", "IterNorm", *_BATCH_WHITENING)
_WITHOUT_POPULATION = ("plain", "GN", "GW")
# Images that statistics are taken from at a time.
_ROWS = 10000
# A setting that is varied, before its value.
WORDS = {"batch_size": "batches of", "groups": "g =", "num_groups": "g ="}


def norm(settings: Settings, width: int) -> nn.Module:
    """The norm that a run's settings name.

    Example::

        >>> norm({"norm": "GW", "groups": 4, "eps": 1e-5}, 32)
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


def mnist(context: Context, images: int, test_images: int) -> tuple[Split, Split]:
    """The first images of both splits, less the mean of the training images."""
    whole = context.load("mnist")
    first = Split(whole.train.images[:images], whole.train.labels[:images])
    mean = first.images.float().div(255).mean(0)
    test = Split(whole.test.images[:test_images], whole.test.labels[:test_images])
    return centred(first, mean), centred(test, mean)


def trained(model: nn.Module, train: Split, test: Split, settings: Settings, context: Context) -> dict[str, Any]:
    """The curves of a run, and its last training loss and error and, where there are images for it, test error."""
    curve = fit(
        model,
        train,
        lr=settings["lr"],
        steps=settings["steps"],
        batch_size=settings.get("batch_size"),
        seed=context.seed,
        points=settings.get("points", 50),
        measure=_tested(train, test, settings) if len(test.labels) else None,
        progress=context.progress,
    )
    names = ("loss", "error", "test") if len(test.labels) else ("loss", "error")
    return {**curve, **{f"final_{name}": curve.get(name, [math.inf])[-1] for name in names}}


def _tested(train: Split, test: Split, settings: Settings) -> Measure:
    """The test error. Statistics that are taken anew change nothing in training, which has those of its batches."""
    anew = settings.get("recalibrate", False) and settings["norm"] not in _WITHOUT_POPULATION

    def measure(model: nn.Module) -> dict[str, float]:
        if anew:
            recalibrate_(model, train.images.split(_ROWS), progress=False)
        return {"test": error(model, test)}

    return measure


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """A perceptron fitted to MNIST."""
    train, test = mnist(context, settings["images"], settings.get("test_images", 0))
    hidden = [settings["width"]] * settings["hidden"]
    model = mlp(10, (1, 28, 28), hidden=hidden, norm=lambda width: norm(settings, width))
    return trained(model, train, test, settings, context)


def tuned(results: Results, by: str = "final_loss", **settings: Any) -> Results:
    """The runs at the learning rate with the lowest mean."""
    return results.best("lr", by, **settings)


def over_levels(found: Results, over: str, by: str) -> Results:
    """The runs of every value of a setting, each at its own best learning rate."""
    return Results(run for level in found.levels(over) for run in tuned(found, by, **{over: level}))


def label(settings: Settings) -> str:
    """A method as the pictures name it."""
    values = [f"{name} = {settings[name]}" for name in ("T", "groups") if name in settings]
    return ", ".join([settings["norm"], *values])


def below(value: str, one: Settings, other: Settings, by: str = "final_loss", margin: float = 0.0) -> Judge:
    """A claim that one method has a lower value than another, each at its best learning rate."""

    def judge(results: Results) -> Evidence:
        small, large = (tuned(results, by, **which).values(value) for which in (one, other))
        return lower(small, large, (label(one), label(other)), margin)

    return judge


def rest_below(found: Results, over: str, level: Any, value: str, what: str) -> Evidence:
    """That the best of a setting's other values has lower numbers than this one."""
    last, rest = found.where(**{over: level}), Results(run for run in found if run.settings[over] != level)
    best = rest.best(over, value)
    word = WORDS.get(over, over)
    names = f"{what}, {word} {best.levels(over)[0]}", f"{word} {level}"
    return lower(best.values(value), last.values(value), names)


def accuracy_line(panel: Axes, found: Results, over: str, value: str, name: str, **style: Any) -> None:
    """100 less an error, over a setting."""
    levels = sorted(found.levels(over))
    columns = [[100 - error for error in found.values(value, **{over: level})] for level in levels]
    plot_levels(panel, levels, columns, name, **style)
