"""What was converted in a model, as a record that is saved with it, and a plain model made into the same again."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm import layers
from whitenorm.layers.base import Whitening
from whitenorm.models.norms import Norm, as_norm
from whitenorm.models.parts import Activated, Decorrelated, LayerWhitening2d
from whitenorm.models.replace import replace_
from whitenorm.models.take_over import same
from whitenorm.solvers import as_solver

KEY = "whitenorm"
# All but the base class.
_KINDS: dict[str, type[nn.Module]] = {name: getattr(layers, name) for name in layers.__all__ if name != "Whitening"}
_KINDS["LayerWhitening2d"] = LayerWhitening2d
_NOT_RECORDED = ("process_group", "device", "dtype")
# Where a layer stands: alone, before an activation that was fused with the old norm, or before a linear layer.
_PLACES: dict[str, type[nn.Module]] = {"activated": Activated, "before": Decorrelated}


def conversion_of(model: nn.Module) -> dict[str, Any]:
    """Which whitening layers a model has, where, and with which arguments, as JSON can hold it.

    :func:`load_converted` makes a plain model of the same architecture into the same again. :func:`convert_` keeps it
    in the configuration of a transformers model, so that ``save_pretrained`` writes it; elsewhere save it beside the
    state dict.

    Example::

        >>> model = whitenorm.convert_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "iternorm", steps=3)
        >>> conversion_of(model)["1"]["layer"], conversion_of(model)["1"]["arguments"]["steps"]
        ('IterNorm', 3)
    """
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if isinstance(module, Whitening):
            parent = name.rpartition(".")[0]
            around = model.get_submodule(parent) if name else None
            place = next((place for place, kind in _PLACES.items() if isinstance(around, kind)), None)
            entry = {"layer": _kind_name(module), "arguments": _arguments(name, module)}
            found[name if place is None else parent] = entry if place is None else {**entry, "place": place}
    return found


def record_(model: nn.Module) -> None:
    """Keep the record in the configuration of a transformers model, or of one in its manner."""
    config = getattr(model, "config", None)
    if callable(getattr(config, "to_json_string", None)):
        setattr(config, KEY, conversion_of(model))


def load_converted(
    model: nn.Module,
    source: Mapping[str, Any] | str | Path,
    conversion: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
) -> nn.Module:
    """Make a plain model what a converted one was when it was saved, load its state, and return it.

    The record is looked for in this order: the argument; the entry ``"whitenorm"`` of the file or dict, beside the
    state dict in ``"state_dict"`` or ``"model"``, or of a safetensors file's metadata, as JSON; the ``config.json`` of
    a folder; the model's own ``config``.

    Args:
        model: of the same architecture, not converted; of transformers, what ``from_pretrained`` or ``from_config``
            gives.
        source: a state dict, a dict with one, a file of ``torch.save`` or safetensors, or a folder of
            ``save_pretrained``.
        conversion: what :func:`conversion_of` told of the saved model.
        strict: raise if tensors are missing or left over.

    Example::

        >>> saved = whitenorm.convert_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "gw", num_groups=4)
        >>> file = {"state_dict": saved.state_dict(), "whitenorm": whitenorm.conversion_of(saved)}
        >>> load_converted(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), file)[1].num_groups
        4
    """
    state, found = _read(source)
    record = conversion or found or getattr(getattr(model, "config", None), KEY, None)
    if record is None:
        raise ValueError(
            "expected a record of the conversion (got none with the state, nor in the model's config); save it beside "
            'the state dict, {"state_dict": model.state_dict(), "whitenorm": whitenorm.conversion_of(model)}, or pass '
            "conversion="
        )
    model = apply_record_(model, record)
    _load(model, state, strict)
    record_(model)
    return model


def _kind_name(module: nn.Module) -> str:
    name = type(module).__name__
    if _KINDS.get(name) is not type(module):
        raise ValueError(
            f"expected layers of whitenorm's own classes (got {name}, a class of its own, which cannot be made again "
            "from a record); save its module whole with torch.save"
        )
    return name


def _arguments(name: str, module: Any) -> dict[str, Any]:
    arguments = {}
    for argument in inspect.signature(type(module)).parameters:
        if argument == "steps":
            arguments[argument] = module.solver.steps
        elif argument == "solver":
            arguments[argument] = _solver(name, module.solver)
        elif argument == "bias":
            arguments[argument] = module.bias is not None
        elif argument not in _NOT_RECORDED:
            value = getattr(module, argument)
            arguments[argument] = list(value) if isinstance(value, tuple) else value
    return arguments


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


def _made(entry: Mapping[str, Any], like: Tensor | None) -> nn.Module:
    arguments = dict(entry["arguments"])
    solver = arguments.get("solver")
    if isinstance(solver, Mapping):
        options = {name: value for name, value in solver.items() if name != "name"}
        arguments["solver"] = type(as_solver(solver["name"]))(**options)
    if "statistics" in arguments:
        arguments["statistics"] = tuple(arguments["statistics"])
    kind = _KINDS.get(entry["layer"])
    if kind is None:
        raise ValueError(
            f"expected a layer of whitenorm in the record, one of {', '.join(_KINDS)} (got {entry['layer']!r}); load "
            "it with the version of whitenorm that saved it, or newer"
        )
    layer = kind(**arguments)
    return layer if like is None else layer.to(device=like.device, dtype=like.dtype)


def apply_record_(model: nn.Module, record: Mapping[str, Any]) -> nn.Module:
    """The model with the layers of a record; those it has already stay."""
    modules = dict(model.named_modules(remove_duplicate=False))
    missing = [name for name in record if name not in modules]
    if missing:
        raise ValueError(
            f"expected a model with the modules of the record (got {type(model).__name__} without "
            f"{', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}); build the architecture that was converted"
        )
    new: dict[nn.Module, nn.Module] = {}
    for name, entry in record.items():
        old = modules[name]
        tensor = next((value for value in old.state_dict().values() if value.is_floating_point()), None)
        layer = _made(entry, tensor).train(old.training)
        if isinstance(layer, Whitening):
            layer.name_in_model = name
        place = entry.get("place")
        if isinstance(old, _PLACES.get(str(place), ())) or same(layer, old):
            continue
        norm = as_norm(old)
        if place == "before":
            new[old] = Decorrelated(layer, old)
        else:
            _check_norm(name, norm, old)
            new[old] = Activated(layer, *norm.activation) if norm is not None and norm.activation else layer
    return replace_(model, new)


def _check_norm(name: str, norm: Norm | None, old: nn.Module) -> None:
    if norm is None:
        raise ValueError(
            f"expected a norm at {name!r}, as the record says (got {type(old).__name__}); build the architecture that "
            "was converted"
        )


def _load(model: nn.Module, state: Mapping[str, Any], strict: bool) -> None:
    missing, unexpected = model.load_state_dict(state, strict=False)
    tensors = model.state_dict(keep_vars=True)
    there = {tensors[name].data_ptr() for name in state if name in tensors}
    # What is tied to something that was saved is not saved twice.
    missing = [name for name in missing if tensors[name].data_ptr() not in there]
    if strict and (missing or unexpected):
        raise ValueError(
            f"expected the state of this model (missing: {', '.join(missing) or 'nothing'}; left over: "
            f"{', '.join(unexpected) or 'nothing'}); pass strict=False to load what fits"
        )


def _read(source: Mapping[str, Any] | str | Path) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The state dict of a source, and the record with it."""
    if isinstance(source, Mapping):
        inside = [source[name] for name in ("state_dict", "model") if isinstance(source.get(name), Mapping)]
        return (inside[0], source.get(KEY)) if inside else (source, None)
    path = Path(source)
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return _read(torch.load(path, map_location="cpu", weights_only=True))


def _read_folder(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """What ``save_pretrained`` wrote, in one file or in several."""
    config = folder / "config.json"
    record = json.loads(config.read_text()).get(KEY) if config.exists() else None
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise OSError(f"expected weights in {folder}, *.safetensors or pytorch_model*.bin (got none)")
    state: dict[str, Any] = {}
    for file in files:
        state.update(_read(file)[0])
    return state, record


def _read_safetensors(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        record = (file.metadata() or {}).get(KEY)
        return {name: file.get_tensor(name) for name in file.keys()}, record and json.loads(record)  # noqa: SIM118
