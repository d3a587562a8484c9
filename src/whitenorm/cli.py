"""The ``whitenorm`` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from whitenorm._version import __version__
from whitenorm.core.suggest import suggest
from whitenorm.lab.near import refuse


class Command(NamedTuple):
    """Where a command is: a module with its options and a function ``run`` of them, what it does and what it needs.

    One without options parses its arguments itself, in a function ``main`` of them that returns the exit code, and
    needs no extra.
    """

    module: str
    options: str | None
    help: str
    extra: str = "lab"


COMMANDS = {
    "demo": Command("whitenorm.lab.demo", "Demo", "train one small net with six norms, and compare them"),
    "inspect": Command(
        "whitenorm.lab.look", "Inspect", "what a model's norms do, and what whitening would change", "inspect"
    ),
    "train": Command("whitenorm.lab.training.command", "CHOICE", "train for a task, or a paper's own set-up"),
    "evaluate": Command("whitenorm.lab.training.evaluation", "Evaluate", "test the model of a training run"),
    "stylize": Command("whitenorm.lab.tasks.style.stylize", "Stylize", "paint an image with a net of style transfer"),
    "reproduce": Command(
        "whitenorm.lab.reproduce.command", "Reproduce", "run the papers' experiments, judge their claims"
    ),
    "report": Command("whitenorm.lab.reproduce.report", "Report", "gather the results of experiments into a site"),
    "gpu": Command("whitenorm.gpu.command", None, "check and measure the Triton kernels on this GPU, and turn them on"),
}
_BENCH = Command("benchmarks.run", "Bench", "time layers, solvers and models against each other")


def main(args: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        try:
            return _run(sys.argv[1:] if args is None else args)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        # As head does, once it has its lines; what is left unsaid goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(args: list[str]) -> int:
    commands = _commands()
    name = _choose(commands, args[:1])
    command = commands[name]
    try:
        options: Any = None
        if command.options is not None:
            importlib.import_module("tyro")
            options = importlib.import_module("whitenorm.lab.options")
        # Only the one that is asked for: some take seconds to import.
        module: Any = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if command.options is None or error.name is None or error.name.split(".")[0] == "whitenorm":
            raise
        print(
            f"whitenorm {name} needs {error.name}, which comes with the {command.extra} extra: "
            f"pip install 'whitenorm[{command.extra}]'",
            file=sys.stderr,
        )
        return 1
    try:
        if command.options is None:
            return int(module.main(args[1:]))
        module.run(options.parsed(getattr(module, command.options), f"whitenorm {name}", args[1:]))
    except KeyboardInterrupt as stop:
        print(str(stop) or "Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (OSError, ValueError, FloatingPointError) as error:
        print(f"whitenorm: {error}", file=sys.stderr)
        return 1
    return 0


def _choose(commands: dict[str, Command], args: list[str]) -> str:
    parser = argparse.ArgumentParser(prog="whitenorm", description="Whitening normalization for PyTorch.")
    parser.add_argument("--version", action="version", version=f"whitenorm {__version__}")
    choice = parser.add_subparsers(title="commands", dest="name", required=True, metavar="COMMAND")
    for name, command in commands.items():
        choice.add_parser(name, help=command.help, add_help=False)
    for arg in args:
        known = ["--help", "--version"] if arg.startswith("-") else list(commands)
        if arg not in (*known, "-h"):
            if arg == "bench":
                refuse("whitenorm", "bench runs in a checkout only (this is an installed package, without benchmarks/)")
            kind = "option" if arg.startswith("-") else "command"
            refuse("whitenorm", f"unknown {kind} {arg}{suggest(arg, known)}")
    return str(parser.parse_args(args).name)


def _reader_is_gone() -> bool:
    """Whether it was stdout that broke, and not another pipe."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def _commands() -> dict[str, Command]:
    """All commands; the benchmarks, which lie beside the package, only in a checkout."""
    checkout = Path(__file__).parents[2]
    if not (checkout / "benchmarks" / "run.py").exists():
        return COMMANDS
    sys.path.insert(0, str(checkout))
    return {**COMMANDS, "bench": _BENCH}
