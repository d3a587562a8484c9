"""Cost of training and inference with a norm: the papers' models by name, functions to time, and FLOP counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torchvision.models.resnet import Bottleneck, ResNet

from whitenorm.diagnostics import flops
from whitenorm.layers import Whitening
from whitenorm_lab.nets import build, place_


class Choice(NamedTuple):
    """A norm, its place in a net, and its options."""

    norm: str = "bn"
    where: str = "all"
    options: dict[str, Any] = {}  # noqa: RUF012


# Each norm has its paper's solver: Newton in GW and IterNorm, ZCA in SW and DBN.
RESNET50 = {
    **{f"GW {place}": Choice("gw", place.lower()) for place in ("S1", "S1-B1", "S1-B2", "S1-B3", "S1-B12", "full")},
    "BW_Σ S1-B2": Choice("bw-sigma", "s1-b2", {"solver": "newton"}),
    **{
        f"{name} {layers} layers": Choice(norm, f"sw-{layers}", {"solver": "zca"})
        for layers in (7, 14)
        for name, norm in (("BW", "dbn"), ("SW^a", "sw"), ("SW^b", "sw5"))
    },
    "IterNorm L1": Choice("iternorm", "l1"),
    "IterNorm full": Choice("iternorm", "full"),
}
VGG_A = {f"DBN-G{size}": Choice("dbn", "all", {"group_size": size}) for size in (8, 16, 64, 256, 512)}


# Nets that whitenorm_lab.nets does not have: ResNet-50 for segmentation, with output stride 8, and a tiny one for smoke
# tests, with one bottleneck per stage.
_NETS: dict[str, Callable[..., nn.Module]] = {
    "resnet50-dilated": partial(ResNet, Bottleneck, [3, 4, 6, 3], replace_stride_with_dilation=[False, True, True]),
    "resnet-tiny": partial(ResNet, Bottleneck, [1, 1, 1, 1], width_per_group=16),
}


def build_net(net: str, classes: int, choice: Choice = Choice()) -> nn.Module:  # noqa: B008
    """Build a net with a norm at its place and BatchNorm elsewhere.

    The net has a name of :data:`whitenorm_lab.nets.NETS`, or is ``resnet50-dilated`` or ``resnet-tiny``.

    Example::

        >>> model = build_net("resnet20", 10, Choice("dbn", "l1"))
        >>> count_gflops(model, 32)
        0.040813184
    """
    if net not in _NETS:
        return build(net, classes, choice.norm, choice.where, norm_options=choice.options)
    return place_(_NETS[net](num_classes=classes), choice.norm, choice.where, **choice.options)


def list_solvers(model: nn.Module) -> str:
    """Return the names of the solvers of a net's whitening layers, joined by commas.

    Example::

        >>> list_solvers(build_net("resnet20", 10, Choice("dbn", "l1")))
        'ZCA'
    """
    return ", ".join(sorted({type(layer.solver).__name__ for layer in model.modules() if isinstance(layer, Whitening)}))


def build_training_step(model: nn.Module, batch: int, resolution: int, classes: int) -> Callable[[], None]:
    """Return a function that runs forward, loss and backward on random images.

    It has no optimizer step, which takes equally long with all norms.
    """
    x = torch.randn(batch, 3, resolution, resolution)
    labels = torch.randint(classes, (batch,))

    def run() -> None:
        model.train()
        model.zero_grad()
        F.cross_entropy(model(x), labels).backward()

    return run


def build_inference(model: nn.Module, batch: int, resolution: int) -> Callable[[], None]:
    """Return a function that runs forward in eval mode on random images."""
    x = torch.randn(batch, 3, resolution, resolution)

    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(x)

    return run


def build_layer_step(module: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], None]:
    """Return a function that runs a layer's forward and backward; ``x`` must be a leaf that requires grad."""

    def run() -> None:
        module(x).backward(grad)
        x.grad = None

    return run


def count_products(build: Callable[[], nn.Module], *shape: int) -> int:
    """Count the multiply-adds of a layer's forward pass in training, without computing them.

    Counts convolutions and matrix products, but not eigendecompositions.

    Example::

        >>> count_products(lambda: nn.Conv2d(4, 4, 3, padding=1, bias=False), 1, 4, 8, 8) == 9 * 8 * 8 * 4 * 4
        True
    """
    with torch.device("meta"):
        return flops(build().train(), torch.empty(shape)) // 2


def count_gflops(model: nn.Module, resolution: int) -> float:
    """Count the multiply-adds of inference on one image, in billions, as the SW paper counts FLOPs."""
    device = next(model.parameters()).device
    return flops(model.eval(), torch.randn(1, 3, resolution, resolution, device=device)) / 2e9
