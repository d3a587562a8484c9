"""What training and inference with a norm cost: the papers' models by name, and what is timed of them."""

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
    """A norm, where a net has it, and its options."""

    norm: str = "bn"
    where: str = "all"
    options: dict[str, Any] = {}  # noqa: RUF012


# Each by its paper's solver: Newton in GW's and IterNorm's texts, ZCA in SW's and DBN's.
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


# Besides those that have a name already: ResNet-50 as segmentation uses it, with an eighth of the image's resolution at
# the end, and one with a bottleneck a stage that takes no time.
_OTHERS: dict[str, Callable[..., nn.Module]] = {
    "resnet50-dilated": partial(ResNet, Bottleneck, [3, 4, 6, 3], replace_stride_with_dilation=[False, True, True]),
    "resnet-tiny": partial(ResNet, Bottleneck, [1, 1, 1, 1], width_per_group=16),
}


def make(net: str, classes: int, choice: Choice = Choice()) -> nn.Module:  # noqa: B008
    """A net with a norm, and BatchNorm elsewhere, by a name of :func:`whitenorm_lab.nets.build` or one of ours.

    Example::

        >>> model = make("resnet20", 10, Choice("dbn", "l1"))
        >>> gflops(model, 32)
        0.040813184
    """
    if net not in _OTHERS:
        return build(net, classes, choice.norm, choice.where, norm_options=choice.options)
    return place_(_OTHERS[net](num_classes=classes), choice.norm, choice.where, **choice.options)


def solver(model: nn.Module) -> str:
    """How a net's layers whiten.

    Example::

        >>> solver(make("resnet20", 10, Choice("dbn", "l1")))
        'ZCA'
    """
    found = {type(layer.solver).__name__ for layer in model.modules() if isinstance(layer, Whitening)}
    return ", ".join(sorted(found))


def training_step(model: nn.Module, batch: int, resolution: int, classes: int) -> Callable[[], None]:
    """Forward and backward on random images, with the loss; what the optimizer does is the same for all norms."""
    x = torch.randn(batch, 3, resolution, resolution)
    labels = torch.randint(classes, (batch,))

    def run() -> None:
        model.train()
        model.zero_grad()
        F.cross_entropy(model(x), labels).backward()

    return run


def inference(model: nn.Module, batch: int, resolution: int) -> Callable[[], None]:
    """Forward in eval mode on random images."""
    x = torch.randn(batch, 3, resolution, resolution)

    def run() -> None:
        model.eval()
        with torch.no_grad():
            model(x)

    return run


def layer_step(module: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], None]:
    """Forward and backward of a layer, for the gradient of its input, a leaf, and of its parameters."""

    def run() -> None:
        module(x).backward(grad)
        x.grad = None

    return run


def products(make: Callable[[], nn.Module], *shape: int) -> int:
    """Multiplications, each with its addition, of a layer's forward pass in training, counted without arithmetic.

    Of convolutions and matrix products; an eigendecomposition is not counted.

    Example::

        >>> products(lambda: nn.Conv2d(4, 4, 3, padding=1, bias=False), 1, 4, 8, 8) == 9 * 8 * 8 * 4 * 4
        True
    """
    # Weights without values take no time to make.
    with torch.device("meta"):
        return flops(make().train(), torch.empty(shape)) // 2


def gflops(model: nn.Module, resolution: int) -> float:
    """Multiplications and additions of inference on one image, a pair counted as one, as the SW paper does."""
    device = next(model.parameters()).device
    return flops(model.eval(), torch.randn(1, 3, resolution, resolution, device=device)) / 2e9
