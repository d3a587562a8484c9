"""``whitenorm train``: a preset or a custom run, from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from whitenorm.lab.training.config import Train
from whitenorm.lab.training.naming import run_name
from whitenorm.lab.training.outcome import Outcome
from whitenorm.lab.tasks.classification.presets import PRESETS

COMMANDS: dict[str, type[Train]] = {"custom": Train, **PRESETS}
# A union made at run time, which is what tyro takes subcommands from.
CHOICE: Any = Union[tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items())]  # noqa: UP007


def run(config: Train) -> Outcome:
    """Train in ``runs/NAME`` if no folder is given, and say what came out."""
    from whitenorm.lab.training.progress import say
    from whitenorm.lab.training.run import fit

    preset = next(name for name, kind in COMMANDS.items() if kind is type(config))
    folder = config.folder or Path("runs") / run_name(config, None if preset == "custom" else preset)
    config = replace(config, folder=folder)
    try:
        outcome = fit(config)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(folder)) from None
    tested = "" if outcome.test_accuracy is None else f", test accuracy {outcome.test_accuracy:.2%}"
    say(config, f"Training loss {outcome.train_loss:.4f}{tested}. Folder: {config.folder}")
    return outcome


def _how_to_go_on(folder: Path) -> str:
    from whitenorm.lab.training.checkpoints import saved

    checkpoints = saved(folder / "checkpoints")
    if not checkpoints:
        return "Stopped before the first checkpoint. The same command begins anew."
    return f"Stopped. The same command goes on from {checkpoints[-1]}; whitenorm evaluate {folder} tests what there is."
