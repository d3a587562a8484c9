"""Records of conversions: which whitening layers a model has, as JSON, and a plain model converted by a record."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from whitenorm import layers
from whitenorm._suggest import suggest
from whitenorm.functional import check_population
from whitenorm.layers import Whitening
from whitenorm.layers.concept import check_activation
from whitenorm.models.modules import Activated, Decorrelated, LayerWhitening2d, put_before
from whitenorm.models.norms import as_norm
from whitenorm.models.replace import disable_fast_path_, replace_
from whitenorm.models.transfer import (
    find_nearest_tensors,
    is_same_layer,
    make_identity_norm,
    place_layer,
    transfer_hooks,
    transfer_origin,
    transfer_requires_grad,
)
from whitenorm.ops.check import check_eps, check_momentum, check_positive, check_statistics
from whitenorm.solvers import as_solver

# The record's key in a checkpoint, and its attribute in a transformers configuration.
RECORD_KEY = "whitenorm"
# The container of a layer that is followed by a fused activation, or by the linear layer whose input it whitens.
_CONTAINERS: dict[str, type[nn.Module]] = {"activated": Activated, "before": Decorrelated}
# Base classes, and a layer that replaces no norm.
_NO_NORMS = ("Whitening", "PopulationWhitening")
_LAYERS: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (*(getattr(layers, name) for name in layers.__all__), LayerWhitening2d)
    if isinstance(kind, type) and issubclass(kind, Whitening) and kind.__name__ not in _NO_NORMS
}
_NOT_RECORDED = ("process_group", "device", "dtype")
_SIZES = ("num_features", "num_channels", "normalized_shape")
# More steps are useless and would take forever, so a record with more is damaged.
_MAX_STEPS = 1000


def conversion_of(model: nn.Module) -> dict[str, Any]:
    """Return which whitening layers a model has, where, and with which arguments, in a form that JSON can hold.

    :func:`load_converted` converts a plain model of the same architecture in the same way. :func:`convert_` stores the
    record in the configuration of a transformers model, so that ``save_pretrained`` writes it; for other models, save
    it beside the state dict.

    Example::

        >>> model = whitenorm.convert_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "iternorm", steps=3)
        >>> conversion_of(model)["1"]["layer"], conversion_of(model)["1"]["arguments"]["steps"]
        ('IterNorm', 3)
    """
    record: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, Whitening):
            parent_name = name.rpartition(".")[0]
            parent = model.get_submodule(parent_name) if name else None
            place = next((place for place, kind in _CONTAINERS.items() if isinstance(parent, kind)), None)
            entry = _describe_layer(name, module)
            record[name if place is None else parent_name] = entry if place is None else {**entry, "place": place}
    return record


def store_record_(model: nn.Module) -> None:
    """Store the record in the configuration of a transformers model, or of a model with a similar one."""
    config = getattr(model, "config", None)
    if not callable(getattr(config, "to_json_string", None)):
        return
    try:
        record = conversion_of(model)
    except ValueError as error:
        setattr(config, RECORD_KEY, None)
        warnings.warn(f"the model's config has no record of this conversion: {error}", stacklevel=3)
    else:
        setattr(config, RECORD_KEY, record)


def apply_record_(model: nn.Module, record: Mapping[str, Any]) -> nn.Module:
    """Replace the norms of a plain model by the layers of a record, and return the model."""
    converted = replace_(model, make_replacements(model, record))
    disable_fast_path_(converted)
    return converted


def make_replacements(model: nn.Module, record: Any) -> dict[nn.Module, nn.Module]:
    """Make the layers of a record, by the modules that they replace; layers that the model already has stay."""
    if not isinstance(record, Mapping) or not all(isinstance(name, str) for name in record):
        raise ValueError(f"expected the record of a conversion, a dict by module names (got {type(record).__name__})")
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    missing = [name for name in record if name not in modules]
    if missing:
        raise ValueError(
            f"expected a model with the modules of the record (got {type(model).__name__} without "
            f"{', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}){suggest(missing[0], modules)}; build the "
            "architecture that was converted"
        )
    nearest = find_nearest_tensors(model)
    replacements: dict[nn.Module, nn.Module] = {}
    for name, entry in record.items():
        old = modules[name]
        place = entry.get("place") if isinstance(entry, Mapping) else None
        container = _CONTAINERS.get(place) if isinstance(place, str) else None
        if container is not None and isinstance(old, container):
            old, place = old.get_submodule("0"), None
        new = _make_replacement(name, entry, old, place, nearest[old])
        if new is not None:
            replacements[old] = new
    return replacements


def _make_replacement(
    name: str, entry: Mapping[str, Any], old: nn.Module, place: Any, like: Tensor
) -> nn.Module | None:
    """Make the replacement of a module by an entry of a record; None if the module already is that layer."""
    if place == "before" and isinstance(old, nn.Linear):
        before = _make_layer(name, entry, old.in_features).to(device=like.device, dtype=like.dtype)
        transfer_origin(before, make_identity_norm(old), f"{name}.0")
        return put_before(Decorrelated, before.train(old.training), old)
    norm = as_norm(old)
    if norm is None:
        raise ValueError(
            f"expected a norm at {name!r}, as the record says (got {type(old).__name__}); build the architecture that "
            "was converted"
        )
    layer = _make_layer(name, entry, math.prod(norm.shape)).to(device=like.device, dtype=like.dtype)
    if is_same_layer(layer, old):
        return None
    if place != ("activated" if norm.activation else None):
        raise ValueError(
            f"expected {name!r} to have an activation in it exactly if the record says 'activated' (got {place!r}, and "
            f"{type(old).__name__} with activations {norm.activation}); build the architecture that was converted"
        )
    transfer_requires_grad(layer, norm)
    replacement = place_layer(layer, norm, name)
    transfer_hooks(replacement, old)
    return replacement


def _describe_layer(name: str, module: nn.Module) -> dict[str, Any]:
    """Describe a layer by its class and arguments."""
    kind = type(module).__name__
    if _LAYERS.get(kind) is not type(module):
        raise ValueError(
            f"expected layers of whitenorm's own classes (got {kind}, which a record cannot describe); save the whole "
            "module with torch.save"
        )
    arguments = {argument: _read_argument(name, module, argument) for argument in _list_arguments(type(module))}
    return {"layer": kind, "arguments": arguments}


def _list_arguments(kind: type[nn.Module]) -> list[str]:
    return [name for name in inspect.signature(kind).parameters if name not in _NOT_RECORDED]


def _read_argument(name: str, module: Any, argument: str) -> Any:
    if argument == "steps":
        return module.solver.steps
    if argument == "solver":
        return _describe_solver(name, module.solver)
    if argument == "bias":
        return module.bias is not None
    value = getattr(module, argument)
    return list(value) if isinstance(value, tuple) else value


def _describe_solver(name: str, solver: Any) -> str | dict[str, Any]:
    """Return a solver's name, with its options if they are not its defaults."""
    kind = type(solver).__name__.lower()
    try:
        default = as_solver(kind)
    except ValueError:
        raise ValueError(
            f"expected solvers with a name, such as 'zca', in a record (got {solver!r} at {name!r}); make layers "
            "with a function of your own by convert_ again"
        ) from None
    return kind if solver == default else {"name": kind, **vars(solver)}


def _make_layer(name: str, entry: Mapping[str, Any], width: int) -> nn.Module:
    """Make the layer of an entry for a norm of this width, and raise if anything in the entry is invalid."""
    try:
        kind, arguments = _parse_entry(entry, width)
        return kind(**arguments)
    except ValueError as error:
        raise ValueError(
            f"expected the record of a conversion as conversion_of writes it (got a damaged entry {name!r}: {error})"
        ) from None


def _parse_entry(entry: Any, width: int) -> tuple[type[nn.Module], dict[str, Any]]:
    _check_keys("entry", entry, ("layer", "arguments"), ("place",))
    # A tuple, because a damaged entry may not be hashable.
    if entry["layer"] not in tuple(_LAYERS):
        hint = suggest(entry["layer"], _LAYERS) if isinstance(entry["layer"], str) else ""
        raise ValueError(f"expected layer to be one of {', '.join(_LAYERS)} (got {entry['layer']!r}){hint}")
    if "place" in entry and entry["place"] not in tuple(_CONTAINERS):
        raise ValueError(f"expected place to be one of {', '.join(_CONTAINERS)} (got {entry['place']!r})")
    kind, arguments = _LAYERS[entry["layer"]], entry["arguments"]
    names = _list_arguments(kind)
    _check_keys("arguments", arguments, names)
    arguments = {name: _PARSERS[name](name, arguments[name]) for name in names}
    size = next(arguments[name] for name in _SIZES if name in arguments)
    total = math.prod(size) if isinstance(size, tuple) else size
    if total != width:
        raise ValueError(f"expected a layer for the width {width} of the norm that it replaces (got {total})")
    return kind, arguments


def _check_keys(name: str, value: Any, required: list[str] | tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected {name} to be a dict (got {value!r})")
    missing = [key for key in required if key not in value]
    unknown = [repr(key) for key in value if key not in (*required, *optional)]
    if missing or unknown:
        raise ValueError(
            f"expected {name} to have {', '.join(required)} (missing: {', '.join(missing) or 'nothing'}; unknown: "
            f"{', '.join(unknown) or 'nothing'})"
        )


def _parse_size(name: str, value: Any) -> int:
    check_positive(name, value)
    return int(value)


def _parse_shape(name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise ValueError(f"expected {name} to be a list of sizes (got {value!r})")
    return tuple(_parse_size(f"every size of {name}", size) for size in value)


def _parse_steps(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_STEPS:
        raise ValueError(f"expected {name} to be a whole number from 0 to {_MAX_STEPS} (got {value!r})")
    return value


def _parse_flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} to be true or false (got {value!r})")
    return value


def _parse_solver(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return as_solver(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise ValueError(f"expected {name} to be a name, or a dict with one and the solver's options (got {value!r})")
    solver = as_solver(value["name"])
    _check_keys(name, value, ("name", *vars(solver)))
    return type(solver)(**{option: _SOLVER_PARSERS[option](option, value[option]) for option in vars(solver)})


def _parse_statistics(name: str, value: Any) -> tuple[str, ...]:
    check_statistics(value)
    return tuple(value)


def _parse_with(check: Callable[[Any], None]) -> Callable[[str, Any], Any]:
    def parse(name: str, value: Any) -> Any:
        check(value)
        return value

    return parse


# Each parser takes an argument's name and value in the record, checks it, and returns the value for the class.
_SOLVER_PARSERS: dict[str, Callable[[str, Any], Any]] = {"steps": _parse_steps}
_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("num_features", "num_channels", "group_size", "num_groups"), _parse_size),
    **dict.fromkeys(("num_domains", "num_concepts"), _parse_size),
    "activation": _parse_with(check_activation),
    **dict.fromkeys(("affine", "elementwise_affine", "bias", "track_running_stats", "tie_weights"), _parse_flag),
    "normalized_shape": _parse_shape,
    "steps": _parse_steps,
    "solver": _parse_solver,
    "eps": _parse_with(check_eps),
    "momentum": _parse_with(check_momentum),
    "population": _parse_with(check_population),
    "statistics": _parse_statistics,
}
