"""What was converted in a model, as a record that is saved with it, and a plain model made into the same again."""

from __future__ import annotations

import json
import math
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from whitenorm._suggest import suggest
from whitenorm.layers.base import Whitening
from whitenorm.models.entry import PLACES, Entry, make_layer, write_entry
from whitenorm.models.norms import as_norm
from whitenorm.models.parts import Activated, Decorrelated, put_before
from whitenorm.models.replace import leave_fast_path, replace_
from whitenorm.models.transfer import nearest_tensors, norm_before, same, take_hooks, take_origin, take_requires_grad

KEY = "whitenorm"


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
            place = next((place for place, kind in PLACES.items() if isinstance(around, kind)), None)
            entry = write_entry(name, module)
            found[name if place is None else parent] = entry if place is None else {**entry, "place": place}
    return found


def record_(model: nn.Module) -> None:
    """Keep the record in the configuration of a transformers model, or of one in its manner."""
    config = getattr(model, "config", None)
    if not callable(getattr(config, "to_json_string", None)):
        return
    try:
        record = conversion_of(model)
    except ValueError as error:
        setattr(config, KEY, None)
        warnings.warn(f"the model's config has no record of this conversion: {error}", stacklevel=3)
    else:
        setattr(config, KEY, record)


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

    A record or a state that does not fit is an error, which leaves the model as it was.

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
    state, stored = _read(source)
    records = (conversion, stored, getattr(getattr(model, "config", None), KEY, None))
    record = next((record for record in records if record is not None), None)
    if record is None:
        raise ValueError(
            "expected a record of the conversion (got none with the state, nor in the model's config); save it beside "
            'the state dict, {"state_dict": model.state_dict(), "whitenorm": whitenorm.conversion_of(model)}, or pass '
            "conversion="
        )
    new = _new_layers(model, record)
    converted = replace_(model, new)
    try:
        _check_state(converted, state, strict)
        converted.load_state_dict(state, strict=False)
    except BaseException:
        replace_(model, {module: old for old, module in new.items()})
        raise
    leave_fast_path(converted)
    record_(converted)
    return converted


def apply_record_(model: nn.Module, record: Mapping[str, Any]) -> nn.Module:
    """Replace the norms of a plain model by the layers of a record, and return the model."""
    converted = replace_(model, _new_layers(model, record))
    leave_fast_path(converted)
    return converted


def _new_layers(model: nn.Module, record: Any) -> dict[nn.Module, nn.Module]:
    """Make the layers of a record, by the modules that they take the place of; those that are there already stay."""
    _check_names(model, record)
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    nearest = nearest_tensors(model)
    new: dict[nn.Module, nn.Module] = {}
    for name, entry in record.items():
        old = modules[name]
        place = entry.get("place") if isinstance(entry, Mapping) else None
        container = PLACES.get(place) if isinstance(place, str) else None
        if container is not None and isinstance(old, container):
            old, place = old.get_submodule("0"), None
        layer = _new_layer(name, entry, old, place, nearest[old])
        if layer is not None:
            new[old] = layer
    return new


def _check_names(model: nn.Module, record: Any) -> None:
    if not isinstance(record, Mapping) or not all(isinstance(name, str) for name in record):
        raise ValueError(f"expected the record of a conversion, a dict by module names (got {type(record).__name__})")
    modules = dict(model.named_modules(remove_duplicate=False))
    missing = [name for name in record if name not in modules]
    if missing:
        raise ValueError(
            f"expected a model with the modules of the record (got {type(model).__name__} without "
            f"{', '.join(missing[:3])}{', …' if len(missing) > 3 else ''}){suggest(missing[0], modules)}; build the "
            "architecture that was converted"
        )


def _new_layer(name: str, entry: Entry, old: nn.Module, place: Any, like: Tensor) -> nn.Module | None:
    """Make what takes a module's place by an entry of a record; None if it is there already."""
    if place == "before" and isinstance(old, nn.Linear):
        before = make_layer(name, entry, old.in_features).to(device=like.device, dtype=like.dtype)
        take_origin(before, norm_before(old), f"{name}.0")
        return put_before(Decorrelated, before.train(old.training), old)
    norm = as_norm(old)
    if norm is None:
        raise ValueError(
            f"expected a norm at {name!r}, as the record says (got {type(old).__name__}); build the architecture that "
            "was converted"
        )
    layer = make_layer(name, entry, math.prod(norm.shape)).to(device=like.device, dtype=like.dtype)
    if same(layer, old):
        return None
    if place != ("activated" if norm.activation else None):
        raise ValueError(
            f"expected {name!r} to have an activation in it exactly if the record says 'activated' (got {place!r}, and "
            f"{type(old).__name__} with activations {norm.activation}); build the architecture that was converted"
        )
    take_requires_grad(layer, norm)
    take_origin(layer, norm, name)
    layer.train(old.training)
    placed = put_before(Activated, layer, *norm.activation) if norm.activation else layer
    take_hooks(placed, old)
    return placed


def _check_state(model: nn.Module, state: Mapping[str, Any], strict: bool) -> None:
    """Raise if a state does not fit the model, before anything of it is loaded."""
    places = {name: _address(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    with _without_data(model), warnings.catch_warnings():
        # Loading warns of them again.
        warnings.simplefilter("ignore")
        missing, unexpected = model.load_state_dict(_without_values(state), strict=False)
    saved = {places.get(name) for name in state} - {None}
    # What is tied to something that was saved is not saved twice.
    missing = [name for name in missing if places.get(name) not in saved]
    if strict and (missing or unexpected):
        raise ValueError(
            f"expected the state of this model (missing: {', '.join(missing) or 'nothing'}; left over: "
            f"{', '.join(unexpected) or 'nothing'}); pass strict=False to load what fits"
        )


def _address(tensor: Any) -> int | None:
    return tensor.data_ptr() if isinstance(tensor, Tensor) and not is_lazy(tensor) else None


@contextmanager
def _without_data(model: nn.Module) -> Iterator[None]:
    """A context in which the model's tensors are on the meta device, so that loading writes nothing."""
    kept = [(module, module._parameters, module._buffers) for module in model.modules()]
    try:
        for module, parameters, buffers in kept:
            module._parameters = {name: _on_meta(parameter) for name, parameter in parameters.items()}
            module._buffers = {name: _on_meta(buffer) for name, buffer in buffers.items()}
        yield
    finally:
        for module, parameters, buffers in kept:
            module._parameters, module._buffers = parameters, buffers


def _on_meta(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    if is_lazy(tensor):
        kind: Any = type(tensor)
        return kind(device="meta", dtype=tensor.dtype)
    meta = tensor.detach().to("meta")
    return nn.Parameter(meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else meta


def _without_values(state: Mapping[str, Any]) -> Mapping[str, Any]:
    shapes = OrderedDict((name, _on_meta(value)) for name, value in state.items())
    if hasattr(state, "_metadata"):
        shapes._metadata = state._metadata  # type: ignore[attr-defined]
    return shapes


def _read(source: Mapping[str, Any] | str | Path) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The state dict of a source, and the record with it."""
    if isinstance(source, Mapping):
        inside = [source[name] for name in ("state_dict", "model") if isinstance(source.get(name), Mapping)]
        return (inside[0], source.get(KEY)) if inside else (source, None)
    if not isinstance(source, (str, Path)):
        raise ValueError(
            "expected a state dict, a dict with one in 'state_dict' or 'model', or a path (got "
            f"{type(source).__name__})"
        )
    path = Path(source)
    if path.is_dir():
        return _read_folder(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return _read(torch.load(path, map_location="cpu", weights_only=True))


def _read_folder(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """What ``save_pretrained`` wrote, in one file or in several."""
    config = folder / "config.json"
    record = _parse(config, config.read_text()).get(KEY) if config.exists() else None
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
        return {name: file.get_tensor(name) for name in file.keys()}, record and _parse(path, record)  # noqa: SIM118


def _parse(path: Path, text: str) -> Mapping[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected JSON in {path} (got {error})") from None
    if not isinstance(parsed, Mapping):
        raise ValueError(f"expected a JSON object in {path} (got {text[:40]})")
    return parsed
