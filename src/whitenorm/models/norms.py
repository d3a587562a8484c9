"""What counts as a norm in other people's models, and what can be read from it without importing their libraries."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from whitenorm.core.precision import compute_dtype
from whitenorm.layers.base import Whitening
from whitenorm.layers.sample import LayerWhitening

_BATCH = nn.modules.batchnorm._BatchNorm


class Norm(NamedTuple):
    """A norm found in a model.

    ``kind`` is ``"batch"``, ``"group"``, ``"layer"``, ``"layer2d"`` (LayerNorm of an image's channels), ``"unknown"``
    (a LayerNorm with a forward of its own) or ``"whitening"``; ``shape`` is what it normalises, ``(C,)`` but for
    LayerNorm of several dimensions.
    """

    module: nn.Module
    kind: str
    shape: tuple[int, ...]

    @property
    def weight(self) -> Tensor | None:
        return getattr(self.module, "weight", None)

    @property
    def bias(self) -> Tensor | None:
        return getattr(self.module, "bias", None)

    @property
    def population(self) -> tuple[Tensor, Tensor] | None:
        """Running mean, and running variance with ε added."""
        mean, variance = (getattr(self.module, name, None) for name in ("running_mean", "running_var"))
        if self.kind != "batch" or mean is None or variance is None:
            return None
        return mean, variance.to(compute_dtype(variance.dtype)) + self.module.eps

    @property
    def activation(self) -> list[nn.Module]:
        """What timm fuses behind a norm: dropout and activation, where they do anything."""
        parts = [getattr(self.module, name, None) for name in ("drop", "act")]
        return [part for part in parts if isinstance(part, nn.Module) and not isinstance(part, nn.Identity)]


def as_norm(module: nn.Module) -> Norm | None:
    """The norm that a module is, if it is one."""
    frozen = any(base.__name__.endswith(("FrozenBatchNorm2d", "FrozenBatchNormAct2d")) for base in type(module).__mro__)
    if isinstance(module, (Whitening, LayerWhitening)):
        shape = module.normalized_shape if isinstance(module, LayerWhitening) else (module.num_features,)
        return Norm(module, "whitening", shape)
    if isinstance(module, _BATCH) or frozen:
        return Norm(module, "batch", (_width(module),))
    if isinstance(module, nn.GroupNorm):
        return Norm(module, "group", (module.num_channels,))
    if isinstance(module, nn.LayerNorm):
        return Norm(module, _layer_kind(module), tuple(module.normalized_shape))
    return None


def _layer_kind(module: nn.LayerNorm) -> str:
    """Whether a LayerNorm, or one made of it, takes ``(..., C)``, or ``(N, C, H, W)`` and normalises C."""
    kind = type(module)
    # torchvision's and timm's name says it, transformers' attribute.
    if "2d" in kind.__name__ or getattr(module, "data_format", None) == "channels_first":
        return "layer2d"
    known = kind.forward is nn.LayerNorm.forward or kind.__module__.startswith("timm.")
    return "layer" if known or getattr(module, "data_format", None) == "channels_last" else "unknown"


def _width(module: nn.Module) -> int:
    width = getattr(module, "num_features", None)
    if width is None:
        width = len(module.running_mean)  # type: ignore[arg-type]
    if width == 0:
        raise ValueError(
            f"expected a norm that knows its width (got {type(module).__name__} with 0 features); run the model once "
            "before converting it, so that its lazy layers are made"
        )
    return int(width)


def find_norms(model: nn.Module) -> dict[str, Norm]:
    """All norms by name, in the order of registration; one that is used twice, by its first name."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a model, an nn.Module (got {type(model).__name__})")
    found = {name: as_norm(module) for name, module in model.named_modules()}
    return {name: norm for name, norm in found.items() if norm is not None and norm.kind != "whitening"}
