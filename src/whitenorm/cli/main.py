"""Entry point of the ``whitenorm`` command, and the dispatch that ``whitenorm-lab`` shares."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from whitenorm._suggest import suggest
from whitenorm._version import __version__


class Command(NamedTuple):
    """One subcommand.

    ``module`` has a function ``main(args)`` that parses the arguments and returns an exit code, or None for success.
    ``install`` is what to install if one of its packages is missing.
    """

    module: str
    help: str
    install: str | None = None


COMMANDS = {
    "inspect": Command(
        "whitenorm.cli.inspect", "measure a model's norms, and what whitening would change", "whitenorm[inspect]"
    ),
    "gpu": Command("whitenorm.cli.gpu.command", "verify and time the Triton kernels on this GPU, and enable them"),
    "bench": Command("whitenorm.cli.bench", "time the layers beside the norms they replace, on this machine"),
}


def main(args: list[str] | None = None) -> int:
    """Run the ``whitenorm`` command and return its exit code."""
    return run_command("whitenorm", "Whitening normalization for PyTorch.", COMMANDS, args)


def run_command(prog: str, description: str, commands: Mapping[str, Command], args: list[str] | None = None) -> int:
    """Run one of several subcommands and return its exit code.

    Only the module of the chosen subcommand is imported. Expected errors are printed in one line; Ctrl-C exits with 130
    and a closed pipe with 1.
    """
    try:
        try:
            return _run(prog, description, commands, sys.argv[1:] if args is None else args)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_stdout_closed():
            raise
        # Discard the rest of the output, because its reader, such as head, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(prog: str, description: str, commands: Mapping[str, Command], args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--version", action="version", version=f"{prog} {__version__}")
    subparsers = parser.add_subparsers(title="commands", dest="name", metavar="COMMAND")
    for name, command in commands.items():
        subparsers.add_parser(name, help=command.help, add_help=False)
    if args and not args[0].startswith("-") and args[0] not in commands:
        parser.error(f"unknown command {args[0]}{suggest(args[0], commands)}")
    name = parser.parse_args(args[:1]).name
    if name is None:
        parser.print_help()
        return 0
    command = commands[name]
    try:
        module: Any = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if command.install is None or package in ("", "whitenorm"):
            raise
        print(f"{prog} {name} needs {package}: pip install '{command.install}'", file=sys.stderr)
        return 1
    try:
        return module.main(args[1:]) or 0
    except KeyboardInterrupt as stop:
        print(str(stop) or "Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (OSError, ValueError, FloatingPointError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1


def _is_stdout_closed() -> bool:
    """Return whether stdout is the pipe that broke."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False
