"""Find the norms of a model and read their properties, without importing the libraries that they come from."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from whitenorm._runtime import to_float64
from whitenorm.layers.base import ChannelWhitening, PopulationWhitening, Whitening
from whitenorm.layers.domain import DomainWhitening
from whitenorm.layers.sample import GroupWhitening, InstanceWhitening, LayerWhitening
from whitenorm.models.modules import LayerWhitening2d

BATCH_NORM = nn.modules.batchnorm._BatchNorm
_INSTANCE = nn.modules.instancenorm._InstanceNorm
_TOKENS = ("layer", "layer2d", "rms", "rms2d")
# Classes with a known forward: by their module, and by their names in other libraries.
_KNOWN_MODULES = ("torch.nn.", "timm.", "whitenorm.")
_FROZEN = ("FrozenBatchNorm2d", "FrozenBatchNormAct2d")
_KNOWN_NAMES = (*_FROZEN, "BatchNormAct2d", "SyncBatchNormAct")
# Tensors of a norm that a new layer takes over, and children that it is put before.
_TRANSFERRED = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_ACTIVATION = ("drop", "act")


class Population(NamedTuple):
    """Mean ``(C,)`` and covariance plus ε ``(G, K, K)`` of the data, in float64."""

    mean: Tensor
    cov: Tensor


class Norm(NamedTuple):
    """A norm in a model: torch's, another library's, or one of whitenorm's own layers.

    Attributes:
        module: the norm itself.
        kind: what it normalizes over: ``"batch"``, ``"instance"``, ``"group"``, ``"layer"``, ``"layer2d"`` (the
            channels of an image), ``"rms"``, ``"rms2d"``, or ``"unknown"`` (a LayerNorm or RMSNorm with a forward of
            its own).
        shape: the shape of its parameters, ``(C,)`` except for LayerNorm over several dimensions.
    """

    module: nn.Module
    kind: str
    shape: tuple[int, ...]

    @property
    def is_tokenwise(self) -> bool:
        """True if features are normalized at each position, as in LayerNorm."""
        return self.kind in _TOKENS

    @property
    def has_vector_input(self) -> bool:
        """True if the input has no positions, or few, as that of BatchNorm1d."""
        return isinstance(self.module, nn.BatchNorm1d) or getattr(self.module, "replaces", "") == "BatchNorm1d"

    @property
    def weight(self) -> Tensor | None:
        """The scale γ that the norm multiplies by."""
        weight = self._read_tensor("weight")
        if weight is not None and self.kind in ("rms", "rms2d") and _adds_one(self.module):
            return nn.Parameter(weight.detach() + 1, requires_grad=weight.requires_grad)
        return weight

    @property
    def bias(self) -> Tensor | None:
        """The shift β that the norm adds."""
        return self._read_tensor("bias")

    def _read_tensor(self, name: str) -> Tensor | None:
        # A parametrization computes the tensor, which requires grad only if gradients are recorded.
        with torch.enable_grad():
            return getattr(self.module, name, None)

    @property
    def eps(self) -> float | None:
        """The norm's ε; None if it has no such attribute."""
        eps = getattr(self.module, "eps", None)
        return getattr(self.module, "variance_epsilon", None) if eps is None else eps

    @property
    def population(self) -> Population | None:
        """The population that the norm's running statistics describe; None if it has none."""
        if self.kind != "batch":
            return None
        if isinstance(self.module, PopulationWhitening):
            return _read_whitening_population(self.module)
        mean, variance = (getattr(self.module, name, None) for name in ("running_mean", "running_var"))
        if mean is None or variance is None:
            return None
        # Some frozen norms have ε only in their forward, where it is torch's default.
        eps = 1e-5 if self.eps is None else self.eps
        return Population(to_float64(mean), (to_float64(variance) + eps)[:, None, None])

    @property
    def activation(self) -> list[nn.Module]:
        """Dropout and activation that timm fuses with the norm, without identities."""
        parts = [getattr(self.module, name, None) for name in _ACTIVATION]
        return [part for part in parts if isinstance(part, nn.Module) and not isinstance(part, nn.Identity)]

    @property
    def obstacle(self) -> str:
        """The reason why a replacement would lose something; empty if it would not."""
        kind = type(self.module)
        if "forward" in vars(self.module):
            return "its forward was replaced on the instance"
        if parametrize.is_parametrized(self.module):
            return "it is parametrized (torch.nn.utils.parametrize)"
        if isinstance(self.module, DomainWhitening) and not isinstance(self.module.domain, int):
            return "no domain is chosen (convert inside `with whitenorm.use_domain(model, domain):`)"
        if self.kind == "unknown" and any(parameter.is_meta for parameter in self.module.parameters()):
            return f"{kind.__module__}.{kind.__qualname__} has a forward that cannot be tried on the meta device"
        if not _has_known_forward(self):
            return f"{kind.__module__}.{kind.__qualname__} has a forward of its own"
        extra = _list_extra_tensors(self.module)
        return f"{kind.__module__}.{kind.__qualname__} has tensors of its own ({', '.join(extra)})" if extra else ""


def as_norm(module: nn.Module) -> Norm | None:
    """Return a module's description as a norm; None if it is not a norm."""
    if isinstance(module, LayerWhitening):
        kind = "layer2d" if isinstance(module, LayerWhitening2d) else "layer"
        return Norm(module, kind, module.normalized_shape)
    if isinstance(module, ChannelWhitening):
        sample = {InstanceWhitening: "instance", GroupWhitening: "group"}
        kind = next((kind for layer, kind in sample.items() if isinstance(module, layer)), "batch")
        return Norm(module, kind, (module.num_features,))
    if isinstance(module, BATCH_NORM) or _is_frozen(module):
        return Norm(module, "batch", (_read_width(module),))
    if isinstance(module, _INSTANCE):
        return Norm(module, "instance", (_read_width(module),))
    if isinstance(module, nn.GroupNorm):
        return Norm(module, "group", (module.num_channels,))
    if isinstance(module, nn.LayerNorm):
        return Norm(module, _find_layer_kind(module), tuple(module.normalized_shape))
    if _is_rms(module):
        return Norm(module, _find_rms_kind(module), tuple(module.weight.shape))  # type: ignore[arg-type]
    return None


def find_norms(model: nn.Module) -> dict[str, Norm]:
    """Return all norms of a model by name, in the order of registration; a norm with two names has the first.

    Example::

        >>> norms = find_norms(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
        >>> {name: norm.kind for name, norm in norms.items()}
        {'1': 'batch'}
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"expected a model, an nn.Module (got {type(model).__name__})")
    norms = {name: as_norm(module) for name, module in model.named_modules()}
    return {name: norm for name, norm in norms.items() if norm is not None}


def keeps_population(module: nn.Module) -> bool:
    """Return whether a layer is a BatchNorm or whitening layer that keeps population statistics."""
    return isinstance(module, (PopulationWhitening, BATCH_NORM)) and bool(module.track_running_stats)


def _is_frozen(module: nn.Module) -> bool:
    return any(base.__name__.endswith(_FROZEN) for base in type(module).__mro__)


def _has_known_forward(norm: Norm) -> bool:
    """Return whether a norm computes what its kind says."""
    if isinstance(norm.module, nn.LayerNorm) or _is_rms(norm.module):
        # Their kind was determined from the forward.
        return norm.kind != "unknown"
    owner = next(base for base in type(norm.module).__mro__ if "forward" in vars(base))
    return owner.__module__.startswith(_KNOWN_MODULES) or owner.__name__.endswith(_KNOWN_NAMES)


def _list_extra_tensors(module: nn.Module) -> list[str]:
    """Return the names of a norm's parameters and buffers that a replacement would not have."""
    if isinstance(module, Whitening):
        return []
    names = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
    return [name for name in names if name not in _TRANSFERRED and name.partition(".")[0] not in _ACTIVATION]


def _find_layer_kind(module: nn.LayerNorm) -> str:
    """Return "layer" for input ``(..., C)``, "layer2d" for ``(N, C, H, W)``, "unknown" for other subclasses."""
    kind = type(module)
    # torchvision and timm have it in the name, transformers in an attribute.
    if "2d" in kind.__name__ or getattr(module, "data_format", None) == "channels_first":
        return "layer2d"
    is_known = kind.forward is nn.LayerNorm.forward or kind.__module__.startswith("timm.")
    return "layer" if is_known or getattr(module, "data_format", None) == "channels_last" else "unknown"


def _is_rms(module: nn.Module) -> bool:
    """Return whether a module is torch's RMSNorm, or has its name and one vector of weights."""
    if isinstance(module, nn.RMSNorm):
        return module.weight is not None
    name = type(module).__name__.lower()
    has_name = name.endswith(("rmsnorm", "rmsnorm2d")) or name == "t5layernorm"
    weight = getattr(module, "weight", None)
    return has_name and isinstance(weight, Tensor) and weight.ndim == 1 and len(list(module.parameters())) == 1


def _find_rms_kind(module: nn.Module) -> str:
    if type(module) is nn.RMSNorm:
        return "rms"
    if type(module).__name__.lower().endswith("2d"):
        return "rms2d"
    factors, weight = _measure_factors(module), module.weight
    assert isinstance(weight, Tensor)
    return "rms" if factors is not None and (_close(factors, weight) or _close(factors, weight + 1)) else "unknown"


def _adds_one(module: nn.Module) -> bool:
    """Return whether an RMSNorm multiplies by 1 + weight, as Gemma's does."""
    factors = None if type(module) is nn.RMSNorm else _measure_factors(module)
    return factors is not None and not _close(factors, module.weight)  # type: ignore[arg-type]


def _close(factors: Tensor, weight: Tensor) -> bool:
    # They differ slightly because of the norm's ε.
    return torch.allclose(factors, weight.detach().float().cpu(), atol=1e-4)


@torch.no_grad()
def _measure_factors(module: nn.Module) -> Tensor | None:
    """Return an RMSNorm's output for ones, whose root mean square is 1; None if it cannot run, as on meta."""
    width = len(module.weight)  # type: ignore[arg-type]
    try:
        probe = copy.deepcopy(module).float().cpu().eval()
        scaled: Tensor = probe(torch.ones(1, 1, width))
    # A class that is known only by its name may raise anything.
    except Exception:
        return None
    fits = isinstance(scaled, Tensor) and scaled.shape == (1, 1, width)
    return scaled.flatten() if fits else None


def _read_whitening_population(layer: PopulationWhitening) -> Population | None:
    """Return the mean and covariance that a layer's running statistics describe."""
    mean, matrix = layer._population()
    if mean is None or matrix is None:
        return None
    mean, matrix = to_float64(mean), to_float64(matrix)
    if layer._matrix_name == "running_cov":
        identity = torch.eye(layer.group_size, dtype=matrix.dtype, device=matrix.device)
        return Population(mean, matrix + layer.eps * identity)
    # W·Σ·Wᵀ = I gives Σ = (WᵀW)⁻¹. Scaling the columns to unit length keeps channels of very different scales exact.
    lengths = torch.linalg.vector_norm(matrix, dim=-2, keepdim=True)
    unit = matrix / torch.where(lengths > 0, lengths, 1)
    inverse = torch.linalg.pinv(unit.mT @ unit, hermitian=True)
    return Population(mean, inverse / (lengths * lengths.mT).clamp_min(torch.finfo(lengths.dtype).tiny))


def _read_width(module: nn.Module) -> int:
    width = getattr(module, "num_features", None)
    if width is None:
        width = len(module.running_mean)  # type: ignore[arg-type]
    if width == 0:
        raise ValueError(
            f"expected a norm that knows its width (got {type(module).__name__} with 0 features); run the model once "
            "before converting it, to initialize its lazy layers"
        )
    return int(width)
