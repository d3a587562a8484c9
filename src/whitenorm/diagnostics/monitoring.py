"""Monitoring of the norms during training, at intervals and at low cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from whitenorm.diagnostics.destinations import Write, open_destination
from whitenorm.diagnostics.measuring import FEW_VALUES, measure_layer
from whitenorm.diagnostics.recording import Recorder, map_norms_to_names
from whitenorm.diagnostics.reports import Inspection, LayerReport
from whitenorm.diagnostics.wrappers import find_called_module, unwrap, unwrap_name, without_compiler
from whitenorm.ops.check import check_positive

# Share of the training time that monitoring may take by default.
BUDGET = 0.01
# Drift is reported once the weight of a population's initial values is below this.
_MAX_INITIAL_WEIGHT = 0.01


class Monitor:
    """Record some of the steps of a training run.

    ``step`` is the number of the current step, ``last`` the most recent :class:`Inspection`, and ``cost`` the seconds
    spent on monitoring so far.
    """

    def __init__(self, model: nn.Module, write: Write, every: int | None = None) -> None:
        if every is not None:
            check_positive("every", every)
        self.step = 0
        self.last: Inspection | None = None
        self.cost = 0.0
        self._layers = {layer: unwrap_name(name) for layer, name in map_norms_to_names(unwrap(model)).items()}
        self._model, self._write, self._every = model, write, every
        self._num_steps = 0
        self._start = self._last_cost = 0.0
        self._recorder: Recorder | None = None
        self._is_complete = False
        self._forward = ExitStack()
        self._warned: set[tuple[str, str]] = set()

    def begin(self, step: int, memory: bool = False) -> bool:
        """Begin the forward of a step, and return whether the step is recorded; ``memory`` records saved bytes too."""
        self.finish()
        self.step = step
        now = time.perf_counter()
        is_due = self._is_due(now)
        self._num_steps += 1
        if is_due:
            self._recorder, self._is_complete = Recorder(self._layers), False
            self._forward.enter_context(without_compiler())
            self._forward.enter_context(self._recorder.record_features())
            if memory:
                self._forward.enter_context(self._recorder.record_saved_bytes(self._model))
            # Last, because recorded times leave out the recorder's cost from here on.
            self._recorder.cost += time.perf_counter() - now
            self._forward.enter_context(self._recorder.record_times())
        return is_due

    def _is_due(self, now: float) -> bool:
        if self._num_steps == 0:
            self._start = now
            return True
        if self._every is not None:
            return self._num_steps % self._every == 0
        return self.cost + self._last_cost <= BUDGET * (now - self._start)

    def complete(self) -> None:
        """Mark the forward as completed without an error."""
        self._is_complete = self._recorder is not None

    def leave(self) -> None:
        """Remove the hooks from the layers, after the forward has ended or failed."""
        self._forward.close()

    def finish(self) -> None:
        """End the step, and write its rows if it was recorded and its forward completed."""
        self.leave()
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.remove_tensor_hooks()
        if self._is_complete:
            start = time.perf_counter()
            with torch.no_grad():
                results = [self._measure(recorder, layer) for layer in recorder.order]
            self.last = Inspection(report for report, _ in results)
            self._write(self.step, self.last)
            self._last_cost = recorder.cost + time.perf_counter() - start
            self.cost += self._last_cost
            self._warn(results)

    def _measure(self, recorder: Recorder, layer: nn.Module) -> tuple[LayerReport, dict[str, str]]:
        report, advice = measure_layer(recorder, layer)
        if not _is_population_settled(layer):
            advice.pop("drift", None)
        report.advice = list(advice.values())
        return report, advice

    def _warn(self, results: list[tuple[LayerReport, dict[str, str]]]) -> None:
        if not results:
            warnings.warn(f"step {self.step} ran none of the model's norms; there is nothing to report", stacklevel=2)
        for report, advice in results:
            for kind, text in advice.items():
                if kind != FEW_VALUES and (report.name, kind) not in self._warned:
                    self._warned.add((report.name, kind))
                    warnings.warn(f"{report.name} ({report.kind}), step {self.step}: {text}", stacklevel=2)


@contextmanager
def monitor(model: nn.Module, to: Any, every: int | None = None, *, first_step: int = 1) -> Iterator[Monitor]:
    """Write what :func:`inspect` reports for some of the steps of the training loop inside the context.

    The loop needs no changes. A step is one forward of the model in training mode with gradients enabled; gradient
    accumulation makes several steps per update. A recorded step keeps at most 4096 rows of each norm's input and
    output, and is written when the next step begins or the context ends. Training is the same with and without, bit for
    bit: nothing runs twice, and the global random generators are not used.

    Problems in the set-up are reported as a ``UserWarning``, once per layer and kind. Drift of the population is not
    reported before the running statistics have forgotten their initial values.

    Args:
        model: any module that the loop calls, also in DDP or FSDP; of several processes only rank zero records.
            Recorded steps of a model compiled by ``torch.compile(model)`` run without the compiler. The model must not
            be called inside a compiled function.
        to: a ``.csv`` file, to which rows are appended; a folder for TensorBoard; a writer with
            ``add_scalar(tag, value, step)``; or a function of the step and the :class:`Inspection`.
        every: record the first step, and then every ``every``-th. By default, as often as monitoring takes at most 1 %
            of the time.
        first_step: the number of the first step, when training is resumed.

    ``gradient_ratio`` is None where another forward comes before the backward. On a GPU a recorded step synchronizes
    the device before and after each norm, to time it.

    Example::

        >>> model = nn.Sequential(nn.Linear(8, 8), whitenorm.IterNorm(8), nn.Linear(8, 2))
        >>> with monitor(model, lambda step, rows: print(step, rows[0].name), every=2) as watching:
        ...     for _ in range(4):
        ...         model(torch.randn(64, 8)).square().mean().backward()
        1 1
        3 1
        >>> watching.last[0].condition_after < watching.last[0].condition_before
        True
    """
    module = find_called_module(model)
    if isinstance(first_step, bool) or not isinstance(first_step, int) or first_step < 0:
        raise ValueError(f"expected first_step to be a whole number of at least 0 (got {first_step!r})")
    if every is not None:
        check_positive("every", every)
    if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        yield Monitor(model, lambda step, rows: None, every)
        return
    with ExitStack() as stack:
        watching = Monitor(model, stack.enter_context(open_destination(to)), every)
        watching.step = first_step - 1
        stack.callback(watching.finish)
        hooks = _Hooks(module, watching)
        stack.callback(hooks.remove)
        hooks.handles.append(module.register_forward_pre_hook(hooks.before, prepend=True))
        yield watching
    if watching.step < first_step:
        warnings.warn(
            f"expected training steps inside the context (got no forward of this {type(module).__name__} in training "
            "mode with gradients on); pass the module that the loop calls, and do not call it inside a compiled "
            "function",
            stacklevel=3,
        )


class _Hooks:
    """Hooks on the called module; a copy or pickle of the module gets hooks that do nothing."""

    def __init__(self, module: nn.Module | None = None, watching: Monitor | None = None) -> None:
        self.module, self.watching = module, watching
        self.handles: list[RemovableHandle] = []

    def __reduce__(self) -> tuple[type[_Hooks], tuple[()]]:
        return _Hooks, ()

    def before(self, module: nn.Module, inputs: Any) -> None:
        if self.watching is None or module is not self.module or not module.training or not torch.is_grad_enabled():
            return
        # Inside backward, a checkpoint recomputes a forward that was counted already.
        if torch._C._current_graph_task_id() != -1:
            return
        while len(self.handles) > 1:
            self.handles.pop().remove()
        if self.watching.begin(self.watching.step + 1, memory=True):
            self.handles.append(module.register_forward_hook(self.complete))
            self.handles.append(module.register_forward_hook(self.leave, always_call=True))

    def complete(self, *_: Any) -> None:
        if self.watching is not None:
            self.watching.complete()

    def leave(self, *_: Any) -> None:
        if self.watching is not None:
            self.watching.leave()

    def remove(self) -> None:
        while self.handles:
            self.handles.pop().remove()


def _is_population_settled(layer: nn.Module) -> bool:
    """Return whether the weight of the population's initial values, (1 - momentum)^batches, is negligible."""
    batches = layer._buffers.get("num_batches_tracked")
    if batches is None:
        return True
    momentum = layer.momentum
    rate = 1.0 if momentum is None else float(momentum)  # type: ignore[arg-type]
    return (1 - rate) ** int(batches.min()) < _MAX_INITIAL_WEIGHT
