"""Style transfer by a feed-forward net with any norm."""

from __future__ import annotations

from whitenorm_lab.tasks.style.config import Style, SwStyle

COMMANDS: dict[str, type[Style]] = {"style": Style, "sw-style": SwStyle}
