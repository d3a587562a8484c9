"""The demo, with few epochs."""

import json
import sys

import matplotlib.image
import pytest
import torch
from torch import nn

from whitenorm_lab import demo, digits
from whitenorm_lab.cli import main


def test_demo_trains_every_norm_and_writes_its_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert main(["demo", "--epochs", "3", "--batch-size", "128", "--target", "0.5", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "norm\ttest accuracy\ttraining loss\tepochs to 50%\tms per step\tcondition number\n" in printed
    content = json.loads((tmp_path / "results.json").read_text())
    assert [result["norm"] for result in content["results"]] == ["BN", "GN", "DBN", "IterNorm", "SW", "GW"]
    assert content["versions"]["torch"] == torch.__version__
    for result in content["results"]:
        assert result["norm"] in printed
        assert len(result["train_loss"]) == len(result["test_accuracy"]) == 3
        assert result["train_loss"][-1] < result["train_loss"][0]
        assert result["test_accuracy"][-1] > 0.2
        assert result["ms_per_step"] > 0
        assert result["condition_number"] >= 1
    picture = matplotlib.image.imread(tmp_path / "curves.png")
    assert picture.shape[0] > 300
    assert picture.std() > 0


def test_same_seed_same_numbers():
    train, test = digits.load()
    runs = []
    for _ in range(2):
        result = demo.Result("IterNorm")
        list(demo.train_epochs(result, demo.Demo(epochs=1, batch_size=256), train, test))
        runs.append((result.train_loss, result.test_accuracy, result.condition_number))
    assert runs[0] == runs[1]


def test_index_of_the_last_norm():
    model = demo.build_net(nn.BatchNorm2d)
    norms = [i for i, module in enumerate(model) if isinstance(module, nn.BatchNorm2d)]
    assert norms[-1] == demo.LAST_NORM


def test_condition_number_is_that_of_the_covariance():
    x = torch.randn(500, 3, 4, 4) * torch.tensor([1.0, 2.0, 10.0])[:, None, None]
    assert demo.compute_condition_number(nn.Identity(), x) == pytest.approx(100, rel=0.1)


def test_epochs_to_a_target():
    result = demo.Result("BN", test_accuracy=[0.5, 0.9, 0.8])
    assert result.epochs_to(0.8) == 2
    assert result.epochs_to(0.95) is None


def test_digits_are_complete():
    train, test = digits.load()
    assert len(train.labels) + len(test.labels) == 1797
    assert set(train.labels.tolist()) == set(test.labels.tolist()) == set(range(10))
    assert abs(train.images.mean().item()) < 1e-5
    # A one is narrower than a zero: its outer columns are empty.
    ones, zeros = (train.images[train.labels == digit].mean(0)[0] for digit in (1, 0))
    assert ones[:, 1].mean() < zeros[:, 1].mean()


@pytest.mark.parametrize("arguments", [["--epochs", "0"], ["--batch-size", "5000"]], ids=str)
def test_invalid_settings_are_errors(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["demo", *arguments])
    assert "expected" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_created_is_an_error_before_training(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["demo", "--out", str(tmp_path / "file")]) == 1
    captured = capsys.readouterr()
    assert "file" in captured.err
    assert "IterNorm" not in captured.out


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.delitem(sys.modules, "whitenorm_lab.demo")
    assert main(["demo"]) == 1
    assert "whitenorm-lab demo needs tyro: pip install 'whitenorm-lab'" in capsys.readouterr().err


def test_ctrl_c_exits_without_a_traceback(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run", interrupt)
    assert main(["demo"]) == 130
    assert "Stopped." in capsys.readouterr().err
