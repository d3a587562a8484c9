"""The ``whitenorm`` command and its subcommands."""

from whitenorm.cli.main import Command, main, run_command

__all__ = ["Command", "main", "run_command"]
