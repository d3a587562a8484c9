"""Faster R-CNN and Mask R-CNN of torchvision, with FPN and a separate norm in each part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torchvision.models import get_model, get_model_builder, list_models, resnet
from torchvision.models.detection import FasterRCNN, MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNConvFCHead, FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from whitenorm.cli import suggest
from whitenorm.models import replace_
from whitenorm_lab.nets import place_
from whitenorm_lab.tasks.detection.config import FROZEN, Detection
from whitenorm_lab.tasks.detection.weights import build_misfit_error, list_differences, load_backbone_

# Output sizes of the RoI pooling of the two heads.
_BOX_SIZE, _MASK_SIZE = 7, 14
_STAGES = ("layer1", "layer2", "layer3", "layer4")
_LEVELS = ("0", "1", "2", "3")
_CONVOLUTIONS = 4


def build_detector(config: Detection, classes: int, state: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Build the detector of a configuration.

    Args:
        config: the configuration of the run.
        classes: number of classes, background included.
        state: state dict of a trained classifier that initializes the backbone.

    Example::

        >>> model = build_detector(Detection(net="resnet18", fpn_norm="gw", box_head="4conv1fc", head_norm="gn"), 3)
        >>> type(model.backbone.fpn.layer_blocks[0][1]).__name__, type(model.roi_heads.box_head[0][1]).__name__
        ('GroupWhitening', 'GroupNorm')
    """
    anchors = AnchorGenerator(tuple((config.anchor_size * 2**level,) for level in range(5)), ((0.5, 1.0, 2.0),) * 5)
    options: dict[str, Any] = {
        "min_size": config.min_size,
        "max_size": config.max_size,
        "rpn_anchor_generator": anchors,
        "rpn_pre_nms_top_n_train": config.proposals,
        "rpn_post_nms_top_n_train": config.proposals,
        "box_batch_size_per_image": config.rois,
        "box_roi_pool": MultiScaleRoIAlign(_LEVELS, _BOX_SIZE, sampling_ratio=2),
        "box_head": _build_box_head(config),
        "box_predictor": FastRCNNPredictor(config.head_width, classes),
    }
    pyramid = _build_pyramid(config, state)
    if not config.masks:
        return FasterRCNN(pyramid, **options)
    return MaskRCNN(
        pyramid,
        mask_roi_pool=MultiScaleRoIAlign(_LEVELS, _MASK_SIZE, sampling_ratio=2),
        mask_head=_build_mask_head(config),
        mask_predictor=MaskRCNNPredictor(config.fpn_channels, config.fpn_channels, classes),
        **options,
    )


def _build_pyramid(config: Detection, state: Mapping[str, Tensor] | None) -> BackboneWithFPN:
    backbone = _build_backbone(config, state)
    # ResNets double their width at each stage.
    widths = [backbone.inplanes // 2**halvings for halvings in (3, 2, 1, 0)]
    layers = dict(zip(_STAGES, _LEVELS, strict=True))
    pyramid = BackboneWithFPN(backbone, layers, widths, config.fpn_channels, norm_layer=_norm_layer(config.fpn_norm))
    pyramid.fpn = _place_norm(pyramid.fpn, config.fpn_norm, config)
    return pyramid


def _build_backbone(config: Detection, state: Mapping[str, Tensor] | None) -> resnet.ResNet:
    """Return the classifier whose stages are the backbone, with its norms, weights and frozen layers."""
    names = [name for name in list_models() if get_model_builder(name).__module__ == resnet.__name__]
    if config.net not in names:
        raise ValueError(
            f"expected a residual network of torchvision as backbone: {', '.join(names)} (got {config.net!r})"
            f"{suggest(config.net, names)}"
        )
    net = get_model(config.net, weights=None)
    # Weights of a BatchNorm network are loaded before the conversion, others after it.
    differences = [] if state is None else list_differences(net, state)
    if state is not None and not differences:
        load_backbone_(net, state)
    net = place_(net, config.norm, config.where, **config.norm_options())
    if state is not None and differences:
        if others := list_differences(net, state):
            raise build_misfit_error(config.weights, config.net, {config.norm: others, "BatchNorm": differences})
        load_backbone_(net, state)
    _freeze_stages_(net, config.freeze_at)
    return freeze_batchnorm_(net) if config.freeze_bn else net


def _freeze_stages_(net: nn.Module, stages: int) -> None:
    """Freeze the parameters of the first stages; the stem is the first of five."""
    for part in (["conv1", "bn1"], *([stage] for stage in _STAGES))[:stages]:
        for name in part:
            net.get_submodule(name).requires_grad_(False)


def freeze_batchnorm_(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm by one with fixed statistics, γ and β."""
    frozen: dict[nn.Module, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            frozen[module] = FrozenBatchNorm2d(module.num_features, module.eps)
            frozen[module].load_state_dict(module.state_dict())
    return replace_(model, frozen)


def _build_box_head(config: Detection) -> nn.Module:
    if config.box_head == "2fc":
        return TwoMLPHead(config.fpn_channels * _BOX_SIZE**2, config.head_width)
    head = FastRCNNConvFCHead(
        (config.fpn_channels, _BOX_SIZE, _BOX_SIZE),
        [config.fpn_channels] * _CONVOLUTIONS,
        [config.head_width],
        norm_layer=_norm_layer(config.head_norm),
    )
    return _place_norm(head, config.head_norm, config)


def _build_mask_head(config: Detection) -> nn.Module:
    layers = [config.fpn_channels] * _CONVOLUTIONS
    head = MaskRCNNHeads(config.fpn_channels, layers, 1, norm_layer=_norm_layer(config.mask_norm))
    return _place_norm(head, config.mask_norm, config)


def _norm_layer(norm: str) -> type[nn.Module] | None:
    """Return torchvision's ``norm_layer``; :func:`_place_norm` replaces it. Without norms, convolutions have biases."""
    return None if norm == "none" else nn.BatchNorm2d


def _place_norm(part: nn.Module, norm: str, config: Detection) -> nn.Module:
    if norm == "none":
        return part
    if norm == FROZEN:
        return freeze_batchnorm_(part)
    return place_(part, norm, **(config.norm_options() if norm == config.norm else {}))
