"""Configurations of the papers by name; each docstring gives paper, expected result, cost and command.

The cost counts convolutions and matrix products: three times those of a forward pass, at two operations per
multiply-add.
"""

from __future__ import annotations

from whitenorm_lab.tasks.classification.config import Train
from whitenorm_lab.tasks.classification.presets import dbn, gw, iternorm, sw

PRESETS: dict[str, type[Train]] = {**dbn.PRESETS, **iternorm.PRESETS, **sw.PRESETS, **gw.PRESETS}
