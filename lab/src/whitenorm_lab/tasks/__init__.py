"""What ``whitenorm-lab train`` can train for: a folder here is a task, and adding one touches nothing else.

A folder NAME has

- ``__init__.py`` with ``COMMANDS``, from the names of ``whitenorm-lab train`` to dataclasses: the task's own, a
  subclass of
  :class:`~whitenorm_lab.training.config.Run` with ``task = "NAME"``, comes first, then subclasses of it, the papers'
  set-ups. It imports neither lightning nor torchvision, so that the command line is quick.
- ``task.py`` with ``TASK``, a subclass of :class:`~whitenorm_lab.training.task.Task`, which is given a configuration.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from whitenorm_lab.training.config import Run

if TYPE_CHECKING:
    from whitenorm_lab.training.task import Task


def names() -> list[str]:
    """The tasks there are.

    Example::

        >>> "classification" in names()
        True
    """
    return sorted(module.name for module in iter_modules(__path__) if module.ispkg)


def commands(task: str) -> dict[str, type[Run]]:
    """A task's configurations by the name that ``whitenorm-lab train`` has for them; the general one first."""
    found: dict[str, type[Run]] = import_module(f"{__name__}.{task}").COMMANDS
    return found


def config(content: dict[str, Any]) -> Run:
    """The configuration that :meth:`Run.to_dict` gave."""
    if content.get("task") not in names():
        raise ValueError(f"expected one of the tasks {', '.join(names())} (got {content.get('task')!r})")
    return next(iter(commands(content["task"]).values())).from_dict(content)


def made(config: Run) -> Task[Any]:
    """The task of a configuration."""
    task: Task[Any] = import_module(f"{__name__}.{config.task}.task").TASK(config)
    return task
