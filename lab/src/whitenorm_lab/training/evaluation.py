"""``whitenorm-lab evaluate``: the test numbers of a run that is done or was stopped."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import tyro

from whitenorm_lab.training.config import RunConfig


@dataclass
class Evaluate:
    """Test the model of a run: the final one, or that of the newest checkpoint."""

    run: tyro.conf.Positional[Path]
    """The folder of a run of whitenorm-lab train."""
    dataset: str | None = None
    """Another set, normalised as the run's was; the run's own if not given."""
    data: Path | None = None
    """The data root; the run's own if not given."""
    test_images: int | None = None
    """Test on the first so many; as many as the run if not given."""
    batch_size: int | None = None
    """Examples at once; the run's own if not given."""
    recalibrate: int | None = None
    """Population statistics from so many training examples; by default the run's, whose final ones are stored."""
    accelerator: str = "auto"
    """cpu, gpu, or what there is."""


def evaluate(options: Evaluate) -> dict[str, dict[str, float]]:
    """The test numbers of every set that a run tests on, such as "test" and "validation".

    Example::

        >>> import tempfile
        >>> from whitenorm_lab.training import Train, fit
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> outcome = fit(Train(net="mlp-16", dataset="digits", epochs=1, folder=folder, quiet=True))
        >>> evaluate(Evaluate(folder))["test"]["accuracy"] == outcome.test_accuracy
        True
    """
    from whitenorm_lab import tasks
    from whitenorm_lab.training import recalibration
    from whitenorm_lab.training.folder import RunFolder
    from whitenorm_lab.training.loading import load
    from whitenorm_lab.training.module import Training
    from whitenorm_lab.training.trainer import make_trainer, quiet

    folder = RunFolder(options.run)
    config, description = _config(options, folder.config()), folder.description()
    model = load(options.run)
    if options.dataset is None and "dataset" in folder.given():
        raise ValueError(f"expected --dataset (got none): the data of {options.run} were handed to fit, not named")
    task = tasks.build_task(config)
    own = batches = task.source(None, lambda: 0, 0, 1)
    try:
        if options.dataset is not None:
            batches = tasks.build_task(config.elsewhere(options.dataset)).source(None, lambda: 0, 0, 1)
        if batches.description != description:
            raise ValueError(
                f"expected data of {description}, as {options.run} has (got {batches.description}); test on another set"
            )
        if not batches.tests:
            raise ValueError(f"expected test data (got none in {options.dataset or config.dataset}); pass --dataset")
        module = Training(model, task, batches.tests)
        stored = options.recalibrate is None and (folder.weights() is not None or options.dataset is not None)
        if number := 0 if stored else recalibration.examples(config, model, task.calibrated):
            module.calibration = batches.calibration(number)
        with quiet():
            trainer = make_trainer(config, None, 1, True, ())
            trainer.validate(module, list(batches.tests.values()), verbose=False)
        return module.tested()
    finally:
        own.close()
        batches.close()


def _config(options: Evaluate, config: RunConfig) -> RunConfig:
    """The run's configuration, with what is asked for instead."""
    given = {name: getattr(options, name) for name in ("data", "test_images", "recalibrate")}
    changes = {name: value for name, value in given.items() if value is not None}
    for name in changes.keys() - {field.name for field in fields(config)}:
        raise ValueError(f"expected no --{name.replace('_', '-')} for a run of {config.task}, which has no such option")
    config = config if options.batch_size is None else config.at_once(options.batch_size)
    return replace(config, **changes, accelerator=options.accelerator, folder=None, sync=False, quiet=True)


def main(args: list[str]) -> None:
    """Parse the arguments and run."""
    run(tyro.cli(Evaluate, prog="whitenorm-lab evaluate", args=args))


def run(options: Evaluate) -> None:
    """Print the numbers, a line a set."""
    from whitenorm_lab import tasks
    from whitenorm_lab.training.folder import RunFolder

    found = evaluate(options)
    task = tasks.build_task(RunFolder(options.run).config())
    for name, numbers in found.items():
        print(f"{name}: {task.words(numbers)}")
