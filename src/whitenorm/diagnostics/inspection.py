"""Inspection of a model: one recorded forward and backward pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from whitenorm.diagnostics.measuring import UNMEASURED, measure_layer
from whitenorm.diagnostics.recording import Recorder, map_norms_to_names
from whitenorm.diagnostics.reports import Inspection
from whitenorm.diagnostics.wrappers import unwrap_name, without_compiler
from whitenorm.layers.base import unchanged_buffers


def inspect(model: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None = None) -> Inspection:
    """Run a model forward and backward on a batch, in its current mode, and report on each of its norms.

    The model is unchanged afterwards, also after an error: hooks are removed, and running statistics, gradients, modes
    and the random state are restored. A model without trainable parameters is not run backward. A norm whose features
    have no covariance on this batch gets a row without measures, with advice that says why; if this is so for all
    norms, it is an error.

    Args:
        model: any module.
        batch: the model's input: a tensor, a tuple of arguments, or a mapping of keyword arguments.
        loss: maps the model's output to a scalar; the mean square of all its tensors by default.

    Example::

        >>> model = nn.Sequential(nn.Linear(8, 8), whitenorm.IterNorm(8), nn.ReLU(), nn.Linear(8, 2))
        >>> (report,) = inspect(model, torch.randn(64, 8))
        >>> report.name, report.kind, report.condition_after < report.condition_before
        ('1', 'IterNorm', True)
    """
    _check_inspectable(model)
    recorder = Recorder({layer: unwrap_name(name) for layer, name in map_norms_to_names(model).items()})
    with ExitStack() as stack:
        stack.enter_context(_preserve_random_state(model))
        stack.enter_context(unchanged_buffers(model))
        stack.enter_context(_preserve_gradients(model, batch))
        stack.enter_context(without_compiler())
        with torch.no_grad(), recorder.record_times():
            _run(model, batch)
        stack.callback(recorder.remove_tensor_hooks)
        with torch.enable_grad(), recorder.record_features(), recorder.record_saved_bytes(model):
            output = _run(model, batch)
            total = _mean_square(output) if loss is None else loss(output)
            if total is not None and total.requires_grad:
                total.backward()
    if not recorder.order:
        raise ValueError(
            f"expected a batch that runs one of the model's norms (got none of {len(recorder.layers)} run)"
        )
    results = [measure_layer(recorder, layer) for layer in recorder.order]
    if all(UNMEASURED in advice for _, advice in results):
        report, advice = results[0]
        raise ValueError(f"{report.name or 'the model'} ({report.kind}): {advice[UNMEASURED]}")
    return Inspection(report for report, _ in results)


def _check_inspectable(model: nn.Module) -> None:
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "expected a call outside of torch.inference_mode (got one inside), which does not record gradients"
        )
    for name, module in model.named_modules():
        if any(is_lazy(tensor) for tensor in (*module._parameters.values(), *module._buffers.values())):
            raise ValueError(
                f"expected a model whose lazy modules have run (got {name or 'the model'}, a {type(module).__name__} "
                "without a shape); call it on a batch first"
            )
    for name, parameter in model.named_parameters():
        if parameter._post_accumulate_grad_hooks:
            raise ValueError(
                f"expected parameters that backward does not change (got a post-accumulate hook on {name}, which may "
                "step an optimizer); remove it, or use monitor while training"
            )


def _run(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def _mean_square(output: Any) -> Tensor | None:
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    return torch.stack([tensor.float().square().mean() for tensor in tensors]).sum() if tensors else None


def _preserve_random_state(model: nn.Module) -> AbstractContextManager[None]:
    devices = {tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())}
    return torch.random.fork_rng([device for device in devices if device.type == "cuda"])


@contextmanager
def _preserve_gradients(model: nn.Module, batch: Any) -> Iterator[None]:
    """Set the gradients of parameters and of the batch to None, and restore them at the end."""
    leaves = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.is_leaf]
    gradients = [(tensor, tensor.grad) for tensor in (*model.parameters(), *leaves)]
    try:
        for tensor, _ in gradients:
            tensor.grad = None
        yield
    finally:
        for tensor, grad in gradients:
            tensor.grad = grad
