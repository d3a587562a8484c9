"""What the norms of a live model do to its features: one forward and backward, watched."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves

from whitenorm.diagnostics.conditioning import (
    condition_of,
    correlation,
    correlations,
    covariance,
    features_of,
    spectrum,
)
from whitenorm.diagnostics.constraints import feasible_range
from whitenorm.diagnostics.disturbance import stochastic_disturbance
from whitenorm.diagnostics.page import html_page
from whitenorm.layers import BatchWhitening, GroupWhitening, LayerWhitening
from whitenorm.layers.base import PopulationWhitening, Whitening, unchanged_buffers

_BATCH = nn.modules.batchnorm._BatchNorm
_NORMS = (Whitening, LayerWhitening, _BATCH, nn.GroupNorm, nn.LayerNorm)
# Rows of features that are looked at, drawn at random from more.
_ROWS = 4096
# A direction with less than this share of the mean variance counts as dead.
_DEAD = 1e-3
# Channels whose correlations are kept, the first ones, as groups of channels are neighbours.
_CHANNELS = 64


@dataclass
class LayerReport:
    """What one norm does at this batch.

    ``condition_*`` are λ_max/λ_min of the features, ``correlation_*`` their mean absolute correlation, ``dead`` the
    share of directions with hardly any variance before the layer, ``disturbance`` the SND at this batch size (batch
    methods), ``drift`` how far the batch's statistics are from the population's, in standard deviations of the latter,
    ``gradient_ratio`` the norm of the input's gradient over the output's, and ``time_share`` and ``memory_share`` the
    layer's part of the model's forward time and of what is kept for backward. ``spectrum_*`` are the eigenvalues of the
    features' covariance, from the largest, and ``correlations_*`` the correlation matrix of the first 64 channels.
    """

    name: str
    kind: str
    width: int
    groups: int
    condition_before: float
    condition_after: float
    correlation_before: float
    correlation_after: float
    dead: float
    disturbance: float | None
    drift: float | None
    gradient_ratio: float | None
    time_share: float
    memory_share: float
    spectrum_before: list[float] = field(repr=False)
    spectrum_after: list[float] = field(repr=False)
    # One truth value is not to be had of two matrices.
    correlations_before: Tensor = field(repr=False, compare=False)
    correlations_after: Tensor = field(repr=False, compare=False)
    advice: list[str] = field(default_factory=list)


_COLUMNS = {
    "name": "name",
    "kind": "kind",
    "width": "C",
    "groups": "groups",
    "condition_before": "κ before",
    "condition_after": "κ after",
    "correlation_before": "corr. before",
    "correlation_after": "after",
    "dead": "dead",
    "disturbance": "SND",
    "drift": "drift",
    "gradient_ratio": "gradient",
    "time_share": "time",
    "memory_share": "memory",
}


class Inspection(tuple[LayerReport, ...]):
    """The reports of all norms, in the order they ran; printed, a table and advice."""

    def __str__(self) -> str:
        rows = [list(_COLUMNS.values())] + [[_cell(getattr(r, key)) for key in _COLUMNS] for r in self]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines + [f"{report.name}: {words}" for report in self for words in report.advice])

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row a layer: its numbers and advice."""
        return [{key: getattr(report, key) for key in (*_COLUMNS, "advice")} for report in self]

    def to_frame(self) -> Any:
        """A ``pandas.DataFrame``, a row a layer."""
        try:
            pandas = importlib.import_module("pandas")
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "to_frame needs pandas, which comes with the lab extra. From a checkout: pip install '.[lab]'",
                name=error.name,
            ) from error
        return pandas.DataFrame(self.to_dicts(), columns=[*_COLUMNS, "advice"])

    def to_html(self, title: str = "Norms of a model") -> str:
        """One page with plots that opens without a network; :func:`html_page` puts several inspections on one."""
        return html_page({"": self}, title)

    def to_json(self) -> str:
        """The rows as JSON; what is infinite becomes null, for which JSON has no number."""
        rows = [
            {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
            for row in self.to_dicts()
        ]
        return json.dumps(rows, indent=1)


def inspect(model: nn.Module, batch: Any, loss: Callable[[Any], Tensor] | None = None) -> Inspection:
    """Run a model forward and backward on a batch, in the mode it is in, and report on each of its norms.

    The model is as it was afterwards: no hook stays, running statistics, gradients and modes are put back, also when
    something in the model fails.

    Args:
        model: any module.
        batch: its input: a tensor, a tuple of arguments, or a dict of keyword arguments.
        loss: from the model's output to a scalar; the mean square of all its tensors by default.

    Example::

        >>> model = nn.Sequential(nn.Linear(8, 8), whitenorm.IterNorm(8), nn.ReLU(), nn.Linear(8, 2))
        >>> (report,) = inspect(model, torch.randn(64, 8))
        >>> report.name, report.kind, report.condition_after < report.condition_before
        ('1', 'IterNorm', True)
    """
    layers: dict[nn.Module, str] = {
        module: name for name, module in model.named_modules() if isinstance(module, _NORMS)
    }
    if not layers:
        raise ValueError(
            f"expected a model with norms (got {type(model).__name__} without a whitening, Batch-, Group- or LayerNorm)"
        )
    watch = _Watch(layers)
    with ExitStack() as stack:
        stack.enter_context(unchanged_buffers(model))
        stack.enter_context(_unchanged_gradients(model))
        with torch.no_grad(), watch.clock():
            _call(model, batch)
        with torch.enable_grad(), watch.features():
            output = _call(model, batch)
            (_mean_square(output) if loss is None else loss(output)).backward()
    return Inspection(watch.report(layer) for layer in watch.order)


class _Watch:
    """Hooks on the layers, and what they saw."""

    def __init__(self, layers: dict[nn.Module, str]) -> None:
        self.layers = layers
        self.order: list[nn.Module] = []
        self.seconds: dict[nn.Module, float] = {}
        self.inputs: dict[nn.Module, Tensor] = {}
        self.outputs: dict[nn.Module, Tensor] = {}
        self.gradients: dict[nn.Module, dict[str, float]] = {layer: {} for layer in layers}
        self.saved: dict[nn.Module | None, int] = {}
        self.total = 0.0

    @contextmanager
    def clock(self) -> Iterator[None]:
        """How long each layer takes, and all of it."""
        starts: dict[nn.Module, float] = {}

        def before(layer: nn.Module, inputs: Any, named: Any) -> None:
            starts[layer] = time.perf_counter()

        def after(layer: nn.Module, inputs: Any, output: Any) -> None:
            self.seconds[layer] = self.seconds.get(layer, 0.0) + time.perf_counter() - starts[layer]

        start = time.perf_counter()
        with self._hooked(before, after):
            yield
        self.total = time.perf_counter() - start

    @contextmanager
    def features(self) -> Iterator[None]:
        """The layers' inputs, outputs and gradients, and what is kept for backward, of the first time each runs."""
        active: list[nn.Module] = []
        seen: set[int] = set()

        def before(layer: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
            active.append(layer)
            if layer not in self.inputs:
                x = inputs[0] if inputs else named["input"]
                self.order.append(layer)
                self.inputs[layer] = x.detach()
                self._watch_gradient(layer, "input", x)

        def after(layer: nn.Module, inputs: Any, output: Tensor) -> None:
            active.pop()
            if layer not in self.outputs:
                # A copy: what follows may write into it.
                self.outputs[layer] = output.detach().clone()
                self._watch_gradient(layer, "output", output)

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                owner = active[-1] if active else None
                self.saved[owner] = self.saved.get(owner, 0) + storage.nbytes()
            return tensor

        with self._hooked(before, after), saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def _watch_gradient(self, layer: nn.Module, which: str, tensor: Tensor) -> None:
        if tensor.requires_grad:
            tensor.register_hook(lambda grad: self.gradients[layer].__setitem__(which, grad.norm().item()))

    @contextmanager
    def _hooked(self, before: Callable[..., None], after: Callable[..., None]) -> Iterator[None]:
        hooks = []
        try:
            for layer in self.layers:
                hooks.append(layer.register_forward_pre_hook(before, with_kwargs=True))
                hooks.append(layer.register_forward_hook(after))
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def report(self, layer: nn.Module) -> LayerReport:
        x, y = (_channels_second(layer, tensor) for tensor in (self.inputs[layer], self.outputs[layer]))
        before, after = _sampled(features_of(x)), _sampled(features_of(y))
        values, values_after = spectrum(before).tolist(), spectrum(after).tolist()
        gradients = self.gradients[layer]
        known = len(gradients) == 2 and gradients["output"] > 0
        result = LayerReport(
            name=self.layers[layer],
            kind=type(layer).__name__,
            width=x.shape[1],
            groups=_groups(layer, x.shape[1]),
            condition_before=condition_of(values),
            condition_after=condition_of(values_after),
            correlation_before=correlation(before),
            correlation_after=correlation(after),
            dead=_dead(values),
            disturbance=_disturbance(layer, before, x.numel() // x.shape[1]),
            drift=_drift(layer, before),
            gradient_ratio=gradients["input"] / gradients["output"] if known else None,
            time_share=self.seconds.get(layer, 0.0) / max(self.total, 1e-12),
            memory_share=self.saved.get(layer, 0) / max(sum(self.saved.values()), 1),
            spectrum_before=values,
            spectrum_after=values_after,
            correlations_before=correlations(before[:, :_CHANNELS]).float().cpu(),
            correlations_after=correlations(after[:, :_CHANNELS]).float().cpu(),
        )
        result.advice += _advice(layer, x, result)
        return result


def _dead(values: list[float]) -> float:
    least = _DEAD * fmean(values)
    return sum(value < least for value in values) / len(values)


def _advice(layer: nn.Module, x: Tensor, report: LayerReport) -> list[str]:
    """What is off in the set-up, and what to do."""
    words = []
    values = x.numel() // x.shape[1]
    if isinstance(layer, PopulationWhitening) and values < layer.group_size:
        words.append(
            f"{values} values a channel for a covariance of {layer.group_size} channels, which is singular; use a "
            "larger batch, smaller groups, synchronize_, or GroupWhitening"
        )
    if isinstance(layer, (GroupWhitening, LayerWhitening)):
        most = feasible_range("gw", x[0].numel()).most
        if most is not None and layer.num_groups > most:
            words.append(
                f"{layer.num_groups} groups of {x[0].numel()} values leave no freedom; at most {most} are feasible"
            )
    if report.drift is not None and report.drift > 1:
        words.append(
            f"population statistics are {report.drift:.1f} standard deviations from this batch's; train longer, raise "
            "momentum, or recalibrate_"
        )
    return words


def _disturbance(layer: nn.Module, rows: Tensor, values: int) -> float | None:
    if not isinstance(layer, (BatchWhitening, _BATCH)) or len(rows) < 2:
        return None
    size = min(len(rows), max(2, values))
    generator = torch.Generator().manual_seed(0)
    return stochastic_disturbance(layer, rows, size, samples=32, repeats=16, generator=generator).operation


def _drift(layer: nn.Module, rows: Tensor) -> float | None:
    """The distance of the batch's mean and spread from the population's, in the latter's standard deviations."""
    if not isinstance(layer, (PopulationWhitening, _BATCH)) or not layer.track_running_stats:
        return None
    mean = layer._buffers["running_mean"]
    assert mean is not None
    size = layer.group_size if isinstance(layer, PopulationWhitening) else 1
    matrix = _population_matrix(layer, size)
    groups = matrix.shape[0]
    shift = (matrix @ (rows.mean(0) - mean.double()).view(groups, size, 1)).squeeze(-1)
    cov = covariance(rows).view(groups, size, groups, size).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    spread = matrix @ cov @ matrix.mT - torch.eye(size, dtype=torch.float64, device=rows.device)
    return math.sqrt((shift.square().sum() / rows.shape[1] + spread.square().sum() / rows.shape[1]).item())


def _population_matrix(layer: nn.Module, size: int) -> Tensor:
    """The whitening matrix of the population, ``(G, K, K)``, by exact inverse roots."""
    buffers = {name: buffer.double() for name, buffer in layer.named_buffers() if name != "num_batches_tracked"}
    if "running_whitening" in buffers:
        return buffers["running_whitening"]
    eps = float(layer.eps)  # type: ignore[arg-type]
    if "running_var" in buffers:
        return (buffers["running_var"] + eps).rsqrt().view(-1, 1, 1)
    values, vectors = torch.linalg.eigh(buffers["running_cov"])
    return vectors @ ((values.clamp_min(0) + eps).rsqrt().unsqueeze(-1) * vectors.mT)


def _groups(layer: nn.Module, width: int) -> int:
    size = getattr(layer, "group_size", None)
    each_alone = width if isinstance(layer, _BATCH) else 1
    return int(getattr(layer, "num_groups", None) or (width // size if size else each_alone))


def _channels_second(layer: nn.Module, x: Tensor) -> Tensor:
    """``(N, C, ...)``, also of tokens ``(..., C)``."""
    if isinstance(layer, (nn.LayerNorm, LayerWhitening)) and "2d" not in type(layer).__name__:
        return x.reshape(-1, math.prod(layer.normalized_shape))
    return x


def _sampled(rows: Tensor) -> Tensor:
    if len(rows) <= _ROWS:
        return rows
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:_ROWS].to(rows.device)]


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple) else model(batch)


def _mean_square(output: Any) -> Tensor:
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not tensors:
        raise ValueError("expected an output with a tensor to differentiate (got none); pass loss=")
    return torch.stack([tensor.float().square().mean() for tensor in tensors]).sum()


@contextmanager
def _unchanged_gradients(model: nn.Module) -> Iterator[None]:
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        yield
    finally:
        for parameter, grad in kept:
            parameter.grad = grad


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)
