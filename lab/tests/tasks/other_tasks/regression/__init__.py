"""A minimal task outside of the library: regression of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from whitenorm_lab.training.config import NormOptions, RunConfig, Schedule


@dataclass
class Regress(RunConfig, NormOptions):
    """Learn a function of four numbers."""

    task: ClassVar[str] = "regression"
    name_fields: ClassVar[tuple[str, ...]] = ("hidden", "norm")

    dataset: str = "wave"
    """wave."""
    hidden: int = 8
    """Units of the hidden layer."""
    batch_size: int = 16
    optimizer: str = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    lr: float = 0.05
    schedule: Schedule = "poly"
    epochs: int = 3


@dataclass
class RegressWide(Regress):
    """A preset with a wider net."""

    hidden: int = 16


COMMANDS = {"regression": Regress, "regression-wide": RegressWide}
