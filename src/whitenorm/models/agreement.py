"""Whether a model that was rewritten still computes the same, seen on an example."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from whitenorm.models.tracing import copy_module

# What rounding on two ways to the same number may make different in a deep network, relative to the largest.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 6e-4, torch.float16: 0.03, torch.bfloat16: 0.1}


def check_agreement(model: nn.Module, rewrite: Callable[[nn.Module], nn.Module], example: Any) -> None:
    """Raise unless a copy of the model that is rewritten has the outputs of one that is not.

    They are compared in the widest dtype in which the model runs: half precision hides a wrong result among its own
    errors, and rounding can make another of nearly equal values the largest, which gives other integers. In its own
    dtype the rewritten model has to run, with outputs of the same structure, finite where they were.
    """
    own = _run(copy_module(model), example)
    with warnings.catch_warnings():
        # The model's own have been seen in the run above.
        warnings.simplefilter("ignore")
        wide = _run_wide(model, example)
        _compare(_run(rewrite(copy_module(model)), example), own, by_value=wide is None)
        if wide is not None:
            dtype, expected = wide
            actual = _run(rewrite(copy_module(model).to(dtype)), _cast(example, dtype))
            _compare(actual, expected, by_value=True)


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


def _compare(actual: Any, expected: Any, by_value: bool) -> None:
    """Raise unless two outputs have the same structure and, with ``by_value``, the same values."""
    (new, new_structure), (old, old_structure) = (tree_flatten(_open(output)) for output in (actual, expected))
    if not any(isinstance(leaf, Tensor) and leaf.numel() for leaf in old):
        raise ValueError(
            f"expected an example on which the model's output has numbers to compare (got {type(expected).__name__} "
            "without any); give another one, or leave it out"
        )
    if new_structure != old_structure or not all(_agree(*pair, by_value) for pair in zip(new, old, strict=True)):
        raise ValueError(
            "expected the same output after folding (got another one; the model is not changed): it takes another path "
            "than its symbolic trace, or uses a layer in other ways than calling it; to leave a layer unfolded, give it "
            "a hook, layer.register_forward_hook(lambda *_: None)"
        )


def _open(output: Any) -> Any:
    """Make dictionaries of dataclasses, which torch's trees take for leaves."""
    return tree_map(lambda leaf: _open(vars(leaf)) if _is_dataclass(leaf) else leaf, output)


def _is_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def _agree(new: Any, old: Any, by_value: bool) -> bool:
    if type(new) is not type(old):
        return False
    if isinstance(old, float):
        new, old = torch.tensor(new), torch.tensor(old)
    if not isinstance(old, Tensor):
        return not by_value or not isinstance(old, (int, str)) or new == old
    if (new.shape, new.dtype) != (old.shape, old.dtype):
        return False
    finite = old.isfinite()
    if not by_value:
        return torch.equal(new.isfinite(), finite)
    if not (old.is_floating_point() or old.is_complex()):
        return torch.equal(new, old)
    scale = old[finite].abs().max().item() if finite.any() else 0.0
    return torch.allclose(new, old, rtol=0, atol=_TOLERANCE.get(old.dtype, 1e-6) * scale, equal_nan=True)
