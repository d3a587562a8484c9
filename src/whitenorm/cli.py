"""The ``whitenorm`` command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(args: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        import tyro

        from whitenorm.lab import demo, look
        from whitenorm.lab.reproduce import command as reproduce
        from whitenorm.lab.reproduce import report
        from whitenorm.lab.training import command as train
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "whitenorm":
            raise
        print(
            f"The whitenorm command needs {error.name}, which comes with the lab extra. From a checkout: "
            "pip install '.[lab]'",
            file=sys.stderr,
        )
        return 1

    commands: dict[str, Any] = {
        "demo": demo.Demo,
        "inspect": look.Inspect,
        "reproduce": reproduce.Reproduce,
        "report": report.Report,
        "train": train.CHOICE,
    }
    runs: dict[type, Callable[[Any], object]] = {
        demo.Demo: demo.run,
        look.Inspect: look.run,
        reproduce.Reproduce: reproduce.run,
        report.Report: report.run,
        **dict.fromkeys(train.COMMANDS.values(), train.run),
    }
    bench = _benchmarks()
    if bench is not None:
        commands["bench"] = bench.Bench
        runs[bench.Bench] = bench.run
    try:
        chosen = tyro.extras.subcommand_cli_from_dict(
            commands, prog="whitenorm", description="Whitening normalization for PyTorch.", args=args
        )
        runs[type(chosen)](chosen)
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except (OSError, ValueError, FloatingPointError) as error:
        print(f"whitenorm: {error}", file=sys.stderr)
        return 1
    return 0


def _benchmarks() -> Any:
    """The benchmark suite, which lies beside the package in a checkout; None elsewhere."""
    checkout = Path(__file__).parents[2]
    if not (checkout / "benchmarks" / "run.py").exists():
        return None
    sys.path.insert(0, str(checkout))
    return importlib.import_module("benchmarks.run")
