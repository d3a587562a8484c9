"""Runs of the training program ``whitenorm-lab train`` in experiments: settings, training, and axes over epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from whitenorm_lab.claims.experiment import Context, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend
from whitenorm_lab.data import ROOT_VARIABLE, Dataset, root_folder
from whitenorm_lab.training import DivergenceError, RunConfig, TrainingResult


def non_default_fields(config: RunConfig, default: RunConfig) -> Settings:
    """Return the fields that differ from another configuration, as JSON types.

    Floats are rounded to the seven digits of stored results, so that a run's settings equal the stored ones.
    """
    default_fields = default.to_dict()
    return {
        name: float(f"{value:.7g}") if isinstance(value, float) else value
        for name, value in config.to_dict().items()
        if value != default_fields[name]
    }


def context_fields(context: Context) -> dict[str, Any]:
    """Return the fields of a configuration that the context of a run decides."""
    return {"seed": context.seed, "data": context.data_root, "folder": context.folder, "quiet": True}


def fit_or_diverge(config: RunConfig, context: Context, dataset: Dataset | None = None) -> tuple[TrainingResult, bool]:
    """Train; return the result, up to the divergence if there is one, and whether the loss diverged."""
    # Lightning takes seconds to import, which listing the experiments does not need.
    from lightning.pytorch.callbacks import LambdaCallback

    from whitenorm_lab.training.run import fit

    report_progress = LambdaCallback(
        on_train_batch_end=lambda trainer, module, *_: context.progress(trainer.global_step / module.total_steps)
    )
    try:
        return fit(config, dataset=dataset, callbacks=[report_progress]), False
    except DivergenceError as error:
        return error.result, True


def highest_throughput(result: TrainingResult) -> float:
    """Return the examples per second of the fastest epoch; 0 if no epoch was finished."""
    return max((epoch.examples_per_second for epoch in result.epochs), default=0.0)


def require_data_root(context: Context, purpose: str) -> Path:
    """Return the folder of the data sets; raise an OSError if there is none."""
    root = root_folder(context.data_root)
    if root is None:
        raise OSError(f"expected a data root with {purpose} (got none); pass --data or set ${ROOT_VARIABLE}")
    return root


def finish_epochs(axes: Axes, ylabel: str, title: str) -> None:
    """Label a panel of curves over epochs."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="epoch", ylabel=ylabel, title=title)
    add_grid_and_legend(axes)
