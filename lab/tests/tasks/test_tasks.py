"""A task is one folder: the training program works with a small task in another folder."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

import whitenorm
from lab.tests.helpers.runs import Stop, list_numbers
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
def _add_task_folder():
    """Add the folder of the tests' task to the package of tasks."""
    tasks.__path__.append(str(Path(__file__).parent / "other_tasks"))
    importlib.reload(command)
    yield
    tasks.__path__.pop()
    for name in [name for name in sys.modules if name.startswith("whitenorm_lab.tasks.regression")]:
        del sys.modules[name]
    importlib.reload(command)


def build_config(**options):
    return tasks.list_commands("regression")["regression"](**{**OPTIONS, **options})


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, fit(build_config(folder=folder))


def test_learns(whole_run):
    folder, outcome = whole_run
    assert [epoch.step for epoch in outcome.epochs] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert outcome.latest("train_loss") < 0.7 * outcome.epochs[0].train_loss
    assert outcome.latest("test_worst") >= outcome.latest("test_loss") > 0
    assert outcome.latest("test_accuracy") is None
    assert outcome.description == {"inputs": 4, "range": [-1, 1]}
    assert RunFolder(folder).read_result() == outcome
    assert json.loads((folder / "config.json").read_text())["task"] == "regression"
    assert len((folder / "outputs.txt").read_text().splitlines()) == 3


@pytest.mark.parametrize("step", [4, 2 * STEPS])
def test_resumes_to_the_same_bits(whole_run, tmp_path, step):
    config = build_config(folder=tmp_path, checkpoint_steps=2)
    with pytest.raises(InterruptedError):
        fit(config, callbacks=[Stop(step)])
    assert list_numbers(fit(config)) == list_numbers(whole_run[1])
    a, b = (torch.load(folder / "weights.pt") for folder in (tmp_path, whole_run[0]))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert (tmp_path / "outputs.txt").read_text() == (whole_run[0] / "outputs.txt").read_text()


def test_networks_of_the_task_are_neither_stored_nor_trained(whole_run):
    checkpoint = checksum.read_archive(list_checkpoints(whole_run[0] / "checkpoints")[-1])
    assert {name.split(".")[0] for name in checkpoint["state_dict"]} == {"model"}
    assert len(checkpoint["optimizer_states"][0]["param_groups"]) == 2
    task = tasks.build_task(build_config())
    assert not any(module.training for module in task.train().modules())


def test_load_evaluate_and_inspect(whole_run, capsys):
    folder, outcome = whole_run
    assert isinstance(load(folder).layers[1], whitenorm.IterNorm)
    assert evaluate(Evaluate(folder)) == outcome.epochs[-1].tests
    assert main(["evaluate", str(folder)]) == 0
    last = outcome.epochs[-1].tests["test"]
    assert capsys.readouterr().out == f"test: loss {last['loss']:.4f}, worst {last['worst']:.4f}\n"
    for options, words in [({"test_images": 3}, "no --test-images"), ({"dataset": "x"}, "expected wave")]:
        with pytest.raises(ValueError, match=words):
            evaluate(Evaluate(folder, **options))
    inputs, output = load_run_batch(str(folder))
    assert set(inputs) == {"numbers", "scale"}
    assert output == "Measured on training rows, 4 × 4 and 1."
    assert whitenorm_main(["inspect", str(folder)]) == 0


def test_passed_data(tmp_path):
    fit(build_config(folder=tmp_path, epochs=1), dataset=torch.randn(60, 4))
    with pytest.raises(ValueError, match="expected --dataset"):
        evaluate(Evaluate(tmp_path))
    inputs, output = load_run_batch(str(tmp_path))
    assert inputs["numbers"].shape == (16, 4)
    assert "passed to fit" in output


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    args = ["--epochs", "2", "--test-every", "2", "--schedule", "inverse-sqrt", "--warmup-steps", "2"]
    assert main(["train", "regression-wide", *args]) == 0
    output = capsys.readouterr().out
    assert "epoch 1/2: train loss " in output
    assert " rows/s" in output
    assert "test loss" not in output.splitlines()[0]
    assert ", test loss " in output.splitlines()[-1]
    folder = Path("runs/regression-wide-16-bn-seed0-epochs2-schedule-inverse-sqrt-warmup-steps2-test-every2")
    assert RunFolder(folder).read_config().hidden == 16


def test_another_task_in_the_same_folder_is_an_error(whole_run):
    with pytest.raises(ValueError, match=r"task \(was 'regression', now 'classification'\)"):
        fit(Train(dataset="digits", net="mlp-8", folder=whole_run[0], quiet=True))


def test_run_of_the_first_version_is_an_error(tmp_path):
    """Its configuration names no task; none of its files change."""
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


def test_unknown_task_is_an_error():
    with pytest.raises(ValueError, match=r"expected one of the tasks classification.* \(got 'cooking'\)"):
        tasks.load_config({"task": "cooking"})
