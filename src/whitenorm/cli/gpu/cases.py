"""The layers that are counted and timed, with inputs of typical sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from whitenorm.layers import (
    DecorrelatedBatchNorm,
    GroupWhitening,
    InstanceWhitening,
    IterNorm,
    LayerWhitening,
    SwitchableWhitening,
)

IMAGES = (64, 64, 32, 32)
TOKENS = (8192, 768)


class Case(NamedTuple):
    """A layer, the shape of its input, and the name of the norm that it replaces."""

    build_layer: Callable[[], nn.Module]
    shape: tuple[int, ...]
    norm: str

    def build_norm(self) -> nn.Module:
        """Return the norm that the layer replaces."""
        return nn.LayerNorm(self.shape[1]) if self.norm == "LayerNorm" else nn.BatchNorm2d(self.shape[1])


CASES = {
    "IterNorm": Case(lambda: IterNorm(64), IMAGES, "BatchNorm"),
    "DBN": Case(lambda: DecorrelatedBatchNorm(64), IMAGES, "BatchNorm"),
    "IW": Case(lambda: InstanceWhitening(64, 16), IMAGES, "BatchNorm"),
    "GW": Case(lambda: GroupWhitening(32, 64), IMAGES, "BatchNorm"),
    "SW": Case(lambda: SwitchableWhitening(64), IMAGES, "BatchNorm"),
    "LayerWhitening": Case(lambda: LayerWhitening(768), TOKENS, "LayerNorm"),
}
