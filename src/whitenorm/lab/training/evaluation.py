"""``whitenorm evaluate``: the test numbers of a run that is done or was stopped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import tyro

from whitenorm.lab.training.config import Train

_FOLDER = "imagefolder:"


@dataclass
class Evaluate:
    """Test the model of a run: the final one, or that of the newest checkpoint."""

    run: tyro.conf.Positional[Path]
    """The folder of a run of whitenorm train."""
    dataset: str | None = None
    """Another set, normalised as the run's was; the run's own if not given."""
    data: Path | None = None
    """The data root; the run's own if not given."""
    test_images: int | None = None
    """Test on the first so many; as many as the run if not given."""
    batch_size: int | None = None
    """Images at once; the run's own if not given."""
    recalibrate: int | None = None
    """Population statistics from so many training images; by default those of the run, whose final ones are stored."""
    accelerator: str = "auto"
    """cpu, gpu, or what there is."""


def evaluate(options: Evaluate) -> dict[str, dict[str, float]]:
    """Loss and accuracy on the test images, and on the validation images if the run has some.

    Example::

        >>> import tempfile
        >>> from whitenorm.lab.training import Train, fit
        >>> folder = Path(tempfile.mkdtemp()) / "run"
        >>> outcome = fit(Train(net="mlp-16", dataset="digits", epochs=1, folder=folder, quiet=True))
        >>> evaluate(Evaluate(folder))["test"]["accuracy"] == outcome.test_accuracy
        True
    """
    from whitenorm.lab.training import recalibration
    from whitenorm.lab.training.folder import RunFolder
    from whitenorm.lab.training.loading import load
    from whitenorm.lab.training.module import Classifier
    from whitenorm.lab.training.sources import source
    from whitenorm.lab.training.trainer import make_trainer, quiet

    folder = RunFolder(options.run)
    config, description = _config(options, folder.config()), folder.description()
    model = load(options.run)
    if options.dataset is None and "dataset" in description.given:
        raise ValueError(f"expected --dataset (got none): the data of {options.run} were handed to fit, not named")
    tested = config if options.dataset is None else _elsewhere(config, options.dataset)
    batches = source(tested, None, lambda: 0, 0, 1)
    if (batches.classes, batches.shape) != (description.classes, description.shape):
        raise ValueError(
            f"expected images of {description.shape} and {description.classes} classes, as {options.run} has (got "
            f"{batches.shape} and {batches.classes} in {tested.dataset}); test on another set"
        )
    if not batches.tests:
        raise ValueError(f"expected test images in {tested.dataset} (got none); pass another --dataset")
    own = batches if options.dataset is None else source(config, None, lambda: 0, 0, 1)
    module = Classifier(model, tested, batches.classes, own.normalisation, batches.tests)
    stored = options.recalibrate is None and (folder.weights() is not None or options.dataset is not None)
    if number := 0 if stored else recalibration.images(tested, model):
        module.calibration = batches.calibration(number)
    with quiet():
        trainer = make_trainer(tested, None, 1, True, ())
        trainer.validate(module, list(batches.tests.values()), verbose=False)
    batches.close()
    return {name: scores.compute() for name, scores in module.test_scores.items()}  # type: ignore[operator]


def _config(options: Evaluate, config: Train) -> Train:
    """The run's configuration, with what is asked for instead."""
    given = {name: getattr(options, name) for name in ("data", "test_images", "batch_size", "recalibrate")}
    changes = {name: value for name, value in given.items() if value is not None}
    return replace(config, **changes, accelerator=options.accelerator, folder=None, sync=False, quiet=True)


def _elsewhere(config: Train, dataset: str) -> Train:
    """The same on another set, of which nothing was trained on."""
    if dataset.startswith(_FOLDER) != config.dataset.startswith(_FOLDER):
        raise ValueError(
            f"expected an image folder for a run on image folders, and a named set for others (got {dataset} for one "
            f"on {config.dataset})"
        )
    return replace(config, dataset=dataset, train_images=None, validation_images=0)


def run(options: Evaluate) -> None:
    """Print the numbers, a line a set."""
    for name, numbers in evaluate(options).items():
        top5 = f", top-5 {numbers['top5']:.2%}" if "top5" in numbers else ""
        print(f"{name}: accuracy {numbers['accuracy']:.2%}{top5}, loss {numbers['loss']:.4f}")
