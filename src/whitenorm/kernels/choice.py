"""Which kernels run: the torch ones, or Triton's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from whitenorm.kernels.torch import dual
from whitenorm.kernels.torch.apply import apply
from whitenorm.kernels.torch.input_gradient import input_gradient
from whitenorm.kernels.torch.map_gradients import map_gradients
from whitenorm.kernels.torch.moments import moments
from whitenorm.kernels.torch.solve import solve, solve_backward
from whitenorm.kernels.types import Back, MapGradients, Measured, Solved
from whitenorm.solvers.base import Solver


class Kernels(NamedTuple):
    """The six steps, and whether they take x as it lies in memory, or copied where another order is faster."""

    moments: Callable[..., Measured]
    solve: Callable[..., Solved]
    apply: Callable[..., Tensor]
    map_gradients: Callable[..., MapGradients]
    solve_backward: Callable[..., Back]
    input_gradient: Callable[..., Tensor]
    as_it_lies: bool


TORCH = Kernels(moments, solve, apply, map_gradients, solve_backward, input_gradient, as_it_lies=False)
DUAL = Kernels(
    dual.moments,
    solve,
    dual.apply,
    dual.map_gradients,
    dual.solve_backward,
    dual.input_gradient,
    as_it_lies=False,
)


def kernels_for(x: Tensor, solver: Solver | None, features: int, masked: bool = False) -> Kernels:
    """The kernels for an input, a solver (None where nothing is solved) and a number of features."""
    return TORCH


def under_transforms(kernels: Kernels) -> Kernels:
    """The same kernels, or torch's in their place where autograd records or a transform is at work."""
    return kernels
