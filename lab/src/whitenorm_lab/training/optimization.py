"""Optimizers, and the papers' learning rate schedules."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from whitenorm_lab.training.config import RunConfig


def build_optimizer(config: RunConfig, groups: Iterable[Any]) -> Optimizer:
    """Build SGD, Adam or AdamW for parameters or parameter groups; a group's own options take precedence."""
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, lr, config.betas, weight_decay=decay)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr, config.betas, weight_decay=decay)
    return torch.optim.SGD(groups, lr, config.momentum, weight_decay=decay, nesterov=config.nesterov)


def compute_lr_factor(config: RunConfig, step: int, steps_per_epoch: int, total_steps: int) -> float:
    """Return the factor of the initial learning rate at a step, counted from 0.

    Example::

        >>> config = RunConfig(schedule="step", milestones=(80, 120), factor=0.5)
        >>> [compute_lr_factor(config, epoch * 10, 10, 1600) for epoch in (0, 79, 80, 120)]
        [1.0, 1.0, 0.5, 0.25]
    """
    warmup = config.warmup * steps_per_epoch + config.warmup_steps
    if step < warmup:
        return config.warmup_from + (1 - config.warmup_from) * (step + 1) / warmup
    if config.schedule == "step":
        decays = bisect_right(config.milestones, step // steps_per_epoch) + bisect_right(config.milestone_steps, step)
        return float(config.factor**decays)
    if config.schedule == "every":
        return float(config.factor ** (step // config.every))
    # From 0 after the warm-up to 1 at the end.
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    if config.schedule == "poly":
        return float((1 - progress) ** config.power)
    if config.schedule == "inverse-sqrt":
        return math.sqrt(max(1, warmup) / (step + 1))
    return 1.0
