"""Whether a model that was rewritten still computes the same, seen on an example."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from whitenorm.models.tracing import copy_module

# What rounding on two ways to the same number may make different in a deep network, relative to the largest.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 6e-4, torch.float16: 0.03, torch.bfloat16: 0.1}
_HALVES = (torch.float16, torch.bfloat16)


def check_agreement(model: nn.Module, rewrite: Callable[[nn.Module], nn.Module], example: Any) -> str:
    """Raise unless a copy of the model that is rewritten has the outputs of one that is not.

    They are compared in the widest dtype in which the model runs: half precision hides a wrong result among its own
    errors, and rounding can make another of nearly equal values the largest, which gives other integers. In its own
    dtype the rewritten model has to run, with outputs of the same structure and as finite. Returns a note where they
    differ by more than usual there, which rounding alone has then done.
    """
    own = _run(copy_module(model), example)
    leaves = tree_leaves(_open(own))
    if not any(isinstance(leaf, Tensor) and leaf.numel() for leaf in leaves):
        raise ValueError(
            f"expected an example on which the model's output has numbers to compare (got {type(own).__name__} without "
            "any); give another one, or leave it out"
        )
    with warnings.catch_warnings():
        # The model's own have been seen in the run above.
        warnings.simplefilter("ignore")
        actual = _run(rewrite(copy_module(model)), example)
        _check(_all(_fits, actual, own))
        agrees = _all(_agrees, actual, own)
        wide = _run_wide(model, example)
        if wide is None:
            _check(agrees)
            return ""
        dtype, expected = wide
        _check(_all(_agrees, _run(rewrite(copy_module(model).to(dtype)), _cast(example, dtype)), expected))
    if agrees or any(isinstance(leaf, Tensor) and leaf.dtype in _HALVES for leaf in leaves):
        return ""
    return (
        f"the outputs on the example agree in {dtype}, but rounding makes them differ in the model's own dtype: "
        "population statistics may be nearly singular; recalibrate_ on more data, or use smaller groups"
    )


def _check(same: bool) -> None:
    if not same:
        raise ValueError(
            "expected the same output after folding (got another one; the model is not changed): it takes another path "
            "than its symbolic trace, or uses a layer in other ways than calling it; to leave a layer unfolded, give "
            "it a hook, layer.register_forward_hook(lambda *_: None)"
        )


def _run_wide(model: nn.Module, example: Any) -> tuple[torch.dtype, Any] | None:
    """Run a copy in float64, or else in float32; None where the model has a dtype written into its code."""
    for dtype in (torch.float64, torch.float32):
        try:
            return dtype, _run(copy_module(model).to(dtype), _cast(example, dtype))
        # Which error it is depends on the operation and the device.
        except Exception:
            continue
    return None


@torch.no_grad()
def _run(model: nn.Module, example: Any) -> Any:
    return model(*example) if isinstance(example, tuple) else model(example)


def _cast(example: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda leaf: leaf.to(dtype) if _is_real(leaf) else leaf, example)


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _all(test: Callable[[Any, Any], bool], actual: Any, expected: Any) -> bool:
    """Whether two outputs have the same structure, and all their leaves pass a test."""
    (new, new_structure), (old, old_structure) = (tree_flatten(_open(output)) for output in (actual, expected))
    return new_structure == old_structure and all(map(test, new, old))


def _open(output: Any) -> Any:
    """Make dictionaries of dataclasses, which torch's trees take for leaves."""
    return tree_map(lambda leaf: _open(vars(leaf)) if _is_dataclass(leaf) else leaf, output)


def _is_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def _fits(new: Any, old: Any) -> bool:
    """Whether two leaves are of the same type, and no number has become infinite or none."""
    if not isinstance(old, Tensor):
        return type(new) is type(old)
    return isinstance(new, Tensor) and new.dtype == old.dtype and bool(new.isfinite().all() or not old.isfinite().all())


def _agrees(new: Any, old: Any) -> bool:
    """Whether two leaves are the same number, or numbers; objects that are neither are not looked into."""
    if isinstance(old, float):
        new, old = torch.tensor(new), torch.tensor(old)
    if not isinstance(old, Tensor):
        return not isinstance(old, (int, str)) or bool(new == old)
    if (new.shape, new.dtype) != (old.shape, old.dtype):
        return False
    if not (old.is_floating_point() or old.is_complex()):
        return torch.equal(new, old)
    finite = old[old.isfinite()]
    scale = finite.abs().max().item() if finite.numel() else 0.0
    return torch.allclose(new, old, rtol=0, atol=_TOLERANCE.get(old.dtype, 1e-6) * scale, equal_nan=True)
