"""Callbacks for lightning: a monitor of the norms, and recalibration of their statistics."""

import copy
import csv
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import whitenorm

lightning = pytest.importorskip("lightning")
callbacks = pytest.importorskip("whitenorm.integrations.lightning")

pytestmark = [
    # Warnings of lightning itself.
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.*"),
]


class Task(lightning.LightningModule):
    def __init__(self, fails_at=None):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), whitenorm.IterNorm(8), nn.Dropout(0.1), nn.Linear(8, 1))
        self.fails_at = fails_at

    def forward(self, x):
        return self.net(x)

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


def make_trainer(folder, callback, package=lightning, **options):
    defaults = {"logger": False, "enable_checkpointing": False, "log_every_n_steps": 1}
    return package.Trainer(
        callbacks=callback,
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **{**defaults, **options},
    )


def fit(folder, callback, task=None, checkpoint=None, has_loggers=True, max_epochs=2):
    torch.manual_seed(0)
    task = Task() if task is None else task
    data = torch.utils.data.DataLoader(torch.randn(128, 8), 32)
    loggers = [
        lightning.pytorch.loggers.CSVLogger(folder, "csv", ""),
        lightning.pytorch.loggers.TensorBoardLogger(folder, "board", ""),
    ]
    trainer = make_trainer(folder, callback, logger=loggers if has_loggers else False, max_epochs=max_epochs)
    trainer.fit(task, data, data, ckpt_path=checkpoint)
    return trainer, task


def read_column(path, key):
    with path.open() as file:
        return [(int(row["step"]), float(row[key])) for row in csv.DictReader(file) if row.get(key)]


def test_logs_to_the_trainers_loggers_also_after_a_checkpoint(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    callback = callbacks.NormMonitor(every=3)
    trainer, _ = fit(tmp_path, callback)
    logged = read_column(tmp_path / "csv" / "metrics.csv", "norm/net.1/condition_before")
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
    logged = read_column(tmp_path / "on" / "csv" / "metrics.csv", "norm/net.1/condition_before")
    assert [step for step, _ in logged] == [8, 11]


def test_the_monitor_does_not_change_the_training(tmp_path):
    _, plain = fit(tmp_path / "a", None, has_loggers=False)
    _, monitored = fit(tmp_path / "b", callbacks.NormMonitor(1, to=tmp_path / "norms.csv"), has_loggers=False)
    assert all(torch.equal(value, monitored.state_dict()[name]) for name, value in plain.state_dict().items())
    assert len(read_column(tmp_path / "norms.csv", "condition_after")) == 8


def test_an_error_leaves_no_hooks_on_the_model(tmp_path):
    callback, task = callbacks.NormMonitor(1, to=tmp_path / "norms.csv"), Task(fails_at=2)
    with pytest.raises(RuntimeError, match="mine"):
        fit(tmp_path, callback, task, has_loggers=False)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.modules())
    assert [step for step, _ in read_column(tmp_path / "norms.csv", "condition_after")] == [0, 1]


def test_a_missing_logger_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="expected a trainer with a logger"):
        fit(tmp_path, callbacks.NormMonitor(), has_loggers=False)


def test_pickles_and_copies_after_a_fit(tmp_path):
    callback = callbacks.NormMonitor(1, to=tmp_path / "norms.csv")
    fit(tmp_path, callback, has_loggers=False, max_epochs=1)
    for other in (pickle.loads(pickle.dumps(callback)), copy.deepcopy(callback)):
        assert (other.every, other.to, other.monitor) == (1, callback.to, None)
        fit(tmp_path, other, has_loggers=False, max_epochs=1)
    assert len(read_column(tmp_path / "norms.csv", "condition_after")) == 12


DATA = torch.randn(128, 8, generator=torch.Generator().manual_seed(1)) * 3 + 1


def compute_population(model, data=DATA):
    """Return the mean and matrix of the layer for all of the data, without recalibration."""
    layer = copy.deepcopy(model.net[1])
    with torch.no_grad():
        features = model.net[0](data)
    layer.set_population(features.mean(0), torch.cov(features.T, correction=0)[None])
    return layer.running_mean, layer.running_whitening


def assert_recalibrated(model, state=None, data=DATA):
    mean, matrix = compute_population(model, data)
    state = model.state_dict() if state is None else state
    torch.testing.assert_close(state["net.1.running_mean"], mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state["net.1.running_whitening"], matrix, atol=1e-4, rtol=1e-4)


def fit_with_recalibration(folder, callback, task=None, data=DATA, max_epochs=3, **options):
    torch.manual_seed(0)
    task = Task() if task is None else task
    loader = data if isinstance(data, dict) else torch.utils.data.DataLoader(data, 32, shuffle=True)
    trainer = make_trainer(folder, callback, max_epochs=max_epochs, **options)
    trainer.fit(task, loader, torch.utils.data.DataLoader(DATA, 32))
    return trainer, task


class TestRecalibrate:
    def test_runs_when_training_ends(self, tmp_path):
        _, plain = fit_with_recalibration(tmp_path, None)
        with pytest.raises(AssertionError):
            assert_recalibrated(plain)
        _, task = fit_with_recalibration(tmp_path, callbacks.Recalibrate())
        assert_recalibrated(task)
        for name, parameter in plain.named_parameters():
            assert torch.equal(parameter, task.get_parameter(name)), name

    @pytest.mark.parametrize("has_batch_norm", [False, True])
    def test_stochastic_weight_averaging(self, tmp_path, has_batch_norm):
        """If there is a BatchNorm, lightning runs one more epoch for its statistics."""
        task = Task()
        if has_batch_norm:
            task.net.append(nn.BatchNorm1d(1))
        averaging = lightning.pytorch.callbacks.StochasticWeightAveraging(0.1, swa_epoch_start=1)
        _, task = fit_with_recalibration(tmp_path, [averaging, callbacks.Recalibrate()], task)
        for average, parameter in zip(averaging._average_model.parameters(), task.parameters(), strict=True):
            assert torch.equal(average, parameter)
        assert_recalibrated(task)

    def test_averaged_weights_and_their_checkpoint(self, tmp_path):
        averaging = lightning.pytorch.callbacks.EMAWeightAveraging(decay=0.9)
        trainer, task = fit_with_recalibration(tmp_path, [averaging, callbacks.Recalibrate()])
        assert_recalibrated(task)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        saved = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
        assert_recalibrated(task, saved)
        other = Task()
        other.load_state_dict(saved)
        assert_recalibrated(other)

    @pytest.mark.parametrize("has_average", [False, True])
    def test_runs_before_each_validation(self, tmp_path, has_average):
        def make_averaging():
            return [lightning.pytorch.callbacks.EMAWeightAveraging(decay=0.9)] if has_average else []

        states = []

        class Check(lightning.Callback):
            def on_validation_batch_start(self, trainer, pl_module, *_):
                if not trainer.sanity_checking:
                    assert_recalibrated(pl_module)
                    assert not pl_module.training
                    states.append(copy.deepcopy(pl_module.state_dict()))

        _, plain = fit_with_recalibration(tmp_path, make_averaging())
        callback = callbacks.Recalibrate(before_validation=True)
        _, task = fit_with_recalibration(tmp_path, [*make_averaging(), callback, Check()])
        assert len(states) == 12
        assert not torch.equal(states[0]["net.0.weight"], states[-1]["net.0.weight"])
        # The training is the same: neither the order of batches nor dropout have changed.
        for name, parameter in plain.named_parameters():
            assert torch.equal(parameter, task.get_parameter(name)), name

    def test_some_batches(self, tmp_path):
        sizes = []

        class Count(Task):
            def forward(self, x):
                sizes.append(len(x))
                return super().forward(x)

        fit_with_recalibration(tmp_path, callbacks.Recalibrate(batches=2), Count())
        assert sizes == [32, 32]
        sizes.clear()
        fit_with_recalibration(tmp_path, callbacks.Recalibrate(), Count(), limit_train_batches=3)
        assert sizes == [32] * 3

    def test_batches_of_several_loaders(self, tmp_path):
        class Pairs(Task):
            def training_step(self, batch, index):
                return super().training_step(batch["a"], index)

        loaders = {name: torch.utils.data.DataLoader(DATA + shift, 32) for name, shift in (("a", 0), ("b", 9))}
        callback = callbacks.Recalibrate(inputs=lambda batch: batch["b"])
        _, task = fit_with_recalibration(tmp_path, callback, Pairs(), loaders)
        assert_recalibrated(task, data=DATA + 9)

    def test_half_precision(self, tmp_path):
        _, task = fit_with_recalibration(tmp_path, callbacks.Recalibrate(), precision="bf16-mixed")
        mean, _ = compute_population(task)
        torch.testing.assert_close(task.net[1].running_mean, mean, atol=2e-2, rtol=2e-2)
        assert task.net[1].running_mean.dtype == torch.float32

    def test_a_later_averaging_callback_is_an_error(self, tmp_path):
        averaging = lightning.pytorch.callbacks.StochasticWeightAveraging(0.1)
        with pytest.raises(ValueError, match=r"expected Recalibrate after StochasticWeightAveraging in callbacks"):
            fit_with_recalibration(tmp_path, [callbacks.Recalibrate(), averaging])

    def test_a_model_without_statistics_is_an_error(self, tmp_path):
        task = Task()
        task.net[1] = whitenorm.GroupWhitening(2, 8)
        with pytest.raises(ValueError, match=r"expected a model with population statistics \(got Task without"):
            fit_with_recalibration(tmp_path, callbacks.Recalibrate(), task)

    def test_a_model_without_forward_is_an_error(self, tmp_path):
        class NoForward(Task):
            forward = lightning.LightningModule.forward

        with pytest.raises(ValueError, match="expected a model with a forward"):
            fit_with_recalibration(tmp_path, callbacks.Recalibrate(), NoForward())

    @pytest.mark.parametrize("batches", [0, -1, 1.5, True])
    def test_a_wrong_number_of_batches_is_an_error(self, batches):
        with pytest.raises(ValueError, match="expected batches to be a whole number"):
            callbacks.Recalibrate(batches)

    def test_the_trainer_of_pytorch_lightning(self, tmp_path):
        other = pytest.importorskip("pytorch_lightning")

        class Other(other.LightningModule):
            forward, training_step, validation_step = Task.forward, Task.training_step, Task.validation_step
            configure_optimizers = Task.configure_optimizers

            def __init__(self):
                super().__init__()
                self.net, self.fails_at = Task().net, None

        averaging = other.callbacks.StochasticWeightAveraging(0.1, swa_epoch_start=1)
        _, task = fit_with_recalibration(tmp_path, [averaging, callbacks.Recalibrate()], Other(), package=other)
        assert_recalibrated(task)


SCRIPT = """
import sys
from pathlib import Path

import torch
from lightning.pytorch.strategies import DDPStrategy
from tests.integrations.test_lightning import assert_recalibrated, callbacks, fit_with_recalibration

if __name__ == "__main__":
    strategy = DDPStrategy(process_group_backend="gloo", start_method="popen")
    callback = callbacks.Recalibrate(before_validation=True)
    _, task = fit_with_recalibration(Path(sys.argv[1]), callback, strategy=strategy, devices=2)
    assert torch.distributed.get_world_size() == 2
    assert task.net[1].process_group is None
    assert_recalibrated(task)
"""


@pytest.mark.slow
def test_two_processes_combine_their_data(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    process = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr


def test_a_missing_lightning_raises_an_error():
    code = (
        "import sys; sys.modules.update({'lightning': None, 'lightning.pytorch': None, 'pytorch_lightning': None}); "
        "import whitenorm.integrations.lightning"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "expected lightning" in process.stderr
    assert "pip install lightning" in process.stderr
