"""What a task is to the training program: data, model, loss and scores; everything else is the program's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torchmetrics
from torch import Tensor, nn

from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.sources import Source

Config = TypeVar("Config", bound=RunConfig)


class Task(nn.Module, ABC, Generic[Config]):
    """One run's task, made from its configuration.

    It is a module so that what it computes with moves to the device with the model: a mean and a deviation as buffers,
    a trained network of a loss. None of that is trained or kept in checkpoints; it follows from the configuration and
    the data. It stays in eval mode. (``parameters``, ``train`` and the like are nn.Module's and of the task's own.)

    The order of calls is ``source``, ``build`` (unless ``fit`` was handed a model), ``check``, and then for each batch
    ``on_device`` and ``loss`` or ``test``; at the end ``finish``. To load a model there is ``build`` alone.
    """

    unit: ClassVar[str] = "images"
    """What an example is called in the line of an epoch."""
    best: ClassVar[str] = "loss"
    """The test number that tells most, such as "accuracy", "miou" or "bleu"."""
    calibrated: ClassVar[int] = 5000
    """Training examples that population statistics are taken from, of batch whitening, if nobody says."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def source(self, dataset: Any, step: Callable[[], int], rank: int, world: int) -> Source:
        """The batches of one process.

        Args:
            dataset: in place of the data that the configuration names, if not None; what it is, the task says.
            step: how many steps are done, which the order of training follows from.
            rank: the number of the process.
            world: how many there are.
        """

    @abstractmethod
    def build(self, description: dict[str, Any]) -> nn.Module:
        """The untrained model for a source's description."""

    @abstractmethod
    def example(self, description: dict[str, Any], number: int) -> Any:
        """Random inputs for a model of so many examples, as :meth:`inputs` has them."""

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        """Refuse a model that does not fit the data with a ValueError, before a folder is taken.

        The model has parameters of its final type, and may be on any device. Here it is run once, in eval mode.
        """
        with torch.random.fork_rng(devices=[]):
            forward(model, self.example(description, 2))

    def on_device(self, batch: Any) -> Any:
        """A batch made ready where the model is: normalised and augmented. Training, test and calibration have it."""
        return batch

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, step: int, scores: Means) -> Tensor:
        """The loss of a training batch, with its numbers added to :meth:`train_scores`, detached.

        Of several processes, gradients are averaged: a loss that is a mean over examples of which processes have
        different numbers is to be weighted by the process's share (``world * its examples / those of all``).
        """

    def train_scores(self) -> Means:
        """For the numbers of an epoch of training, of which one is "loss"."""
        return Means(("loss",))

    @abstractmethod
    def test_scores(self) -> torchmetrics.Metric:
        """For the numbers of one test set; ``compute`` gives a dict of numbers."""

    @abstractmethod
    def test(self, model: nn.Module, batch: Any, scores: Any) -> None:
        """Add a test batch to :meth:`test_scores`; the model is in eval mode. A process's share may be empty."""

    @abstractmethod
    def inputs(self, batch: Any) -> Any:
        """What a model takes of a batch that is on the device: a tensor, or a dict of keyword arguments."""

    def groups(self, model: nn.Module) -> Iterable[Any]:
        """What the optimizer trains: parameters, or groups of them with an lr or weight_decay of their own."""
        return model.parameters()

    def words(self, numbers: dict[str, float]) -> str:
        """Training or test numbers, or some of them, as they are shown: ``"loss 0.2513, miou 0.4312"``."""
        return ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())

    def finish(self, model: nn.Module, source: Source, folder: Path) -> None:
        """Pictures and other files of a trained model, into the run's folder; by the first process alone.

        The model is in eval mode and on its device. It may happen again, where a run was stopped in it.
        """

    def train(self, mode: bool = True) -> Task[Config]:
        """Stay in eval mode: what a task computes with is not trained."""
        return super().train(False)


def forward(model: nn.Module, inputs: Any) -> Any:
    """A model's outputs in eval mode, without a trace in it or in others' random numbers."""
    parameter = next(model.parameters(), torch.empty(0))
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return call(model.eval(), placed(inputs, parameter))
    finally:
        for module, mode in modes.items():
            module.training = mode


def call(model: nn.Module, inputs: Any) -> Any:
    """The model of inputs, as :meth:`Task.inputs` has them."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def placed(inputs: Any, like: Tensor) -> Any:
    """Inputs on a parameter's device, floating ones in its type."""
    if isinstance(inputs, Tensor):
        return inputs.to(like.device, like.dtype if inputs.is_floating_point() else inputs.dtype)
    if isinstance(inputs, Mapping):
        return {name: placed(value, like) for name, value in inputs.items()}
    return [placed(value, like) for value in inputs] if isinstance(inputs, (list, tuple)) else inputs
