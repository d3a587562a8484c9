"""Stored runs: loading, evaluation, recalibration, names, and errors before anything is written."""

import json
import signal

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

import whitenorm
from lab.tests.helpers.image_sets import write_mnist
from lab.tests.helpers.runs import Stop
from whitenorm_lab import data, tasks
from whitenorm_lab.checksum import add_checksum
from whitenorm_lab.cli import main
from whitenorm_lab.tasks.classification.images import compute_normalization
from whitenorm_lab.tasks.classification.presets import PRESETS
from whitenorm_lab.training import Train, fit, load
from whitenorm_lab.training.command import build_run_name
from whitenorm_lab.training.evaluation import Evaluate, evaluate
from whitenorm_lab.training.folder import AnotherRunError, RunFolder
from whitenorm_lab.training.norm_statistics import count_calibration_examples

OPTIONS = {"net": "cnn-1", "norm": "iternorm", "dataset": "digits", "train_images": 200, "test_images": 100}
OPTIONS |= {"epochs": 2, "batch_size": 50, "quiet": True}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, fit(Train(**OPTIONS, folder=folder))


def test_load(run):
    folder, outcome = run
    torch.manual_seed(3)
    model = load(str(folder))
    assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(3)), "the random state is unchanged"
    assert isinstance(model[1], whitenorm.IterNorm)
    assert not model.training
    stored = torch.load(folder / "weights.pt")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    assert sum(p.numel() for p in model.parameters()) == outcome.parameters


def test_load_from_a_checkpoint(tmp_path):
    with pytest.raises(InterruptedError):
        fit(Train(**OPTIONS, folder=tmp_path), callbacks=[Stop(6)])
    model = load(tmp_path)
    state = torch.load(tmp_path / "checkpoints/step-000000004.ckpt", weights_only=True)["state_dict"]
    assert all(torch.equal(value, state[f"model.{name}"]) for name, value in model.state_dict().items())


def test_missing_options_of_older_runs_have_their_defaults(tmp_path):
    old = {name: value for name, value in Train(**OPTIONS).to_dict().items() if name != "channels_last"}
    folder = RunFolder(tmp_path)
    folder.check_same_config(old, Train(**OPTIONS))
    with pytest.raises(AnotherRunError, match="channels_last \\(was False, now True\\)"):
        folder.check_same_config(old, Train(**OPTIONS, channels_last=True))


def test_channels_last_changes_only_rounding():
    seen = []

    class Look(Callback):
        def on_train_start(self, trainer, module):
            conv = next(part for part in module.model.modules() if isinstance(part, nn.Conv2d))
            seen.append(conv.weight)
            conv.register_forward_hook(lambda conv, inputs, output: seen.extend([*inputs, output]))

    # With one channel, the formats would not differ.
    torch.manual_seed(0)
    split = data.Split(torch.randint(256, (60, 3, 8, 8), dtype=torch.uint8), torch.arange(60) % 4)
    dataset = data.Dataset("mine", split, split, 4)
    options = {**OPTIONS, "norm": "dbn", "group_size": 4, "batch_size": 20, "train_images": None, "test_images": None}
    outcomes = [
        fit(Train(**options, augment=True, channels_last=last), dataset=dataset, callbacks=[Look()] * last)
        for last in (False, True)
    ]
    assert len(seen) > 6
    assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in seen)
    losses = [[epoch.train_loss for epoch in outcome.epochs] for outcome in outcomes]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_load_double(tmp_path):
    fit(Train(**OPTIONS, precision="64", folder=tmp_path))
    assert load(tmp_path)[0].weight.dtype == torch.float64


def test_loading_without_a_run_is_an_error(tmp_path, run):
    with pytest.raises(OSError, match=r"expected a folder of whitenorm-lab train .* no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_bytes((run[0] / "config.json").read_bytes())
    with pytest.raises(OSError, match=r"expected weights\.pt or a checkpoint"):
        load(tmp_path)
    for content in ("[]", "{}", '{"net": "x", "colour": 1}', "{", json.dumps(add_checksum({"colour": 1})), "\udc80"):
        (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
        with pytest.raises(OSError, match="expected"):
            load(tmp_path)


def test_loading_a_passed_model_is_an_error(tmp_path):
    fit(Train(**OPTIONS, folder=tmp_path), model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(ValueError, match="passed to fit"):
        load(tmp_path)


def test_tests_use_recalibrated_statistics():
    """After two short epochs, running statistics still differ from those of the data."""
    options = {"net": "cnn-4", "norm": "iternorm", "dataset": "digits", "epochs": 2, "quiet": True}
    running, recalibrated = (fit(Train(**options, recalibrate=count)) for count in (0, None))
    assert running.train_accuracy == recalibrated.train_accuracy, "training is unaffected"
    assert running.test_accuracy < recalibrated.test_accuracy - 0.1
    assert all(epoch.recalibrate_seconds > 0 for epoch in recalibrated.epochs)
    assert all(epoch.recalibrate_seconds == 0 for epoch in running.epochs)


def test_final_weights_have_the_statistics_of_the_last_test(run):
    folder, outcome = run
    split = data.load("digits").test
    module = load(folder)
    mean, factor = compute_normalization(load_train_images(), "channel")
    images = (split.images[:100].float() - mean) * factor
    with torch.no_grad():
        accuracy = (module(images).argmax(1) == split.labels[:100]).double().mean()
    assert float(accuracy) == outcome.test_accuracy


def load_train_images():
    """Return the training images of the run."""
    return build_loaders(Train(**OPTIONS)).train.split.images


def build_loaders(config):
    """Build the loaders of a run."""
    return tasks.build_task(config).build_loaders(None, lambda: 0, 0, 1)


def test_which_norms_are_recalibrated():
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(ValueError, match="leave --recalibrate out"):
        fit(Train(**{**OPTIONS, "norm": "gn", "recalibrate": 100}))
    assert count_calibration_examples(Train(recalibrate=0), nn.Sequential(whitenorm.IterNorm(4)), 5000) == 0
    assert count_calibration_examples(Train(), model, 5000) == 0
    outcome = fit(Train(**{**OPTIONS, "norm": "bn", "recalibrate": 100}))
    assert outcome.epochs[-1].recalibrate_seconds > 0, "BatchNorm only on request"
    assert fit(Train(**{**OPTIONS, "norm": "bn"})).epochs[-1].recalibrate_seconds == 0


def test_validation_images():
    """They are drawn by the seed and held out of training."""
    options = {**OPTIONS, "train_images": None, "validation_images": 300}
    outcome = fit(Train(**options))
    assert [epoch.step for epoch in outcome.epochs] == [19, 38]
    assert 0 < outcome.validation_accuracy < 1
    assert outcome.epochs[0].validation_loss > outcome.epochs[1].validation_loss
    loaders = build_loaders(Train(**options))
    train, validation = loaders.train.split.images, loaders.tests["validation"].split.images
    assert (len(train), len(validation)) == (997, 300)
    everything = torch.cat([train, validation]).flatten(1)
    images = data.load("digits").train.images.flatten(1)
    assert torch.equal(everything.unique(dim=0), images.unique(dim=0))
    other = build_loaders(Train(**options, seed=1)).tests["validation"].split.images
    assert not torch.equal(validation, other)
    with pytest.raises(ValueError, match="validation_images=300"):
        fit(Train(**{**options, "train_images": 1000}))


def test_one_line_per_epoch_without_bars(capsys):
    fit(Train(**{**OPTIONS, "quiet": False}, progress=False, validation_images=100))
    output = capsys.readouterr().out
    assert output.count("\n") == 2
    assert ", validation " in output
    assert "recalibrated in " in output


def test_evaluate_a_finished_run(run, capsys):
    folder, outcome = run
    assert evaluate(Evaluate(folder))["test"]["accuracy"] == outcome.test_accuracy
    assert evaluate(Evaluate(folder))["test"]["loss"] == outcome.epochs[-1].test_loss
    assert main(["evaluate", str(folder), "--recalibrate", "200", "--batch-size", "50"]) == 0
    assert (
        capsys.readouterr().out
        == f"test: accuracy {outcome.test_accuracy:.2%}, loss {outcome.epochs[-1].test_loss:.4f}\n"
    )


def test_evaluate_an_interrupted_run(tmp_path):
    """The scores are those of the test after the epoch of the newest checkpoint."""
    whole = fit(Train(**OPTIONS, validation_images=60))
    with pytest.raises(InterruptedError):
        fit(Train(**OPTIONS, validation_images=60, folder=tmp_path), callbacks=[Stop(6)])
    scores = evaluate(Evaluate(tmp_path))
    assert scores["test"]["loss"] == whole.epochs[0].test_loss
    assert scores["validation"]["loss"] == whole.epochs[0].validation_loss


def test_evaluate_on_another_data_set(tmp_path, run):
    write_mnist(tmp_path / "MNIST" / "raw", 300, 100)
    write_mnist(tmp_path / "FashionMNIST" / "raw", 60, 40)
    options = {**OPTIONS, "dataset": "mnist", "data": tmp_path, "folder": tmp_path / "run"}
    fit(Train(**options))
    assert set(evaluate(Evaluate(tmp_path / "run", dataset="fashion-mnist"))) == {"test"}
    for changes, words in [({"dataset": "digits"}, "28"), ({"dataset": "imagefolder:x"}, "image folder")]:
        with pytest.raises(ValueError, match=words):
            evaluate(Evaluate(tmp_path / "run", **changes))
    fit(Train(**OPTIONS, folder=tmp_path / "own"), dataset=data.load("digits"))
    with pytest.raises(ValueError, match="expected --dataset"):
        evaluate(Evaluate(tmp_path / "own"))


def test_evaluating_without_a_run_is_an_error(tmp_path, capsys):
    assert main(["evaluate", str(tmp_path)]) == 1
    assert "expected a folder of whitenorm-lab train" in capsys.readouterr().err


@pytest.fixture
def _keyboard():
    """Accept interrupts, even if the shell made this process ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_keyboard")
def test_interrupt_from_the_keyboard(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    class Interrupt(Callback):
        def on_train_batch_start(self, trainer, module, batch, i):
            if trainer.global_step == step:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("whitenorm_lab.training.trainer.build_progress_callbacks", lambda config: [Interrupt()])
    args = ["train", "custom", "--net", "mlp-8", "--dataset", "digits", "--epochs", "2", "--folder", "here"]
    step = 3
    assert main(args) == 130
    assert "before the first checkpoint. The same command starts from the beginning" in capsys.readouterr().err
    step = 12
    assert main(args) == 130
    assert "resumes from here/checkpoints/step-000000010.ckpt" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    step = None
    assert main(args) == 0


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (PRESETS["dbn-resnet"](seed=3), "dbn-resnet-resnet20-dbn-l1-seed3"),
        (
            PRESETS["gw-mlp"](dataset="digits", batch_size=16),
            "gw-mlp-digits-mlp-256-256-256-256-gw-all-seed0-batch-size16",
        ),
        (Train(milestones=(2, 3), data="x", workers=5), "cifar10-resnet20-bn-all-seed0-milestones-2-3"),
        (Train(dataset="imagefolder:/a/b/", net="..", norm="/"), "b-..-bn-all-seed0".replace("bn", "")),
    ],
)
def test_run_names(config, name):
    preset = next((key for key, kind in PRESETS.items() if kind is type(config)), None)
    assert build_run_name(config, preset) == name.replace("--", "-")


def test_long_run_names_are_shortened_and_unique(tmp_path):
    options = {"net": "mlp" + "-1234" * 30}
    names = {build_run_name(Train(**options, lr=lr)) for lr in (0.1, 0.2, 0.3)}
    assert len(names) == 3
    assert max(map(len, names)) <= 120
    assert "/" not in build_run_name(Train(net="x/../../../ESC"))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--net", "resnet5O"], "did you mean resnet50"),
        (["--net", "mpl-16"], "did you mean mlp-16"),
        (["--net", "timm:resnt26d"], "did you mean resnet26d"),
        (["--net", "vgg-a"], "8×8"),
        (["--net", "x/../../../ESC"], "expected a net"),
        (["--batch-size", "5000"], "1297"),
        (["--norm", "gn", "--recalibrate", "50"], "recalibrate"),
    ],
)
def test_errors_before_anything_is_written(args, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "custom", "--dataset", "digits", "--epochs", "1", *args]) == 1
    output = capsys.readouterr().err
    assert words in output
    assert len(output) < 400
    assert list(tmp_path.iterdir()) == [], "nothing is written"
