"""Nets for semantic segmentation: a dilated backbone, a head, and one more head on earlier features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from whitenorm.models import LayerLike, Where
from whitenorm_lab.nets import place_, pretrained
from whitenorm_lab.tasks.segmentation.backbones import backbone
from whitenorm_lab.tasks.segmentation.heads import HEADS, fcn_head, resize


class Segmenter(nn.Module):
    """A class for every pixel.

    In training with an auxiliary head, the scores of both heads; otherwise those of the head alone.

    Shape: ``(N, 3, H, W)`` to ``(N, classes, H, W)``.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, auxiliary: nn.Module | None = None) -> None:
        super().__init__()
        # In this order: the first norm, which recipes name, is the backbone's.
        self.backbone, self.head, self.auxiliary = backbone, head, auxiliary

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        size = (images.shape[-2], images.shape[-1])
        earlier, features = self.backbone(images)
        scores = resize(self.head(features), size)
        if self.auxiliary is None or not self.training:
            return scores
        return scores, resize(self.auxiliary(earlier), size)


def build(
    name: str,
    classes: int,
    head: str = "psp",
    norm: LayerLike = "bn",
    where: Where = "all",
    *,
    stride: int = 8,
    width: int | None = None,
    auxiliary: bool = True,
    weights: str | None = None,
    norm_options: dict[str, Any] | None = None,
) -> Segmenter:
    """A segmentation net, with a norm at the places that a recipe names and BatchNorm elsewhere.

    SW's recipes, ``"sw-7"`` and ``"sw-14"``, count the backbone's norms alone; ``"all"`` is those of the heads too.

    Args:
        name: of the backbone: torchvision's bottleneck ResNets, or ``"timm:NAME"`` with timm's.
        classes: of a pixel.
        head: ``"psp"`` or ``"fcn"``.
        norm: a name (see :func:`whitenorm_lab.nets.place_`) or a function from width to norm.
        where: a recipe's name (see :mod:`whitenorm.recipes`) or a filter.
        stride: of the last features: 8, 16 or 32 pixels.
        width: of timm's ResNets; 64 if not given.
        auxiliary: whether there is a second head, on the features one stage before the last.
        weights: of the backbone: a file, or ``"imagenet"``. Those of a net with BatchNorm carry over to the norm that
            takes its place; those of a net with this norm at these places are loaded as they are.
        norm_options: such as ``{"group_size": 16}``.

    Example::

        >>> net = build("resnet50", 11, "psp", "sw", "sw-14")
        >>> sum(type(module).__name__ == "SwitchableWhitening" for module in net.modules())
        14
        >>> net.eval()(torch.randn(1, 3, 33, 65)).shape
        torch.Size([1, 11, 33, 65])
    """
    if head not in HEADS:
        raise ValueError(f"expected head to be one of {', '.join(HEADS)} (got {head!r})")
    made = backbone(name, stride, width)
    earlier, last = made.channels
    model = Segmenter(made.module, HEADS[head](last, classes), fcn_head(earlier, classes) if auxiliary else None)
    with_these_norms = weights is not None and _has_other_norms(weights, model.backbone)
    if weights is not None and not with_these_norms:
        pretrained.load_weights_(model.backbone, name, weights)
    if norm != "bn" or where != "all" or norm_options:
        place_(model, norm, where, **(norm_options or {}))
    if weights is not None and with_these_norms:
        pretrained.load_weights_(model.backbone, name, weights)
    return model


def _has_other_norms(weights: str, backbone: nn.Module) -> bool:
    """Whether a file lacks the variances of some of a backbone's BatchNorms."""
    variances = {name for name in backbone.state_dict() if name.endswith("running_var")}
    return weights != pretrained.IMAGENET and not variances <= set(pretrained.read_weights(Path(weights)))
