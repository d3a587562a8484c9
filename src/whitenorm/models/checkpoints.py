"""Load checkpoints into models with whitening layers: converted models, and the models of the papers' authors."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from whitenorm.layers.base import ChannelWhitening
from whitenorm.models.record import RECORD_KEY, make_replacements, store_record_
from whitenorm.models.replace import disable_fast_path_, replace_

# Names of the papers' code.
_NAMES = {"running_wm": "running_whitening", "sw_mean_weight": "mean_logits", "sw_var_weight": "cov_logits"}
_GROUPS = "iterNorm_Groups"


def load_converted(
    model: nn.Module,
    source: Mapping[str, Any] | str | Path,
    conversion: Mapping[str, Any] | None = None,
    *,
    strict: bool = True,
) -> nn.Module:
    """Convert a plain model as a saved one was converted, load the saved state, and return the model.

    The record of the conversion is taken from the first of these that has one: the argument; the entry ``"whitenorm"``
    of the file or dict, beside the state dict in ``"state_dict"`` or ``"model"``; a safetensors file's metadata, as
    JSON; a folder's ``config.json``; the model's own ``config``.

    A record or state that does not fit the model raises an error, and leaves the model unchanged.

    Args:
        model: a model of the same architecture that is not converted; from transformers, what ``from_pretrained`` or
            ``from_config`` returns.
        source: a state dict, a dict with one, a file of ``torch.save`` or safetensors, or a folder of
            ``save_pretrained``.
        conversion: the result of :func:`conversion_of` for the saved model.
        strict: raise if tensors are missing or unexpected.

    Example::

        >>> saved = whitenorm.convert_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), "gw", num_groups=4)
        >>> file = {"state_dict": saved.state_dict(), "whitenorm": whitenorm.conversion_of(saved)}
        >>> load_converted(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), file)[1].num_groups
        4
    """
    state, stored = _read(source)
    records = (conversion, stored, getattr(getattr(model, "config", None), RECORD_KEY, None))
    record = next((record for record in records if record is not None), None)
    if record is None:
        raise ValueError(
            "expected a record of the conversion (got none with the state, nor in the model's config); save it beside "
            'the state dict, {"state_dict": model.state_dict(), "whitenorm": whitenorm.conversion_of(model)}, or pass '
            "conversion="
        )
    replacements = make_replacements(model, record)
    converted = replace_(model, replacements)
    try:
        _check_state(converted, state, strict)
        converted.load_state_dict(state, strict=False)
    except BaseException:
        replace_(model, {new: old for old, new in replacements.items()})
        raise
    disable_fast_path_(converted)
    store_record_(converted)
    return converted


def _check_state(model: nn.Module, state: Mapping[str, Any], strict: bool) -> None:
    """Raise if a state does not fit the model, before any of it is loaded."""
    addresses = {name: _find_address(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    with _on_meta_device(model), warnings.catch_warnings():
        # Loading warns again.
        warnings.simplefilter("ignore")
        missing, unexpected = model.load_state_dict(_drop_values(state), strict=False)
    saved = {addresses.get(name) for name in state} - {None}
    # A tensor that is tied to a saved one is not saved twice.
    missing = [name for name in missing if addresses.get(name) not in saved]
    if strict and (missing or unexpected):
        raise ValueError(
            f"expected the state of this model (missing: {', '.join(missing) or 'nothing'}; left over: "
            f"{', '.join(unexpected) or 'nothing'}); pass strict=False to load what fits"
        )


def _find_address(tensor: Any) -> int | None:
    return tensor.data_ptr() if isinstance(tensor, Tensor) and not is_lazy(tensor) else None


@contextmanager
def _on_meta_device(model: nn.Module) -> Iterator[None]:
    """Put the model's tensors on the meta device temporarily, so that loading writes nothing."""
    tensors = [(module, module._parameters, module._buffers) for module in model.modules()]
    try:
        for module, parameters, buffers in tensors:
            module._parameters = {name: _to_meta(parameter) for name, parameter in parameters.items()}
            module._buffers = {name: _to_meta(buffer) for name, buffer in buffers.items()}
        yield
    finally:
        for module, parameters, buffers in tensors:
            module._parameters, module._buffers = parameters, buffers


def _to_meta(tensor: Any) -> Any:
    if not isinstance(tensor, Tensor):
        return tensor
    if is_lazy(tensor):
        kind: Any = type(tensor)
        return kind(device="meta", dtype=tensor.dtype)
    meta = tensor.detach().to("meta")
    return nn.Parameter(meta, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else meta


def _drop_values(state: Mapping[str, Any]) -> Mapping[str, Any]:
    shapes = OrderedDict((name, _to_meta(value)) for name, value in state.items())
    if hasattr(state, "_metadata"):
        shapes._metadata = state._metadata  # type: ignore[attr-defined]
    return shapes


def _read(source: Mapping[str, Any] | str | Path) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the state dict of a source, and the record beside it."""
    if isinstance(source, Mapping):
        states = [source[name] for name in ("state_dict", "model") if isinstance(source.get(name), Mapping)]
        return (states[0], source.get(RECORD_KEY)) if states else (source, None)
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
    """Read what ``save_pretrained`` wrote, in one file or in several."""
    config = folder / "config.json"
    record = _parse_json(config, config.read_text()).get(RECORD_KEY) if config.exists() else None
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
        record = (file.metadata() or {}).get(RECORD_KEY)
        state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return state, record and _parse_json(path, record)


def _parse_json(path: Path, text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected JSON in {path} (got {error})") from None
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a JSON object in {path} (got {text[:40]})")
    return value


def load_published(model: nn.Module, checkpoint: Mapping[str, Any], strict: bool = True) -> Any:
    """Load a checkpoint of the authors' IterNorm, SW or GW code into a model with whitenorm's layers.

    The model must have the module names of the checkpoint, as torchvision's ResNets have those of the papers' code, and
    whitening layers at the same places, with the same group sizes. Tensors of other modules are loaded unchanged;
    a ``state_dict`` entry around all tensors and the prefix ``module.`` are removed. Whitening layers' tensors have
    other names and shapes in the authors' code:

    | in the checkpoint                              | here                                                      |
    | ---------------------------------------------- | --------------------------------------------------------- |
    | ``weight``, ``bias`` of shape ``(1, C, 1, 1)`` | ``weight``, ``bias`` of shape ``(C,)``                    |
    | ``running_mean`` of shape ``(G, K, 1)``        | ``running_mean`` of shape ``(C,)``                        |
    | ``running_wm`` (IterNorm)                      | ``running_whitening``                                     |
    | ``iterNorm_Groups.0.running_mean``, ``…wm``, … | ``running_mean``, ``running_whitening``, of all groups    |
    | ``sw_mean_weight``, ``sw_var_weight`` (SW)     | ``mean_logits``, ``cov_logits``                           |

    Args:
        model: the model to load into.
        checkpoint: what ``torch.load`` returns.
        strict: raise if names are missing or unexpected, as ``load_state_dict`` does.

    Returns:
        What ``load_state_dict`` returns: missing and unexpected names.

    Example::

        >>> model = nn.Sequential(whitenorm.IterNorm(4, 2))
        >>> published = {"0.weight": torch.ones(1, 4, 1, 1), "0.bias": torch.zeros(1, 4, 1, 1)}
        >>> published |= {"0.running_mean": torch.ones(2, 2, 1), "0.running_wm": torch.eye(2).expand(2, 2, 2)}
        >>> load_published(model, published)
        <All keys matched successfully>
        >>> model[0].running_mean
        tensor([1., 1., 1., 1.])
    """
    state = {name.removeprefix("module."): value for name, value in checkpoint.get("state_dict", checkpoint).items()}
    for path, layer in model.named_modules():
        if isinstance(layer, ChannelWhitening):
            prefix = f"{path}." if path else ""
            names = [name for name in state if name.startswith(prefix)]
            published = {name.removeprefix(prefix): state.pop(name) for name in names}
            state.update({prefix + name: value for name, value in _translate(published, layer).items()})
    return model.load_state_dict(state, strict=strict)


def _translate(published: dict[str, Tensor], layer: ChannelWhitening) -> dict[str, Tensor]:
    """Return a layer's published state with this library's names and shapes."""
    expected = layer.state_dict()
    state = {_NAMES.get(name, name): value for name, value in _stack_groups(published).items()}
    if "num_batches_tracked" in expected:
        state.setdefault("num_batches_tracked", torch.zeros_like(expected["num_batches_tracked"]))
    for name, value in state.items():
        # load_state_dict raises for a wrong number of elements.
        if name in expected and value.numel() == expected[name].numel():
            state[name] = value.reshape(expected[name].shape)
    return state


def _stack_groups(published: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return one tensor for all groups if the checkpoint has one module per group."""
    groups = sorted({int(name.split(".")[1]) for name in published if name.startswith(f"{_GROUPS}.")})
    if not groups:
        return published
    state = {name: value for name, value in published.items() if not name.startswith(f"{_GROUPS}.")}
    for name in ("running_mean", "running_wm"):
        state[name] = torch.stack([published[f"{_GROUPS}.{group}.{name}"] for group in groups])
    return state
