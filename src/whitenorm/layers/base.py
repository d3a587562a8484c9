"""Base classes of the layers: parameters, and running statistics."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn

from whitenorm._runtime import compute_dtype
from whitenorm.functional import population_whitening
from whitenorm.layers import batchnorm_state
from whitenorm.ops.check import (
    check_channels,
    check_eps,
    check_momentum,
    check_positions,
    check_positive,
    fit_group_size,
)
from whitenorm.ops.distributed import Group
from whitenorm.solvers import Solver, SolverLike, as_solver


class LeafModule(nn.Module):
    """Base class of modules that every :mod:`torch.fx` tracer records as one ``call_module`` node, like torch's layers.

    Example::

        >>> graph = torch.fx.symbolic_trace(nn.Sequential(whitenorm.IterNorm(8), nn.ReLU())).graph
        >>> [node.op for node in graph.nodes]
        ['placeholder', 'call_module', 'call_module', 'output']
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, fx.Proxy):
            return _record_call(first.tracer, self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def __prepare_scriptable__(self) -> NoReturn:
        raise ValueError(
            f"expected torch.jit.trace, torch.compile or torch.export for {type(self).__name__} (got torch.jit.script, "
            "which cannot compile its autograd functions); in eval mode whitenorm.fold_(model) leaves plain "
            "convolutions in place of batch whitening, which torch.jit.script takes"
        )


def _record_call(tracer: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def record(*args: Any, **kwargs: Any) -> Any:
        return tracer.create_proxy("call_module", tracer.path_of_module(module), args, kwargs)

    # The tracer's own method records which module is being traced.
    return tracer.call_module(module, record, args, kwargs)


class Whitening(LeafModule):
    """Base class of all whitening layers, for ``isinstance``: a solver, ε, learned scale γ and learned shift β.

    Do not instantiate it. ``weight`` and ``bias`` are None if they are not learned.

    Example::

        >>> layers = torch.nn.ModuleList([whitenorm.IterNorm(8), whitenorm.LayerWhitening(8), torch.nn.BatchNorm2d(8)])
        >>> [isinstance(layer, whitenorm.Whitening) for layer in layers]
        [True, True, False]
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    # Set by a conversion: the layer's name in the model, and the class of the norm that it replaces.
    name_in_model: str = ""
    replaces: str = ""
    # The ε of the BatchNorm whose state may be loaded: PyTorch's default, unless a conversion sets another.
    batch_norm_eps: float = 1e-5

    def __init__(
        self,
        parameter_shape: tuple[int, ...],
        solver: SolverLike,
        eps: float,
        affine: bool,
        bias: bool,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_eps(eps)
        self.solver: Solver = as_solver(solver)
        self.eps = eps
        for name, learned in (("weight", affine), ("bias", affine and bias)):
            empty = torch.empty(parameter_shape, device=device, dtype=dtype)
            self.register_parameter(name, nn.Parameter(empty) if learned else None)

    def reset_parameters(self) -> None:
        """Set γ to one and β to zero."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class ChannelWhitening(Whitening):
    """Base class of layers for ``(N, C, ...)``: groups of ``group_size`` neighbouring channels, γ and β per channel."""

    def __init__(
        self,
        num_features: int,
        group_size: int | None,
        solver: SolverLike,
        eps: float,
        affine: bool,
        bias: bool,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_positive("num_features", num_features)
        super().__init__((num_features,), solver, eps, affine, bias, device, dtype)
        self.num_features = num_features
        self.group_size = fit_group_size(num_features, group_size)
        self.affine = affine

    def _check_input(self, input: Tensor) -> None:
        if input.is_nested or input.shape[1:2] != (self.num_features,):
            check_channels(input, self.num_features)

    def _check_positions(self, input: Tensor, per: str, groups: int) -> None:
        """Raise unless each sample has enough values for its own statistics; the error names the layer in the model."""
        place = f" in {type(self).__name__} at {self.name_in_model!r}" if self.name_in_model else ""
        check_positions(input, per, math.prod(input.shape[1:]) // groups, place)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if batchnorm_state.has_batchnorm_state(state_dict, prefix, self.num_features):
            self._convert_batchnorm_state(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _convert_batchnorm_state(self, state: dict[str, Any], prefix: str) -> None:
        """Turn a BatchNorm's entries of a state dict into this layer's."""
        batchnorm_state.drop_statistics(state, prefix, type(self).__name__)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, group_size={self.group_size}, solver={self.solver!r}, eps={self.eps}, "
            f"affine={self.affine}, bias={self.bias is not None}"
        )


@contextmanager
def unchanged_buffers(*modules: nn.Module) -> Iterator[None]:
    """Restore the buffers of modules, such as running statistics, at the end of a context."""
    saved = [
        (owner, name, buffer, buffer.clone())
        for module in modules
        for owner in module.modules()
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for owner, name, buffer, before in saved:
                owner._buffers[name] = buffer
                # A write, even of the same values, would invalidate a backward that is still to come.
                if not buffer.is_meta and not torch.equal(buffer, before):
                    buffer.copy_(before)


class Handle:
    """Holder of a process group, which belongs to its process: deep copies share it, pickles leave it out."""

    def __init__(self, group: Group = None) -> None:
        self.group = group

    def __deepcopy__(self, memo: dict[int, Any]) -> Handle:
        return self

    def __reduce__(self) -> tuple[type[Handle], tuple[()]]:
        return Handle, ()


class PopulationWhitening(ChannelWhitening):
    """Base class of layers that keep a running mean and a running matrix, named ``matrix_name``, for inference.

    Both stay in float32 or higher, also if the module is cast: a covariance rounded to half precision is not
    positive semi-definite, and the whitening matrix in directions of small eigenvalues would be noise.
    """

    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        group_size: int | None,
        solver: SolverLike,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        matrix_name: str,
        process_group: Group = None,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(num_features, group_size, solver, eps, affine, bias, device, dtype)
        self._ranks = Handle(process_group)
        check_momentum(momentum)
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        self._matrix_name = matrix_name
        buffers: dict[str, Tensor | None] = {"running_mean": None, matrix_name: None, "num_batches_tracked": None}
        if track_running_stats:
            size = self.group_size
            wide = compute_dtype(torch.get_default_dtype() if dtype is None else dtype)
            buffers["running_mean"] = torch.empty(num_features, device=device, dtype=wide)
            buffers[matrix_name] = torch.empty(num_features // size, size, size, device=device, dtype=wide)
            buffers["num_batches_tracked"] = torch.empty((), device=device, dtype=torch.long)
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PopulationWhitening:
        """Move or cast the module, for ``to``, ``half``, ``cuda`` and so on; buffers are not cast below float32."""
        before = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            after = self._buffers[name]
            assert after is not None
            wide = compute_dtype(after.dtype) if buffer.is_floating_point() else buffer.dtype
            if after.dtype != wide:
                # From the original buffer, because the cast one has lost digits.
                self._buffers[name] = buffer.to(after.device, wide)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a state dict; statistics in half precision become float32, with a warning."""
        narrow = {}
        for name, buffer in self._buffers.items():
            given = state_dict.get(prefix + name)
            if buffer is None or not buffer.is_floating_point() or not isinstance(given, Tensor):
                continue
            if given.is_floating_point():
                state_dict[prefix + name] = wide = given.to(compute_dtype(given.dtype))
                if wide.dtype != given.dtype:
                    narrow[name] = given.dtype
        if narrow:
            warnings.warn(
                f"expected population statistics in float32 or float64 (got {narrow} in the state dict, too few digits "
                "for a matrix of small eigenvalues); compute them anew with whitenorm.recalibrate_",
                stacklevel=2,
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def process_group(self) -> Group:
        """The ranks that share batch statistics in training; None for this process only."""
        return self._ranks.group

    @process_group.setter
    def process_group(self, group: Group) -> None:
        self._ranks = Handle(group)

    def _population(self) -> tuple[Tensor | None, Tensor | None]:
        """Return the running mean and matrix, or None where they are not tracked."""
        if not self.track_running_stats:
            return None, None
        return self._buffers["running_mean"], self._buffers[self._matrix_name]

    def _same_population(self, other: PopulationWhitening) -> bool:
        """Return whether both layers track statistics of the same form."""
        forms = [(layer.track_running_stats, layer._matrix_name, layer.group_size) for layer in (self, other)]
        return forms[0] == forms[1] and self.track_running_stats

    @torch.no_grad()
    def set_population(self, mean: Tensor, cov: Tensor) -> None:
        """Set the running statistics to a mean ``(C,)`` and a covariance ``(G, K, K)`` without ε."""
        running_mean, matrix = self._population()
        if running_mean is None or matrix is None:
            raise ValueError("expected a layer that keeps population statistics (got track_running_stats=False)")
        running_mean.copy_(mean)
        matrix.copy_(cov if self._matrix_name == "running_cov" else population_whitening(cov, self.eps, self.solver))

    @torch.no_grad()
    def set_diagonal_population(self, mean: Tensor, variance: Tensor) -> None:
        """Set the population to a BatchNorm's mean and variance with its ε, so that the applied matrix is diagonal."""
        running_mean, matrix = self._population()
        if running_mean is not None and matrix is not None:
            running_mean.copy_(mean)
            matrix.copy_(
                batchnorm_state.diagonal_matrix(variance.to(matrix.dtype), self._matrix_name, self.group_size, self.eps)
            )

    def _convert_batchnorm_state(self, state: dict[str, Any], prefix: str) -> None:
        if not self.track_running_stats:
            super()._convert_batchnorm_state(state, prefix)
            return
        batchnorm_state.convert_statistics(
            state, prefix, self._matrix_name, self.group_size, self.eps, self.batch_norm_eps
        )

    def reset_running_stats(self) -> None:
        """Reset the running statistics to mean zero and matrix I, with no batches counted."""
        mean, matrix = self._population()
        if mean is not None and matrix is not None and self.num_batches_tracked is not None:
            with torch.no_grad():
                mean.zero_()
                matrix.copy_(torch.eye(self.group_size, device=matrix.device, dtype=matrix.dtype))
                self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Set γ to one and β to zero, and reset the population."""
        self.reset_running_stats()
        super().reset_parameters()

    def _uses_batch(self) -> bool:
        return self.training or not self.track_running_stats

    def _batch_weight(self) -> float | Tensor:
        """Return the weight of the next training batch in the running statistics."""
        if self.momentum is not None:
            return self.momentum
        mean = self._population()[0]
        if mean is None or self.num_batches_tracked is None:
            return 1.0
        return (self.num_batches_tracked + 1).to(mean.dtype).reciprocal()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, momentum={self.momentum}, track_running_stats={self.track_running_stats}"
