"""Load converted transformers models from folders of ``save_pretrained``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whitenorm.models.record import RECORD_KEY, apply_record_, store_record_

try:
    from transformers import AutoConfig, PreTrainedModel
except ImportError as error:
    raise ImportError(
        "expected transformers for whitenorm.integrations.transformers (got none); run pip install transformers"
    ) from error

__all__ = ["from_pretrained"]

# Arguments of transformers' from_pretrained that say where the configuration comes from.
_CONFIG_OPTIONS = (
    "cache_dir",
    "force_download",
    "local_files_only",
    "proxies",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
)


def from_pretrained(cls: Any, folder: str | Path, *args: Any, **options: Any) -> Any:
    """Load a model with converted norms, as ``cls.from_pretrained`` loads other models.

    :func:`whitenorm.convert_` stores in the configuration which layers the model has, and ``save_pretrained`` writes
    it. Here the layers are put into the model before its weights are loaded, so all arguments and features of
    ``cls.from_pretrained`` work: weights in several files, ``dtype=``, ``device_map=``, tied weights, a base model
    loaded from one with a head. Running statistics stay in float32 at least.

    Args:
        cls: a model class of transformers, or an ``AutoModel...``.
        folder: a folder of ``save_pretrained``, or a name on the Hub.
        args, options: arguments of ``cls.from_pretrained``.

    Example::

        >>> import tempfile
        >>> from transformers import AutoModel, ViTConfig, ViTModel
        >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        >>> model = whitenorm.convert_(ViTModel(ViTConfig(**sizes)), "gw")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     again = from_pretrained(AutoModel, folder)
        >>> again.layernorm.num_groups
        4
    """
    config = options.pop("config", None)
    if config is None:
        config = AutoConfig.from_pretrained(
            folder, **{name: options[name] for name in _CONFIG_OPTIONS if name in options}
        )
    record = getattr(config, RECORD_KEY, None)
    if not record:
        raise ValueError(
            f"expected a record of the conversion, the entry {RECORD_KEY!r}, in the configuration of {folder} (got "
            f"{'an empty one' if record == {} else 'none'}); load a model that was not converted with "
            f"{cls.__name__}.from_pretrained"
        )
    kind = _find_model_class(cls, config, options)
    result = _make_converting_class(kind, record).from_pretrained(folder, *args, config=config, **options)
    # With output_loading_info=True, the result is a pair.
    model = result[0] if isinstance(result, tuple) else result
    model.__class__ = kind
    store_record_(model)
    return result


def _find_model_class(cls: Any, config: Any, options: Mapping[str, Any]) -> type[nn.Module]:
    """Return the class itself, or the class that an ``AutoModel...`` chooses for a configuration."""
    if issubclass(cls, PreTrainedModel):
        return cls
    with torch.device("meta"):
        return type(cls.from_config(config, trust_remote_code=options.get("trust_remote_code")))


def _make_converting_class(kind: Any, record: Mapping[str, Any]) -> Any:
    """Make a subclass of the same name whose models are built with the layers of a record."""

    def build(self: Any, *args: Any, **options: Any) -> None:
        kind.__init__(self, *args, **options)
        apply_record_(self, _fit_names(record, self))

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {"__init__": build, **names})


def _fit_names(record: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
    """Adapt the names of a record of a base model to a model with a head, and the other way round."""
    prefix = f"{model.base_model_prefix}."
    is_of_head = any(name.startswith(prefix) for name in record)
    has_head = hasattr(model, model.base_model_prefix)
    if is_of_head and not has_head:
        return {name.removeprefix(prefix): entry for name, entry in record.items() if name.startswith(prefix)}
    if has_head and not is_of_head:
        return {prefix + name: entry for name, entry in record.items()}
    return record
