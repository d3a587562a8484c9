"""The norms of a model that lightning trains."""

import copy
import csv
import pickle

import pytest
import torch
from torch import nn

import whitenorm

lightning = pytest.importorskip("lightning")
callbacks = pytest.importorskip("whitenorm.lab.callbacks")

pytestmark = [
    # lightning's own.
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
]


class Task(lightning.LightningModule):
    def __init__(self, fails_at=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), whitenorm.IterNorm(8), nn.Dropout(0.1), nn.Linear(8, 1))
        self.fails_at = fails_at

    def training_step(self, batch, index):
        if index == self.fails_at:
            raise RuntimeError("mine")
        loss = self.net(batch).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, index):
        self.log("val", self.net(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def fit(folder, callback, task=None, checkpoint=None, loggers=True, **options):
    torch.manual_seed(0)
    task = Task() if task is None else task
    data = torch.utils.data.DataLoader(torch.randn(128, 8), 32)
    logger = [
        lightning.pytorch.loggers.CSVLogger(folder, "csv", ""),
        lightning.pytorch.loggers.TensorBoardLogger(folder, "board", ""),
    ]
    trainer = lightning.Trainer(
        logger=logger if loggers else False,
        callbacks=[] if callback is None else [callback],
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        log_every_n_steps=1,
        **{"max_epochs": 2, **options},
    )
    trainer.fit(task, data, data, ckpt_path=checkpoint)
    return trainer, task


def rows_of(path, key):
    with path.open() as file:
        return [(int(row["step"]), float(row[key])) for row in csv.DictReader(file) if row.get(key)]


def test_to_the_trainers_loggers_and_on_after_a_checkpoint(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = callbacks.NormMonitor(every=3)
    trainer, _ = fit(tmp_path, callback)
    logged = rows_of(tmp_path / "csv" / "metrics.csv", "norm/net.1/condition_before")
    assert [step for step, _ in logged] == [0, 3, 6]
    row = callback.monitor.last[0]
    assert logged[-1][1] == pytest.approx(row.condition_before)
    assert row.gradient_ratio > 0
    assert 0 < row.time_share < 1
    assert row.memory_share is None
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    assert [event.step for event in events.Scalars("norm/net.1/gradient_ratio")] == [0, 3, 6]

    trainer.save_checkpoint(tmp_path / "last.ckpt")
    fit(tmp_path / "on", callbacks.NormMonitor(every=3), checkpoint=tmp_path / "last.ckpt", max_epochs=3)
    logged = rows_of(tmp_path / "on" / "csv" / "metrics.csv", "norm/net.1/condition_before")
    assert [step for step, _ in logged] == [8, 11]


def test_the_training_is_the_same_bit_for_bit(tmp_path):
    _, plain = fit(tmp_path / "a", None, loggers=False)
    _, watched = fit(tmp_path / "b", callbacks.NormMonitor(1, to=tmp_path / "norms.csv"), loggers=False)
    assert all(torch.equal(value, watched.state_dict()[name]) for name, value in plain.state_dict().items())
    assert len(rows_of(tmp_path / "norms.csv", "condition_after")) == 8


def test_a_failure_leaves_nothing_on_the_model(tmp_path):
    callback, task = callbacks.NormMonitor(1, to=tmp_path / "norms.csv"), Task(fails_at=2)
    with pytest.raises(RuntimeError, match="mine"):
        fit(tmp_path, callback, task, loggers=False)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.modules())
    assert [step for step, _ in rows_of(tmp_path / "norms.csv", "condition_after")] == [0, 1]


def test_no_logger_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="expected a trainer with a logger"):
        fit(tmp_path, callbacks.NormMonitor(), loggers=False)


def test_pickles_and_copies_after_a_fit(tmp_path):
    callback = callbacks.NormMonitor(1, to=tmp_path / "norms.csv")
    fit(tmp_path, callback, loggers=False, max_epochs=1)
    for other in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert (other.every, other.to, other.monitor) == (1, callback.to, None)
        fit(tmp_path, other, loggers=False, max_epochs=1)
    assert len(rows_of(tmp_path / "norms.csv", "condition_after")) == 12
