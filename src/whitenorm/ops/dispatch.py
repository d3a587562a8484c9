"""Choice of the backend: torch's operations, the C++ kernels on CPUs, or Triton's on GPUs where they were verified."""

from __future__ import annotations

import functools
import importlib.util
import math
import os
import warnings

import torch
from torch import Tensor

from whitenorm._runtime import is_forward_mode, is_tracing, is_transformed, may_write_in_place
from whitenorm.ops import verified_gpus
from whitenorm.ops.layout import Layout, is_channels_last
from whitenorm.ops.native import fused, steps
from whitenorm.ops.native.library import load_library
from whitenorm.ops.torch import dual, messages, passes, scaled
from whitenorm.ops.torch.solve import solve, solve_backward
from whitenorm.ops.types import FusedKernels, Kernels, Method
from whitenorm.solvers.base import Solver
from whitenorm.solvers.newton import Newton

MODES = ("auto", "torch", "triton", "native")
# Most features that the Triton kernels solve for in one program, and most that the others support.
_LARGEST_SOLVED = 64
_LARGEST = 1024
# Dtypes that the C++ and the Triton kernels support.
_KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

TORCH = Kernels(
    passes.moments, solve, passes.apply, passes.map_gradients, solve_backward, passes.input_gradient, messages
)
# For features of several channels, and for the dual of vectors.
SCALED = TORCH._replace(apply=scaled.apply, map_gradients=scaled.map_gradients, input_gradient=scaled.input_gradient)
DUAL = Kernels(dual.moments, solve, dual.apply, dual.map_gradients, dual.solve_backward, dual.input_gradient, messages)
NATIVE = Kernels(
    steps.moments,
    steps.solve,
    steps.apply,
    steps.map_gradients,
    steps.solve_backward,
    steps.input_gradient,
    messages,
    FusedKernels(fused.is_supported, fused.whiten_samples, fused.whiten_samples_backward),
    FusedKernels(fused.is_supported, fused.whiten_batch, fused.whiten_batch_backward),
    handles_strides=True,
)
# For solvers other than Newton's, and for larger matrices.
_NATIVE_PASSES = NATIVE._replace(solve=solve, solve_backward=solve_backward, fused_samples=None, fused_batch=None)


def set_kernels(mode: str) -> None:
    """Choose the kernels that run from now on in this process.

    ``"auto"``, the default, uses the C++ kernels for CPU tensors where they were measured to be faster, Triton's
    kernels for CUDA tensors on models of GPUs on which ``whitenorm gpu`` has verified them, and torch's everywhere
    else. ``"torch"`` uses torch's, ``"native"`` the C++ kernels for all CPU tensors, and ``"triton"`` Triton's for all
    CUDA tensors. The environment variable ``WHITENORM_KERNELS`` sets the mode that a process starts with; empty means
    ``"auto"``.

    The C++ kernels are compiled when whitenorm is installed from source with a compiler; ``whitenorm bench --info``
    prints which kernels are available. They and Triton's are for float32, bfloat16 and float16, Newton's iteration and
    up to 64 features; for other solvers and more features, torch solves between their passes over x. Masks, compilers,
    ``torch.func`` and second derivatives always use torch's kernels.

    Example::

        >>> whitenorm.set_kernels("torch")
        >>> whitenorm.set_kernels("auto")
    """
    global _mode
    _mode = _check_mode(mode, "kernels")


def describe_backends() -> dict[str, str]:
    """Return which backends are available and where they are used, by name.

    Example::

        >>> describe_backends()["torch"]
        'always available'
    """
    functions, description = load_library()
    native = f"{description}, for CPU tensors" if functions is not None else description
    triton = "installed; used on GPUs that `whitenorm gpu` has verified" if _has_triton() else "not installed"
    return {"mode": _mode, "torch": "always available", "native": native, "triton": triton}


def _check_mode(mode: str, where: str) -> str:
    if mode not in MODES:
        known = ", ".join(f'"{name}"' for name in MODES)
        raise ValueError(f"expected {where} to be one of {known} (got {mode!r})")
    if mode == "triton" and not _has_triton():
        raise ValueError(
            f'expected Triton to be installed for {where} "triton" (got none); it comes with CUDA builds of torch, '
            "otherwise: pip install triton"
        )
    if mode == "native" and load_library().functions is None:
        raise ValueError(
            f'expected the compiled CPU kernels for {where} "native" (got none: {load_library().description})'
        )
    return mode


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def choose_kernels(
    x: Tensor, solver: Solver | None, features: int, masked: bool = False, is_per_sample: bool = False
) -> Kernels:
    """Return the kernels for an input, a solver (None where nothing is solved for) and a number of features.

    Those of torch are for features of one channel; :func:`torch_kernels` has the others.
    """
    if _mode == "torch" or masked or features > _LARGEST:
        return TORCH
    if _takes_native(x, features, is_per_sample):
        if solver is None or (
            type(solver) is Newton and solver.steps <= steps.MOST_STEPS and features <= steps.LARGEST_SOLVED
        ):
            return NATIVE
        # The passes over x of large matrices are slower than torch's where channels are neighbours in memory.
        if _mode == "native" or features <= steps.LARGEST_SOLVED or not is_channels_last(x):
            return _NATIVE_PASSES
        return TORCH
    if not _takes_triton(x):
        return TORCH
    kernels = _load_operators() if torch.compiler.is_compiling() else _load_triton()
    solved = solver is None or (type(solver) is Newton and features <= _LARGEST_SOLVED)
    return kernels if solved else kernels._replace(solve=solve, solve_backward=solve_backward)


def torch_kernels(layout: Layout) -> Kernels:
    """Return torch's kernels for a layout."""
    if layout.dual:
        return DUAL
    return SCALED if layout.groups_as_features else TORCH


def fused_kernels(kernels: Kernels, layout: Layout, method: Method, shape: torch.Size) -> FusedKernels | None:
    """Return the kernels that whiten an input of a shape by a method in one call, or None if there are none."""
    solver = method.solver
    if type(solver) is not Newton or len(method.statistics) > 1 or method.scale != 1:
        return None
    fused = kernels.fused_batch if method.uses_batch else kernels.fused_samples
    if fused is None or not fused.is_supported(layout.split_shape(shape), solver.steps):
        return None
    return fused


def kernels_under_transforms(kernels: Kernels, layout: Layout) -> Kernels:
    """Return the kernels to use now: torch's where autograd records or a transform is active, otherwise the same."""
    if not kernels.handles_strides or may_write_in_place():
        return kernels
    if kernels.are_operators and torch.compiler.is_compiling() and not torch.is_grad_enabled():
        return kernels
    return torch_kernels(layout)


def _takes_native(x: Tensor, features: int, is_per_sample: bool) -> bool:
    """Return whether the C++ kernels are to be used for a tensor."""
    if x.device.type != "cpu" or _mode not in ("auto", "native"):
        return False
    if _mode == "auto" and not _is_native_faster(x, features, is_per_sample):
        return False
    if not _fits_kernels(x, is_transformed() or is_forward_mode()) or torch._C._len_torch_dispatch_stack() > 0:
        return False
    return load_library().functions is not None


def _is_native_faster(x: Tensor, features: int, is_per_sample: bool) -> bool:
    """Return whether the C++ kernels are faster than torch's, by the table that ``benchmarks/backends.py`` measures.

    They read channels-last images one group after the other, which takes longer for large images where groups end
    within a line of the cache. For vectors with fewer values than features, torch solves a smaller dual.
    """
    positions = math.prod(x.shape[2:])
    if features < 4 or (is_per_sample and positions == 1 and features**2 > x.shape[1]):
        return False
    if is_per_sample or positions == 1 or not is_channels_last(x):
        return True
    return features % 8 == 0 or features == x.shape[1] or positions <= 1024


def _fits_kernels(x: Tensor, is_under_transform: bool) -> bool:
    """Return whether kernels that read memory directly can run now on a tensor."""
    if is_under_transform or type(x) not in (Tensor, torch.nn.Parameter):
        return False
    return x.dtype in _KERNEL_DTYPES and x.numel() > 0


def _takes_triton(x: Tensor) -> bool:
    """Return whether Triton's kernels are to be used for a tensor."""
    if _mode == "native" or (_mode == "auto" and not x.is_cuda):
        return False
    if not _fits_kernels(x, _is_under_transform()) or (x.is_cuda and not _can_compile(x.device)):
        return False
    if _mode == "triton":
        # On meta tensors nothing runs; benchmarks count launches with them.
        return x.is_cuda or x.is_meta or os.environ.get("TRITON_INTERPRET") == "1"
    return _is_verified(x.device)


def _is_under_transform() -> bool:
    """Return whether Triton's kernels cannot be used: an export, a transform or forward mode is active."""
    if torch.compiler.is_compiling():
        return is_tracing() or torch._C._are_functorch_transforms_active()
    return is_transformed() or is_forward_mode()


@functools.cache
def _can_compile(device: torch.device) -> bool:
    """Return whether Triton compiles for a GPU, and warn if it does not."""
    if torch.version.hip is not None or torch.cuda.get_device_capability(device) >= (8, 0):
        return True
    major, minor = torch.cuda.get_device_capability(device)
    warnings.warn(
        f"expected a GPU of compute capability 8.0 or newer for Triton's kernels (got {major}.{minor}); whitenorm uses "
        "torch's kernels on this GPU",
        stacklevel=2,
    )
    return False


def _is_verified(device: torch.device) -> bool:
    if not _has_triton():
        return False
    is_verified = verified_gpus.is_verified(device)
    if not is_verified:
        _suggest_verifying()
    return is_verified


# A compiler must not trace how files are read. torch.compiler.assume_constant_result would import all of it.
_is_verified._dynamo_marked_constant = True  # type: ignore[attr-defined]


@functools.cache
def _suggest_verifying() -> None:
    """Warn once per process."""
    warnings.warn(
        "whitenorm has faster kernels for this GPU, which it uses only once they are verified: run "
        '"whitenorm gpu" once, or choose with whitenorm.set_kernels or $WHITENORM_KERNELS',
        stacklevel=2,
    )


@functools.cache
def _load_triton() -> Kernels:
    from whitenorm.ops.triton import (
        apply,
        input_gradient,
        map_gradients,
        messages,
        moments,
        per_sample,
        solve,
        solve_backward,
    )

    return Kernels(
        moments.moments,
        solve.solve,
        apply.apply,
        map_gradients.map_gradients,
        solve_backward.solve_backward,
        input_gradient.input_gradient,
        messages,
        FusedKernels(per_sample.is_supported, per_sample.whiten_samples, per_sample.whiten_samples_backward),
        handles_strides=True,
        saves_mixed_cov=True,
    )


def _load_operators() -> Kernels:
    # Not cached: a compiler traces this once, and warns of caches.
    from whitenorm.ops.triton import operators

    # For run_into, operators take a layout in place of a tensor to write to.
    return Kernels(
        operators.moments,
        operators.solve,
        operators.apply,  # type: ignore[arg-type]
        operators.map_gradients,
        operators.solve_backward,
        operators.input_gradient,  # type: ignore[arg-type]
        messages,
        operators.samples,
        handles_strides=True,
        saves_mixed_cov=True,
        are_operators=True,
    )


_mode = _check_mode(os.environ.get("WHITENORM_KERNELS") or "auto", "WHITENORM_KERNELS")
