"""What the entries share that train whole networks: variants of a configuration, runs, and claims about errors.

At paper scale the configurations are the papers' own. At smaller scales nets and sets are smaller and a run has fewer
epochs; milestones move with them, so that the schedule keeps its form.

Where a paper chooses the learning rate of each norm by images that are held out, there are runs at several, of which
those with the lowest mean error on such images are compared.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, every, lower, not_run
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.claims.rules import PAIRED_HOLM
from whitenorm_lab.data import ROOT_VARIABLE, root_folder
from whitenorm_lab.papers.shared.curves import curves
from whitenorm_lab.papers.shared.scaling import Rates, as_run, printed, short_of, smaller
from whitenorm_lab.training import DivergenceError, Train, TrainingResult

# Of the last test on images that are held out.
_HELD_OUT = "held_out_error"
Panels = Mapping[str, Mapping[str, Train]]
FEW: Settings = {"train_images": 64, "test_images": 16, "epochs": 1, "batch_size": 32}
"""Of the smoke scale of entries on CIFAR: two steps of one epoch."""


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
    """That one variant's last error is below another's.

    Example::

        >>> lower_error("DBN, 20 layers", "BN, 20 layers", "a picture", "train_error").text
        '20 layers: DBN has a lower train error than BN'
    """
    one, other = _apart(small, large)
    case = small.removeprefix(one).removeprefix(", ")
    text = f"{one} has a lower {which.replace('_', ' ')} than {other}"
    return Claim(f"{case}: {text}" if case else text, paper, errors_below([(small, large)], which))


def errors_below(pairs: Sequence[tuple[str, str]], which: str) -> Callable[[Results], Evidence]:
    """Judges that of each pair of variants the first has the lower last error."""

    def part(results: Results, small: str, large: str) -> Evidence:
        if not {small, large} <= set(results.levels("variant")):
            return not_run()
        judged = lower(last(results, which, small), last(results, which, large), _apart(small, large))
        return dataclasses.replace(judged, prefix=_rates(results, small, large))

    def judge(results: Results) -> Evidence:
        return every(*(part(results, *pair) for pair in pairs))

    return judge


def _apart(small: str, large: str) -> tuple[str, str]:
    """The names of two variants without the case that they share.

    Example::

        >>> _apart("DBN, 20 layers", "BN, 20 layers")
        ('DBN', 'BN')
    """
    (norm, _, case), (other, _, its_case) = small.partition(", "), large.partition(", ")
    return (norm, other) if case == its_case else (small, large)


def _rates(results: Results, *variants: str) -> str:
    """Said before their numbers: the learning rates of variants that had several to choose from."""
    if any(len(results.where(variant=variant).levels("lr")) < 2 for variant in variants):
        return ""
    return f"lr {' and '.join(str(chosen(results, variant).levels('lr')[0]) for variant in variants)}: "


def chosen(results: Results, variant: str) -> Results:
    """The runs of a variant: of several learning rates, those of the one that did best on held-out images."""
    found = results.where(variant=variant)
    return found.best("lr", _HELD_OUT) if len(found.levels("lr")) > 1 else found


def last(results: Results, which: str, variant: str) -> list[float]:
    """The last value of a curve, a seed."""
    return [curve[-1] for curve in chosen(results, variant).values(which)]


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
    rates: Rates | None = None,
    **facts: Any,
) -> Experiment:
    """An experiment whose runs are trainings.

    ``reduced`` and ``smoke`` change every configuration (see :func:`smaller`); their ``cases`` says which panels there
    are at that scale, and ``variants`` which runs of these. ``rates`` are the learning rates of the paper's grid, which
    a smaller scale may have fewer of. What the default scale is short of, and which nets stand in, follow from this.
    """

    def plan(scale: Settings) -> list[Settings]:
        changes = {name: value for name, value in scale.items() if name not in ("cases", "variants", "rates")}
        return [
            settings
            for case in scale.get("cases", panels)
            for name, config in panels[case].items()
            if name in scale.get("variants", panels[case])
            for settings in _settings(name, smaller(config, changes), scale.get("rates", rates))
        ]

    def draw(results: Results) -> Figure:
        there, shown = results.levels("variant"), defaultdict[str, dict[str, Results]](dict)
        for case, name, config in ((case, *pair) for case, panel in panels.items() for pair in panel.items()):
            if name in there:
                runs = chosen(results, name)
                title, label = (as_run(words, config, runs[0].settings) for words in (case, name))
                shown[title][label.removesuffix(f", {title}")] = runs
        return curves(shown)

    first = next(iter(next(iter(panels.values())).values()))
    short: dict[str, Any] = {
        "reduction": short_of(first, reduced, rates),
        "stand_ins": {printed(net): printed(instead) for net, instead in reduced.get("nets", {}).items()},
    }
    return Experiment(
        id=id,
        claims=claims,
        scales={"smoke": smoke, "default": reduced, "paper": {}},
        seeds={"smoke": 1, "default": PAIRED_HOLM.min_seeds, "paper": PAIRED_HOLM.min_seeds},
        plan=plan,
        run=run,
        draw=draw,
        **{**short, **facts},
    )


def _settings(variant: str, config: Train, rates: Rates | None) -> list[Settings]:
    """Of one run, or of one for each learning rate, which is then always named."""
    settings = {"variant": variant, "recalibrate": config.recalibrate, **_changed(config)}
    return [settings] if rates is None else [{**settings, "lr": lr} for lr in rates[config.optimizer]]


def _changed(config: Train) -> Settings:
    """The fields that are not at their default, as JSON has them."""
    plain = Train().to_dict()
    return {name: value for name, value in config.to_dict().items() if value != plain[name]}


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Errors and losses by epoch; those of a run that diverged are infinite from there on."""
    # Lightning takes seconds to import, which a list of experiments need not wait for.
    from lightning.pytorch.callbacks import LambdaCallback

    from whitenorm_lab.training.run import fit

    fields = {name: value for name, value in settings.items() if name != "variant"}
    fields["milestones"] = tuple(fields.get("milestones", ()))
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
        outcome = error.result
    return _values(outcome, config)


def _folder(config: Train, context: Context) -> Path:
    root = root_folder(context.data_root)
    name = config.dataset.removeprefix("imagefolder:")
    if root is None:
        raise OSError(f"{name} needs a data root with {name}/train and {name}/val: pass --data or set ${ROOT_VARIABLE}")
    return root / name


def _values(outcome: TrainingResult, config: Train) -> dict[str, Any]:
    done = outcome.epochs
    tests = [epoch.test_accuracy for epoch in done if epoch.test_accuracy is not None]
    left, untested = config.epochs - len(done), math.ceil(config.epochs / config.test_every) - len(tests)
    values = {
        "train_loss": [epoch.train_loss for epoch in done] + [math.inf] * left,
        "train_error": [_error(epoch.train_accuracy) for epoch in done] + [math.inf] * left,
        "test_error": [_error(accuracy) for accuracy in tests] + [math.inf] * untested,
        "images_per_second": max((epoch.examples_per_second for epoch in done), default=0.0),
    }
    if config.validation_images:
        accuracy = None if left else outcome.validation_accuracy
        values[_HELD_OUT] = math.inf if accuracy is None else _error(accuracy)
    return values


def _error(accuracy: float) -> float:
    return 100 * (1 - accuracy)
