"""Results of a training run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


class DivergenceError(FloatingPointError):
    """The loss is NaN or infinite; ``result`` has the epochs before."""

    result: TrainingResult


@dataclass
class Epoch:
    """Scores of one epoch: means over its training steps, and test scores after it if it was tested.

    Example::

        >>> epoch = Epoch(1, 100, 0.1, {"loss": 0.5}, {"test": {"loss": 0.7, "miou": 0.4}})
        >>> epoch.train_loss, epoch.score("test_miou"), epoch.validation_accuracy
        (0.5, 0.4, None)
    """

    epoch: int
    step: int
    lr: float
    train: dict[str, float]
    """Training scores by name, such as loss and accuracy."""
    tests: dict[str, dict[str, float]] = field(default_factory=dict)
    """Scores of each test set, such as "test" and "validation"; empty if the epoch was not tested."""
    seconds: float = 0.0
    examples_per_second: float = 0.0
    recalibrate_seconds: float = 0.0
    """Time to recompute population statistics before the test."""

    def scores(self) -> dict[str, float]:
        """Return all scores by their names in logs, such as train_loss and test_miou."""
        sets = {"train": self.train, **self.tests}
        return {f"{name}_{score}": value for name, scores in sets.items() for score, value in scores.items()}

    def score(self, name: str) -> float | None:
        """Return one of :meth:`scores`, or None if it was not tested."""
        return self.scores().get(name)

    @property
    def train_loss(self) -> float:
        return self.train["loss"]

    @property
    def train_accuracy(self) -> float:
        return self.train["accuracy"]

    @property
    def test_loss(self) -> float | None:
        return self.score("test_loss")

    @property
    def test_accuracy(self) -> float | None:
        return self.score("test_accuracy")

    @property
    def validation_loss(self) -> float | None:
        return self.score("validation_loss")

    @property
    def validation_accuracy(self) -> float | None:
        return self.score("validation_accuracy")


@dataclass
class TrainingResult:
    """A run's configuration, and its scores epoch by epoch."""

    config: dict[str, Any]
    description: dict[str, Any]
    """What the model was built for, such as the number of classes."""
    parameters: int
    epochs: list[Epoch] = field(default_factory=list)

    def latest(self, name: str) -> float | None:
        """Return the latest score of this name, such as test_miou; None if there was no test."""
        return next((value for e in reversed(self.epochs) if (value := e.score(name)) is not None), None)

    @property
    def train_loss(self) -> float:
        """Training loss of the last epoch."""
        return self.epochs[-1].train_loss

    @property
    def train_accuracy(self) -> float:
        """Training accuracy of the last epoch."""
        return self.epochs[-1].train_accuracy

    @property
    def test_accuracy(self) -> float | None:
        """Accuracy of the last test."""
        return self.latest("test_accuracy")

    @property
    def validation_accuracy(self) -> float | None:
        """Accuracy of the last test on the validation set."""
        return self.latest("validation_accuracy")

    @property
    def seconds(self) -> float:
        """Training time without tests."""
        return sum(epoch.seconds for epoch in self.epochs)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON types."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> TrainingResult:
        """Restore a result from :meth:`to_dict`.

        Example::

            >>> result = TrainingResult({}, {"classes": 10}, 5, [Epoch(1, 2, 0.1, {"loss": 0.5})])
            >>> TrainingResult.from_dict(result.to_dict()) == result
            True
        """
        return cls(**{**content, "epochs": [Epoch(**epoch) for epoch in content["epochs"]]})
