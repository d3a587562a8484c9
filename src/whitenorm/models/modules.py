"""Modules that conversion and folding put into a model."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from whitenorm.layers.sample import LayerWhitening

_SHAPES = {2: "vectors (N, C)", 3: "3D input (N, C, L)", 4: "4D input (N, C, H, W)", 5: "5D input (N, C, D, H, W)"}


class LayerWhitening2d(LayerWhitening):
    """:class:`LayerWhitening` over the channels of each position of an image ``(N, C, H, W)``."""

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(input.movedim(1, -1), mask).movedim(-1, 1)


class LayerNorm2d(nn.LayerNorm):
    """``LayerNorm`` over the channels of each position of an image ``(N, C, H, W)``."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.movedim(1, -1)).movedim(-1, 1)


class BatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm for inputs of 2 to 5 dimensions, used where a conversion does not know how many there are."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in (2, 3, 4, 5):
            raise ValueError(f"expected 2D to 5D input (got {input.ndim}D input)")


class Activated(nn.Sequential):
    """A layer followed by the dropout and activation that were fused with the norm it replaces.

    It loads state dicts from before the conversion, which have the norm's tensors directly under this module's name.
    ``weight`` and ``bias`` are the layer's, for code that initializes a norm's parameters.
    """

    @property
    def weight(self) -> Any:
        return self[0].weight

    @property
    def bias(self) -> Any:
        return self[0].bias

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        _move_keys(state_dict, prefix, f"{prefix}0.")
        super()._load_from_state_dict(state_dict, prefix, *args)


class Decorrelated(nn.Sequential):
    """A layer that decorrelates the input of the linear layer behind it.

    It loads state dicts from before the conversion, which have the linear layer's tensors directly under this module's
    name; the first layer then keeps its state.
    """

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if _move_keys(state_dict, prefix, f"{prefix}1."):
            for name, tensor in self[0].state_dict(prefix=f"{prefix}0.").items():
                state_dict.setdefault(name, tensor)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _move_keys(state: dict[str, Any], prefix: str, new_prefix: str) -> bool:
    """Rename the keys directly under a prefix, and return whether there were any."""
    keys = [key for key in state if key.startswith(prefix) and "." not in key[len(prefix) :]]
    for key in keys:
        state[new_prefix + key[len(prefix) :]] = state.pop(key)
    return bool(keys)


def put_before(container: type[nn.Sequential], layer: nn.Module, *rest: nn.Module) -> nn.Sequential:
    """Put a layer before other modules in a container of the given class, in the layer's training mode."""
    placed = container(layer, *rest)
    placed.training = layer.training
    return placed


# The expected shape is an argument, as torch.jit.script cannot look it up in a dict.
def _check_ndim(input: Tensor, expected: str, ndim: int) -> None:
    # A proxy, in a symbolic trace by the user, has no dimensions.
    if isinstance(input, Tensor) and input.ndim != ndim:
        raise ValueError(
            f"expected {expected} (got {input.ndim}D input of shape {list(input.shape)}): a whitening of dimension 1 "
            "was folded here, into one of the channels; add the batch dimension, or leave the layer unfolded"
        )


class BatchedIdentity(nn.Identity):
    """Identity in place of a folded layer, which raises for inputs that the layer would have whitened differently.

    Args:
        ndim: dimensions of the input, including the batch dimension.
    """

    def __init__(self, ndim: int) -> None:
        super().__init__()
        self.ndim = ndim
        self.expected = _SHAPES[ndim]

    def forward(self, input: Tensor) -> Tensor:
        _check_ndim(input, self.expected, self.ndim)
        return input

    def extra_repr(self) -> str:
        return f"ndim={self.ndim}"


class ChannelMap(nn.Conv1d):
    """A 1×1 convolution of inputs of any dimensions, including ``(N, C)``, and any dtype."""

    def forward(self, input: Tensor) -> Tensor:
        flat = input.reshape(*input.shape[:2], -1).to(self.weight.dtype)
        return super().forward(flat).reshape(input.shape).to(input.dtype)


class Pointwise1d(nn.Conv1d):
    """A 1×1 convolution of ``(N, C, L)`` that rejects other dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        _check_ndim(input, "3D input (N, C, L)", 3)
        return self._conv_forward(input, self.weight, self.bias)


class Pointwise2d(nn.Conv2d):
    """A 1×1 convolution of ``(N, C, H, W)`` that rejects other dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        _check_ndim(input, "4D input (N, C, H, W)", 4)
        return self._conv_forward(input, self.weight, self.bias)


class Pointwise3d(nn.Conv3d):
    """A 1×1 convolution of ``(N, C, D, H, W)`` that rejects other dimensions."""

    def forward(self, input: Tensor) -> Tensor:
        _check_ndim(input, "5D input (N, C, D, H, W)", 5)
        return self._conv_forward(input, self.weight, self.bias)
