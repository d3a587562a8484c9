"""A training step of ResNet-50, counted: its own operations once, and those of each norm by itself."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torchvision.models import resnet50

import whitenorm
from benchmarks.roofline.work import Operation, layer_work, step_work

BATCH, RESOLUTION, CLASSES = 32, 224, 1000
WHITENING = ("IterNorm", "SW", "GW")
NAMES = {"BatchNorm": "bn", "IterNorm": "iternorm", "SW": "sw", "GW": "gw"}


class Norm(NamedTuple):
    """A norm of the net, and the shape of its input."""

    layer: nn.Module
    shape: tuple[int, ...]

    @property
    def key(self) -> Hashable:
        """What norms of the same work have in common."""
        return repr(self.layer), self.shape


def norms(name: str) -> list[Norm]:
    """All 53 of them, in order."""
    model = _model()
    if name != "bn":
        whitenorm.convert_(model, name)
    layers = [model.get_submodule(path) for path, _ in _batch_norms(_model())]
    return [Norm(layer, shape) for layer, shape in zip(layers, _shapes(), strict=True)]


def step(name: str, kernels: str) -> list[Operation]:
    """Forward, loss and backward with these norms everywhere; the optimizer's part is the same for all."""
    return [*_without_norms(), *[operation for norm in norms(name) for operation in norm_work(norm, kernels)]]


def norm_work(norm: Norm, kernels: str) -> tuple[Operation, ...]:
    """One norm's operations; norms of the same kind and shape have the same."""
    key = norm.key, kernels
    if key not in _known:
        _known[key] = layer_work(norm.layer, norm.shape, kernels).operations
    return _known[key]


_known: dict[Hashable, tuple[Operation, ...]] = {}


def parameters() -> int:
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
    """Of the norms' inputs, in the order of their names."""
    model, found = _model(), {}
    for name, module in _batch_norms(model):
        module.register_forward_pre_hook(lambda _, x, name=name: found.__setitem__(name, tuple(x[0].shape)))
    model(_images())
    return tuple(found[name] for name, _ in _batch_norms(model))


@functools.cache
def _without_norms() -> tuple[Operation, ...]:
    model = _model()
    for name, _ in list(_batch_norms(model)):
        model.set_submodule(name, nn.Identity())
    labels = torch.empty(BATCH, dtype=torch.long, device="meta")
    return step_work(lambda: F.cross_entropy(model(_images()), labels)).operations
