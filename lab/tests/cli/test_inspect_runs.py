"""``whitenorm inspect`` on the folder of a training run, which the lab loads."""

import json
import shutil

import pytest

from whitenorm.cli import inspect
from whitenorm.cli import main as whitenorm
from whitenorm_lab import checksum
from whitenorm_lab.cli import main as whitenorm_lab


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    from whitenorm_lab.training import Train, fit

    folder = tmp_path_factory.mktemp("runs") / "digits"
    fit(Train(net="mlp-16", norm="bn", dataset="digits", epochs=1, batch_size=128, folder=folder, quiet=True))
    return folder


def test_a_run_is_inspected_on_its_own_images(run, capsys):
    assert whitenorm(["inspect", str(run)]) == 0
    assert "Measured on training images, 128 × 1 × 8 × 8." in capsys.readouterr().out
    reports = inspect.run(inspect.Inspect(str(run), layer="dbn"))
    assert reports["after"][0].kind == "DecorrelatedBatchNorm"
    # The running statistics are close to those of the training images.
    assert reports["before"][0].drift < 1


def test_a_run_whose_data_are_missing_is_inspected_on_noise(run, tmp_path, capsys):
    folder = shutil.copytree(run, tmp_path / "run")
    config = checksum.verify_checksum(json.loads((folder / "config.json").read_text()))
    config |= {"dataset": "cifar10", "data": str(tmp_path / "no")}
    (folder / "config.json").write_text(json.dumps(checksum.add_checksum(config)))
    assert whitenorm(["inspect", str(folder)]) == 0
    assert "Measured on noise, 128 × 1 × 8 × 8: the run's data cannot be loaded: " in capsys.readouterr().out
    assert whitenorm(["inspect", str(folder), "--shape", "32", "1", "8", "8"]) == 0
    assert "noise" not in capsys.readouterr().out


def test_brackets_and_colons_in_folders_are_printed_unchanged(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    folder = tmp_path / "[bold]x[/b] :smile: [/]"
    assert whitenorm_lab(["demo", "--epochs", "1", "--batch-size", "1000", "--out", str(folder)]) == 0
    assert capsys.readouterr().out.count(str(folder)) == 2
    assert whitenorm_lab(["reproduce", "gw-constraints", "--out", str(folder), "--scale", "smoke"]) == 0
    assert capsys.readouterr().out.count(str(folder)) == 2
    assert whitenorm_lab(["report", "--results", str(folder), "--out", str(folder / "site"), "--scale", "smoke"]) == 0
    assert str(folder / "site") in capsys.readouterr().out
