"""What a training run gave."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


class DivergenceError(FloatingPointError):
    """The loss is NaN or infinite; ``outcome`` has the epochs before."""

    outcome: Outcome


@dataclass
class Epoch:
    """Numbers of one epoch: the training ones over its steps, the test ones after it, where it was tested."""

    epoch: int
    step: int
    lr: float
    train_loss: float
    train_accuracy: float
    test_loss: float | None = None
    test_accuracy: float | None = None
    test_top5: float | None = None
    validation_loss: float | None = None
    validation_accuracy: float | None = None
    validation_top5: float | None = None
    seconds: float = 0.0
    images_per_second: float = 0.0
    recalibrate_seconds: float = 0.0
    """Of the population statistics, taken anew before the test."""

    def tests(self) -> dict[str, tuple[float, float]]:
        """Loss and accuracy on the test and validation images, where it was tested."""
        pairs = {
            "test": (self.test_loss, self.test_accuracy),
            "validation": (self.validation_loss, self.validation_accuracy),
        }
        return {
            name: (loss, accuracy)
            for name, (loss, accuracy) in pairs.items()
            if loss is not None and accuracy is not None
        }


@dataclass
class Outcome:
    """A run's configuration and numbers, epoch by epoch."""

    config: dict[str, Any]
    classes: int
    parameters: int
    epochs: list[Epoch] = field(default_factory=list)

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
        return next((e.test_accuracy for e in reversed(self.epochs) if e.test_accuracy is not None), None)

    @property
    def validation_accuracy(self) -> float | None:
        """Of the last test."""
        return next((e.validation_accuracy for e in reversed(self.epochs) if e.validation_accuracy is not None), None)

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

            >>> outcome = Outcome({}, 10, 5, [Epoch(1, 2, 0.1, 0.5, 0.9)])
            >>> Outcome.from_dict(outcome.to_dict()) == outcome
            True
        """
        return cls(**{**content, "epochs": [Epoch(**epoch) for epoch in content["epochs"]]})
