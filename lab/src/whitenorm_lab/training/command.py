"""``whitenorm-lab train``: a task's general command or a preset, from the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Union

import tyro

from whitenorm_lab import tasks
from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.naming import run_name
from whitenorm_lab.training.outcome import Outcome

COMMANDS = {name: kind for task in tasks.list_tasks() for name, kind in tasks.list_commands(task).items()}
# A union made at run time, which is what tyro takes subcommands from.
CHOICE: Any = Union[tuple(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items())]  # noqa: UP007


def main(args: list[str]) -> None:
    """Parse the arguments and run."""
    run(tyro.cli(CHOICE, prog="whitenorm-lab train", args=args))


def run(config: RunConfig) -> Outcome:
    """Train in ``runs/NAME`` if no folder is given, and say what came out."""
    from whitenorm_lab.training.progress import say
    from whitenorm_lab.training.run import fit

    presets = list(tasks.list_commands(config.task))[1:]
    preset = next((name for name in presets if COMMANDS[name] is type(config)), None)
    folder = config.folder or Path("runs") / run_name(config, preset)
    config = replace(config, folder=folder)
    try:
        outcome = fit(config)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_how_to_go_on(folder)) from None
    task = tasks.build_task(config)
    best = outcome.number(f"test_{task.best}")
    tested = "" if best is None else f", test {task.words({task.best: best})}"
    say(config, f"Training loss {outcome.train_loss:.4f}{tested}. Folder: {config.folder}")
    return outcome


def _how_to_go_on(folder: Path) -> str:
    from whitenorm_lab.training.checkpoints import saved

    checkpoints = saved(folder / "checkpoints")
    if not checkpoints:
        return "Stopped before the first checkpoint. The same command begins anew."
    return (
        f"Stopped. The same command resumes from {checkpoints[-1]}; to test what there is, run "
        f"whitenorm-lab evaluate {folder}."
    )
