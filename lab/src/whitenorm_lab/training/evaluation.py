"""``whitenorm-lab evaluate``: test scores of a stored run."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import tyro

from whitenorm_lab.training.config import RunConfig


@dataclass
class Evaluate:
    """Test the model of a run with its final weights, or those of its newest checkpoint."""

    run: tyro.conf.Positional[Path]
    """Folder of a run of whitenorm-lab train."""
    dataset: str | None = None
    """Another data set, normalized like the run's; by default the run's own."""
    data: Path | None = None
    """Root folder of the data sets; by default the run's own."""
    test_images: int | None = None
    """Test on this many images, from the first; by default as many as the run."""
    batch_size: int | None = None
    """Examples per batch; by default the run's own."""
    recalibrate: int | None = None
    """Recompute population statistics from this many training examples; by default the stored ones are used."""
    accelerator: str = "auto"
    """cpu, gpu, or auto for whichever is available."""


def evaluate(options: Evaluate) -> dict[str, dict[str, float]]:
    """Return the scores of every set that a run tests on, such as "test" and "validation".

    Example::

        >>> import tempfile
        >>> from whitenorm_lab.training import Train, fit
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> result = fit(Train(net="mlp-16", dataset="digits", epochs=1, folder=folder, quiet=True))
        >>> evaluate(Evaluate(folder))["test"]["accuracy"] == result.test_accuracy
        True
    """
    from whitenorm_lab import tasks
    from whitenorm_lab.training.folder import RunFolder
    from whitenorm_lab.training.loading import load
    from whitenorm_lab.training.module import TrainingModule
    from whitenorm_lab.training.norm_statistics import count_calibration_examples
    from whitenorm_lab.training.trainer import build_trainer, silence_lightning

    folder = RunFolder(options.run)
    config, description = _apply_options(options, folder.read_config()), folder.read_description()
    model = load(options.run)
    if options.dataset is None and "dataset" in folder.read_overrides():
        raise ValueError(f"expected --dataset (got none): the data of {options.run} were passed to fit")
    task = tasks.build_task(config)
    # The run's own data normalize the other set.
    own_loaders = loaders = task.build_loaders(None, lambda: 0, 0, 1)
    try:
        if options.dataset is not None:
            loaders = tasks.build_task(config.for_dataset(options.dataset)).build_loaders(None, lambda: 0, 0, 1)
        if loaders.description != description:
            raise ValueError(
                f"expected data with {description}, like those of {options.run} (got {loaders.description}); test on "
                "another set"
            )
        if not loaders.tests:
            raise ValueError(f"expected test data (got none in {options.dataset or config.dataset}); pass --dataset")
        module = TrainingModule(model, task, loaders.tests)
        has_statistics = folder.read_weights() is not None or options.dataset is not None
        if options.recalibrate is not None or not has_statistics:
            examples = count_calibration_examples(config, model, task.calibration_examples)
            module.calibration = loaders.build_calibration(examples) if examples else None
        with silence_lightning():
            trainer = build_trainer(config, None, 1, True, ())
            trainer.validate(module, list(loaders.tests.values()), verbose=False)
        return module.compute_test_scores()
    finally:
        own_loaders.close()
        loaders.close()


def _apply_options(options: Evaluate, config: RunConfig) -> RunConfig:
    """Return the run's configuration, changed by the options."""
    values = {name: getattr(options, name) for name in ("data", "test_images", "recalibrate")}
    changes = {name: value for name, value in values.items() if value is not None}
    for name in changes.keys() - {field.name for field in fields(config)}:
        raise ValueError(f"expected no --{name.replace('_', '-')} for a run of {config.task}, which has no such option")
    config = config if options.batch_size is None else config.with_batch_size(options.batch_size)
    return replace(config, **changes, accelerator=options.accelerator, folder=None, sync=False, quiet=True)


def main(args: list[str]) -> None:
    """Parse the arguments and run the command."""
    run(tyro.cli(Evaluate, prog="whitenorm-lab evaluate", args=args))


def run(options: Evaluate) -> None:
    """Print the scores, one line per test set."""
    from whitenorm_lab import tasks
    from whitenorm_lab.training.folder import RunFolder

    results = evaluate(options)
    task = tasks.build_task(RunFolder(options.run).read_config())
    for name, scores in results.items():
        print(f"{name}: {task.format_scores(scores)}")
