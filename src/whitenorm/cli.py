"""The ``whitenorm`` command."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Command(NamedTuple):
    """Where a command is: a module with its options and a function ``run`` of them, and what it does."""

    module: str
    options: str
    help: str


COMMANDS = {
    "demo": Command("whitenorm.lab.demo", "Demo", "train one small net with six norms, and compare them"),
    "inspect": Command("whitenorm.lab.look", "Inspect", "what a model's norms do, and what whitening would change"),
    "train": Command("whitenorm.lab.training.command", "CHOICE", "train an image classifier, or a paper's own set-up"),
    "evaluate": Command("whitenorm.lab.training.evaluation", "Evaluate", "test the model of a training run"),
    "reproduce": Command(
        "whitenorm.lab.reproduce.command", "Reproduce", "run the papers' experiments, judge their claims"
    ),
    "report": Command("whitenorm.lab.reproduce.report", "Report", "gather the results of experiments into a site"),
}
_BENCH = Command("benchmarks.run", "Bench", "time layers, solvers and models against each other")


def main(args: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    args = sys.argv[1:] if args is None else args
    commands = _commands()
    name = _choose(commands, args[:1])
    try:
        import tyro

        # Only the one that is asked for: some take seconds to import.
        module: Any = importlib.import_module(commands[name].module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "whitenorm":
            raise
        print(
            f"The whitenorm command needs {error.name}, which comes with the lab extra. From a checkout: "
            "pip install '.[lab]'",
            file=sys.stderr,
        )
        return 1
    try:
        module.run(tyro.cli(getattr(module, commands[name].options), prog=f"whitenorm {name}", args=args[1:]))
    except KeyboardInterrupt as stop:
        print(str(stop) or "Stopped.", file=sys.stderr)
        return 130
    except (OSError, ValueError, FloatingPointError) as error:
        print(f"whitenorm: {error}", file=sys.stderr)
        return 1
    return 0


def _choose(commands: dict[str, Command], args: list[str]) -> str:
    parser = argparse.ArgumentParser(prog="whitenorm", description="Whitening normalization for PyTorch.")
    choice = parser.add_subparsers(title="commands", dest="name", required=True, metavar="COMMAND")
    for name, command in commands.items():
        choice.add_parser(name, help=command.help, add_help=False)
    return str(parser.parse_args(args).name)


def _commands() -> dict[str, Command]:
    """All commands; the benchmarks, which lie beside the package, only in a checkout."""
    checkout = Path(__file__).parents[2]
    if not (checkout / "benchmarks" / "run.py").exists():
        return COMMANDS
    sys.path.insert(0, str(checkout))
    return {**COMMANDS, "bench": _BENCH}
