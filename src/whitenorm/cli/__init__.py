"""The ``whitenorm`` command and its subcommands, and what other commands can share with it."""

from whitenorm._suggest import suggest
from whitenorm.cli.main import Command, main, run_command

__all__ = ["Command", "main", "run_command", "suggest"]
