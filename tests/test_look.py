"""``whitenorm inspect``: models by name or from a file, before and after a conversion."""

import json

import pytest
import torch

from whitenorm.cli import main

SMALL = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))

def number():
    return 3
"""


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
    assert "inf" in capsys.readouterr().out


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
        (f"{file}:number", "to return a model (got int)"),
    ]:
        assert main(["inspect", name]) == 1
        assert words in capsys.readouterr().err


def test_bad_batches(file, tmp_path, capsys):
    (tmp_path / "junk.pt").write_bytes(b"junk")
    assert main(["inspect", f"{file}:net", "--data", str(tmp_path / "junk.pt")]) == 1
    assert "as torch.save writes it" in capsys.readouterr().err
    assert main(["inspect", f"{file}:net", "--shape", "2", "5", "8", "8"]) == 1
    assert "pass --shape or --data" in capsys.readouterr().err
    torch.save([torch.randn(4, 3, 8, 8)], tmp_path / "list.pt")
    out = tmp_path / "new" / "page.html"
    assert main(["inspect", f"{file}:net", "--data", str(tmp_path / "list.pt"), "--html", str(out)]) == 0
    assert out.exists()
