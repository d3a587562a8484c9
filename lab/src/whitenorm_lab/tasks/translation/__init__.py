"""Translation with a transformer, with LayerNorm or Group Whitening."""

from __future__ import annotations

from whitenorm_lab.tasks.translation.config import GwNmt, Translate

COMMANDS: dict[str, type[Translate]] = {"translation": Translate, "gw-nmt": GwNmt}
