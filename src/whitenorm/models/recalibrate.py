"""Recompute population statistics from data, as exact averages."""

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
from whitenorm.layers import DomainWhitening, PopulationWhitening, unchanged_buffers
from whitenorm.layers.domain import Domain
from whitenorm.models.norms import BATCH_NORM, keeps_population
from whitenorm.ops.check import check_channels, check_mask
from whitenorm.ops.distributed import Group, Lockstep, reduce_moments
from whitenorm.ops.statistics import channel_moments, combine_moments
from whitenorm.ops.types import Moments


def recalibrate_(model: nn.Module, batches: Iterable[Any], *, progress: bool = True) -> nn.Module:
    """Recompute the population statistics of a model's whitening and BatchNorm layers, and return the model.

    Each layer gets the mean and covariance of all its inputs over the data, with equal weight for every value, so that
    momentum and the order or size of batches do not matter. During the pass, these layers normalize with batch
    statistics, as in training; all other modules stay in their mode. Use it after averaging weights (SWA, EMA), after a
    short training with large batches, or when the running statistics lag behind.

    Nothing is changed unless all batches succeed. Ranks with synchronized layers combine their data; all of them must
    have the same number of batches, some of which may be empty. If a rank has more or fewer batches, or raises an
    error, all ranks raise an error that names it, and none is changed.

    Args:
        model: any module.
        batches: inputs of the model: tensors, tuples or lists whose first entry is the input (the rest is ignored), or
            dicts of keyword arguments.
        progress: show the progress and the time left on a terminal.

    Example::

        >>> model = nn.Sequential(whitenorm.DecorrelatedBatchNorm(4))
        >>> data = torch.randn(3, 64, 4) * 2 + 1
        >>> recalibrate_(model, data)[0].running_mean.allclose(data.flatten(0, 1).mean(0), atol=1e-5)
        True
    """
    layers = [module for module in model.modules() if keeps_population(module)]
    if not layers:
        raise ValueError(
            f"expected a model with population statistics (got {type(model).__name__} without a whitening or BatchNorm "
            "layer that tracks them); there is nothing to recalibrate"
        )
    if any(isinstance(layer, DomainWhitening) and not isinstance(layer.domain, int) for layer in layers):
        raise ValueError(
            "expected one domain to recalibrate (got DomainWhitening layers without a chosen one); call recalibrate_ "
            "inside `with whitenorm.use_domain(model, domain):`"
        )
    moments: dict[nn.Module, Moments] = {}
    num_batches = 0
    lockstep = Lockstep(_map_groups_to_devices(layers))
    with unchanged_buffers(*layers), _collect_moments(layers, moments, lockstep), torch.no_grad():
        for args, kwargs in lockstep.iterate(_iterate_inputs(_show_progress(batches) if progress else batches)):
            with lockstep.processing():
                model(*args, **kwargs)
            num_batches += 1
        moments = {layer: _reduce(layer, moments.get(layer)) for layer in layers}
    moments = {layer: total for layer, total in moments.items() if total.num_values > 1}
    if not moments:
        raise ValueError(
            f"expected at least one batch that reaches the layers (got {num_batches} batches, and fewer than 2 values "
            "per channel in every layer); pass batches that reach the layers"
        )
    for layer, total in moments.items():
        _set_population(layer, total)
    return model


def _iterate_inputs(batches: Iterable[Any]) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Any]]]:
    """Yield the positional and keyword arguments of the model for each batch."""
    for batch in batches:
        if isinstance(batch, Mapping):
            yield (), batch
        else:
            yield (batch[0] if isinstance(batch, (tuple, list)) else batch,), {}


@contextmanager
def _collect_moments(layers: list[nn.Module], moments: dict[nn.Module, Moments], lockstep: Lockstep) -> Iterator[None]:
    """Put layers in training mode temporarily, and add up the moments of their inputs."""
    modes = [layer.training for layer in layers]
    hooks = []
    try:
        for layer in layers:
            # Not train(), which would also change modules inside the layer, such as dropout.
            layer.training = True

            def add_batch(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                batch = _compute_moments(layer, _drop_masked(*args, **kwargs))
                if batch.num_values:
                    moments[layer] = combine_moments(moments[layer], batch) if layer in moments else batch
                # The layer's all-reduce comes next.
                lockstep.check(_find_process_group(layer))

            hooks.append(layer.register_forward_pre_hook(add_batch, with_kwargs=True))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, mode in zip(layers, modes, strict=True):
            layer.training = mode


def _drop_masked(input: Tensor, mask: Tensor | None = None, domain: Domain | None = None) -> Tensor:
    """Return a layer's input without the positions that its mask excludes."""
    if domain is not None:
        raise ValueError(
            f"expected the domain of a recalibration to be chosen by whitenorm.use_domain (got domain={domain!r} in "
            "the call of a layer)"
        )
    if mask is None:
        return input
    check_mask(input, mask)
    return input.movedim(1, -1)[mask]


def _compute_moments(layer: nn.Module, x: Tensor) -> Moments:
    size = layer.group_size if isinstance(layer, PopulationWhitening) else 1
    check_channels(x, layer.num_features)  # type: ignore[arg-type]
    check_floating("input", x)
    mean, cov, _ = channel_moments(x.double(), size)
    return Moments(mean, cov, x.numel() // x.shape[1])


def _find_process_group(layer: nn.Module) -> Group:
    """Return the ranks whose batches a layer combines; None for this process alone."""
    if isinstance(layer, PopulationWhitening):
        return layer.process_group
    if isinstance(layer, nn.SyncBatchNorm) and dist.is_initialized():
        return layer.process_group or dist.group.WORLD
    return None


def _map_groups_to_devices(layers: list[nn.Module]) -> dict[dist.ProcessGroup, torch.device]:
    groups = {_find_process_group(layer): layer.get_buffer("running_mean").device for layer in layers}
    return {group: device for group, device in groups.items() if group is not None}


def _reduce(layer: nn.Module, moments: Moments | None) -> Moments:
    """Return the moments over all ranks; a rank without data takes part, as the others wait for it."""
    if moments is None:
        mean = layer.get_buffer("running_mean")
        moments = _compute_moments(layer, mean.new_empty(0, mean.shape[-1]))
    return reduce_moments(moments, _find_process_group(layer))


@torch.no_grad()
def _set_population(layer: nn.Module, moments: Moments) -> None:
    if isinstance(layer, PopulationWhitening):
        layer.set_population(moments.mean.flatten(), moments.cov.squeeze(0))
    elif isinstance(layer, BATCH_NORM):
        assert layer.running_mean is not None
        assert layer.running_var is not None
        layer.running_mean.copy_(moments.mean.flatten())
        # BatchNorm keeps the unbiased variance.
        layer.running_var.copy_(moments.cov.flatten() * moments.num_values / (moments.num_values - 1))


def _show_progress(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches, and show the progress on a terminal."""
    try:
        total = len(batches)  # type: ignore[arg-type]
    except TypeError:
        # A generator, or a DataLoader of an IterableDataset.
        total = None
    start = time.monotonic()
    is_terminal = sys.stderr.isatty()
    for i, batch in enumerate(batches, 1):
        yield batch
        if is_terminal:
            elapsed = time.monotonic() - start
            left = "" if total is None else f" of {total}, {elapsed / i * (total - i):.0f} s left"
            print(f"\rrecalibrating: batch {i}{left}   ", end="", file=sys.stderr, flush=True)
    if is_terminal:
        print(file=sys.stderr)
