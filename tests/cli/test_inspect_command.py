"""``whitenorm inspect``: models by name or from a file, before and after a conversion."""

import importlib.util
import json
import shutil
import sys

import pytest
import torch

from whitenorm.cli import inspect as look
from whitenorm.cli import main
from whitenorm_lab import checksum

SMALL = """
from torch import nn
from whitenorm import IterNorm

def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))

def number():
    return 3

def of_width(width):
    return IterNorm(width, 4)

def tokens():
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))

def narrow(width):
    return nn.BatchNorm2d(width // 2)

def odd(width):
    return IterNorm(width, 3)

model = net()
half = number() / 2
"""
SHAPE = ["--shape", "8", "3", "8", "8"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SMALL)
    return path


def test_before_and_after(file, tmp_path, capsys):
    out = tmp_path / "numbers.json"
    arguments = ["--layer", "iternorm", "--where", "l1", "--shape", "8", "3", "8", "8", "--json", str(out)]
    assert main(["inspect", f"{file}:net", *arguments]) == 0
    printed = capsys.readouterr().out
    assert "BatchNorm2d" in printed
    assert "with iternorm at l1" in printed
    numbers = json.loads(out.read_text())
    assert numbers["before"][0]["kind"] == "BatchNorm2d"
    assert numbers["after"][0]["kind"] == "IterNorm"
    assert numbers["after"][0]["correlation_after"] < numbers["before"][0]["correlation_after"]


def test_given_data(file, tmp_path, capsys):
    torch.save(torch.zeros(4, 3, 8, 8), tmp_path / "batch.pt")
    assert main(["inspect", f"{file}:net", "--data", str(tmp_path / "batch.pt")]) == 0
    assert "the same for all of the batch" in capsys.readouterr().out


@pytest.mark.parametrize(("library", "name"), [("torchvision", "squeezenet1_0"), ("timm", "test_resnet")])
def test_models_by_name(library, name, capsys):
    pytest.importorskip(library)
    code = main(["inspect", name, "--shape", "2", "3", "64", "64"])
    printed = capsys.readouterr()
    if library == "torchvision":
        assert code == 1
        assert "expected a model with norms" in printed.err
    else:
        assert code == 0
        assert "BatchNorm" in printed.out


def test_errors(file, capsys):
    for name, words in [
        ("no_such_net", "neither library"),
        ("nowhere.py:net", "is not there"),
        (f"{file}:other", "has none of that name"),
        (f"{file}:nett", "did you mean net?"),
        (f"{file}:number", "to return a model (got int)"),
        (f"{file}:half", "to be a model or a function that returns one (got float)"),
        (f"{file}:of_width", "to need no arguments (missing a required argument: 'width')"),
        ("resnet81", "did you mean resnet18"),
    ]:
        assert main(["inspect", name]) == 1
        assert words in capsys.readouterr().err


def test_a_model_in_place_of_a_function(file, capsys):
    assert main(["inspect", f"{file}:model", *SHAPE]) == 0
    assert "BatchNorm2d" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (["--layer", "iternrm"], "(got 'iternrm'); did you mean iternorm?"),
        (["--layer", "gw", "--where", "s1-b9"], "expected where to be one of"),
        (["--layer", "{file}:narrow"], "expected the function to return a layer for width 8 (got BatchNorm2d for 4)"),
        (["--layer", "{file}:odd"], "expected group_size to divide the 8 channels"),
        (["--layer", "{file}:narow"], "did you mean narrow?"),
    ],
)
def test_a_conversion_that_cannot_be_is_refused_before_anything_is_computed(file, option, words, monkeypatch, capsys):
    monkeypatch.setattr(look, "inspect", None)
    assert main(["inspect", f"{file}:net", *SHAPE, *(part.format(file=file) for part in option)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_conversion_by_a_function(file, capsys):
    assert main(["inspect", f"{file}:net", *SHAPE, "--layer", f"{file}:of_width"]) == 0
    assert f"with {file}:of_width at all" in capsys.readouterr().out


def test_what_is_not_as_asked_is_said_in_plain_words(file, capsys):
    assert main(["inspect", f"{file}:tokens", "--shape", "64", "8", "--layer", "iternorm"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "some layers are not what was asked for" in printed.out
    assert "LayerWhitening stands for it" in printed.out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    from whitenorm_lab.training import Train, fit

    folder = tmp_path_factory.mktemp("runs") / "digits"
    fit(Train(net="mlp-16", norm="bn", dataset="digits", epochs=1, batch_size=128, folder=folder, quiet=True))
    return folder


def test_a_run_with_its_own_images(trained, capsys):
    assert main(["inspect", str(trained)]) == 0
    printed = capsys.readouterr().out
    assert "Measured on training images, 128 × 1 × 8 × 8." in printed
    reports = look.run(look.Inspect(str(trained), layer="dbn"))
    assert reports["after"][0].kind == "DecorrelatedBatchNorm"
    # Of images it was trained on, the population is near.
    assert reports["before"][0].drift < 1


def test_a_run_whose_data_are_not_there(trained, tmp_path, capsys):
    folder = shutil.copytree(trained, tmp_path / "run")
    config = checksum.unpacked(json.loads((folder / "config.json").read_text()))
    config |= {"dataset": "cifar10", "data": str(tmp_path / "no")}
    (folder / "config.json").write_text(json.dumps(checksum.packed(config)))
    assert main(["inspect", str(folder)]) == 0
    assert "Measured on noise, 128 × 1 × 8 × 8: the run's data cannot be loaded: " in capsys.readouterr().out
    assert main(["inspect", str(folder), "--shape", "32", "1", "8", "8"]) == 0
    assert "noise" not in capsys.readouterr().out


def test_a_folder_that_is_no_run(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 1
    assert "has no config.json" in capsys.readouterr().err


def test_brackets_and_colons_in_names_are_shown_as_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    folder = tmp_path / "[bold]x[/b] :smile: [/]"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(SMALL)
    out = ["--html", str(folder / "a.html"), "--json", str(folder / "a.json"), "--csv", str(folder / "a.csv")]
    assert main(["inspect", f"{folder}/mine.py:net", *SHAPE, *out]) == 0
    assert capsys.readouterr().out.count(str(folder)) == 4
    assert main(["demo", "--epochs", "1", "--batch-size", "1000", "--out", str(folder)]) == 0
    assert capsys.readouterr().out.count(str(folder)) == 2
    results = ["--out", str(folder), "--scale", "smoke"]
    assert main(["reproduce", "gw-constraints", *results]) == 0
    assert capsys.readouterr().out.count(str(folder)) == 2
    assert main(["report", "--results", str(folder), "--out", str(folder / "site"), "--scale", "smoke"]) == 0
    assert str(folder / "site") in capsys.readouterr().out


def test_bad_batches(file, tmp_path, capsys):
    (tmp_path / "junk.pt").write_bytes(b"junk")
    assert main(["inspect", f"{file}:net", "--data", str(tmp_path / "junk.pt")]) == 1
    assert "as torch.save writes it" in capsys.readouterr().err
    assert main(["inspect", f"{file}:net", "--shape", "2", "5", "8", "8"]) == 1
    assert "by --shape or --data" in capsys.readouterr().err
    torch.save([torch.randn(4, 3, 8, 8)], tmp_path / "list.pt")
    out = tmp_path / "new" / "page.html"
    assert main(["inspect", f"{file}:net", "--data", str(tmp_path / "list.pt"), "--html", str(out)]) == 0
    assert out.exists()


def test_a_library_that_is_not_installed_is_named(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None if name == "timm" else real(name, *rest))
    assert main(["inspect", "no_such_net"]) == 1
    assert "no library here knows: without timm, which pip install timm adds" in capsys.readouterr().err


def test_a_run_without_the_lab_names_the_extra(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "whitenorm_lab.training", None)
    assert main(["inspect", str(tmp_path)]) == 1
    assert "pip install 'whitenorm[lab]'" in capsys.readouterr().err


def test_the_extra_that_is_missing_is_inspect(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    assert main(["inspect", "resnet18"]) == 1
    assert "whitenorm inspect needs tyro, which comes with the inspect extra" in capsys.readouterr().err
