"""Concept whitening: whitened features, rotated so that their first axes are given concepts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from whitenorm.layers.base import unchanged_buffers
from whitenorm.layers.batch import BatchWhitening
from whitenorm.ops.check import check_positive
from whitenorm.ops.distributed import Group, sum_over_ranks
from whitenorm.ops.fixed_map import apply_fixed_map
from whitenorm.ops.masking import zero_masked
from whitenorm.solvers import Newton

# The share of the old gradient in the moving average.
_GRADIENT_MOMENTUM = 0.9
# Constants of the Armijo and Wolfe conditions, the first step size, and the most steps of the search.
_SUFFICIENT, _CURVATURE, _FIRST_STEP, _MOST_TRIALS = 1e-4, 0.9, 1.0, 60


def _pool_max(maps: Tensor) -> Tensor:
    """Return the mean of the maxima of windows of up to 3 positions in every direction."""
    dimensions = maps.ndim - 1
    pool = {1: nn.functional.max_pool1d, 2: nn.functional.max_pool2d, 3: nn.functional.max_pool3d}[dimensions]
    window = [min(3, size) for size in maps.shape[1:]]
    return pool(maps.unsqueeze(1), window, window).flatten(1).mean(1)


def _positive_mean(maps: Tensor) -> Tensor:
    positive = (maps > 0).to(maps.dtype)
    return (maps * positive).flatten(1).sum(1) / positive.flatten(1).sum(1).clamp(min=1)


# From maps (N, ...) of positions to one activation per sample.
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda maps: maps.flatten(1).mean(1),
    "max": lambda maps: maps.flatten(1).amax(1),
    "positive_mean": _positive_mean,
    "pool_max": _pool_max,
}


def check_activation(activation: str) -> None:
    if activation not in _ACTIVATIONS:
        known = ", ".join(f'"{name}"' for name in _ACTIVATIONS)
        raise ValueError(f"expected activation to be one of {known} (got {activation!r})")


class ConceptWhitening(BatchWhitening):
    r"""Whitening followed by a rotation that aligns the first axes with concepts (CW).

    `Concept Whitening for Interpretable Image Recognition <https://arxiv.org/abs/2002.01650>`_ (Chen et al., 2020)

    .. math:: y = \gamma\, Q^T W(\Sigma + \epsilon I)\, (x - \mu) + \beta, \qquad Q^T Q = I

    Feature j of the output, for j below ``num_concepts``, is how much of concept j is in the input: the axis
    :math:`q_j` points to where images of the concept have the largest mean activation, and whitening makes the axes
    uncorrelated. The rotation is no parameter. It begins as I and is changed by :func:`whitenorm.align_concepts_`, in
    turn with steps of training for the task, every 30 batches in the paper. All channels are whitened together.

    Args:
        num_features: C.
        num_concepts: number of concepts, at most C.
        activation: how the positions of a map are summarized to the activation of a sample: ``"mean"``, ``"max"``,
            ``"positive_mean"`` (over positive values), or ``"pool_max"``, the mean of the maxima of 3×3 windows.
        steps: Newton iterations; 10 in the authors' program.
        affine: learn γ and β; they scale and shift the axes, and the paper has none.

    The other arguments are :class:`BatchWhitening`'s.

    Shape:
        As :class:`BatchWhitening`'s.

    Examples::

        >>> layer = ConceptWhitening(16, num_concepts=3)
        >>> layer(torch.randn(8, 16, 7, 7)).shape
        torch.Size([8, 16, 7, 7])
        >>> list(layer.state_dict())
        ['running_mean', 'running_whitening', 'num_batches_tracked', 'rotation', 'concept_gradient']
    """

    rotation: Tensor
    concept_gradient: Tensor

    def __init__(
        self,
        num_features: int,
        num_concepts: int,
        activation: str = "pool_max",
        steps: int = 10,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = True,
        population: str = "whitening",
        process_group: Group = None,
        *,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_positive("num_concepts", num_concepts)
        if num_concepts > num_features:
            raise ValueError(f"expected at most {num_features} concepts, one per feature (got {num_concepts})")
        check_activation(activation)
        super().__init__(
            num_features,
            None,
            Newton(steps),
            eps,
            momentum,
            affine,
            track_running_stats,
            population,
            process_group,
            bias=bias,
            device=device,
            dtype=dtype,
        )
        self.num_concepts = num_concepts
        self.activation = activation
        # Receives the whitened input of every call, before the rotation.
        self._observer: Callable[[Tensor], None] | None = None
        like = torch.empty(0, device=device, dtype=dtype)
        identity = torch.eye(num_features, device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))
        self.register_buffer("rotation", identity)
        self.register_buffer("concept_gradient", torch.zeros_like(identity[:num_concepts]))

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        self._check_input(input)
        white = self._whiten(input, mask, None, None)
        if self._observer is not None:
            self._observer(white.detach())
        origin = self.rotation.new_zeros(self.num_features)
        output = apply_fixed_map(white, origin, self.rotation[None], self.weight, self.bias, self.num_features)
        return output if mask is None else zero_masked(output, mask)

    def summarize(self, maps: Tensor) -> Tensor:
        """Return the activations ``(N,)`` of samples whose positions have the activations ``(N, ...)``."""
        return _ACTIVATIONS[self.activation](maps) if maps.ndim > 1 else maps

    @torch.no_grad()
    def rotate_(self, gradient: Tensor) -> None:
        r"""Rotate the axes in the direction of the gradient ``(num_concepts, C)`` of the concepts' activations.

        A step on the orthogonal matrices along Cayley's curve, :math:`(I + \tfrac{\eta}{2} A)^{-1} (I -
        \tfrac{\eta}{2} A)\, Q` with :math:`A = G Q^T - Q G^T`, where G is a moving average of gradients. The step
        size η is found by the search of Wen and Yin (2013), for the linear objective that G defines.
        """
        self.concept_gradient.lerp_(gradient.to(self.concept_gradient), 1 - _GRADIENT_MOMENTUM)
        ascent = torch.zeros_like(self.rotation, dtype=torch.float64)
        ascent[: self.num_concepts] = self.concept_gradient
        self.rotation.copy_(_search_rotation(self.rotation.double().mT, -ascent.mT).mT)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Those of other norms have no rotation.
        for name in ("rotation", "concept_gradient"):
            state_dict.setdefault(prefix + name, self._buffers[name])
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, num_concepts={self.num_concepts}, activation={self.activation!r}"


def align_concepts_(model: nn.Module, concepts: Sequence[Any], steps: int = 1) -> nn.Module:
    """Rotate the axes of a model's :class:`ConceptWhitening` layers towards concepts, in place, and return the model.

    The model runs in eval mode and without gradients, except for those of the rotations; nothing but the rotations and
    their averaged gradients changes. With ``process_group``, the layers use the images of all ranks.

    Args:
        model: with such layers.
        concepts: a batch of inputs of the model for each concept, in the order of the axes.
        steps: number of rotations.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), ConceptWhitening(8, num_concepts=2))
        >>> images = torch.randn(2, 16, 3, 8, 8)
        >>> rotation = align_concepts_(model, images)[1].rotation
        >>> torch.allclose(rotation @ rotation.T, torch.eye(8), atol=1e-5)
        True
    """
    layers = _find_layers(model)
    for name, layer in layers.items():
        if len(concepts) != layer.num_concepts:
            raise ValueError(
                f"expected a batch for each of the {layer.num_concepts} concepts of layer {name!r} (got "
                f"{len(concepts)})"
            )
    check_positive("steps", steps)
    for _ in range(steps):
        # All layers are observed before any of them changes the inputs of those behind it.
        observed = _observe(model, layers, concepts)
        for name, layer in layers.items():
            gradients = [_activation_gradient(layer, white, concept) for concept, white in enumerate(observed[name])]
            layer.rotate_(torch.stack(gradients))
    return model


@torch.no_grad()
def concept_activations(model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """Return how much of each concept is in each input, ``(N, num_concepts)``, by the layers' names.

    The model runs in eval mode. Sorting images by a column shows what the axis stands for.

    Example::

        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), ConceptWhitening(8, num_concepts=2))
        >>> concept_activations(model, torch.randn(4, 3, 8, 8))["1"].shape
        torch.Size([4, 2])
    """
    layers = _find_layers(model)
    observed = _observe(model, layers, [inputs])
    activations = {}
    for name, layer in layers.items():
        (white,) = observed[name]
        maps = torch.einsum("jc,nc...->nj...", layer.rotation[: layer.num_concepts].to(white.dtype), white)
        activations[name] = torch.stack([layer.summarize(one) for one in maps.unbind(1)], 1)
    return activations


def _find_layers(model: nn.Module) -> dict[str, ConceptWhitening]:
    layers = {name: module for name, module in model.named_modules() if isinstance(module, ConceptWhitening)}
    if not layers:
        raise ValueError(
            f"expected a model with ConceptWhitening layers (got {type(model).__name__} without any); convert one norm "
            "to it first: convert_(model, lambda width: whitenorm.ConceptWhitening(width, num_concepts), [name])"
        )
    return layers


@torch.no_grad()
def _observe(model: nn.Module, layers: dict[str, ConceptWhitening], batches: Sequence[Any]) -> dict[str, list[Tensor]]:
    """Return the whitened inputs of each layer for each batch, in the dtype of computation."""
    observed: dict[str, list[Tensor]] = {name: [] for name in layers}

    def append_to(outputs: list[Tensor], dtype: torch.dtype) -> Callable[[Tensor], None]:
        return lambda white: outputs.append(white.to(dtype))

    with _evaluating(model), unchanged_buffers(*layers.values()):
        for name, layer in layers.items():
            layer._observer = append_to(observed[name], layer.rotation.dtype)
        try:
            for count, batch in enumerate(batches, 1):
                model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
                for name in layers:
                    if len(observed[name]) != count:
                        raise ValueError(f"expected the model to call layer {name!r} once per batch")
        finally:
            for layer in layers.values():
                layer._observer = None
    return observed


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _activation_gradient(layer: ConceptWhitening, white: Tensor, concept: int) -> Tensor:
    """Return the gradient ``(C,)`` of a concept's mean activation, by its axis."""
    with torch.enable_grad():
        axis = layer.rotation[concept].clone().requires_grad_()
        total = layer.summarize(torch.einsum("c,nc...->n...", axis, white)).sum()
        (gradient,) = torch.autograd.grad(total, axis)
    group = layer.process_group
    count = sum_over_ranks(gradient.new_full((1,), len(white)), group)
    return sum_over_ranks(gradient, group) / count.clamp(min=1)


def _search_rotation(q: Tensor, gradient: Tensor) -> Tensor:
    """Return an orthogonal matrix on Cayley's curve from q, with a smaller ⟨gradient, q⟩, by Armijo-Wolfe bisection.

    Its steps depend on values, so that it waits for a GPU; it does not run in forward or backward.
    """
    skew = gradient @ q.mT - q @ gradient.mT
    identity = torch.eye(len(q), dtype=q.dtype, device=q.device)
    slope = -0.5 * skew.square().sum().item()
    if slope == 0:
        return q
    # The scale of the gradient has no meaning for the direction.
    size = torch.linalg.matrix_norm(skew, 2).item()
    step, low, high = _FIRST_STEP / size, 0.0, float("inf")
    start, best = (gradient * q).sum().item(), q
    for _ in range(_MOST_TRIALS):
        inner = identity + step / 2 * skew
        candidate = torch.linalg.solve(inner, (identity - step / 2 * skew) @ q)
        derivative = -torch.linalg.solve(inner, skew @ (q + candidate) / 2)
        if (gradient * candidate).sum().item() > start + _SUFFICIENT * step * slope:
            high = step
        elif (gradient * derivative).sum().item() < _CURVATURE * slope:
            low, best = step, candidate
        else:
            return candidate
        step = 2 * low if high == float("inf") else (low + high) / 2
    return best
