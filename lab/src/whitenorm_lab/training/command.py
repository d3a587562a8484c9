"""``whitenorm-lab train``: choose a preset, override its options, and train."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import re
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import tyro

from whitenorm.cli import suggest
from whitenorm_lab import tasks
from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.result import TrainingResult

PRESETS = {name: preset for task in tasks.list_tasks() for name, preset in tasks.list_commands(task).items()}
_LONGEST_NAME = 120


def main(args: list[str]) -> None:
    """Parse the arguments and run the command."""
    parser = argparse.ArgumentParser(
        prog="whitenorm-lab train",
        usage="whitenorm-lab train PRESET [OPTIONS]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train with a preset: a task's defaults, or the setup of a paper. Every option can be overridden;\n"
        "whitenorm-lab train PRESET --help lists them, and the paper's numbers and cost.",
        epilog=_list_presets(),
    )
    if not args or args[0] in ("-h", "--help"):
        parser.print_help()
    elif args[0].startswith("-"):
        parser.error(f"expected a preset before the options (got {args[0]})")
    elif args[0] not in PRESETS:
        parser.error(f"unknown preset {args[0]}{suggest(args[0], PRESETS)}")
    else:
        run(tyro.cli(PRESETS[args[0]], prog=f"whitenorm-lab train {args[0]}", args=args[1:]))


def _list_presets() -> str:
    """Return one line per preset, grouped by task, in the width of the terminal."""
    column = 2 + max(map(len, PRESETS))
    width = max(20, shutil.get_terminal_size().columns - column - 2)
    lines = []
    for task in tasks.list_tasks():
        lines.append(f"{task}:")
        for name, preset in tasks.list_commands(task).items():
            summary = inspect.cleandoc(preset.__doc__ or "").splitlines()[0]
            lines.append(f"  {name:<{column}}{textwrap.shorten(summary, width, placeholder=' …')}")
    return "\n".join(lines)


def run(config: RunConfig) -> TrainingResult:
    """Train, by default in ``runs/NAME``, and print the final scores."""
    from whitenorm_lab.training.progress import print_line
    from whitenorm_lab.training.run import fit

    presets = list(tasks.list_commands(config.task))[1:]
    preset = next((name for name in presets if PRESETS[name] is type(config)), None)
    folder = config.folder or Path("runs") / build_run_name(config, preset)
    config = replace(config, folder=folder)
    try:
        result = fit(config)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_explain_resuming(folder)) from None
    task = tasks.build_task(config)
    score = result.latest(f"test_{task.main_score}")
    test = "" if score is None else f", test {task.format_scores({task.main_score: score})}"
    print_line(config, f"Training loss {result.train_loss:.4f}{test}. Folder: {config.folder}")
    return result


def _explain_resuming(folder: Path) -> str:
    from whitenorm_lab.training.checkpoints import list_checkpoints

    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        return "Stopped before the first checkpoint. The same command starts from the beginning."
    return (
        f"Stopped. The same command resumes from {checkpoints[-1]}; to test the model as it is, run "
        f"whitenorm-lab evaluate {folder}."
    )


def build_run_name(config: RunConfig, preset: str | None = None) -> str:
    """Return the default name of a run's folder, which differs for configurations that train differently.

    It joins the preset or the data set, the task's name fields such as net, norm and place, the seed, and all options
    that differ from the preset. Characters other than letters, digits, ``.``, ``+`` and ``_`` become hyphens, so that
    no option can form a path.

    Example::

        >>> from whitenorm_lab.training import Train
        >>> build_run_name(Train(net="mlp-8", norm="gw", dataset="digits", lr=0.5, augment=True, affine=False))
        'digits-mlp-8-gw-all-seed0-no-affine-lr0.5-augment'
        >>> build_run_name(Train(dataset="../etc", net="x/../../../y"))
        'etc-x-..-..-..-y-bn-all-seed0'
    """
    values, defaults = config.to_dict(), type(config)().to_dict()
    excluded = ("dataset", "seed", *config.name_fields, *config.neutral_fields)
    changed = [name for name in values if name not in excluded and values[name] not in (defaults[name], None)]
    parts = [] if preset is None else [preset]
    if preset is None or config.dataset != defaults["dataset"]:
        parts.append(config.dataset.rstrip("/").rsplit("/", 1)[-1])
    parts += [*(str(values[name]) for name in config.name_fields), f"seed{config.seed}"]
    parts += [_format_option(name, values[name]) for name in changed]
    name = re.sub(r"[^\w.+]+", "-", "-".join(parts)).strip("-.")
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.blake2b(json.dumps({name: values[name] for name in changed}).encode(), digest_size=4)
    return f"{name[: _LONGEST_NAME - 9].rstrip('-.')}-{digest.hexdigest()}"


def _format_option(name: str, value: Any) -> str:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return option if value else f"no-{option}"
    if isinstance(value, list):
        value = "-".join(map(str, value))
    return f"{option}{'-' if isinstance(value, str) else ''}{value}"
