"""What a training run gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


class DivergenceError(FloatingPointError):
    """The loss is NaN or infinite; ``outcome`` has the epochs before."""

    outcome: Outcome


@dataclass
class Epoch:
    """Numbers of one epoch: the training ones over its steps, the test ones after it, where it was tested.

    Example::

        >>> epoch = Epoch(1, 100, 0.1, {"loss": 0.5}, {"test": {"loss": 0.7, "miou": 0.4}})
        >>> epoch.train_loss, epoch.number("test_miou"), epoch.validation_accuracy
        (0.5, 0.4, None)
    """

    epoch: int
    step: int
    lr: float
    train: dict[str, float]
    """By name, such as loss and accuracy."""
    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    """The same of each set that was tested on, such as "test" and "validation"; empty if it was not tested."""
    seconds: float = 0.0
    examples_per_second: float = 0.0
    recalibrate_seconds: float = 0.0
    """Of the population statistics, taken anew before the test."""

    def numbers(self) -> dict[str, float]:
        """Training and test numbers by the names they have in logs, such as train_loss and test_miou."""
        sets = {"train": self.train, **self.tests}
        return {f"{name}_{what}": value for name, found in sets.items() for what, value in found.items()}

    def number(self, name: str) -> float | None:
        """One of :meth:`numbers`, or None where it was not tested."""
        return self.numbers().get(name)

    @property
    def train_loss(self) -> float:
        return self.train["loss"]

    @property
    def train_accuracy(self) -> float:
        return self.train["accuracy"]

    @property
    def test_loss(self) -> float | None:
        return self.number("test_loss")

    @property
    def test_accuracy(self) -> float | None:
        return self.number("test_accuracy")

    @property
    def validation_loss(self) -> float | None:
        return self.number("validation_loss")

    @property
    def validation_accuracy(self) -> float | None:
        return self.number("validation_accuracy")


@dataclass
class Outcome:
    """A run's configuration and numbers, epoch by epoch."""

    config: dict[str, Any]
    described: dict[str, Any]
    """What the model was built for, such as the number of classes."""
    parameters: int
    epochs: list[Epoch] = field(default_factory=list)

    def number(self, name: str) -> float | None:
        """The last of the epochs' numbers of this name, such as test_miou; None if there was no test."""
        return next((value for e in reversed(self.epochs) if (value := e.number(name)) is not None), None)

    @property
    def train_loss(self) -> float:
        """Of the last epoch."""
        return self.epochs[-1].train_loss

    @property
    def train_accuracy(self) -> float:
        """Of the last epoch."""
        return self.epochs[-1].train_accuracy

    @property
    def test_accuracy(self) -> float | None:
        """Of the last test."""
        return self.number("test_accuracy")

    @property
    def validation_accuracy(self) -> float | None:
        """Of the last test."""
        return self.number("validation_accuracy")

    @property
    def seconds(self) -> float:
        """Of training, tests not counted."""
        return sum(epoch.seconds for epoch in self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Outcome:
        """What :meth:`to_dict` gave.

        Example::

            >>> outcome = Outcome({}, {"classes": 10}, 5, [Epoch(1, 2, 0.1, {"loss": 0.5})])
            >>> Outcome.from_dict(outcome.to_dict()) == outcome
            True
        """
        return cls(**{**content, "epochs": [Epoch(**epoch) for epoch in content["epochs"]]})
