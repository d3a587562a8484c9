"""What the norms do while a model trains, at intervals and at next to no cost."""

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

from whitenorm.diagnostics.advice import FEW
from whitenorm.diagnostics.destinations import Write, destination
from whitenorm.diagnostics.measuring import measured
from whitenorm.diagnostics.reports import Inspection, LayerReport
from whitenorm.diagnostics.watching import Watch, norms_of, without_compiler
from whitenorm.diagnostics.wrappers import called_module, inner_module, plain_name
from whitenorm.ops.check import check_positive

# The share of the time that watching may take.
BUDGET = 0.01
# A population whose initial values weigh more than this has not seen enough batches to be judged.
_UNSETTLED = 0.01


class Monitor:
    """Watches some of the steps of a training.

    ``step`` is the number of the step that is on, ``last`` the last :class:`Inspection`, and ``cost`` the seconds that
    watching took so far.
    """

    def __init__(self, model: nn.Module, write: Write, every: int | None = None) -> None:
        if every is not None:
            check_positive("every", every)
        self.step = 0
        self.last: Inspection | None = None
        self.cost = 0.0
        self._layers = {layer: plain_name(name) for layer, name in norms_of(inner_module(model)).items()}
        self._model, self._write, self._every = model, write, every
        self._count = 0
        self._start = self._cost_of_last = 0.0
        self._watch: Watch | None = None
        self._complete = False
        self._forward = ExitStack()
        self._warned: set[tuple[str, str]] = set()

    def begin(self, step: int, memory: bool = False) -> bool:
        """A step's forward begins; whether it is watched, and if so what it keeps for backward too."""
        self.finish()
        self.step = step
        now = time.perf_counter()
        due = self._due(now)
        self._count += 1
        if due:
            self._watch, self._complete = Watch(self._layers), False
            self._forward.enter_context(without_compiler())
            self._forward.enter_context(self._watch.features())
            if memory:
                self._forward.enter_context(self._watch.memory(self._model))
            # Before the clock, which leaves out what is spent on watching from then on.
            self._watch.cost += time.perf_counter() - now
            self._forward.enter_context(self._watch.clock())
        return due

    def _due(self, now: float) -> bool:
        if self._count == 0:
            self._start = now
            return True
        if self._every is not None:
            return self._count % self._every == 0
        return self.cost + self._cost_of_last <= BUDGET * (now - self._start)

    def complete(self) -> None:
        """The forward came to its end."""
        self._complete = self._watch is not None

    def leave(self) -> None:
        """The forward is over, or has failed: nothing stays on the layers."""
        self._forward.close()

    def finish(self) -> None:
        """The step is over: write its rows, if it was watched and its forward came to its end."""
        self.leave()
        watch, self._watch = self._watch, None
        if watch is None:
            return
        watch.release()
        if self._complete:
            start = time.perf_counter()
            with torch.no_grad():
                found = [self._report(watch, layer) for layer in watch.order]
            self.last = Inspection(report for report, _ in found)
            self._write(self.step, self.last)
            self._cost_of_last = watch.cost + time.perf_counter() - start
            self.cost += self._cost_of_last
            self._warn(found)

    def _report(self, watch: Watch, layer: nn.Module) -> tuple[LayerReport, dict[str, str]]:
        report, advice = measured(watch, layer)
        if not _settled(layer):
            advice.pop("drift", None)
        report.advice = list(advice.values())
        return report, advice

    def _warn(self, found: list[tuple[LayerReport, dict[str, str]]]) -> None:
        if not found:
            warnings.warn(f"step {self.step} ran none of the model's norms; there is nothing to report", stacklevel=2)
        for report, advice in found:
            for kind, words in advice.items():
                # Too few values to measure by are nothing that is off in the set-up.
                if kind != FEW and (report.name, kind) not in self._warned:
                    self._warned.add((report.name, kind))
                    warnings.warn(f"{report.name} ({report.kind}), step {self.step}: {words}", stacklevel=2)


@contextmanager
def monitor(model: nn.Module, to: Any, every: int | None = None, *, first_step: int = 1) -> Iterator[Monitor]:
    """A context around a training loop that writes what :func:`inspect` reports, for some of the steps.

    The loop stays as it is. A step is a forward of the model in training mode with gradients on; with gradient
    accumulation there are several to an update. A watched step is looked at while it runs, on at most 4096 rows of
    each norm's input and output, and written when the next one begins or the context ends. Training is the same with
    and without, bit for bit: nothing runs twice, and no random number is drawn from the global generators.

    What is off in a set-up comes as a ``UserWarning``, once a layer and kind. Drift of the population is not, until
    the running statistics have forgotten where they began.

    Args:
        model: any module that the loop calls, also in DDP or FSDP; of several processes only rank zero watches.
            Compiled by ``torch.compile(model)``, its watched steps run without the compiler. It cannot be called from
            inside a compiled function.
        to: a ``.csv`` file, to which rows are appended; a folder for TensorBoard; a writer with
            ``add_scalar(tag, value, step)``; or a function of the step and the :class:`Inspection`.
        every: watch the first step and every so many after it. By default the first, and then as often as all
            watching together takes no more than 1 % of the time.
        first_step: the number of the first step, for a training that goes on.

    ``gradient_ratio`` is None where another forward comes before the backward. On a GPU a watched step waits for the
    device around each norm, to time it.

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
    root = called_module(model)
    if isinstance(first_step, bool) or not isinstance(first_step, int) or first_step < 0:
        raise ValueError(f"expected first_step to be a whole number of at least 0 (got {first_step!r})")
    if every is not None:
        check_positive("every", every)
    if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        yield Monitor(model, lambda step, rows: None, every)
        return
    with ExitStack() as stack:
        watching = Monitor(model, stack.enter_context(destination(to)), every)
        watching.step = first_step - 1
        stack.callback(watching.finish)
        hooks = _Hooks(root, watching)
        stack.callback(hooks.remove)
        hooks.handles.append(root.register_forward_pre_hook(hooks.before, prepend=True))
        yield watching
    if watching.step < first_step:
        warnings.warn(
            f"expected training steps inside the context (got no forward of this {type(root).__name__} in training "
            "mode with gradients on); pass the module that the loop calls, and not from inside a compiled function",
            stacklevel=3,
        )


class _Hooks:
    """On the module that is called. A copy of it, or a pickle, gets some that do nothing."""

    def __init__(self, root: nn.Module | None = None, watching: Monitor | None = None) -> None:
        self.root, self.watching = root, watching
        self.handles: list[RemovableHandle] = []

    def __reduce__(self) -> tuple[type[_Hooks], tuple[()]]:
        return _Hooks, ()

    def before(self, module: nn.Module, inputs: Any) -> None:
        if self.watching is None or module is not self.root or not module.training or not torch.is_grad_enabled():
            return
        # What a checkpoint did not keep is computed again in backward.
        if _in_backward():
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


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _settled(layer: nn.Module) -> bool:
    """Whether the population has forgotten its initial values, which weigh (1 - momentum)^batches."""
    batches = layer._buffers.get("num_batches_tracked")
    if batches is None:
        return True
    momentum = layer.momentum
    forgotten = 1.0 if momentum is None else float(momentum)  # type: ignore[arg-type]
    return (1 - forgotten) ** int(batches) < _UNSETTLED
