"""What the entries share that train whole networks: variants of a configuration, curves, and claims about errors.

At paper scale the configurations are the papers' own. At smaller scales nets and sets are smaller and a run has fewer
epochs; milestones move with them, so that the schedule keeps its form.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from whitenorm.lab.data import ROOT_VARIABLE, root_folder
from whitenorm.lab.reproduce.evidence import Evidence, every, lower, not_run
from whitenorm.lab.reproduce.experiment import Claim, Context, Experiment, Settings
from whitenorm.lab.reproduce.plots import finish, spread_line
from whitenorm.lab.reproduce.results import Results
from whitenorm.lab.reproduce.rules import SECOND
from whitenorm.lab.training import DivergenceError, Outcome, Train

# Training images of CIFAR.
_CIFAR = 50000
Panels = Mapping[str, Mapping[str, Train]]


def variants(
    base: Train, cases: Mapping[str, Mapping[str, Any]], norms: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Train]]:
    """Every case with every norm, as changes of one configuration: a panel a case."""
    return {
        case: {
            f"{norm}, {case}" if case else norm: dataclasses.replace(base, **{**changes, **options})
            for norm, options in norms.items()
        }
        for case, changes in cases.items()
    }


def lower_error(small: str, large: str, paper: str, which: str = "test_error") -> Claim:
    """That one variant's last error is below another's."""
    words = which.replace("_", " ")
    return Claim(f"{small} has a lower {words} than {large}", paper, errors_below([(small, large)], which))


def errors_below(pairs: Sequence[tuple[str, str]], which: str) -> Callable[[Results], Evidence]:
    """Judges that of each pair of variants the first has the lower last error."""

    def part(results: Results, small: str, large: str) -> Evidence:
        if not {small, large} <= set(results.levels("variant")):
            return not_run()
        return lower(last(results, which, small), last(results, which, large), (small, large))

    def judge(results: Results) -> Evidence:
        return every(*(part(results, *pair) for pair in pairs))

    return judge


def last(results: Results, which: str, variant: str) -> list[float]:
    """The last value of a curve, a seed."""
    return [curve[-1] for curve in results.values(which, variant=variant)]


def below_bn(printed: Mapping[str, Mapping[str, float]]) -> tuple[Claim, ...]:
    """For every case, that each norm's test error is below BN's, beside what is printed for both.

    Example::

        >>> [claim.paper for claim in below_bn({"Res-20": {"BN": 7.94, "DBN-scale-L1": 7.77}})]
        ['BN 7.94 %, DBN-scale-L1 7.77 %']
    """
    return tuple(
        lower_error(f"{name}, {case}", f"BN, {case}", f"BN {errors['BN']} %, {name} {error} %")
        for case, errors in printed.items()
        for name, error in errors.items()
        if name != "BN"
    )


def entry(
    id: str,
    panels: Panels,
    claims: tuple[Claim, ...],
    reduced: Settings,
    smoke: Settings,
    seeds: int = 3,
    recalibrate: bool = False,
    **facts: Any,
) -> Experiment:
    """An experiment whose runs are trainings.

    ``reduced`` and ``smoke`` change every configuration; their ``cases`` says which panels there are at that scale.
    Nets are tested with running statistics, whose lag is part of what the papers compare; with ``recalibrate`` as
    training does by default, which for batch whitening takes them from training images.
    """
    tested = {"recalibrate": None} if recalibrate else {}

    def plan(scale: Settings) -> list[Settings]:
        changes = {name: value for name, value in scale.items() if name != "cases"}
        return [
            {"variant": name, **tested, **_changed(smaller(config, changes))}
            for case in scale.get("cases", panels)
            for name, config in panels[case].items()
        ]

    def draw(results: Results) -> Figure:
        there = set(results.levels("variant"))
        return _curves(results, {case: list(panel) for case, panel in panels.items() if there.issuperset(panel)})

    return Experiment(
        id=id,
        claims=claims,
        reduction=_reduction(next(iter(next(iter(panels.values())).values())), reduced),
        scales={"smoke": smoke, "default": reduced, "paper": {}},
        seeds={"smoke": 1, "default": SECOND.fewest, "paper": seeds},
        plan=plan,
        run=run,
        draw=draw,
        **facts,
    )


def _reduction(config: Train, reduced: Settings) -> str:
    """How much of the paper's training there is, where the number of its images is known."""
    if "train_images" not in reduced:
        return ""
    share = reduced["epochs"] / config.epochs * reduced["train_images"] / _CIFAR
    return f"Trained here on {100 * share:.1g} % of the images that the paper's nets see."


def smaller(config: Train, changes: Settings) -> Train:
    """A configuration with fewer epochs and other changes.

    ``nets`` names other nets for those of the paper, ``norms`` has changes for each norm; ``group_share`` is what is
    left of a group in narrower nets.

    Example::

        >>> short = smaller(Train(epochs=160, milestones=(80, 120)), {"epochs": 4})
        >>> short.epochs, short.milestones
        (4, (2, 3))
    """
    changes = dict(changes)
    share = changes.get("epochs", config.epochs) / config.epochs
    images = changes.get("train_images", _CIFAR) / _CIFAR
    if "group_share" in changes:
        changes["group_size"] = max(1, round(changes.pop("group_share") * (config.group_size or 1)))
    changes["net"] = changes.pop("nets", {}).get(config.net, config.net)
    changes |= changes.pop("norms", {}).get(config.norm, {})
    changes["milestones"] = tuple(sorted({max(1, round(share * epoch)) for epoch in config.milestones}))
    if config.schedule == "every":
        changes["every"] = max(1, round(share * images * config.every))
    return dataclasses.replace(config, **changes)


def _changed(config: Train) -> Settings:
    """The fields that are not at their default, as JSON has them."""
    plain = Train().to_dict()
    return {name: value for name, value in config.to_dict().items() if value != plain[name]}


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Errors and losses by epoch; those of a run that diverged are infinite from there on."""
    # Lightning takes seconds to import, which a list of experiments need not wait for.
    from lightning.pytorch.callbacks import LambdaCallback

    from whitenorm.lab.training.run import fit

    fields = {name: value for name, value in settings.items() if name != "variant"}
    fields["milestones"] = tuple(fields.get("milestones", ()))
    fields.setdefault("recalibrate", 0)
    config = Train(**fields, seed=context.seed, data=context.data_root, folder=context.folder, quiet=True)
    dataset = None
    if config.dataset.startswith("imagefolder:"):
        config = dataclasses.replace(config, dataset=f"imagefolder:{_folder(config, context)}")
    else:
        dataset = context.load(config.dataset)
    watch = LambdaCallback(
        on_train_epoch_end=lambda trainer, module: context.progress((trainer.current_epoch + 1) / config.epochs)
    )
    try:
        outcome = fit(config, dataset=dataset, callbacks=[watch])
    except DivergenceError as error:
        outcome = error.outcome
    return _values(outcome, config.epochs)


def _folder(config: Train, context: Context) -> Path:
    root = root_folder(context.data_root)
    name = config.dataset.removeprefix("imagefolder:")
    if root is None:
        raise OSError(f"{name} needs a data root with {name}/train and {name}/val: pass --data or set ${ROOT_VARIABLE}")
    return root / name


def _values(outcome: Outcome, epochs: int) -> dict[str, Any]:
    rest = [math.inf] * (epochs - len(outcome.epochs))
    tests = [epoch.test_accuracy for epoch in outcome.epochs if epoch.test_accuracy is not None]
    return {
        "train_loss": [epoch.train_loss for epoch in outcome.epochs] + rest,
        "train_error": [100 * (1 - epoch.train_accuracy) for epoch in outcome.epochs] + rest,
        "test_error": [100 * (1 - accuracy) for accuracy in tests] + rest,
        "images_per_second": max((epoch.examples_per_second for epoch in outcome.epochs), default=0.0),
    }


def _curves(results: Results, panels: Mapping[str, list[str]]) -> Figure:
    """Training error (lines) and test error (dashes) by epoch, a panel a case."""
    columns = min(len(panels), 4)
    rows = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(max(5.0, 3.4 * columns), 3.4 * rows), layout="constrained", squeeze=False
    )
    for panel, (case, names) in zip(axes.flat, panels.items(), strict=False):
        for colour, name in enumerate(names):
            found = results.where(variant=name)
            epochs = range(1, len(found[0].values["test_error"]) + 1)
            label = name.removesuffix(f", {case}")
            spread_line(panel, epochs, found.values("train_error"), label, color=f"C{colour}")
            spread_line(panel, epochs, found.values("test_error"), "", color=f"C{colour}", linestyle="--")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set(xlabel="epoch", ylabel="error (%): training —, test - -", title=case)
        finish(panel)
    return figure
