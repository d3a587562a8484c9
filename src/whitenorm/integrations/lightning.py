"""Callbacks for lightning's Trainer: watch the norms while a model trains, and recalibrate their statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from whitenorm.diagnostics.destinations import open_destination, scalars
from whitenorm.diagnostics.monitoring import Monitor
from whitenorm.diagnostics.reports import Inspection
from whitenorm.layers.base import PopulationWhitening
from whitenorm.models.recalibrate import recalibrate_

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

_BATCH = nn.modules.batchnorm._BatchNorm
# Callbacks of lightning that put averaged weights into the model, by name, for there are two packages that have them.
_AVERAGING = ("StochasticWeightAveraging", "WeightAveraging")


class NormMonitor(pl.Callback):
    """Log what :func:`whitenorm.diagnostics.inspect` reports while a Trainer fits, for some of the batches.

    The values go to the trainer's loggers as ``norm/<layer>/<measure>``, at the trainer's ``global_step`` when the
    batch begins, as its own metrics do. All else is as with :func:`whitenorm.diagnostics.monitor`, but for
    ``memory_share``, which is not measured.

    Args:
        every: watch the first batch and every so many after it; by default as often as takes 1 % of the time.
        to: instead of the loggers, what :func:`whitenorm.diagnostics.monitor` takes.

    Example::

        >>> import lightning
        >>> trainer = lightning.Trainer(callbacks=[NormMonitor(every=100, to="norms.csv")], logger=False)
    """

    def __init__(self, every: int | None = None, to: Any = None) -> None:
        self.every, self.to = every, to
        self.monitor: Monitor | None = None
        self._open = ExitStack()

    def __getstate__(self) -> dict[str, Any]:
        """Without what belongs to a fit: its monitor, and the files that it opened."""
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
                logger.log_metrics(scalars(rows), step=step)

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
    """Compute the population statistics anew from the training data, with :func:`whitenorm.recalibrate_`.

    It runs when training ends, and so on averaged weights too: ``StochasticWeightAveraging`` updates the statistics of
    BatchNorm alone, and no batch was ever seen with averaged weights. List it after callbacks that average weights.
    Checkpoints that are written before training ends have the statistics as they were then; with
    ``before_validation`` these are recalibrated as well.

    The model runs in eval mode, but for the norms themselves, by its ``forward``. Neither the weights nor the order of
    later batches change. Under several processes the layers join the data of all of them; BatchNorms that are not
    synchronized keep those of their own process.

    Args:
        batches: how many training batches to use; all by default.
        before_validation: recalibrate before each validation, too.
        inputs: from a batch to the model's inputs, as :func:`whitenorm.recalibrate_` takes them; by default the batch,
            of which a tuple's first entry or a dict's keyword arguments are used.

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
        if not _populations(pl_module):
            raise ValueError(
                f"expected a model with population statistics (got {type(pl_module).__name__} without a whitening or "
                "BatchNorm layer that tracks them); leave Recalibrate out"
            )
        if type(pl_module).forward.__qualname__ == "LightningModule.forward":
            raise ValueError(
                f"expected a model with a forward, by which the data pass (got {type(pl_module).__name__} without); "
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
            for prefix, layer in _populations(pl_module).items():
                own = {f"{prefix}.{name}": buffer for name, buffer in layer.named_buffers(recurse=False)}
                checkpoint["state_dict"].update(own)

    def _recalibrate(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        layers = list(_populations(pl_module).values())
        with ExitStack() as stack:
            # Validation may run in inference mode, whose tensors cannot be trained with later.
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(_in_eval_mode(pl_module))
            stack.enter_context(_joined_over_ranks(layers))
            stack.enter_context(trainer.precision_plugin.forward_context())
            recalibrate_(trainer.model or pl_module, self._inputs(trainer), progress=False)

    def _inputs(self, trainer: pl.Trainer) -> Iterator[Any]:
        """The model's inputs, from training batches that are moved and converted as in training."""
        loader = pl.utilities.CombinedLoader(trainer.train_dataloader, "max_size_cycle")
        limits = [limit for limit in (self.batches, trainer.num_training_batches) if isinstance(limit, int)]
        for batch, _, _ in islice(iter(loader), min(limits, default=None)):
            batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
            yield batch if self.inputs is None else self.inputs(batch)


def _populations(model: nn.Module) -> dict[str, nn.Module]:
    """Layers that keep population statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, (PopulationWhitening, _BATCH)) and module.track_running_stats
    }


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _joined_over_ranks(layers: list[nn.Module]) -> Iterator[None]:
    """Let layers that are not synchronized share their statistics for the time being."""
    joined = dist.is_available() and dist.is_initialized()
    own = [layer for layer in layers if isinstance(layer, PopulationWhitening) and layer.process_group is None]
    for layer in own if joined else ():
        layer.process_group = dist.group.WORLD
    try:
        yield
    finally:
        for layer in own:
            layer.process_group = None
