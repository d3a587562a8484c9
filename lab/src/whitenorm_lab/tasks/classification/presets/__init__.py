"""Configurations of the papers by name: each says paper, expected number, cost and command.

The cost is that of convolutions and products as the configuration stands, three times forward, at two operations a
multiply-add.
"""

from __future__ import annotations

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.presets import dbn, gw, iternorm, sw

PRESETS: dict[str, type[Train]] = {**dbn.PRESETS, **iternorm.PRESETS, **sw.PRESETS, **gw.PRESETS}
