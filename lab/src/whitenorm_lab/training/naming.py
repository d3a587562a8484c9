"""What a run's folder is called, when nobody says: all in which it differs from others."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from whitenorm_lab.training.config import RunConfig

_LONGEST = 120


def run_name(config: RunConfig, preset: str | None = None) -> str:
    """Preset or data set, net, norm, place and seed, and whatever else is not as the preset has it.

    A run of a task's general command has no preset; which fields come after the data set, the task says.

    No value becomes a path: what is not a letter, digit, ``.``, ``+`` or ``_`` is a hyphen.

    Example::

        >>> from whitenorm_lab.training import Train
        >>> run_name(Train(net="mlp-8", norm="gw", dataset="digits", lr=0.5, augment=True, affine=False))
        'digits-mlp-8-gw-all-seed0-no-affine-lr0.5-augment'
        >>> run_name(Train(dataset="../etc", net="x/../../../y"))
        'etc-x-..-..-..-y-bn-all-seed0'
    """
    values, usual = config.to_dict(), type(config)().to_dict()
    shown = ("dataset", "seed", *config.named, *config.aside)
    changed = [name for name in values if name not in shown and values[name] not in (usual[name], None)]
    parts = [] if preset is None else [preset]
    if preset is None or config.dataset != usual["dataset"]:
        parts.append(config.dataset.rstrip("/").rsplit("/", 1)[-1])
    parts += [*(str(values[name]) for name in config.named), f"seed{config.seed}"]
    parts += [_option(name, values[name]) for name in changed]
    name = re.sub(r"[^\w.+]+", "-", "-".join(parts)).strip("-.")
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.blake2b(json.dumps({name: values[name] for name in changed}).encode(), digest_size=4)
    return f"{name[: _LONGEST - 9].rstrip('-.')}-{digest.hexdigest()}"


def _option(name: str, value: Any) -> str:
    words = name.replace("_", "-")
    if isinstance(value, bool):
        return words if value else f"no-{words}"
    if isinstance(value, list):
        value = "-".join(map(str, value))
    return f"{words}{'-' if isinstance(value, str) else ''}{value}"
