"""The ``whitenorm`` command."""

from __future__ import annotations

import sys


def main(args: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        import tyro

        from whitenorm.lab import demo
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
        demo.run(
            tyro.extras.subcommand_cli_from_dict(
                {"demo": demo.Demo}, prog="whitenorm", description="Whitening normalization for PyTorch.", args=args
            )
        )
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"whitenorm: {error}", file=sys.stderr)
        return 1
    return 0
