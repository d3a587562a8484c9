"""Uses every feature of the task interface: keyword inputs, a frozen net, parameter groups, files."""

from __future__ import annotations

import torch
from torch import nn

from whitenorm_lab.nets import place_
from whitenorm_lab.training.batches import (
    StepBatches,
    TestBatches,
    build_generator,
    check_batch_size,
    draw_calibration_rows,
    shuffle_into_batches,
    split_in_order,
)
from whitenorm_lab.training.loaders import DataLoaders
from whitenorm_lab.training.scores import Means
from whitenorm_lab.training.task import Task, call_model

NUM_TRAIN, NUM_TEST = 50, 13


class Net(nn.Module):
    """A net with keyword arguments."""

    def __init__(self, hidden):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.1))
        self.last = nn.Linear(hidden, 1)

    def forward(self, *, numbers, scale):
        return self.last(self.layers(numbers)) * scale


class Batches(StepBatches):
    """Rows of the training numbers, with noise."""

    def __init__(self, numbers, config, step, rank, world):
        super().__init__(step)
        self.numbers, self.seed, self.rank, self.world = numbers, config.seed, rank, world
        self.batch_size = check_batch_size(config.batch_size, len(numbers), world)

    def __len__(self):
        return len(self.numbers) // self.batch_size

    def order(self, epoch):
        return shuffle_into_batches(torch.arange(len(self.numbers)), self.batch_size, self.seed, epoch)

    def batch(self, epoch, i, part):
        noise = 0.01 * torch.randn(len(part), 4, generator=build_generator(self.seed, epoch, i))
        return {"numbers": (self.numbers[part] + noise)[self.rank :: self.world]}


class Regression(Task):
    unit = "rows"
    calibration_examples = 40

    def __init__(self, config):
        super().__init__(config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.teacher = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))
        self.teacher.eval().requires_grad_(False)

    def build_loaders(self, dataset, step, rank, world):
        if self.config.dataset != "wave":
            raise ValueError(f"expected wave (got {self.config.dataset})")
        numbers = (
            torch.randn(NUM_TRAIN + NUM_TEST, 4, generator=build_generator("numbers")) if dataset is None else dataset
        )
        train, test = numbers[:-NUM_TEST], numbers[-NUM_TEST:]
        batches = Batches(train, self.config, step, rank, world)

        def build_test(rows, numbers):
            return TestBatches(split_in_order(rows, 5, rank, world), lambda share: {"numbers": numbers[share]})

        return DataLoaders(
            {"inputs": 4, "range": (-1, 1)},
            batches,
            {"test": build_test(torch.arange(NUM_TEST), test)},
            lambda count: build_test(draw_calibration_rows(len(train), count, self.config.seed), train),
            batches.batch_size,
        )

    def build_model(self, description):
        return place_(Net(self.config.hidden), self.config.norm, "all", **self.config.norm_options())

    def example_inputs(self, description, count):
        return {"numbers": torch.randn(count, description["inputs"]), "scale": torch.ones(1)}

    def prepare_batch(self, batch):
        numbers = batch["numbers"]
        return {"numbers": numbers, "targets": self.teacher(numbers)}

    def inputs(self, batch):
        return {"numbers": batch["numbers"], "scale": batch["numbers"].new_ones(1)}

    def loss(self, model, batch, step, scores):
        loss = self._squares(model, batch).mean()
        scores.update(len(batch["targets"]), loss=loss.detach() * len(batch["targets"]))
        return loss

    def test_scores(self):
        return Means(("loss", "worst"))

    def test(self, model, batch, scores):
        squares = self._squares(model, batch)
        scores.update(len(squares), loss=squares.sum(), worst=squares.max() * len(squares))

    def _squares(self, model, batch):
        return (call_model(model, self.inputs(batch)) - batch["targets"]).square()

    def parameter_groups(self, model):
        return [{"params": model.layers.parameters()}, {"params": model.last.parameters(), "lr": 2 * self.config.lr}]

    def finish(self, model, loaders, folder):
        lines = [str(float(call_model(model, self.inputs(batch)).sum())) for batch in loaders.tests["test"]]
        (folder / "outputs.txt").write_text("\n".join(lines) + "\n")


TASK = Regression
