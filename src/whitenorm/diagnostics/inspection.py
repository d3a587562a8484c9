"""What the norms of a live model do to its features: one forward and backward, watched."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from whitenorm.diagnostics.measuring import UNMEASURED, measured
from whitenorm.diagnostics.reports import Inspection
from whitenorm.diagnostics.watching import Watch, norms_of, without_compiler
from whitenorm.diagnostics.wrappers import plain_name
from whitenorm.layers.base import unchanged_buffers


def inspect(model: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None = None) -> Inspection:
    """Run a model forward and backward on a batch, in the mode it is in, and report on each of its norms.

    The model is as it was afterwards: no hook stays, running statistics, gradients, modes and the state of the random
    numbers are put back, also when something in the model fails. A model in which nothing is trained is not run
    backward. A norm whose features have no covariance at this batch has a row without measures, and advice that says
    why; it is an error when all are so.

    Args:
        model: any module.
        batch: its input: a tensor, a tuple of arguments, or a mapping of keyword arguments.
        loss: from the model's output to a scalar; the mean square of all its tensors by default.

    Example::

        >>> model = nn.Sequential(nn.Linear(8, 8), whitenorm.IterNorm(8), nn.ReLU(), nn.Linear(8, 2))
        >>> (report,) = inspect(model, torch.randn(64, 8))
        >>> report.name, report.kind, report.condition_after < report.condition_before
        ('1', 'IterNorm', True)
    """
    _check_inspectable(model)
    watch = Watch({layer: plain_name(name) for layer, name in norms_of(model).items()})
    with ExitStack() as stack:
        stack.enter_context(_unchanged_random(model))
        stack.enter_context(unchanged_buffers(model))
        stack.enter_context(_unchanged_gradients(model, batch))
        stack.enter_context(without_compiler())
        with torch.no_grad(), watch.clock():
            _call(model, batch)
        stack.callback(watch.release)
        with torch.enable_grad(), watch.features(), watch.memory(model):
            output = _call(model, batch)
            total = _mean_square(output) if loss is None else loss(output)
            if total is not None and total.requires_grad:
                total.backward()
    if not watch.order:
        raise ValueError(f"expected a batch that runs one of the model's norms (got none of {len(watch.layers)} run)")
    found = [measured(watch, layer) for layer in watch.order]
    if all(UNMEASURED in advice for _, advice in found):
        report, advice = found[0]
        raise ValueError(f"{report.name or 'the model'} ({report.kind}): {advice[UNMEASURED]}")
    return Inspection(report for report, _ in found)


def _check_inspectable(model: nn.Module) -> None:
    if torch.is_inference_mode_enabled():
        raise ValueError("expected a call outside of torch.inference_mode (got one inside), where nothing is watched")
    for name, module in model.named_modules():
        if any(is_lazy(tensor) for tensor in (*module._parameters.values(), *module._buffers.values())):
            raise ValueError(
                f"expected a model whose lazy modules have run (got {name or 'the model'}, a {type(module).__name__} "
                "without a shape); call it on a batch first"
            )
    for name, parameter in model.named_parameters():
        if parameter._post_accumulate_grad_hooks:
            raise ValueError(
                f"expected parameters that a backward leaves alone (got a post-accumulate hook on {name}, which may "
                "step an optimizer); remove it, or use monitor while training"
            )


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def _mean_square(output: Any) -> Tensor | None:
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return torch.stack([tensor.float().square().mean() for tensor in tensors]).sum() if tensors else None


def _unchanged_random(model: nn.Module) -> AbstractContextManager[None]:
    """The random numbers after it are those that would have come."""
    devices = {tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())}
    return torch.random.fork_rng([device for device in devices if device.type == "cuda"])


@contextmanager
def _unchanged_gradients(model: nn.Module, batch: Any) -> Iterator[None]:
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.is_leaf]
    kept = [(tensor, tensor.grad) for tensor in (*model.parameters(), *leaves)]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        yield
    finally:
        for parameter, grad in kept:
            parameter.grad = grad
