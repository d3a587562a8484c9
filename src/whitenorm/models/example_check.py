"""Check on an example that a rewritten model still has the same outputs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from whitenorm.models.tracing import copy_module

# Differences due to rounding in a deep network, relative to the largest value.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 6e-4, torch.float16: 0.03, torch.bfloat16: 0.1}
_HALVES = (torch.float16, torch.bfloat16)


def check_same_output(model: nn.Module, rewrite: Callable[[nn.Module], nn.Module], example: Any) -> str:
    """Raise unless a rewritten copy of the model has the outputs of the model.

    They are compared in the widest dtype in which the model runs: the errors of half precision hide a wrong result, and
    rounding may change an argmax. In its own dtype, the rewritten model has to run, with outputs of the same structure
    that are finite where the model's are.

    Returns:
        A note if rounding alone makes the outputs differ in the model's own dtype; otherwise an empty string.
    """
    expected = _run(copy_module(model), example)
    leaves = tree_leaves(_unpack_dataclasses(expected))
    if not any(isinstance(leaf, Tensor) and leaf.numel() for leaf in leaves):
        raise ValueError(
            "expected an example on which the model's output has numbers to compare (got "
            f"{type(expected).__name__} without any); give another one, or leave it out"
        )
    with warnings.catch_warnings():
        # The run above has shown the model's own warnings.
        warnings.simplefilter("ignore")
        actual = _run(rewrite(copy_module(model)), example)
        _check(_compare(_has_same_form, actual, expected))
        is_close = _compare(_is_close, actual, expected)
        wide = _run_wide(model, example)
        if wide is None:
            _check(is_close)
            return ""
        dtype, wide_expected = wide
        wide_actual = _run(rewrite(copy_module(model).to(dtype)), _cast(example, dtype))
        _check(_compare(_is_close, wide_actual, wide_expected))
    if is_close or any(isinstance(leaf, Tensor) and leaf.dtype in _HALVES for leaf in leaves):
        return ""
    return (
        f"the outputs on the example agree in {dtype}, but rounding makes them differ in the model's own dtype: "
        "population statistics may be nearly singular; recalibrate_ on more data, or use smaller groups"
    )


def _check(is_same: bool) -> None:
    if not is_same:
        raise ValueError(
            "expected the same output after folding (got another one; the model is not changed): it takes another path "
            "than its symbolic trace, or uses a layer in other ways than calling it; to leave a layer unfolded, give "
            "it a hook, layer.register_forward_hook(lambda *_: None)"
        )


def _run_wide(model: nn.Module, example: Any) -> tuple[torch.dtype, Any] | None:
    """Run a copy in float64, otherwise in float32; return None if the model runs in neither."""
    for dtype in (torch.float64, torch.float32):
        try:
            return dtype, _run(copy_module(model).to(dtype), _cast(example, dtype))
        # The error depends on the operation and the device.
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


def _compare(test: Callable[[Any, Any], bool], actual: Any, expected: Any) -> bool:
    """Return whether two outputs have the same structure, and all pairs of leaves pass a test."""
    new, new_structure = tree_flatten(_unpack_dataclasses(actual))
    old, old_structure = tree_flatten(_unpack_dataclasses(expected))
    return new_structure == old_structure and all(map(test, new, old))


def _unpack_dataclasses(output: Any) -> Any:
    """Replace dataclasses, which are leaves of torch's trees, by dicts."""
    return tree_map(lambda leaf: _unpack_dataclasses(vars(leaf)) if _is_dataclass(leaf) else leaf, output)


def _is_dataclass(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)


def _has_same_form(new: Any, old: Any) -> bool:
    """Return whether two leaves have the same type, and no finite tensor has become infinite or NaN."""
    if not isinstance(old, Tensor):
        return type(new) is type(old)
    return isinstance(new, Tensor) and new.dtype == old.dtype and bool(new.isfinite().all() or not old.isfinite().all())


def _is_close(new: Any, old: Any) -> bool:
    """Return whether two leaves have the same values; leaves other than numbers, strings and tensors count as equal."""
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
