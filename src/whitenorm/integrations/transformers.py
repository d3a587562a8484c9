"""Load a converted model of transformers from what ``save_pretrained`` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from whitenorm.models.record import KEY, apply_record_, record_

try:
    from transformers import AutoConfig, PreTrainedModel
except ImportError as error:
    raise ImportError(
        "expected transformers for whitenorm.integrations.transformers (got none); run pip install transformers"
    ) from error

__all__ = ["from_pretrained"]

# What says where a configuration comes from, among the arguments of transformers' own from_pretrained.
_SOURCE = (
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
    """Load a model whose norms were converted, as ``cls.from_pretrained`` loads one that was not.

    :func:`whitenorm.convert_` keeps in the configuration which layers the model has, and ``save_pretrained`` writes it.
    The layers are put into the model before its weights are loaded, so that every argument of transformers does what
    it does otherwise: weights in several files, ``dtype=``, ``device_map=``, tied weights, a base model loaded from one
    with a head. Running statistics stay in float32 at least.

    Args:
        cls: a class of transformers, an ``AutoModel...`` too.
        folder: of ``save_pretrained``, or a name on the Hub.
        args, options: of ``cls.from_pretrained``.

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
        config = AutoConfig.from_pretrained(folder, **{name: options[name] for name in _SOURCE if name in options})
    record = getattr(config, KEY, None)
    if not record:
        raise ValueError(
            f"expected a record of the conversion, the entry {KEY!r}, in the configuration of {folder} (got "
            f"{'an empty one' if record == {} else 'none'}); load a model that was not converted with "
            f"{cls.__name__}.from_pretrained"
        )
    kind = _model_class(cls, config, options)
    loaded = _converting(kind, record).from_pretrained(folder, *args, config=config, **options)
    # With output_loading_info=True there are two.
    model = loaded[0] if isinstance(loaded, tuple) else loaded
    model.__class__ = kind
    record_(model)
    return loaded


def _model_class(cls: Any, config: Any, options: Mapping[str, Any]) -> type[nn.Module]:
    """Return the class itself, or the one that an ``AutoModel...`` chooses for a configuration."""
    if issubclass(cls, PreTrainedModel):
        return cls
    with torch.device("meta"):
        return type(cls.from_config(config, trust_remote_code=options.get("trust_remote_code")))


def _converting(kind: Any, record: Mapping[str, Any]) -> Any:
    """Return a class of the same name whose models have the layers of a record once they are built."""

    def build(self: Any, *args: Any, **options: Any) -> None:
        kind.__init__(self, *args, **options)
        apply_record_(self, _rename(record, self))

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind,), {"__init__": build, **names})


def _rename(record: Mapping[str, Any], model: Any) -> Mapping[str, Any]:
    """Return a record of a base model for one with a head, and the other way round."""
    prefix = f"{model.base_model_prefix}."
    of_head = any(name.startswith(prefix) for name in record)
    has_head = hasattr(model, model.base_model_prefix)
    if of_head and not has_head:
        return {name.removeprefix(prefix): entry for name, entry in record.items() if name.startswith(prefix)}
    if has_head and not of_head:
        return {prefix + name: entry for name, entry in record.items()}
    return record
