"""Whitening layers for mmengine's registry: ``norm_cfg=dict(type="IterNorm", ...)`` in mmdet or mmseg."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from whitenorm.layers import (
    BatchWhitening,
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
)

__all__ = ["register"]

# mmcv's names of norms in a model. Batch layers keep BatchNorm's, so that its checkpoints load.
_ABBREVIATIONS: dict[type[nn.Module], str] = {
    BatchWhitening: "bn",
    IterNorm: "bn",
    DecorrelatedBatchNorm: "bn",
    SwitchableWhitening: "bn",
    InstanceWhitening: "in",
    GroupWhitening: "gn",
    LayerWhitening: "ln",
}


def register() -> None:
    """Register the whitening layers in ``mmengine.registry.MODELS``, each under its class name.

    Configurations can then use them like other norms, as ``norm_cfg=dict(type="IterNorm", steps=5)`` or
    ``norm_cfg=dict(type="GroupWhitening", num_groups=32)``. Call this before building models, or in a module that the
    configuration's ``custom_imports`` lists. ``requires_grad`` in a ``norm_cfg`` works as for other norms. mmcv passes
    ``eps=1e-5`` unless the configuration has another ε; for ``DecorrelatedBatchNorm``, the paper's is 1e-3.
    """
    try:
        from mmengine.registry import MODELS
    except ImportError as error:
        raise ImportError(
            "expected mmengine for whitenorm.integrations.mmengine (got none); run pip install mmengine"
        ) from error
    for builder in _BUILDERS:
        if MODELS.module_dict.get(builder.__name__) is not builder:
            MODELS.register_module(name=builder.__name__, module=builder)


def _make_builder(kind: type[nn.Module], abbreviation: str) -> type:
    """Make a class that returns layers of a kind when called, since mmcv expects classes.

    The width is its first argument, whatever the layer's own order of arguments is.
    """
    width = next(name for name in inspect.signature(kind).parameters if name != "num_groups")

    def create(cls: type, size: int | None = None, **options: Any) -> nn.Module:
        return kind(**options) if size is None else kind(**{width: size}, **options)

    return type(kind.__name__, (), {"__new__": create, "__doc__": kind.__doc__, "_abbr_": abbreviation})


_BUILDERS = [_make_builder(kind, abbreviation) for kind, abbreviation in _ABBREVIATIONS.items()]
