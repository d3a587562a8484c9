"""A command's options from its arguments; what is wrong with them in two lines."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import tyro

from whitenorm.core.suggest import suggest
from whitenorm.lab.near import refuse

# Between the sections of tyro's boxes, and at their edges.
_RULE = re.compile(r"^[╭╰].*$|^│ ─+ │$")


def parsed(kind: Any, prog: str, args: list[str]) -> Any:
    """The options of a dataclass, or of a union of them, as tyro takes them from the arguments.

    Of a mistake, tyro would print boxes of all that could be meant. Here it is what is wrong, the nearest match, and
    where to read more; the exit code is 2.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = tyro.cli(kind, prog=prog, args=args)
    except SystemExit as end:
        # Asked for help, or for a shell's completion.
        if not end.code:
            raise
    else:
        sys.stderr.write(said.getvalue())
        return options
    before = list(takewhile(lambda arg: not arg.startswith("-"), args))
    _, error = _printed(kind, prog, args)
    help_text = _printed(kind, prog, [*before, "--help"])[0] or _printed(kind, prog, ["--help"])[0]
    usage = re.search(r"^usage: (.*?) \[", help_text, re.MULTILINE)
    return refuse(usage[1] if usage else prog, _complaint(error, args, set(re.findall(r"--[a-z][\w-]*", help_text))))


def _complaint(error: str, args: list[str], options: set[str]) -> str:
    for arg in args:
        name = arg.split("=")[0].replace("_", "-")
        if name.startswith("--") and name not in options:
            return f"unknown option {arg.split('=')[0]}{suggest(name, options)}"
    first, *others = _sections(error)
    choices = next((words.split(": ", 1)[1] for words in others if words.startswith("Available subcommands: ")), "")
    unknown = first.removeprefix("Unrecognized options: ")
    if unknown != first:
        expected = f"expected one of {choices}" if choices else "expected no more"
        return f"{expected} (got {unknown}){suggest(unknown, choices.split(', '))}"
    # Of a whole dataclass, whose name tells a user nothing.
    return re.sub(r"^Error parsing [A-Za-z]\w*: ", "", first)


def _sections(box: str) -> list[str]:
    """The text of a box between its rules, each on one line."""
    sections = [""]
    for line in box.splitlines():
        if _RULE.match(line):
            sections.append("")
        else:
            sections[-1] = f"{sections[-1]} {line.strip('│ ')}".strip()
    return [section for section in sections if section] or [box.strip()]


def _printed(kind: Any, prog: str, args: list[str]) -> tuple[str, str]:
    """What tyro prints on stdout and stderr for arguments with which it ends."""
    # Of an encoding that has the box's lines, which tyro else draws in ways of its own.
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _wide(), contextlib.suppress(SystemExit):
        tyro.cli(kind, prog=prog, args=args)
    out.seek(0)
    err.seek(0)
    return out.read(), err.read()


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """A terminal wider than any message: words that are wrapped cannot be put together again."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100000"
    try:
        yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
