"""What the norms of a live model do to its features: one forward and backward, watched."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from whitenorm.diagnostics.conditioning import (
    condition_of,
    correlations_of,
    covariance_of,
    features_of,
    mean_correlation,
    spectrum_of,
)
from whitenorm.diagnostics.constraints import feasible_range
from whitenorm.diagnostics.disturbance import stochastic_disturbance
from whitenorm.diagnostics.page import html_page
from whitenorm.diagnostics.wrappers import plain_name
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
# Channels whose covariance is taken, the first ones too: its cost grows with their cube.
_WIDEST = 2048


@dataclass
class LayerReport:
    """What one norm does at this batch.

    ``condition_*`` are λ_max/λ_min of the features, ``correlation_*`` their mean absolute correlation, ``dead`` the
    share of directions with hardly any variance before the layer, ``disturbance`` the SND at this batch size (batch
    methods), ``drift`` how far the batch's statistics are from the population's, in standard deviations of the latter,
    ``gradient_ratio`` the norm of the input's gradient over the output's, and ``time_share`` and ``memory_share`` the
    layer's part of the model's forward time and of what is kept for backward. ``spectrum_*`` are the eigenvalues of the
    features' covariance, from the largest, and ``correlations_*`` the correlation matrix of the first 64 channels. Of
    layers wider than 2048 channels, the first 2048 are looked at. What was not measured is None.
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
    time_share: float | None
    memory_share: float | None
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

    The model is as it was afterwards: no hook stays, running statistics, gradients, modes and the state of the random
    numbers are put back, also when something in the model fails. A model in which nothing is trained is not run
    backward.

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
    watch = _Watch({layer: plain_name(name) for layer, name in _norms_of(model).items()})
    with ExitStack() as stack:
        stack.enter_context(_unchanged_random(model))
        stack.enter_context(unchanged_buffers(model))
        stack.enter_context(_unchanged_gradients(model, batch))
        # Compiled code skips hooks; where the compiler was never loaded, which takes seconds, there is none.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
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
    return Inspection(_named_report(watch, layer) for layer in watch.order)


def _check_inspectable(model: nn.Module) -> None:
    if torch.is_inference_mode_enabled():
        raise ValueError("expected a call outside of torch.inference_mode (got one inside), where nothing is watched")
    for name, parameter in model.named_parameters():
        if parameter._post_accumulate_grad_hooks:
            raise ValueError(
                f"expected parameters that a backward leaves alone (got a post-accumulate hook on {name}, which may "
                "step an optimizer); remove it, or use monitor while training"
            )


def _named_report(watch: _Watch, layer: nn.Module) -> LayerReport:
    try:
        return watch.report(layer)
    except ValueError as error:
        raise ValueError(f"{watch.layers[layer]} ({type(layer).__name__}): {error}") from error


class _Seen(NamedTuple):
    """What is kept of a layer's input or output: some rows ``(R, C)``, and the shape ``(N, C, ...)`` of all."""

    rows: Tensor
    shape: torch.Size


class _Watch:
    """Hooks on the layers, and what they saw of the first time each runs."""

    def __init__(self, layers: dict[nn.Module, str]) -> None:
        self.layers = layers
        self.order: list[nn.Module] = []
        self.seconds: dict[nn.Module, float] = {}
        self.inputs: dict[nn.Module, _Seen] = {}
        self.outputs: dict[nn.Module, _Seen] = {}
        self.gradients: dict[nn.Module, dict[str, Tensor]] = {layer: {} for layer in layers}
        self.advice: dict[nn.Module, dict[str, str]] = {}
        self.saved: dict[nn.Module | None, int] = {}
        self.total = 0.0
        # Of the hooks themselves.
        self.cost = 0.0
        self._on_tensors: list[RemovableHandle] = []
        self._active: list[nn.Module] = []

    @contextmanager
    def clock(self) -> Iterator[None]:
        """How long each layer takes, and all of it but what is spent on watching."""
        starts: dict[nn.Module, float] = {}

        def before(layer: nn.Module, inputs: Any, named: Any) -> None:
            starts[layer] = _now(layer)

        def after(layer: nn.Module, inputs: Any, output: Any) -> None:
            self.seconds[layer] = self.seconds.get(layer, 0.0) + _now(layer) - starts[layer]

        device = next(iter(self.layers))
        with self._hooked(before, after, innermost=True):
            start, cost = _now(device), self.cost
            yield
            self.total = _now(device) - start - (self.cost - cost)

    @contextmanager
    def features(self) -> Iterator[None]:
        """Rows of the layers' inputs and outputs, and the norms of their gradients."""

        def before(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            start = _now(layer)
            self._active.append(layer)
            changed = None
            if layer not in self.inputs:
                x = inputs[0] if inputs else next(iter(named.values()))
                self.order.append(layer)
                self.inputs[layer] = _seen(layer, x)
                # Of its own, so that its gradient is what comes through the norm, and not by a shortcut around it.
                alias = x.view_as(x)
                self._watch_gradient(layer, "input", alias)
                changed = ((alias, *inputs[1:]), named) if inputs else (inputs, {**named, next(iter(named)): alias})
            self.cost += _now(layer) - start
            return changed

        def after(layer: nn.Module, inputs: Any, output: Any) -> None:
            start = _now(layer)
            self._active.pop()
            output = output[0] if isinstance(output, tuple) else output
            if layer not in self.outputs:
                self.outputs[layer] = _seen(layer, output)
                self._watch_gradient(layer, "output", output)
            self.cost += _now(layer) - start

        with self._hooked(before, after):
            yield

    @contextmanager
    def memory(self, model: nn.Module) -> Iterator[None]:
        """What is kept for backward but parameters, by each layer and by all else; inside of :meth:`features`."""
        # The innermost hooks alone are called: those of the caller, which may change what is kept, come first.
        autograd: Any = torch._C._autograd
        if not autograd._saved_tensors_hooks_is_enabled() or autograd._top_saved_tensors_default_hooks(True):
            yield
            return
        seen = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.layout != torch.strided:
                return tensor
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                owner = self._active[-1] if self._active else None
                self.saved[owner] = self.saved.get(owner, 0) + storage.nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def _watch_gradient(self, layer: nn.Module, which: str, tensor: Tensor) -> None:
        def keep(grad: Tensor) -> None:
            start = time.perf_counter()
            self.gradients[layer][which] = grad.detach().norm()
            self.cost += time.perf_counter() - start

        if tensor.requires_grad:
            self._on_tensors.append(tensor.register_hook(keep))

    def release(self) -> None:
        """Take the hooks off tensors, of which some, such as a learned input, outlive the step."""
        for hook in self._on_tensors:
            hook.remove()
        self._on_tensors.clear()

    @contextmanager
    def _hooked(
        self, before: Callable[..., Any], after: Callable[..., None], innermost: bool = False
    ) -> Iterator[None]:
        """Hooks around the layers; the innermost run last before and first after the layer."""
        hooks = []
        try:
            for layer in self.layers:
                hooks.append(layer.register_forward_pre_hook(before, with_kwargs=True))
                hooks.append(layer.register_forward_hook(after, prepend=innermost))
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def report(self, layer: nn.Module) -> LayerReport:
        shape = self.inputs[layer].shape
        before, after = features_of(self.inputs[layer].rows), features_of(self.outputs[layer].rows)
        cov_before, cov_after = covariance_of(before), covariance_of(after)
        values, values_after = spectrum_of(cov_before).tolist(), spectrum_of(cov_after).tolist()
        matrix, matrix_after = correlations_of(cov_before), correlations_of(cov_after)
        gradients = {which: norm.item() for which, norm in self.gradients[layer].items()}
        known = len(gradients) == 2 and gradients["output"] > 0
        result = LayerReport(
            name=self.layers[layer],
            kind=type(layer).__name__,
            width=shape[1],
            groups=_groups(layer, shape[1]),
            condition_before=condition_of(values),
            condition_after=condition_of(values_after),
            correlation_before=mean_correlation(matrix),
            correlation_after=mean_correlation(matrix_after),
            dead=_dead(values),
            disturbance=_disturbance(layer, before, shape.numel() // shape[1]),
            drift=_drift(layer, before.mean(0), cov_before),
            gradient_ratio=gradients["input"] / gradients["output"] if known else None,
            time_share=self.seconds.get(layer, 0.0) / self.total if self.total else None,
            memory_share=self.saved.get(layer, 0) / sum(self.saved.values()) if self.saved else None,
            spectrum_before=values,
            spectrum_after=values_after,
            correlations_before=matrix[:_CHANNELS, :_CHANNELS].float().cpu(),
            correlations_after=matrix_after[:_CHANNELS, :_CHANNELS].float().cpu(),
        )
        self.advice[layer] = _advice(layer, shape, result)
        result.advice += self.advice[layer].values()
        return result


def _dead(values: list[float]) -> float:
    least = _DEAD * fmean(values)
    return sum(value < least for value in values) / len(values)


def _norms_of(model: nn.Module) -> dict[nn.Module, str]:
    layers: dict[nn.Module, str] = {
        module: name for name, module in model.named_modules() if isinstance(module, _NORMS)
    }
    if not layers:
        raise ValueError(
            f"expected a model with norms (got {type(model).__name__} without a whitening, Batch-, Group- or LayerNorm)"
        )
    return layers


def _now(layer: nn.Module) -> float:
    """The time, when all work before it is done."""
    tensor = next(itertools.chain(layer.parameters(), layer.buffers()), None)
    if tensor is not None and tensor.device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(tensor.device)
    return time.perf_counter()


def _advice(layer: nn.Module, shape: torch.Size, report: LayerReport) -> dict[str, str]:
    """What is off in the set-up, by kind, and what to do."""
    words = {}
    values, sample = shape.numel() // shape[1], shape[1:].numel()
    if isinstance(layer, PopulationWhitening) and layer.process_group is not None:
        values *= dist.get_world_size(layer.process_group)
    # Centring takes one: as many values as channels are too few.
    if isinstance(layer, PopulationWhitening) and layer.training and values <= layer.group_size:
        words["singular"] = (
            f"{values} values a channel for a covariance of {layer.group_size} channels, which is singular; use a "
            "larger batch, smaller groups, synchronize_, or GroupWhitening"
        )
    if isinstance(layer, (GroupWhitening, LayerWhitening, nn.GroupNorm)):
        most = feasible_range("gn" if isinstance(layer, nn.GroupNorm) else "gw", sample).most
        if most is not None and layer.num_groups > most:
            words["infeasible"] = (
                f"{layer.num_groups} groups of {sample} values leave no freedom; at most {most} are feasible"
            )
    if report.drift is not None and math.isnan(report.drift):
        words["drift"] = "population statistics are not finite, and so is inference; use recalibrate_"
    elif report.drift is not None and report.drift > 1:
        words["drift"] = (
            f"population statistics are {report.drift:.1f} standard deviations from this batch's; train longer, raise "
            "momentum, or recalibrate_"
        )
    return words


def _disturbance(layer: nn.Module, rows: Tensor, values: int) -> float | None:
    if not isinstance(layer, (BatchWhitening, _BATCH)) or len(rows) < 2 or layer.num_features > rows.shape[1]:
        return None
    size = min(len(rows), max(2, values))
    generator = torch.Generator().manual_seed(0)
    found = stochastic_disturbance(layer, rows, size, samples=32, repeats=16, generator=generator).operation
    # Of more values than are looked at, statistics are less noisy, as the root of their number.
    return found * math.sqrt(size / max(size, values))


def _drift(layer: nn.Module, batch_mean: Tensor, cov: Tensor) -> float | None:
    """The distance of the batch's mean and spread from the population's, in the latter's standard deviations."""
    if not isinstance(layer, (PopulationWhitening, _BATCH)) or not layer.track_running_stats:
        return None
    mean = layer._buffers.get("running_mean")
    if mean is None:
        return None
    size = layer.group_size if isinstance(layer, PopulationWhitening) else 1
    groups = len(batch_mean) // size
    matrix = _population_matrix(layer, size)[:groups]
    shift = (matrix @ (batch_mean - mean.double()[: len(batch_mean)]).view(groups, size, 1)).squeeze(-1)
    cov = cov.view(groups, size, groups, size).diagonal(dim1=0, dim2=2).movedim(-1, 0)
    spread = matrix @ cov @ matrix.mT - torch.eye(size, dtype=torch.float64, device=cov.device)
    return math.sqrt(((shift.square().sum() + spread.square().sum()) / len(batch_mean)).item())


def _population_matrix(layer: nn.Module, size: int) -> Tensor:
    """The whitening matrix of the population, ``(G, K, K)``, by exact inverse roots."""
    buffers = {name: buffer.double() for name, buffer in layer.named_buffers() if name != "num_batches_tracked"}
    if "running_whitening" in buffers:
        return buffers["running_whitening"]
    eps = float(layer.eps)  # type: ignore[arg-type]
    if "running_var" in buffers:
        return (buffers["running_var"] + eps).rsqrt().view(-1, 1, 1)
    cov = buffers["running_cov"]
    if not cov.isfinite().all():
        return torch.full_like(cov, math.nan)
    values, vectors = torch.linalg.eigh(cov)
    return vectors @ ((values.clamp_min(0) + eps).rsqrt().unsqueeze(-1) * vectors.mT)


def _groups(layer: nn.Module, width: int) -> int:
    size = getattr(layer, "group_size", None)
    each_alone = width if isinstance(layer, _BATCH) else 1
    return int(getattr(layer, "num_groups", None) or (width // size if size else each_alone))


def _channels_second(layer: nn.Module, x: Tensor) -> Tensor:
    """``(N, C, ...)``, also of tokens ``(..., C)``."""
    if not isinstance(layer, (nn.LayerNorm, LayerWhitening)):
        return x
    last = tuple(layer.normalized_shape)
    is_last = tuple(x.shape[-len(last) :]) == last
    is_second = len(last) == 1 and x.ndim > 2 and x.shape[1] == last[0]
    # Some libraries' LayerNorms take channels second, and say so in their names where it could be either.
    if is_second and (not is_last or "2d" in type(layer).__name__):
        return x
    return x.reshape(-1, math.prod(last))


def _looked_at(layer: nn.Module, width: int) -> int:
    """How many of the channels, in whole groups."""
    size = getattr(layer, "group_size", None) or 1
    return min(width, max(_WIDEST // size, 1) * size)


def _seen(layer: nn.Module, x: Tensor) -> _Seen:
    """A copy of some values, for what follows may write into x."""
    x = _channels_second(layer, x.detach())
    if x.ndim < 2:
        return _Seen(x.clone(), x.shape)
    flat = x.flatten(2) if x.ndim > 2 else x.unsqueeze(-1)  # N, C, L
    chosen = _chosen(flat.shape[0] * flat.shape[2]).to(x.device)
    flat = flat[:, : _looked_at(layer, flat.shape[1])]
    return _Seen(flat[chosen // flat.shape[2], :, chosen % flat.shape[2]], x.shape)


@functools.lru_cache(maxsize=64)
def _chosen(number: int) -> Tensor:
    """Which of as many rows are looked at: always the same."""
    if number <= _ROWS:
        return torch.arange(number)
    return torch.randperm(number, generator=torch.Generator().manual_seed(0))[:_ROWS]


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


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)
