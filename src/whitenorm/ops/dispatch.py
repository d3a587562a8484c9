"""Which kernels run: torch's, or Triton's on cards where these were seen to give the same numbers."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from whitenorm._runtime import is_forward_mode, is_transformed, may_write_in_place, nbytes
from whitenorm.ops import verified_gpus
from whitenorm.ops.torch import abreast, dual
from whitenorm.ops.torch.apply import apply
from whitenorm.ops.torch.input_gradient import input_gradient
from whitenorm.ops.torch.map_gradients import map_gradients
from whitenorm.ops.torch.moments import moments
from whitenorm.ops.torch.solve import solve, solve_backward
from whitenorm.ops.types import MapGradients, Solved, Statistics, StatisticsGrads
from whitenorm.solvers.base import Solver
from whitenorm.solvers.newton import Newton

MODES = ("auto", "torch", "triton")
# The largest matrix that Triton solves for in one program, and the largest that its other kernels are made for.
_LARGEST_SOLVED = 64
_LARGEST = 1024
# Bytes: of a smaller x, making matrices wide takes longer than it saves.
_WORTH_WIDENING = 2**20


class Kernels(NamedTuple):
    """The six steps, and whether they take x as it lies in memory, or copied where another order is faster."""

    moments: Callable[..., Statistics]
    solve: Callable[..., Solved]
    apply: Callable[..., Tensor]
    map_gradients: Callable[..., MapGradients]
    solve_backward: Callable[..., StatisticsGrads]
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
# In the same layout as TORCH.
ABREAST = TORCH._replace(
    moments=abreast.moments,
    apply=abreast.apply,
    map_gradients=abreast.map_gradients,
    input_gradient=abreast.input_gradient,
)


def checked_mode(mode: str, where: str) -> str:
    """The mode, or an error that says which there are, or what it lacks."""
    if mode not in MODES:
        known = ", ".join(f'"{name}"' for name in MODES)
        raise ValueError(f"expected {where} to be one of {known} (got {mode!r})")
    if mode == "triton" and not _has_triton():
        raise ValueError(
            f'expected Triton to be installed for {where} "triton" (got none); it comes with CUDA builds of torch, '
            "otherwise: pip install triton"
        )
    return mode


def set_kernels(mode: str) -> None:
    """Choose the kernels that run from now on, in this process.

    ``"auto"``, the default, takes Triton's for CUDA tensors on kinds of cards on which ``whitenorm gpu`` has found that
    their numbers agree, and torch's everywhere else. ``"torch"`` takes torch's, ``"triton"`` Triton's for all CUDA
    tensors. The environment variable ``WHITENORM_KERNELS`` sets what a process begins with; empty means ``"auto"``.

    Triton's are for float32, bfloat16 and float16, Newton's iteration and up to 64 features; other solvers and more
    features are solved for by torch between Triton's passes over x. Masks, compilers, ``torch.func`` and second
    derivatives always take torch's.

    Example::

        >>> whitenorm.set_kernels("torch")
        >>> whitenorm.set_kernels("auto")
    """
    global _mode
    _mode = checked_mode(mode, "kernels")


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def kernels_for(x: Tensor, solver: Solver | None, features: int, masked: bool = False) -> Kernels:
    """The kernels for an input, a solver (None where nothing is solved) and a number of features."""
    if masked or features > _LARGEST or not takes_triton(x):
        return TORCH
    solved = solver is None or (type(solver) is Newton and features <= _LARGEST_SOLVED)
    return _triton() if solved else _triton()._replace(solve=solve, solve_backward=solve_backward)


def groups_abreast(kernels: Kernels, x: Tensor, groups: int, features: int, rows: bool) -> Kernels:
    """The same kernels, or those that take several groups at once, of few channels that are neighbours in memory."""
    if kernels is not TORCH or not rows or x.device.type != "cpu" or is_transformed() or nbytes(x) < _WORTH_WIDENING:
        return kernels
    return ABREAST if abreast.width(groups, features) > features else kernels


def sample_kernels(x: Tensor, solver: Solver, kernels: Kernels) -> Any:
    """The pair that whitens samples ``x[N, 1, K, J, P]`` of which one program holds a whole one; None where not."""
    if not kernels.as_it_lies or type(solver) is not Newton:
        return None
    from whitenorm.ops.triton import samples

    return samples if samples.fits(x) else None


def under_transforms(kernels: Kernels) -> Kernels:
    """The same kernels, or torch's plain ones where autograd records or a transform is at work."""
    recorded = not may_write_in_place()
    return TORCH if recorded and (kernels.as_it_lies or kernels is ABREAST) else kernels


def takes_triton(x: Tensor) -> bool:
    """Whether this tensor is one for Triton's kernels, as things are set."""
    if _mode == "torch" or (_mode == "auto" and not x.is_cuda):
        return False
    if is_transformed() or is_forward_mode() or type(x) not in (Tensor, torch.nn.Parameter) or x.numel() == 0:
        return False
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    if _mode == "triton":
        # A meta tensor is for counting: nothing runs.
        return x.is_cuda or x.is_meta or os.environ.get("TRITON_INTERPRET") == "1"
    return _has_triton() and _is_trusted(x.device)


def _is_trusted(device: torch.device) -> bool:
    trusted = verified_gpus.is_trusted(device)
    if not trusted:
        _hint()
    return trusted


@functools.cache
def _hint() -> None:
    """Said once a process."""
    warnings.warn(
        "whitenorm has faster kernels for this GPU, and does not use them before they were seen to give the same "
        'numbers on it: run "whitenorm gpu" once, or choose with whitenorm.set_kernels or $WHITENORM_KERNELS',
        stacklevel=2,
    )


@functools.cache
def _triton() -> Kernels:
    from whitenorm.ops.triton import apply, input_gradient, map_gradients, moments, solve, solve_backward

    return Kernels(
        moments.moments,
        solve.solve,
        apply.apply,
        map_gradients.map_gradients,
        solve_backward.solve_backward,
        input_gradient.input_gradient,
        as_it_lies=True,
    )


_mode = checked_mode(os.environ.get("WHITENORM_KERNELS") or "auto", "WHITENORM_KERNELS")
