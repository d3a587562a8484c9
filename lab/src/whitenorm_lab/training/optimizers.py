"""The optimizer of a configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from whitenorm_lab.training.config import RunConfig


def optimizer(config: RunConfig, groups: Iterable[Any]) -> Optimizer:
    """SGD, Adam or AdamW of parameters, or of groups of them, whose own options go before the configuration's."""
    lr, decay = config.lr, config.weight_decay
    if config.optimizer == "adam":
        return torch.optim.Adam(groups, lr, config.betas, weight_decay=decay)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr, config.betas, weight_decay=decay)
    return torch.optim.SGD(groups, lr, config.momentum, weight_decay=decay, nesterov=config.nesterov)
