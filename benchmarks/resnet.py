"""Count a training step of ResNet-50: the operations of the net without norms once, and those of each norm."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torchvision.models import resnet50

import whitenorm
from benchmarks.roofline.cards import Card
from benchmarks.roofline.prediction import predict_seconds
from benchmarks.roofline.work import Operation, layer_work, step_work

BATCH, RESOLUTION, CLASSES = 32, 224, 1000
WHITENING = ("IterNorm", "SW", "GW", "GW S1-B2")
# Names of the layers, and the norms that they replace.
NAMES = {
    "BatchNorm": ("bn", "all"),
    "IterNorm": ("iternorm", "all"),
    "SW": ("sw", "all"),
    "GW": ("gw", "all"),
    "GW S1-B2": ("gw", "s1-b2"),
}


class Norm(NamedTuple):
    """A norm of the net, and the shape of its input."""

    layer: nn.Module
    shape: tuple[int, ...]

    @property
    def key(self) -> Hashable:
        """Key that norms with the same operations share."""
        return repr(self.layer), self.shape


def build_norms(name: str, where: str = "all") -> list[Norm]:
    """Return all 53 norms in order."""
    model = _model()
    if name != "bn":
        whitenorm.convert_(model, name, where=where)
    layers = [model.get_submodule(path) for path, _ in _batch_norms(_model())]
    return [Norm(layer, shape) for layer, shape in zip(layers, _shapes(), strict=True)]


def step_operations(name: str, kernels: str, where: str = "all") -> list[Operation]:
    """Return the operations of forward, loss and backward; those of the optimizer are the same for all norms."""
    return [
        *_without_norms(),
        *[operation for norm in build_norms(name, where) for operation in norm_operations(norm, kernels)],
    ]


def step_seconds(name: str, kernels: str, card: Card, where: str = "all") -> float:
    """Predict the time of a step."""
    is_triton = kernels == "triton"
    layers = sum(is_triton and isinstance(norm.layer, whitenorm.Whitening) for norm in build_norms(name, where))
    return predict_seconds(step_operations(name, kernels, where), card, layers)


def norm_operations(norm: Norm, kernels: str) -> tuple[Operation, ...]:
    """Return the operations of a norm, counted once per kind and shape."""
    key = norm.key, kernels
    if key not in _work:
        _work[key] = layer_work(norm.layer, norm.shape, kernels).operations
    return _work[key]


_work: dict[Hashable, tuple[Operation, ...]] = {}


def count_parameters() -> int:
    return sum(parameter.numel() for parameter in _model().parameters())


def _model() -> nn.Module:
    with torch.device("meta"):
        return resnet50(num_classes=CLASSES)


def _images() -> torch.Tensor:
    return torch.empty(BATCH, 3, RESOLUTION, RESOLUTION, device="meta")


def _batch_norms(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d))


@functools.cache
def _shapes() -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the norms' inputs, in the order of the modules."""
    model, shapes = _model(), {}
    for name, module in _batch_norms(model):
        module.register_forward_pre_hook(lambda _, x, name=name: shapes.__setitem__(name, tuple(x[0].shape)))
    model(_images())
    return tuple(shapes[name] for name, _ in _batch_norms(model))


@functools.cache
def _without_norms() -> tuple[Operation, ...]:
    model = _model()
    for name, _ in list(_batch_norms(model)):
        model.set_submodule(name, nn.Identity())
    labels = torch.empty(BATCH, dtype=torch.long, device="meta")
    return step_work(lambda: F.cross_entropy(model(_images()), labels)).operations
