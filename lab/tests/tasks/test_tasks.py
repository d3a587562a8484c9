"""A task is one folder: a small one, put beside the library's, goes through all that the training program does."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

import whitenorm
from whitenorm.cli import main as whitenorm_main
from whitenorm.cli.models import load_run_batch
from whitenorm_lab import checksum, tasks
from whitenorm_lab.cli import main
from whitenorm_lab.training import Train, command, fit, load
from whitenorm_lab.training.checkpoints import list_checkpoints
from whitenorm_lab.training.evaluation import Evaluate, evaluate
from whitenorm_lab.training.folder import RunFolder

OPTIONS = {"norm": "iternorm", "clip": 1.0, "quiet": True}
STEPS = 3


@pytest.fixture(scope="module", autouse=True)
def _found():
    """The folder of the tests' own task is one of those that are looked in."""
    tasks.__path__.append(str(Path(__file__).parent / "other_tasks"))
    importlib.reload(command)
    yield
    tasks.__path__.pop()
    for name in [name for name in sys.modules if name.startswith("whitenorm_lab.tasks.regression")]:
        del sys.modules[name]
    importlib.reload(command)


def regress(**options):
    return tasks.list_commands("regression")["regression"](**{**OPTIONS, **options})


class Stop(Callback):
    """Fails before a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, module, batch, i):
        if trainer.global_step == self.step:
            raise InterruptedError("stopped here")


def numbers(outcome):
    """All that must be the same, which time is not."""
    return [(epoch.epoch, epoch.step, epoch.lr, epoch.scores()) for epoch in outcome.epochs]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, fit(regress(folder=folder))


def test_learns(whole):
    folder, outcome = whole
    assert [epoch.step for epoch in outcome.epochs] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert outcome.latest("train_loss") < 0.7 * outcome.epochs[0].train_loss
    assert outcome.latest("test_worst") >= outcome.latest("test_loss") > 0
    assert outcome.latest("test_accuracy") is None
    assert outcome.description == {"inputs": 4, "range": [-1, 1]}
    assert RunFolder(folder).read_result() == outcome
    assert json.loads((folder / "config.json").read_text())["task"] == "regression"
    assert len((folder / "outputs.txt").read_text().splitlines()) == 3


@pytest.mark.parametrize("step", [4, 2 * STEPS])
def test_goes_on_with_the_same_bits(whole, tmp_path, step):
    config = regress(folder=tmp_path, checkpoint_steps=2)
    with pytest.raises(InterruptedError):
        fit(config, callbacks=[Stop(step)])
    assert numbers(fit(config)) == numbers(whole[1])
    a, b = (torch.load(folder / "weights.pt") for folder in (tmp_path, whole[0]))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert (tmp_path / "outputs.txt").read_text() == (whole[0] / "outputs.txt").read_text()


def test_the_tasks_own_is_not_kept_nor_trained(whole):
    checkpoint = checksum.read_archive(list_checkpoints(whole[0] / "checkpoints")[-1])
    assert {name.split(".")[0] for name in checkpoint["state_dict"]} == {"model"}
    assert len(checkpoint["optimizer_states"][0]["param_groups"]) == 2
    task = tasks.build_task(regress())
    assert not any(module.training for module in task.train().modules())


def test_loaded_tested_and_looked_at(whole, capsys):
    folder, outcome = whole
    assert isinstance(load(folder).layers[1], whitenorm.IterNorm)
    assert evaluate(Evaluate(folder)) == outcome.epochs[-1].tests
    assert main(["evaluate", str(folder)]) == 0
    last = outcome.epochs[-1].tests["test"]
    assert capsys.readouterr().out == f"test: loss {last['loss']:.4f}, worst {last['worst']:.4f}\n"
    for options, words in [({"test_images": 3}, "no --test-images"), ({"dataset": "x"}, "expected wave")]:
        with pytest.raises(ValueError, match=words):
            evaluate(Evaluate(folder, **options))
    inputs, said = load_run_batch(str(folder))
    assert set(inputs) == {"numbers", "scale"}
    assert said == "Measured on training rows, 4 × 4 and 1."
    assert whitenorm_main(["inspect", str(folder)]) == 0


def test_handed_data(tmp_path):
    fit(regress(folder=tmp_path, epochs=1), dataset=torch.randn(60, 4))
    with pytest.raises(ValueError, match="expected --dataset"):
        evaluate(Evaluate(tmp_path))
    inputs, said = load_run_batch(str(tmp_path))
    assert inputs["numbers"].shape == (16, 4)
    assert "passed to fit" in said


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    args = ["--epochs", "2", "--test-every", "2", "--schedule", "inverse-sqrt", "--warmup-steps", "2"]
    assert main(["train", "regression-wide", *args]) == 0
    said = capsys.readouterr().out
    assert "epoch 1/2: train loss " in said
    assert " rows/s" in said
    assert "test loss" not in said.splitlines()[0]
    assert ", test loss " in said.splitlines()[-1]
    folder = Path("runs/regression-wide-16-bn-seed0-epochs2-schedule-inverse-sqrt-warmup-steps2-test-every2")
    assert RunFolder(folder).read_config().hidden == 16


def test_two_tasks_in_one_folder(whole):
    with pytest.raises(ValueError, match=r"task \(was 'regression', now 'classification'\)"):
        fit(Train(dataset="digits", net="mlp-8", folder=whole[0], quiet=True))


def test_a_run_of_the_first_version(tmp_path):
    """Its configuration names no task; nothing of it is touched."""
    config = Train(dataset="digits", net="mlp-8", folder=tmp_path, epochs=1, quiet=True)
    fit(config)
    content = {name: value for name, value in config.to_dict().items() if name != "task"}
    (tmp_path / "config.json").write_text(json.dumps(checksum.add_checksum({**content, "described": {"classes": 10}})))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=r"a run of an earlier version\); choose another --folder"):
        fit(config)
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(OSError, match="no task, like those of earlier versions"):
        load(tmp_path)


def test_no_such_task():
    with pytest.raises(ValueError, match=r"expected one of the tasks classification.* \(got 'cooking'\)"):
        tasks.load_config({"task": "cooking"})
