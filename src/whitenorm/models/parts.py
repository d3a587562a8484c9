"""Modules that a conversion puts into a model beside the layers themselves."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whitenorm.layers.sample import LayerWhitening


class LayerWhitening2d(LayerWhitening):
    """:class:`LayerWhitening` of the channels of an image ``(N, C, H, W)``, at each position."""

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(input.movedim(1, -1), mask).movedim(-1, 1)


class LayerNorm2d(nn.LayerNorm):
    """``LayerNorm`` of the channels of an image ``(N, C, H, W)``, at each position."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm of inputs of any dimensions, ``(N, C)`` to ``(N, C, D, H, W)``, where it is not known which."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in (2, 3, 4, 5):
            raise ValueError(f"expected 2D to 5D input (got {input.ndim}D input)")


class Activated(nn.Sequential):
    """A layer, and the dropout and activation that were fused with the norm it took the place of.

    A state dict from before the conversion, with the norm's tensors under this module's own name, loads. Code that
    initializes the norm's ``weight`` and ``bias`` finds those of the layer.
    """

    @property
    def weight(self) -> Any:
        return self[0].weight

    @property
    def bias(self) -> Any:
        return self[0].bias

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        _move(state_dict, prefix, f"{prefix}0.")
        super()._load_from_state_dict(state_dict, prefix, *args)


class Decorrelated(nn.Sequential):
    """A layer put before a linear one, which decorrelates its input.

    A state dict from before the conversion, with the linear layer's tensors under this module's own name, loads; the
    layer before it then stays as it is.
    """

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if _move(state_dict, prefix, f"{prefix}1."):
            for name, tensor in self[0].state_dict(prefix=f"{prefix}0.").items():
                state_dict.setdefault(name, tensor)
        super()._load_from_state_dict(state_dict, prefix, *args)


def put_before(kind: type[nn.Sequential], layer: nn.Module, *rest: nn.Module) -> nn.Sequential:
    """Put a layer before modules, in a container of this kind, which is in the layer's mode."""
    container = kind(layer, *rest)
    container.training = layer.training
    return container


def _move(state: dict[str, Any], prefix: str, to: str) -> bool:
    """Rename what stands directly under a prefix; whether there was anything."""
    own = [name for name in state if name.startswith(prefix) and "." not in name[len(prefix) :]]
    for name in own:
        state[to + name[len(prefix) :]] = state.pop(name)
    return bool(own)
