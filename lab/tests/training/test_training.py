"""whitenorm-lab train: results that do not depend on interruptions and processes, and clear errors."""

import csv
import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import whitenorm
from lab.tests.helpers.runs import Stop, list_numbers
from whitenorm_lab import data, nets
from whitenorm_lab.cli import main
from whitenorm_lab.tasks.classification.presets import PRESETS
from whitenorm_lab.training import DivergenceError, Train, fit
from whitenorm_lab.training.checkpoints import list_checkpoints
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.norm_statistics import synchronize_
from whitenorm_lab.training.optimization import build_optimizer, compute_lr_factor

# All kinds of randomness: order, crops, mixup, dropout. 3 steps per epoch.
OPTIONS = {
    "net": "wrn-10-1",
    "norm": "dbn",
    "where": "l1",
    "dataset": "digits",
    "dropout": 0.3,
    "augment": True,
    "mixup": 0.4,
    "label_smoothing": 0.1,
    "schedule": "cosine",
    "train_images": 100,
    "test_images": 61,
    "batch_size": 32,
    "epochs": 3,
    "quiet": True,
}
STEPS = 3


def has_same_weights(a, b):
    a, b = (torch.load(folder / "weights.pt") for folder in (a, b))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Folder and result of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, fit(Train(**OPTIONS, folder=folder))


def test_learns_without_output_and_files(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    outcome = fit(Train(net="mlp-64-64", norm="iternorm", dataset="digits", epochs=3, batch_size=64, quiet=True))
    assert outcome.test_accuracy > 0.8
    assert [epoch.step for epoch in outcome.epochs] == [20, 40, 60]
    assert outcome.epochs[0].examples_per_second > 0
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_folder_has_results_checkpoints_and_logs(whole_run):
    folder, outcome = whole_run
    assert RunFolder(folder).read_result() == outcome
    assert fit(Train(**OPTIONS, folder=folder)) == outcome, "a finished run is not trained again"
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == [
        "step-000000006.ckpt",
        "step-000000009.ckpt",
    ]
    rows = list(csv.DictReader(next(folder.glob("logs/csv/*/metrics.csv")).read_text().splitlines()))
    assert [float(row["train_loss"]) for row in rows] == [epoch.train_loss for epoch in outcome.epochs]
    assert next(folder.glob("logs/tensorboard/*/events*")).stat().st_size > 0
    assert not list(folder.rglob("*.partial"))


def test_results_depend_only_on_the_seed(whole_run):
    _, outcome = whole_run
    again = fit(Train(**OPTIONS))
    assert list_numbers(again) == list_numbers(outcome)
    assert list_numbers(fit(Train(**OPTIONS, seed=1))) != list_numbers(outcome)


@pytest.mark.parametrize("step", [STEPS, STEPS + 2, 2 * STEPS])
def test_resumes_from_the_previous_epoch(whole_run, tmp_path, step):
    with pytest.raises(InterruptedError):
        fit(Train(**OPTIONS, folder=tmp_path), callbacks=[Stop(step)])
    assert not (tmp_path / "outcome.json").exists()
    assert list_numbers(fit(Train(**OPTIONS, folder=tmp_path))) == list_numbers(whole_run[1])
    assert has_same_weights(tmp_path, whole_run[0])


def test_run_stopped_after_the_last_step_finishes(whole_run, tmp_path):
    outcome = fit(Train(**OPTIONS, folder=tmp_path))
    (tmp_path / "outcome.json").unlink()
    assert list_numbers(fit(Train(**OPTIONS, folder=tmp_path))) == list_numbers(outcome)
    assert has_same_weights(tmp_path, whole_run[0])


def test_truncated_checkpoint_is_renamed(whole_run, tmp_path, capsys):
    with pytest.raises(InterruptedError):
        fit(Train(**OPTIONS, folder=tmp_path), callbacks=[Stop(7)])
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:-1000])
    outcome = fit(Train(**{**OPTIONS, "quiet": False}, folder=tmp_path))
    output = capsys.readouterr().out
    assert f"{newest} is not used: its checksum does not match. It is renamed to {newest.name}.damaged1." in output
    assert "Resuming from" in output
    assert "step-000000003" in output
    assert list_numbers(outcome) == list_numbers(whole_run[1])
    assert has_same_weights(tmp_path, whole_run[0])


def test_full_disk_is_an_error(whole_run, tmp_path, monkeypatch):
    written = []
    sync = os.fsync

    def full(file):
        written.append(file)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="run the same command again") as error:
        fit(Train(**OPTIONS, folder=tmp_path))
    monkeypatch.undo()
    assert error.value.errno == errno.ENOSPC
    assert "No space left" in str(error.value)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000000003.ckpt"]
    assert list_numbers(fit(Train(**OPTIONS, folder=tmp_path))) == list_numbers(whole_run[1])


def test_another_configuration_in_the_same_folder_is_an_error(whole_run):
    with pytest.raises(ValueError, match=r"epochs \(was 3, now 4\), lr \(was 0.1, now 0.5\)"):
        fit(Train(**{**OPTIONS, "epochs": 4}, lr=0.5, folder=whole_run[0]))


def test_divergence_is_an_error(tmp_path):
    class InsertNaN(Callback):
        def on_train_batch_start(self, trainer, module, batch, i):
            if trainer.global_step == 4:
                nn.init.constant_(module.model.classifier.bias, float("nan"))

    with pytest.raises(
        DivergenceError, match=r"loss is nan at step 5, with learning rate 0\.\d+; use a lower"
    ) as error:
        fit(Train(**OPTIONS, folder=tmp_path), callbacks=[InsertNaN()])
    assert [epoch.step for epoch in error.value.result.epochs] == [3]
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-000000003.ckpt"]
    state = torch.load(list_checkpoints(tmp_path / "checkpoints")[0], weights_only=True)["state_dict"]
    assert all(value.isfinite().all() for value in state.values() if value.is_floating_point())


def test_steps_budget_and_sparse_tests():
    outcome = fit(Train(net="mlp-8", dataset="digits", epochs=5, steps=25, test_every=2, batch_size=128, quiet=True))
    assert [epoch.step for epoch in outcome.epochs] == [10, 20, 25]
    assert [epoch.test_accuracy is None for epoch in outcome.epochs] == [True, False, False]


def test_all_images_at_once_and_no_test_images():
    split = data.load("digits").train
    faces = data.Dataset("faces", split, data.Split(split.images[:0], split.labels[:0]), 10)
    config = Train(net="mlp-8", optimizer="adam", lr=0.01, batch_size=0, epochs=3, normalize="pixel", quiet=True)
    outcome = fit(config, dataset=faces)
    assert [epoch.step for epoch in outcome.epochs] == [1, 2, 3]
    assert outcome.test_accuracy is None
    assert outcome.epochs[2].train_loss < outcome.epochs[0].train_loss


def test_trains_a_passed_model():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    before = model[1].weight.clone()
    assert fit(Train(dataset="digits", epochs=1, quiet=True), model=model).parameters == 650
    assert not torch.equal(model[1].weight, before)


@pytest.mark.parametrize("precision", ["bf16-mixed", "64"])
def test_precision(precision):
    outcome = fit(Train(net="cnn-1", norm="iternorm", dataset="digits", steps=3, precision=precision, quiet=True))
    assert outcome.test_accuracy is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"net": "resnet7"}, "6n"),
        ({"norm": "whiten"}, "iternorm"),
        ({"where": "last", "norm": "dbn"}, "l1"),
        ({"dataset": "cifar11"}, "digits"),
        ({"batch_size": 2000}, "1297"),
        ({"train_images": 2000}, "1297"),
        ({"batch_size": 1}, "batch_size"),
        ({"milestones": (3, 2)}, "rising"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"epochs": 0}, "epochs"),
        ({"sync": True}, "torchrun"),
        ({"accelerator": "cpu", "precision": "16-mixed"}, "bf16-mixed"),
    ],
)
def test_wrong_options_are_errors(options, words):
    with pytest.raises(ValueError, match="expected") as error:
        fit(Train(**{"dataset": "digits", "net": "mlp-8", "quiet": True, **options}))
    assert words in str(error.value)


def test_wrong_number_of_classes():
    with pytest.raises(ValueError, match="expected a net with 10 outputs"):
        fit(Train(dataset="digits", mixup=0.2, quiet=True), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 12)))


@pytest.mark.slow
def test_two_processes_match_one(tmp_path):
    """With synchronized statistics, and test images that do not divide evenly."""
    options = {"net": "cnn-2", "norm": "iternorm", "dataset": "digits", "augment": True, "epochs": 2}
    options |= {"train_images": 300, "test_images": 61, "batch_size": 64}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if name != "augment"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "whitenorm_lab", "train", "custom", "--augment", "--sync", f"--folder={tmp_path}", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, check=False, capture_output=True, env=environment)
    assert process.returncode == 0, process.stderr.decode()
    assert process.stdout.decode().count("epoch 2/2") == 1
    outcome = RunFolder(tmp_path).read_result()
    alone = fit(Train(**options, quiet=True))
    for ours, theirs in zip(list_numbers(outcome), list_numbers(alone), strict=True):
        assert ours[:-1] == pytest.approx(theirs[:-1], rel=1e-4)
        assert ours[-1] == pytest.approx(theirs[-1], rel=1e-4)


def test_synchronizing_batchnorm_on_cpus_is_an_error():
    with pytest.raises(ValueError, match="SyncBatchNorm runs on GPUs only"):
        synchronize_(nets.build("cnn-1", 10), torch.device("cpu"))


def test_schedules():
    def rates(**options):
        return [compute_lr_factor(Train(**options), step, 10, 100) for step in (0, 9, 10, 55, 99)]

    assert rates(schedule="constant") == [1, 1, 1, 1, 1]
    assert rates(schedule="every", every=10, factor=0.5) == [1, 1, 0.5, 0.5**5, 0.5**9]
    assert rates(schedule="step", milestones=(1, 5), factor=0.2) == pytest.approx([1, 1, 0.2, 0.04, 0.04])
    assert rates(schedule="cosine", warmup=1) == pytest.approx([0.1, 1, 1, 0.5, 0.0003], abs=1e-4)
    assert rates(schedule="poly") == pytest.approx([(1 - step / 100) ** 0.9 for step in (0, 9, 10, 55, 99)])
    assert rates(schedule="poly", power=1, warmup_steps=10) == pytest.approx([0.1, 1, 1, 0.5, 1 / 90])
    # A warm-up of 10 steps, then the inverse square root of the number of steps.
    inverse = [0.1, 1, (10 / 11) ** 0.5, (10 / 56) ** 0.5, 0.1**0.5]
    assert rates(schedule="inverse-sqrt", warmup_steps=10) == pytest.approx(inverse)


def test_optimizers():
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": weights[:1]}, {"params": weights[1:], "lr": 0.5, "weight_decay": 0.0}]
    for name, kind in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        optimizer = build_optimizer(Train(optimizer=name, lr=0.1, weight_decay=0.2, betas=(0.8, 0.9)), groups)
        assert type(optimizer) is kind
        assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [(0.1, 0.2), (0.5, 0.0)]
        assert optimizer.param_groups[0].get("betas", (0.8, 0.9)) == (0.8, 0.9)


def test_clipped_gradients():
    """The length of a step of plain SGD is at most lr times the limit."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    before = [value.detach().clone() for value in model.parameters()]
    fit(Train(dataset="digits", steps=1, lr=1.0, clip=1e-3, momentum=0.0, quiet=True), model=model)
    moved = sum(float((a.detach() - b).square().sum()) for a, b in zip(model.parameters(), before, strict=True)) ** 0.5
    assert moved == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_state_command_and_cost(name):
    """The docstring has the expected result, the command and the right cost; the net has the norm."""
    text, config = PRESETS[name].__doc__, PRESETS[name]()
    assert "Expected:" in text
    assert re.search(rf"whitenorm[-_]lab train {name}\b", text.split("Command:")[1])
    sets = {"cifar10": ((3, 32, 32), 10, 50_000), "mnist": ((1, 28, 28), 10, 60_000)}
    shape, classes, images = sets.get(config.dataset, ((3, 224, 224), 1000, 1_281_167))
    with torch.device("meta"):
        net = nets.build(config.net, classes, shape=shape, width=config.width).eval()
        with FlopCounterMode(display=False) as counter:
            net(torch.empty(1, *shape))
        net = nets.place_(net, config.norm, config.where, **config.norm_options())
    assert any(type(module).__module__.startswith("whitenorm.layers") for module in net.modules())
    stated = float(re.search(r"Cost: ([\d.]+) PFLOPs", text)[1])
    assert 3 * counter.get_total_flops() * images * config.epochs / 1e15 == pytest.approx(stated, rel=0.02)


def test_presets_have_the_papers_options():
    """DBN-scale has γ only, DBN's VGG LeCun's initialization, WRN dropout; SW uses ZCA, BW_Σ Newton."""
    for name in ("dbn-resnet", "dbn-wrn", "dbn-imagenet"):
        assert PRESETS[name]().norm_options() == {"bias": False}
    assert PRESETS["dbn-resnet"](affine=False).norm_options() == {"affine": False}
    assert [PRESETS[f"dbn-{name}"]().init for name in ("vgg", "deep", "rate", "resnet")] == ["lecun"] * 3 + ["he"]
    assert [PRESETS[name]().dropout for name in ("dbn-wrn", "iternorm-wrn")] == [0.3, 0.3]
    assert [PRESETS[name]().norm_options() for name in ("sw-resnet", "sw-imagenet")] == [{"solver": "zca"}] * 2
    for name in ("iternorm-wrn", "iternorm-imagenet", "gw-imagenet", "gw-mlp"):
        assert PRESETS[name]().norm_options() == {}
    assert PRESETS["gw-imagenet"](norm="bw-sigma").norm_options() == {"solver": "newton"}
    assert Train(norm="bw-sigma", solver="zca").norm_options() == {"solver": "zca"}
    for name in ("bw-sigma", "gw", "iternorm"):
        net = nets.build("cnn-1", 3, name, norm_options=Train(norm=name).norm_options())
        assert net[1].solver.steps == 5


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(data.ROOT_VARIABLE, raising=False)
    assert main(["train", "custom", "--net", "mlp-8", "--dataset", "digits", "--epochs", "2", "--norm", "gw"]) == 0
    output = capsys.readouterr().out
    assert "epoch 2/2: train" in output
    assert "0:00:00 left" in output
    assert Path("runs/digits-mlp-8-gw-all-seed0-epochs2/outcome.json").exists()
    assert main(["train", "dbn-resnet", "--epochs", "1"]) == 1
    assert "cs.toronto.edu" in capsys.readouterr().err


def test_progress_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    fit(Train(net="mlp-8", dataset="digits", epochs=2))
    output = capsys.readouterr().out
    assert "epoch 2/2: train" in output
    assert "Epoch 1/1" in output, "Lightning's bar counts epochs from 0"


def test_preset_with_its_norm_on_digits():
    config = PRESETS["dbn-resnet"](net="resnet8", dataset="digits", epochs=1, quiet=True)
    model = nets.build("resnet8", 10, config.norm, config.where, shape=(1, 8, 8))
    assert isinstance(model.norm, whitenorm.DecorrelatedBatchNorm)
    assert fit(config).config["where"] == "l1"
