"""Image classification with any net, norm and recipe."""

from __future__ import annotations

from whitenorm.lab.tasks.classification.config import Train
from whitenorm.lab.tasks.classification.presets import PRESETS

COMMANDS: dict[str, type[Train]] = {"custom": Train, **PRESETS}
