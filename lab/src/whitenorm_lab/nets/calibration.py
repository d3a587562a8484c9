r"""Norms without a population in the place of trained BatchNorms: γ and β such that outputs keep their moments.

A batch method takes BatchNorm's population over, and the net's function with it. GW, GN and the others normalise every
sample by itself, which is another function, and in a trained net the difference grows from layer to layer. What can be
kept is the mean and deviation of every channel over the data:

.. math:: \gamma' = \gamma \, \sigma_{BN} / \sigma, \qquad \beta' = (\beta - \mu) \, \sigma_{BN} / \sigma + \mu_{BN}

with μ and σ of the new norm's outputs and μ_BN and σ_BN of the old one's. It takes one pass over a few images; what is
left, training has to learn.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from whitenorm.layers import PopulationWhitening
from whitenorm.models import Activated

_BATCH = nn.modules.batchnorm._BatchNorm


class ChannelMoments(NamedTuple):
    """Mean and deviation of every channel ``(C,)``, over samples and positions."""

    mean: Tensor
    deviation: Tensor


def batch_norm_outputs(model: nn.Module, images: Tensor) -> dict[str, ChannelMoments]:
    """What comes out of a net's BatchNorms in eval mode, before an activation that is part of them, by name.

    Args:
        model: with BatchNorm.
        images: of the data that it is to be used on, as the model takes them; one pass, all at once.
    """
    found: dict[str, ChannelMoments] = {}

    def watch(name: str, norm: nn.Module, inputs: Tensor) -> None:
        mean, deviation = _moments(inputs)
        running_mean, running_var = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        scale = torch.rsqrt(running_var + norm.eps)  # type: ignore[operator]
        scale = scale if norm.weight is None else scale * norm.weight  # type: ignore[operator]
        shifted = (mean - running_mean) * scale
        shifted = shifted if norm.bias is None else shifted + norm.bias  # type: ignore[operator]
        found[name] = ChannelMoments(shifted, deviation * scale.abs())

    norms = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BATCH) and module.running_mean is not None
    }
    hooks = [
        norm.register_forward_pre_hook(lambda norm, inputs, name=name: watch(name, norm, inputs[0]))
        for name, norm in norms.items()
    ]
    _pass(model, images, hooks)
    return found


def match_(model: nn.Module, targets: dict[str, ChannelMoments], images: Tensor) -> nn.Module:
    """Set γ and β of norms that keep no population, so that their outputs have these moments, and return the model.

    The images pass once, and every norm is set as they reach it: the later ones see what the earlier ones then give.

    Args:
        model: converted, with γ and β.
        targets: what :func:`batch_norm_outputs` found before the conversion.
        images: the same.

    Example::

        >>> model, images = nn.Sequential(nn.BatchNorm2d(4)), 3 * torch.randn(8, 4, 6, 6) + 1
        >>> targets = batch_norm_outputs(model.eval(), images)
        >>> _ = match_(whitenorm.convert_(model, "gw", num_groups=2), targets, images)
        >>> model(images).mean((0, 2, 3)).allclose(targets["0"].mean, atol=1e-5)
        True
    """
    hooks = []
    for name, module in model.named_modules():
        target = targets.get(name)
        norm = module[0] if isinstance(module, Activated) else module
        if target is None or isinstance(norm, (PopulationWhitening, _BATCH)) or not _has_affine(norm, target):
            continue

        def set_(
            norm: nn.Module, inputs: tuple[Tensor, ...], output: Tensor, target: ChannelMoments = target
        ) -> Tensor:
            mean, deviation = _moments(output)
            # A channel that is constant stays so, at the mean.
            factor = torch.where(deviation > 0, target.deviation / deviation, 1.0)
            norm.weight.mul_(factor)  # type: ignore[operator]
            norm.bias.sub_(mean).mul_(factor).add_(target.mean)  # type: ignore[operator]
            shape = (-1, *[1] * (output.dim() - 2))
            return (output - mean.view(shape)) * factor.view(shape) + target.mean.view(shape)

        hooks.append(norm.register_forward_hook(set_))
    _pass(model, images, hooks)
    return model


def _has_affine(norm: nn.Module, target: ChannelMoments) -> bool:
    return all(
        isinstance(value := getattr(norm, name, None), Tensor) and value.shape == target.mean.shape
        for name in ("weight", "bias")
    )


def _moments(x: Tensor) -> ChannelMoments:
    values = x.transpose(0, 1).flatten(1)
    return ChannelMoments(values.mean(1), values.std(1, correction=0))


@torch.no_grad()
def _pass(model: nn.Module, images: Tensor, hooks: Iterable[RemovableHandle]) -> None:
    """Let images through in eval mode, and leave no trace but the hooks'."""
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()(images)
    finally:
        for hook in hooks:
            hook.remove()
        for module, mode in modes.items():
            module.training = mode
