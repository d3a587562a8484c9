"""Detection and instance segmentation: Faster R-CNN and Mask R-CNN with a separate norm in each part."""

from __future__ import annotations

from whitenorm_lab.tasks.detection.config import Detection
from whitenorm_lab.tasks.detection.presets import PRESETS

COMMANDS: dict[str, type[Detection]] = {"detection": Detection, **PRESETS}
