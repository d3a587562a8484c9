"""Tasks of ``whitenorm-lab train``. Each subfolder is one task; adding a subfolder adds a task.

The subfolder NAME contains

- ``__init__.py`` with ``COMMANDS``, a dictionary from command name to configuration dataclass. The first entry is the
  task's general configuration, a subclass of :class:`~whitenorm_lab.training.config.RunConfig` with
  ``task = "NAME"``; the others are its presets, subclasses of the first. The file imports neither lightning nor
  torchvision, so that the command line starts quickly.
- ``task.py`` with ``TASK``, a subclass of :class:`~whitenorm_lab.training.task.Task`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from whitenorm_lab.training.config import RunConfig

if TYPE_CHECKING:
    from whitenorm_lab.training.task import Task


def list_tasks() -> list[str]:
    """Return the names of all tasks.

    Example::

        >>> "classification" in list_tasks()
        True
    """
    return sorted(module.name for module in iter_modules(__path__) if module.ispkg)


def list_commands(task: str) -> dict[str, type[RunConfig]]:
    """Return a task's configuration classes by their name in ``whitenorm-lab train``, the general one first."""
    commands: dict[str, type[RunConfig]] = import_module(f"{__name__}.{task}").COMMANDS
    return commands


def load_config(content: dict[str, Any]) -> RunConfig:
    """Build a configuration from the output of :meth:`RunConfig.to_dict`."""
    if content.get("task") not in list_tasks():
        raise ValueError(f"expected one of the tasks {', '.join(list_tasks())} (got {content.get('task')!r})")
    return next(iter(list_commands(content["task"]).values())).from_dict(content)


def build_task(config: RunConfig) -> Task[Any]:
    """Build the task of a configuration."""
    task: Task[Any] = import_module(f"{__name__}.{config.task}.task").TASK(config)
    return task
