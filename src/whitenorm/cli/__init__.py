"""The ``whitenorm`` command: inspect, gpu, bench."""

from whitenorm.cli.main import Command, main, run_command

__all__ = ["Command", "main", "run_command"]
