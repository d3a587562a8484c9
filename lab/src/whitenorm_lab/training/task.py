"""Interface between the training program and a task, which provides data, model, loss and scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torchmetrics
from torch import Tensor, nn

from whitenorm_lab.training.config import RunConfig
from whitenorm_lab.training.loaders import DataLoaders
from whitenorm_lab.training.scores import Means

Config = TypeVar("Config", bound=RunConfig)


class Task(nn.Module, ABC, Generic[Config]):
    """Base class of tasks; one instance serves one run.

    A task is a module, so that its buffers and networks, such as the mean and deviation of images or the trained
    network of a loss, move to the device with the model. They follow from the configuration and the data: they are not
    trained, not stored in checkpoints, and stay in eval mode. A subclass must not reuse names of nn.Module, such as
    ``parameters`` and ``train``.

    The program calls ``build_loaders``, ``build_model`` (unless ``fit`` was given a model), ``check``, then for each
    batch ``prepare_batch`` and ``loss`` or ``test``, and finally ``finish``. To load a trained model it calls
    ``build_model`` alone.
    """

    unit: ClassVar[str] = "images"
    """Name of an example in the printed line of an epoch."""
    main_score: ClassVar[str] = "loss"
    """The test score printed at the end of a run, such as "accuracy", "miou" or "bleu"."""
    calibration_examples: ClassVar[int] = 5000
    """Default number of training examples that batch whitening recomputes its population statistics from."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def build_loaders(self, dataset: Any, step: Callable[[], int], rank: int, world: int) -> DataLoaders:
        """Build the data loaders of one process.

        Args:
            dataset: replaces the data that the configuration names if not None; its type is the task's choice.
            step: returns the global step, which the order of training examples follows from.
            rank: index of the process.
            world: number of processes.
        """

    @abstractmethod
    def build_model(self, description: dict[str, Any]) -> nn.Module:
        """Build the untrained model for :attr:`DataLoaders.description`."""

    @abstractmethod
    def example_inputs(self, description: dict[str, Any], count: int) -> Any:
        """Return random inputs of ``count`` examples, in the form of :meth:`inputs`."""

    def check(self, model: nn.Module, description: dict[str, Any]) -> None:
        """Raise a ValueError if the model does not fit the data; called before the run's folder is written.

        The model's parameters have their final dtype and may be on any device. By default the model runs once, in eval
        mode.
        """
        with torch.random.fork_rng(devices=[]):
            forward_in_eval_mode(model, self.example_inputs(description, 2))

    def prepare_batch(self, batch: Any) -> Any:
        """Normalize and augment a batch on the model's device, for training, tests and calibration."""
        return batch

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, step: int, scores: Means) -> Tensor:
        """Return the loss of a training batch, and add its detached scores to :meth:`train_scores`.

        Gradients are averaged over processes. If processes have different numbers of examples in a batch, a loss that
        is a mean over examples must be weighted by ``world * own examples / all examples``.
        """

    def train_scores(self) -> Means:
        """Build the metric for an epoch of training; one of its names must be "loss"."""
        return Means(("loss",))

    @abstractmethod
    def test_scores(self) -> torchmetrics.Metric:
        """Build the metric for one test set; ``compute`` returns scores by name."""

    @abstractmethod
    def test(self, model: nn.Module, batch: Any, scores: Any) -> None:
        """Add a test batch, which may be empty, to :meth:`test_scores`; the model is in eval mode."""

    @abstractmethod
    def inputs(self, batch: Any) -> Any:
        """Return the model's inputs for a prepared batch: a tensor, or a dict of keyword arguments."""

    def parameter_groups(self, model: nn.Module) -> Iterable[Any]:
        """Return what the optimizer trains: parameters, or groups with their own lr or weight_decay."""
        return model.parameters()

    def format_scores(self, scores: dict[str, float]) -> str:
        """Format training or test scores for a printed line, such as ``"loss 0.2513, miou 0.4312"``."""
        return ", ".join(f"{name} {value:.4f}" for name, value in scores.items())

    def finish(self, model: nn.Module, loaders: DataLoaders, folder: Path) -> None:
        """Write pictures and other files of a trained model into the run's folder; called in the first process only.

        The model is in eval mode and on its device. A run that stops here and resumes calls this again.
        """

    def train(self, mode: bool = True) -> Task[Config]:
        """Stay in eval mode."""
        return super().train(False)


def forward_in_eval_mode(model: nn.Module, inputs: Any) -> Any:
    """Return a model's outputs in eval mode, without changing the model or torch's random state."""
    parameter = next(model.parameters(), torch.empty(0))
    modes = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return call_model(model.eval(), move_inputs(inputs, parameter))
    finally:
        for module, mode in modes.items():
            module.training = mode


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with inputs in the form of :meth:`Task.inputs`."""
    return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def move_inputs(inputs: Any, like: Tensor) -> Any:
    """Move inputs to the device of ``like``, and floating-point ones to its dtype."""
    if isinstance(inputs, Tensor):
        return inputs.to(like.device, like.dtype if inputs.is_floating_point() else inputs.dtype)
    if isinstance(inputs, Mapping):
        return {name: move_inputs(value, like) for name, value in inputs.items()}
    return [move_inputs(value, like) for value in inputs] if isinstance(inputs, (list, tuple)) else inputs
