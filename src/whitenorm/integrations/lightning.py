"""Callbacks for lightning's Trainer: monitor the norms during training, and recalibrate their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from whitenorm.diagnostics.destinations import collect_scalars, open_destination
from whitenorm.diagnostics.monitoring import Monitor
from whitenorm.diagnostics.optimization import eval_mode
from whitenorm.diagnostics.reports import Inspection
from whitenorm.layers import PopulationWhitening
from whitenorm.models import recalibrate_
from whitenorm.models.norms import keeps_population

try:
    import lightning.pytorch as pl
except ImportError:
    try:
        import pytorch_lightning as pl  # type: ignore[no-redef]
    except ImportError as error:
        raise ImportError(
            "expected lightning for whitenorm.integrations.lightning (got neither lightning nor pytorch_lightning); "
            "run pip install lightning"
        ) from error

__all__ = ["NormMonitor", "Recalibrate"]

# Callbacks that put averaged weights into the model, by name, since lightning and pytorch_lightning both have them.
_AVERAGING = ("StochasticWeightAveraging", "WeightAveraging")


class NormMonitor(pl.Callback):
    """Log the measures of :func:`whitenorm.diagnostics.inspect` during training, for some of the batches.

    The values go to the trainer's loggers as ``norm/<layer>/<measure>``, at the ``global_step`` when the batch begins,
    as for the trainer's own metrics. Otherwise it works as :func:`whitenorm.diagnostics.monitor`, except that
    ``memory_share`` is not measured.

    Args:
        every: number of batches from one measurement to the next, starting with the first batch; by default as many as
            needed for 1 % of the training time.
        to: a destination as for :func:`whitenorm.diagnostics.monitor`; by default the trainer's loggers.

    Example::

        >>> import lightning
        >>> trainer = lightning.Trainer(callbacks=[NormMonitor(every=100, to="norms.csv")], logger=False)
    """

    def __init__(self, every: int | None = None, to: Any = None) -> None:
        self.every, self.to = every, to
        self.monitor: Monitor | None = None
        self._open = ExitStack()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the monitor and open files of a fit."""
        return {**self.__dict__, "monitor": None, "_open": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _open=ExitStack())

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.to is None and not trainer.loggers:
            raise ValueError("expected a trainer with a logger (got none); give it one, or name a file: to=")
        if not trainer.is_global_zero:
            return

        def log(step: int, rows: Inspection) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(collect_scalars(rows), step=step)

        write = log if self.to is None else self._open.enter_context(open_destination(self.to))
        self.monitor = Monitor(pl_module, write, self.every)
        self._open.callback(self.monitor.leave)

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.monitor is not None:
            self.monitor.begin(trainer.global_step)

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Any) -> None:
        if self.monitor is not None:
            self.monitor.complete()
            self.monitor.leave()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self.monitor is not None:
            self.monitor.complete()
            self.monitor.finish()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._open.close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._open.close()


class Recalibrate(pl.Callback):
    """Recompute the population statistics from the training data, with :func:`whitenorm.recalibrate_`.

    It runs when training ends, on averaged weights if there are any: ``StochasticWeightAveraging`` updates only the
    statistics of BatchNorm. List this callback after those that average weights. Checkpoints that are written before
    training ends have the running statistics of that time, or recalibrated ones with ``before_validation``.

    The model's ``forward`` runs in eval mode, except for the norms. The weights and the order of later batches do not
    change. With several processes, the layers combine the data of all of them; BatchNorms that are not synchronized use
    only their own process's data.

    Args:
        batches: number of training batches to use; all by default.
        before_validation: also recalibrate before each validation.
        inputs: a function from a batch to the model's inputs, as :func:`whitenorm.recalibrate_` takes them; by default
            the batch itself, of which a tuple's first entry or a dict's keyword arguments are used.

    Example::

        >>> import lightning
        >>> from lightning.pytorch.callbacks import StochasticWeightAveraging
        >>> callbacks = [StochasticWeightAveraging(0.01), Recalibrate(batches=100)]
        >>> trainer = lightning.Trainer(callbacks=callbacks, logger=False)
    """

    def __init__(
        self,
        batches: int | None = None,
        before_validation: bool = False,
        inputs: Callable[[Any], Any] | None = None,
    ) -> None:
        if batches is not None and (isinstance(batches, bool) or not isinstance(batches, int) or batches < 1):
            raise ValueError(f"expected batches to be a whole number of at least 1, or None for all (got {batches!r})")
        self.batches, self.before_validation, self.inputs = batches, before_validation, inputs
        self._has_ended = False

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._has_ended = False
        if not _find_population_layers(pl_module):
            raise ValueError(
                f"expected a model with population statistics (got {type(pl_module).__name__} without a whitening or "
                "BatchNorm layer that tracks them); leave Recalibrate out"
            )
        if type(pl_module).forward.__qualname__ == "LightningModule.forward":
            raise ValueError(
                f"expected a model with a forward to run on the data (got {type(pl_module).__name__} without); "
                "define it, such as: def forward(self, x): return self.net(x)"
            )
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        later = [type(callback) for callback in callbacks[callbacks.index(self) :]]
        averaging = [kind.__name__ for kind in later if any(base.__name__ in _AVERAGING for base in kind.__mro__)]
        if averaging:
            raise ValueError(
                f"expected Recalibrate after {averaging[0]} in callbacks, so that it sees the averaged weights (got it "
                f"before); pass callbacks=[..., {averaging[0]}(...), Recalibrate(...)]"
            )

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.before_validation and trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._recalibrate(trainer, pl_module)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._recalibrate(trainer, pl_module)
        self._has_ended = True

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Save the recalibrated statistics where ``WeightAveraging`` saves its own copy of the model."""
        if self._has_ended:
            for prefix, layer in _find_population_layers(pl_module).items():
                buffers = {f"{prefix}.{name}": buffer for name, buffer in layer.named_buffers(recurse=False)}
                checkpoint["state_dict"].update(buffers)

    def _recalibrate(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        layers = list(_find_population_layers(pl_module).values())
        with ExitStack() as stack:
            # Validation may run in inference mode, whose tensors cannot be trained with later.
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(eval_mode(pl_module))
            stack.enter_context(_share_statistics(layers))
            stack.enter_context(trainer.precision_plugin.forward_context())
            recalibrate_(trainer.model or pl_module, self._iterate_inputs(trainer), progress=False)

    def _iterate_inputs(self, trainer: pl.Trainer) -> Iterator[Any]:
        """Yield the model's inputs, from training batches that are moved and converted as in training."""
        loader = pl.utilities.CombinedLoader(trainer.train_dataloader, "max_size_cycle")
        limits = [limit for limit in (self.batches, trainer.num_training_batches) if isinstance(limit, int)]
        for batch, _, _ in islice(iter(loader), min(limits, default=None)):
            batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
            yield batch if self.inputs is None else self.inputs(batch)


def _find_population_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that keep population statistics, by name."""
    return {name: module for name, module in model.named_modules() if keeps_population(module)}


@contextmanager
def _share_statistics(layers: list[nn.Module]) -> Iterator[None]:
    """Make layers that are not synchronized share their statistics temporarily."""
    is_distributed = dist.is_available() and dist.is_initialized()
    local = [layer for layer in layers if isinstance(layer, PopulationWhitening) and layer.process_group is None]
    for layer in local if is_distributed else ():
        layer.process_group = dist.group.WORLD
    try:
        yield
    finally:
        for layer in local:
            layer.process_group = None
