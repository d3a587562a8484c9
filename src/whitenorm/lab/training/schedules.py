"""Learning rates of the papers, as a factor of the first one at each step."""

from __future__ import annotations

import math
from bisect import bisect_right

from whitenorm.lab.training.config import Train


def factor(config: Train, step: int, steps_per_epoch: int, total: int) -> float:
    """What the learning rate is multiplied with at a step, counted from 0.

    Example::

        >>> config = Train(schedule="step", milestones=(80, 120), factor=0.5)
        >>> [factor(config, epoch * 10, 10, 1600) for epoch in (0, 79, 80, 120)]
        [1.0, 1.0, 0.5, 0.25]
    """
    warm = config.warmup * steps_per_epoch
    if step < warm:
        return (step + 1) / warm
    if config.schedule == "step":
        return float(config.factor ** bisect_right(config.milestones, step // steps_per_epoch))
    if config.schedule == "every":
        return float(config.factor ** (step // config.every))
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * min(1.0, (step - warm) / max(1, total - warm)))) / 2
    return 1.0
