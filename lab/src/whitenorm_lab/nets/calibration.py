r"""Calibration of norms that replace trained BatchNorms but keep no population statistics.

A batch method takes over BatchNorm's population statistics, and so computes the same function in eval mode. GW, GN and
the other norms of single samples compute another function, and in a trained network the difference grows from layer to
layer. Calibration chooses γ and β such that each channel keeps its mean and standard deviation over the data:

.. math:: \gamma' = \gamma \, \sigma_{BN} / \sigma, \qquad \beta' = (\beta - \mu) \, \sigma_{BN} / \sigma + \mu_{BN}

Here μ and σ are those of the new norm's outputs, and μ_BN and σ_BN those of the old one's. This takes one pass over a
few images; training has to make up for the remaining difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whitenorm.layers import PopulationWhitening
from whitenorm.models import Activated

_BATCH_NORM = nn.modules.batchnorm._BatchNorm


class ChannelMoments(NamedTuple):
    """Mean and standard deviation of each channel, ``(C,)``, over samples and positions."""

    mean: Tensor
    deviation: Tensor


def measure_batch_norms(model: nn.Module, images: Tensor) -> dict[str, ChannelMoments]:
    """Return the moments of each BatchNorm's outputs in eval mode, by the norm's name.

    An activation that is part of the norm is not applied.

    Args:
        model: a model with BatchNorm.
        images: images of the data that the model will be used on, as its input; they are passed as one batch.
    """
    moments: dict[str, ChannelMoments] = {}

    def record_moments(name: str, norm: nn.Module, x: Tensor) -> None:
        mean, deviation = _compute_moments(x)
        running_mean, running_var = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        scale = torch.rsqrt(running_var + norm.eps)  # type: ignore[operator]
        scale = scale if norm.weight is None else scale * norm.weight  # type: ignore[operator]
        output_mean = (mean - running_mean) * scale
        output_mean = output_mean if norm.bias is None else output_mean + norm.bias  # type: ignore[operator]
        moments[name] = ChannelMoments(output_mean, deviation * scale.abs())

    norms = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BATCH_NORM) and module.running_mean is not None
    }
    hooks = [
        norm.register_forward_pre_hook(lambda norm, inputs, name=name: record_moments(name, norm, inputs[0]))
        for name, norm in norms.items()
    ]
    _run_with_hooks(model, images, hooks)
    return moments


def match_moments_(model: nn.Module, targets: dict[str, ChannelMoments], images: Tensor) -> nn.Module:
    """Set γ and β of norms without population statistics so that their outputs have these moments; return the model.

    Each norm is set in the same forward pass, so that the later norms see the outputs of those set before.

    Args:
        model: the converted model, with γ and β.
        targets: result of :func:`measure_batch_norms` before the conversion.
        images: the same images.

    Example::

        >>> model, images = nn.Sequential(nn.BatchNorm2d(4)), 3 * torch.randn(8, 4, 6, 6) + 1
        >>> targets = measure_batch_norms(model.eval(), images)
        >>> _ = match_moments_(whitenorm.convert_(model, "gw", num_groups=2), targets, images)
        >>> model(images).mean((0, 2, 3)).allclose(targets["0"].mean, atol=1e-5)
        True
    """
    hooks = []
    for name, module in model.named_modules():
        target = targets.get(name)
        norm = module[0] if isinstance(module, Activated) else module
        if target is None or isinstance(norm, (PopulationWhitening, _BATCH_NORM)) or not _has_affine(norm, target):
            continue

        def match(
            norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, target: ChannelMoments = target
        ) -> Tensor:
            mean, deviation = _compute_moments(output)
            # A constant channel stays constant, at the target's mean.
            factor = torch.where(deviation > 0, target.deviation / deviation, 1.0)
            norm.weight.mul_(factor)  # type: ignore[operator]
            norm.bias.sub_(mean).mul_(factor).add_(target.mean)  # type: ignore[operator]
            shape = (-1, *[1] * (output.dim() - 2))
            return (output - mean.view(shape)) * factor.view(shape) + target.mean.view(shape)

        hooks.append(norm.register_forward_hook(match))
    _run_with_hooks(model, images, hooks)
    return model


def _has_affine(norm: nn.Module, target: ChannelMoments) -> bool:
    return all(
        isinstance(value := getattr(norm, name, None), Tensor) and value.shape == target.mean.shape
        for name in ("weight", "bias")
    )


def _compute_moments(x: Tensor) -> ChannelMoments:
    values = x.transpose(0, 1).flatten(1)
    return ChannelMoments(values.mean(1), values.std(1, correction=0))


@torch.no_grad()
def _run_with_hooks(model: nn.Module, images: Tensor, hooks: Iterable[RemovableHandle]) -> None:
    """Run the model once in eval mode; then remove the hooks and restore the modes of all modules."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()(images)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
