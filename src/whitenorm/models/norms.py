"""What counts as a norm in other people's models, and what can be read from it without importing their libraries."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from whitenorm._runtime import to_float64
from whitenorm.layers.base import ChannelWhitening, PopulationWhitening, Whitening
from whitenorm.layers.sample import GroupWhitening, InstanceWhitening, LayerWhitening
from whitenorm.models.parts import LayerWhitening2d

BATCH = nn.modules.batchnorm._BatchNorm
_INSTANCE = nn.modules.instancenorm._InstanceNorm
_TOKENS = ("layer", "layer2d", "rms", "rms2d")
# Classes whose forward is understood: by their module, and by their names in other libraries.
_KNOWN_MODULES = ("torch.nn.", "timm.", "whitenorm.")
_FROZEN = ("FrozenBatchNorm2d", "FrozenBatchNormAct2d")
_KNOWN_NAMES = (*_FROZEN, "BatchNormAct2d", "SyncBatchNormAct")
# What a layer takes over from a norm, and the children that it is put before.
_TAKEN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_ACTIVATION = ("drop", "act")


class Population(NamedTuple):
    """Mean ``(C,)`` and covariance ``(G, K, K)``, with its ε, in float64."""

    mean: Tensor
    cov: Tensor


class Norm(NamedTuple):
    """A norm found in a model: torch's, another library's, or one of whitenorm's own layers.

    ``kind`` says what it normalises over: ``"batch"``, ``"instance"``, ``"group"``, ``"layer"``, ``"layer2d"`` (of an
    image's channels), ``"rms"``, ``"rms2d"``, or ``"unknown"`` (a LayerNorm or RMSNorm with a forward of its own).
    ``shape`` is what it has parameters for, ``(C,)`` but for LayerNorm of several dimensions.
    """

    module: nn.Module
    kind: str
    shape: tuple[int, ...]

    @property
    def of_tokens(self) -> bool:
        """Whether features are normalised at each position, as in LayerNorm."""
        return self.kind in _TOKENS

    @property
    def of_vectors(self) -> bool:
        """Whether the input is known to have no positions, or few: that of BatchNorm1d."""
        return isinstance(self.module, nn.BatchNorm1d) or getattr(self.module, "replaces", "") == "BatchNorm1d"

    @property
    def weight(self) -> Tensor | None:
        """γ as it is applied."""
        weight = self._tensor("weight")
        if weight is not None and self.kind in ("rms", "rms2d") and _adds_one(self.module):
            return nn.Parameter(weight.detach() + 1, requires_grad=weight.requires_grad)
        return weight

    @property
    def bias(self) -> Tensor | None:
        """β as it is applied."""
        return self._tensor("bias")

    def _tensor(self, name: str) -> Tensor | None:
        # A parametrization computes it, and tells whether it is learned only where gradients are recorded.
        with torch.enable_grad():
            return getattr(self.module, name, None)

    @property
    def eps(self) -> float | None:
        """ε, where the norm has one of its own."""
        eps = getattr(self.module, "eps", None)
        return getattr(self.module, "variance_epsilon", None) if eps is None else eps

    @property
    def population(self) -> Population | None:
        """What is known of the data, where the norm has statistics of them."""
        if self.kind != "batch":
            return None
        if isinstance(self.module, PopulationWhitening):
            return _whitened_population(self.module)
        mean, variance = (getattr(self.module, name, None) for name in ("running_mean", "running_var"))
        if mean is None or variance is None:
            return None
        # Some frozen norms have their ε in the forward, and torch's default there.
        eps = 1e-5 if self.eps is None else self.eps
        return Population(to_float64(mean), (to_float64(variance) + eps)[:, None, None])

    @property
    def activation(self) -> list[nn.Module]:
        """What timm fuses behind a norm: dropout and activation, where they do anything."""
        parts = [getattr(self.module, name, None) for name in _ACTIVATION]
        return [part for part in parts if isinstance(part, nn.Module) and not isinstance(part, nn.Identity)]

    @property
    def obstacle(self) -> str:
        """Describe what a layer in the norm's place would lose; empty if nothing."""
        kind = type(self.module)
        if "forward" in vars(self.module):
            return "its forward was replaced on the instance"
        if parametrize.is_parametrized(self.module):
            return "it is parametrized (torch.nn.utils.parametrize)"
        if self.kind == "unknown" and any(parameter.is_meta for parameter in self.module.parameters()):
            return f"{kind.__module__}.{kind.__qualname__} has a forward that cannot be tried on the meta device"
        if not _has_known_forward(self):
            return f"{kind.__module__}.{kind.__qualname__} has a forward of its own"
        extra = _extra_tensors(self.module)
        return f"{kind.__module__}.{kind.__qualname__} has tensors of its own ({', '.join(extra)})" if extra else ""


def as_norm(module: nn.Module) -> Norm | None:
    """The norm that a module is, if it is one."""
    if isinstance(module, LayerWhitening):
        kind = "layer2d" if isinstance(module, LayerWhitening2d) else "layer"
        return Norm(module, kind, module.normalized_shape)
    if isinstance(module, ChannelWhitening):
        sample = {InstanceWhitening: "instance", GroupWhitening: "group"}
        kind = next((kind for of, kind in sample.items() if isinstance(module, of)), "batch")
        return Norm(module, kind, (module.num_features,))
    if isinstance(module, BATCH) or _is_frozen(module):
        return Norm(module, "batch", (_width(module),))
    if isinstance(module, _INSTANCE):
        return Norm(module, "instance", (_width(module),))
    if isinstance(module, nn.GroupNorm):
        return Norm(module, "group", (module.num_channels,))
    if isinstance(module, nn.LayerNorm):
        return Norm(module, _layer_kind(module), tuple(module.normalized_shape))
    if _is_rms(module):
        return Norm(module, _rms_kind(module), tuple(module.weight.shape))  # type: ignore[arg-type]
    return None


def find_norms(model: nn.Module) -> dict[str, Norm]:
    """All norms by name, in the order of registration; one that is used twice, by its first name."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a model, an nn.Module (got {type(model).__name__})")
    found = {name: as_norm(module) for name, module in model.named_modules()}
    return {name: norm for name, norm in found.items() if norm is not None}


def _is_frozen(module: nn.Module) -> bool:
    return any(base.__name__.endswith(_FROZEN) for base in type(module).__mro__)


def _has_known_forward(norm: Norm) -> bool:
    """Whether a norm computes what its kind says."""
    if isinstance(norm.module, nn.LayerNorm) or _is_rms(norm.module):
        # Their kind was found out from the forward.
        return norm.kind != "unknown"
    owner = next(base for base in type(norm.module).__mro__ if "forward" in vars(base))
    return owner.__module__.startswith(_KNOWN_MODULES) or owner.__name__.endswith(_KNOWN_NAMES)


def _extra_tensors(module: nn.Module) -> list[str]:
    """The parameters and buffers of a norm that a layer in its place would not have."""
    if isinstance(module, Whitening):
        return []
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    return [name for name in names if name not in _TAKEN and name.partition(".")[0] not in _ACTIVATION]


def _layer_kind(module: nn.LayerNorm) -> str:
    """Whether a LayerNorm, or one made of it, takes ``(..., C)``, or ``(N, C, H, W)`` and normalises C."""
    kind = type(module)
    # torchvision's and timm's name says it, transformers' attribute.
    if "2d" in kind.__name__ or getattr(module, "data_format", None) == "channels_first":
        return "layer2d"
    known = kind.forward is nn.LayerNorm.forward or kind.__module__.startswith("timm.")
    return "layer" if known or getattr(module, "data_format", None) == "channels_last" else "unknown"


def _is_rms(module: nn.Module) -> bool:
    """torch's RMSNorm, and classes in its manner: a name that says so, and one vector of weights."""
    if isinstance(module, nn.RMSNorm):
        return module.weight is not None
    name = type(module).__name__.lower()
    says_so = name.endswith(("rmsnorm", "rmsnorm2d")) or name == "t5layernorm"
    weight = getattr(module, "weight", None)
    return says_so and isinstance(weight, Tensor) and weight.ndim == 1 and len(list(module.parameters())) == 1


def _rms_kind(module: nn.Module) -> str:
    if type(module) is nn.RMSNorm:
        return "rms"
    if type(module).__name__.lower().endswith("2d"):
        return "rms2d"
    factors, weight = _factors(module), module.weight
    assert isinstance(weight, Tensor)
    return "rms" if factors is not None and (_are(factors, weight) or _are(factors, weight + 1)) else "unknown"


def _adds_one(module: nn.Module) -> bool:
    """Whether an RMSNorm multiplies by 1 + weight, as Gemma's do."""
    factors = None if type(module) is nn.RMSNorm else _factors(module)
    return factors is not None and not _are(factors, module.weight)  # type: ignore[arg-type]


def _are(factors: Tensor, weight: Tensor) -> bool:
    # The norm's ε makes them differ a little.
    return torch.allclose(factors, weight.detach().float().cpu(), atol=1e-4)


@torch.no_grad()
def _factors(module: nn.Module) -> Tensor | None:
    """What an RMSNorm makes of ones, whose root mean square is 1; None where it cannot be tried, as on meta."""
    width = len(module.weight)  # type: ignore[arg-type]
    try:
        probe = copy.deepcopy(module).float().cpu().eval()
        scaled: Tensor = probe(torch.ones(1, 1, width))
    # Of a class that is only known by its name, anything may come.
    except Exception:
        return None
    fits = isinstance(scaled, Tensor) and scaled.shape == (1, 1, width)
    return scaled.flatten() if fits else None


def _whitened_population(layer: PopulationWhitening) -> Population | None:
    """The mean and covariance that a layer's running statistics stand for."""
    mean, matrix = layer._population()
    if mean is None or matrix is None:
        return None
    mean, matrix = to_float64(mean), to_float64(matrix)
    if layer._matrix_name == "running_cov":
        identity = torch.eye(layer.group_size, dtype=matrix.dtype, device=matrix.device)
        return Population(mean, matrix + layer.eps * identity)
    # Σ = (WᵀW)⁻¹, as W·Σ·Wᵀ = I; by unit columns, so that no scale of a channel is lost beside the others'.
    sizes = torch.linalg.vector_norm(matrix, dim=-2, keepdim=True)
    unit = matrix / torch.where(sizes > 0, sizes, 1)
    inverse = torch.linalg.pinv(unit.mT @ unit, hermitian=True)
    return Population(mean, inverse / (sizes * sizes.mT).clamp_min(torch.finfo(sizes.dtype).tiny))


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
