"""One layer of a conversion's record: written from a layer, checked, and made into a layer again."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from whitenorm import layers
from whitenorm._suggest import suggest
from whitenorm.functional import check_population
from whitenorm.models.parts import Activated, Decorrelated, LayerWhitening2d
from whitenorm.ops.check import check_eps, check_momentum, check_positive, check_statistics
from whitenorm.solvers import as_solver

# Where a layer stands: alone, before an activation that was fused with the old norm, or before a linear layer.
PLACES: dict[str, type[nn.Module]] = {"activated": Activated, "before": Decorrelated}
# All but the base class.
_KINDS: dict[str, type[nn.Module]] = {name: getattr(layers, name) for name in layers.__all__ if name != "Whitening"}
_KINDS["LayerWhitening2d"] = LayerWhitening2d
_NOT_RECORDED = ("process_group", "device", "dtype")
_SIZES = ("num_features", "num_channels", "normalized_shape")
# A record that asks for more is damaged: nothing is gained by so many steps, and a layer would hang.
_MOST_STEPS = 1000

Entry = Mapping[str, Any]


def write_entry(name: str, module: nn.Module) -> dict[str, Any]:
    """Describe a layer by its class and arguments, as JSON can hold them."""
    kind = type(module).__name__
    if _KINDS.get(kind) is not type(module):
        raise ValueError(
            f"expected layers of whitenorm's own classes (got {kind}, a class of its own, which cannot be made again "
            "from a record); save its module whole with torch.save"
        )
    return {"layer": kind, "arguments": {key: _value(name, module, key) for key in _argument_names(type(module))}}


def make_layer(name: str, entry: Entry, width: int) -> nn.Module:
    """Make the layer of an entry, for a norm of this width; raise if anything in the entry is not as it was written."""
    try:
        kind, arguments = _check(entry, width)
        return kind(**arguments)
    except ValueError as error:
        raise ValueError(
            f"expected the record of a conversion as conversion_of writes it (got a damaged entry {name!r}: {error})"
        ) from None


def _argument_names(kind: type[nn.Module]) -> list[str]:
    return [name for name in inspect.signature(kind).parameters if name not in _NOT_RECORDED]


def _value(name: str, module: Any, argument: str) -> Any:
    if argument == "steps":
        return module.solver.steps
    if argument == "solver":
        return _solver(name, module.solver)
    if argument == "bias":
        return module.bias is not None
    value = getattr(module, argument)
    return list(value) if isinstance(value, tuple) else value


def _solver(name: str, solver: Any) -> str | dict[str, Any]:
    """A solver's name, with its options if they are not its own defaults."""
    kind = type(solver).__name__.lower()
    try:
        default = as_solver(kind)
    except ValueError:
        raise ValueError(
            f"expected solvers with a name, such as 'zca', in a record (got {solver!r} at {name!r}); pass the layers "
            "that use a function of your own again by convert_"
        ) from None
    return kind if solver == default else {"name": kind, **vars(solver)}


def _check(entry: Any, width: int) -> tuple[type[nn.Module], dict[str, Any]]:
    _check_keys("entry", entry, ("layer", "arguments"), ("place",))
    if entry["layer"] not in tuple(_KINDS):
        hint = suggest(entry["layer"], _KINDS) if isinstance(entry["layer"], str) else ""
        raise ValueError(f"expected layer to be one of {', '.join(_KINDS)} (got {entry['layer']!r}){hint}")
    if "place" in entry and entry["place"] not in tuple(PLACES):
        raise ValueError(f"expected place to be one of {', '.join(PLACES)} (got {entry['place']!r})")
    kind, arguments = _KINDS[entry["layer"]], entry["arguments"]
    names = _argument_names(kind)
    _check_keys("arguments", arguments, names)
    arguments = {name: _ARGUMENTS[name](name, arguments[name]) for name in names}
    size = next(arguments[name] for name in _SIZES if name in arguments)
    total = math.prod(size) if isinstance(size, tuple) else size
    if total != width:
        raise ValueError(f"expected a layer for the width {width} of what it takes the place of (got {total})")
    return kind, arguments


def _check_keys(what: str, given: Any, required: list[str] | tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if not isinstance(given, Mapping):
        raise ValueError(f"expected {what} to be a dict (got {given!r})")
    missing = [name for name in required if name not in given]
    unknown = [repr(name) for name in given if name not in (*required, *optional)]
    if missing or unknown:
        raise ValueError(
            f"expected {what} to have {', '.join(required)} (missing: {', '.join(missing) or 'nothing'}; unknown: "
            f"{', '.join(unknown) or 'nothing'})"
        )


def _size(name: str, value: Any) -> int:
    check_positive(name, value)
    return int(value)


def _shape(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"expected {name} to be a list of sizes (got {value!r})")
    return tuple(_size(f"every size of {name}", size) for size in value)


def _steps(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_STEPS:
        raise ValueError(f"expected {name} to be a whole number from 0 to {_MOST_STEPS} (got {value!r})")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} to be true or false (got {value!r})")
    return value


def _read_solver(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return as_solver(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(f"expected {name} to be a name, or a dict with one and the solver's options (got {value!r})")
    solver = as_solver(value["name"])
    _check_keys(name, value, ("name", *vars(solver)))
    return type(solver)(**{option: _OPTIONS[option](option, value[option]) for option in vars(solver)})


def _checked_by(check: Callable[[Any], None]) -> Callable[[str, Any], Any]:
    def check_value(name: str, value: Any) -> Any:
        check(value)
        return value

    return check_value


def _statistics(name: str, value: Any) -> tuple[str, ...]:
    check_statistics(value)
    return tuple(value)


# Of solvers.
_OPTIONS: dict[str, Callable[[str, Any], Any]] = {"steps": _steps}
# Of layers: each takes the argument's name and value in the record, and returns the value that the class takes.
_ARGUMENTS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("num_features", "num_channels", "group_size", "num_groups"), _size),
    **dict.fromkeys(("affine", "elementwise_affine", "bias", "track_running_stats", "tie_weights"), _flag),
    "normalized_shape": _shape,
    "steps": _steps,
    "solver": _read_solver,
    "eps": _checked_by(check_eps),
    "momentum": _checked_by(check_momentum),
    "population": _checked_by(check_population),
    "statistics": _statistics,
}
