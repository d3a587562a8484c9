"""Image classification with any net and norm."""

from __future__ import annotations

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.presets import PRESETS

COMMANDS: dict[str, type[Train]] = {"custom": Train, **PRESETS}
