"""Population statistics anew from data, as true averages."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from whitenorm._runtime import check_floating
from whitenorm.layers.base import PopulationWhitening, unchanged_buffers
from whitenorm.ops.check import check_channels, check_mask
from whitenorm.ops.distributed import Group, Lockstep, reduce_moments
from whitenorm.ops.statistics import channel_moments
from whitenorm.ops.types import Moments

_BATCH = nn.modules.batchnorm._BatchNorm


def recalibrate_(model: nn.Module, batches: Iterable[Any], *, progress: bool = True) -> nn.Module:
    """Compute the population statistics of a model's whitening and BatchNorm layers again, and return the model.

    Each layer gets the mean and covariance of all its inputs over the data, counted by value, so that neither momentum
    nor the order or size of batches matters. While the data pass, these layers normalise with batch statistics, as in
    training; all else in the model stays in the mode it is in. Of use after weights were averaged (SWA, EMA), after a
    short training with large batches, or where the running statistics have lagged behind.

    Nothing is changed unless all batches pass. Ranks with synchronised layers join their data; they must all have the
    same number of batches, of which some may be empty. If one has more or fewer, or an error is raised on it, in the
    batches or in the model, all ranks raise an error that names it, and none is changed.

    Args:
        model: any module.
        batches: inputs of the model: tensors, tuples or lists whose first entry is the input (the rest is ignored), or
            dicts of keyword arguments.
        progress: show a line with the time left on a terminal.

    Example::

        >>> model = nn.Sequential(whitenorm.DecorrelatedBatchNorm(4))
        >>> data = torch.randn(3, 64, 4) * 2 + 1
        >>> recalibrate_(model, data)[0].running_mean.allclose(data.flatten(0, 1).mean(0), atol=1e-5)
        True
    """
    layers = [module for module in model.modules() if _keeps_population(module)]
    if not layers:
        raise ValueError(
            f"expected a model with population statistics (got {type(model).__name__} without a whitening or BatchNorm "
            "layer that tracks them); there is nothing to recalibrate"
        )
    found: dict[nn.Module, Moments] = {}
    count = 0
    lockstep = Lockstep(_groups(layers))
    with unchanged_buffers(*layers), _watched(layers, found, lockstep), torch.no_grad():
        for arguments, options in lockstep.iterate(_model_inputs(_shown(batches) if progress else batches)):
            with lockstep.processing():
                model(*arguments, **options)
            count += 1
        joined = {layer: _reduce_moments(layer, found.get(layer)) for layer in layers}
    found = {layer: seen for layer, seen in joined.items() if seen.num_values > 1}
    if not found:
        raise ValueError(
            f"expected at least one batch that reaches the layers (got {count} batches, and fewer than 2 values per "
            "channel in every layer); population statistics cannot come from no data"
        )
    for layer, seen in found.items():
        _record(layer, seen)
    return model


def _keeps_population(module: nn.Module) -> bool:
    return isinstance(module, (PopulationWhitening, _BATCH)) and bool(module.track_running_stats)


def _model_inputs(batches: Iterable[Any]) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Positional and keyword arguments of the model for each batch."""
    for batch in batches:
        if isinstance(batch, Mapping):
            yield (), batch
        else:
            yield (batch[0] if isinstance(batch, (tuple, list)) else batch,), {}


@contextmanager
def _watched(layers: list[nn.Module], found: dict[nn.Module, Moments], lockstep: Lockstep) -> Iterator[None]:
    """Layers in training mode, and the moments of their inputs; undone at the end."""
    modes = [layer.training for layer in layers]
    hooks = []
    try:
        for layer in layers:
            # Not train(), which would wake what is inside the layer.
            layer.training = True

            def watch(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
                new = _moments(layer, _counted(*inputs, **named))
                if new.num_values:
                    found[layer] = _joined(found[layer], new) if layer in found else new
                # The layer's all-reduce comes next.
                lockstep.check(_group(layer))

            hooks.append(layer.register_forward_pre_hook(watch, with_kwargs=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode


def _counted(input: Tensor, mask: Tensor | None = None) -> Tensor:
    """A layer's input, without the positions that its mask leaves out."""
    if mask is None:
        return input
    check_mask(input, mask)
    return input.movedim(1, -1)[mask]


def _moments(layer: nn.Module, x: Tensor) -> Moments:
    size = layer.group_size if isinstance(layer, PopulationWhitening) else 1
    check_channels(x, layer.num_features)  # type: ignore[arg-type]
    check_floating("input", x)
    mean, cov, _ = channel_moments(x.double(), size)
    return Moments(mean, cov, x.numel() // x.shape[1])


def _joined(a: Moments, b: Moments) -> Moments:
    """Of two sets of values together."""
    number = a.num_values + b.num_values
    share = b.num_values / number
    step = b.mean - a.mean
    between = share * (1 - share) * step.unsqueeze(-1) * step.unsqueeze(-2)
    return Moments(a.mean + share * step, torch.lerp(a.cov, b.cov, share) + between, number)


def _group(layer: nn.Module) -> Group:
    """The ranks that a layer shares its batches with."""
    if isinstance(layer, PopulationWhitening):
        return layer.process_group
    if isinstance(layer, nn.SyncBatchNorm) and dist.is_initialized():
        return layer.process_group or dist.group.WORLD
    return None


def _groups(layers: list[nn.Module]) -> dict[dist.ProcessGroup, torch.device]:
    groups = {_group(layer): layer.get_buffer("running_mean").device for layer in layers}
    return {group: device for group, device in groups.items() if group is not None}


def _reduce_moments(layer: nn.Module, seen: Moments | None) -> Moments:
    """What all ranks have seen; a rank that has seen nothing takes part too, as the others wait for it."""
    if seen is None:
        seen = _moments(layer, layer.get_buffer("running_mean").unsqueeze(0)[:0])
    return reduce_moments(seen, _group(layer))


@torch.no_grad()
def _record(layer: nn.Module, seen: Moments) -> None:
    if isinstance(layer, PopulationWhitening):
        layer.set_population(seen.mean.flatten(), seen.cov.squeeze(0))
    elif isinstance(layer, _BATCH):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(seen.mean.flatten())
        # BatchNorm's is the unbiased variance.
        layer.running_var.copy_(seen.cov.flatten() * seen.num_values / (seen.num_values - 1))


def _shown(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, with a line of progress on a terminal."""
    try:
        total = len(batches)  # type: ignore[arg-type]
    except TypeError:
        # A generator, or a DataLoader of a stream.
        total = None
    start = time.monotonic()
    terminal = sys.stderr.isatty()
    for i, batch in enumerate(batches, 1):
        yield batch
        if terminal:
            elapsed = time.monotonic() - start
            left = "" if total is None else f" of {total}, {elapsed / i * (total - i):.0f} s left"
            print(f"\rrecalibrating: batch {i}{left}   ", end="", file=sys.stderr, flush=True)
    if terminal:
        print(file=sys.stderr)
