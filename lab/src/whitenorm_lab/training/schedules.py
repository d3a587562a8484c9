"""Learning rates of the papers, as a factor of the first one at each step."""

from __future__ import annotations

import math
from bisect import bisect_right

from whitenorm_lab.training.config import RunConfig


def factor(config: RunConfig, step: int, steps_per_epoch: int, total: int) -> float:
    """What the learning rate is multiplied with at a step, counted from 0.

    Example::

        >>> config = RunConfig(schedule="step", milestones=(80, 120), factor=0.5)
        >>> [factor(config, epoch * 10, 10, 1600) for epoch in (0, 79, 80, 120)]
        [1.0, 1.0, 0.5, 0.25]
    """
    warm = config.warmup * steps_per_epoch + config.warmup_steps
    if step < warm:
        return config.warmup_from + (1 - config.warmup_from) * (step + 1) / warm
    if config.schedule == "step":
        epochs = bisect_right(config.milestones, step // steps_per_epoch)
        return float(config.factor ** (epochs + bisect_right(config.milestone_steps, step)))
    if config.schedule == "every":
        return float(config.factor ** (step // config.every))
    # From 0 to 1 after the warm-up.
    share = min(1.0, (step - warm) / max(1, total - warm))
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * share)) / 2
    if config.schedule == "poly":
        return float((1 - share) ** config.power)
    if config.schedule == "inverse-sqrt":
        return math.sqrt(max(1, warm) / (step + 1))
    return 1.0
