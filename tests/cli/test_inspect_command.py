"""``whitenorm inspect``: models of libraries, files and training runs, before and after a conversion."""

import json
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

from whitenorm.cli import inspect, main, models

MODELS = """
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
    path.write_text(MODELS)
    return path


def test_before_and_after(file, tmp_path, capsys):
    out = tmp_path / "numbers.json"
    assert main(["inspect", f"{file}:net", "--layer", "iternorm", "--where", "l1", *SHAPE, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "BatchNorm2d" in printed
    assert "with iternorm at l1" in printed
    numbers = json.loads(out.read_text())
    assert numbers["before"][0]["kind"] == "BatchNorm2d"
    assert numbers["after"][0]["kind"] == "IterNorm"
    assert numbers["after"][0]["correlation_after"] < numbers["before"][0]["correlation_after"]


def test_batch_from_a_file(file, tmp_path, capsys):
    torch.save(torch.zeros(4, 3, 8, 8), tmp_path / "batch.pt")
    assert main(["inspect", f"{file}:net", "--data", str(tmp_path / "batch.pt")]) == 0
    assert "the same for all of the batch" in capsys.readouterr().out


def test_a_torchvision_model(capsys):
    pytest.importorskip("torchvision")
    assert main(["inspect", "squeezenet1_0", "--shape", "2", "3", "64", "64"]) == 1
    assert "expected a model with norms (got SqueezeNet" in capsys.readouterr().err


def test_a_timm_model(capsys):
    pytest.importorskip("timm")
    assert main(["inspect", "test_resnet", "--shape", "2", "3", "64", "64"]) == 0
    assert "BatchNorm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:net", "which does not exist"),
        ("{file}:other", "to define 'other' (it does not)"),
        ("{file}:nett", "did you mean net?"),
        ("{file}:number", "to return a model (got int)"),
        ("{file}:half", "to be a model or a function that returns one (got float)"),
        ("{file}:of_width", "to need no arguments (missing a required argument: 'width')"),
    ],
)
def test_errors_of_models_in_files(name, message, file, capsys):
    assert main(["inspect", name.format(file=file)]) == 1
    assert message in capsys.readouterr().err


def test_unknown_names(capsys):
    pytest.importorskip("torchvision")
    pytest.importorskip("timm")
    assert main(["inspect", "no_such_net"]) == 1
    assert "(got 'no_such_net', which neither library has)" in capsys.readouterr().err
    assert main(["inspect", "resnet81"]) == 1
    assert "did you mean resnet18" in capsys.readouterr().err


def test_a_model_in_place_of_a_function(file, capsys):
    assert main(["inspect", f"{file}:model", *SHAPE]) == 0
    assert "BatchNorm2d" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--layer", "iternrm"], "(got 'iternrm'); did you mean iternorm?"),
        (["--layer", "gw", "--where", "s1-b9"], "expected where to be one of"),
        (["--layer", "{file}:narrow"], "expected the function to return a layer for width 8 (got BatchNorm2d for 4)"),
        (["--layer", "{file}:odd"], "expected group_size to divide the 8 channels"),
        (["--layer", "{file}:narow"], "did you mean narrow?"),
    ],
)
def test_an_impossible_conversion_is_refused_before_any_computation(file, option, message, monkeypatch, capsys):
    monkeypatch.setattr(inspect, "inspect", None)
    assert main(["inspect", f"{file}:net", *SHAPE, *(part.format(file=file) for part in option)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_conversion_by_a_function(file, capsys):
    assert main(["inspect", f"{file}:net", *SHAPE, "--layer", f"{file}:of_width"]) == 0
    assert f"with {file}:of_width at all" in capsys.readouterr().out


def test_warnings_of_the_conversion_are_printed(file, capsys):
    assert main(["inspect", f"{file}:tokens", "--shape", "64", "8", "--layer", "iternorm"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "some layers are not as requested" in printed.out
    assert "LayerWhitening stands for it" in printed.out


def test_brackets_and_colons_in_file_names_are_printed_unchanged(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    folder = tmp_path / "[bold]x[/b] :smile: [/]"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text(MODELS)
    out = ["--html", str(folder / "a.html"), "--json", str(folder / "a.json"), "--csv", str(folder / "a.csv")]
    assert main(["inspect", f"{folder}/mine.py:net", *SHAPE, *out]) == 0
    assert capsys.readouterr().out.count(str(folder)) == 4


def test_batches_that_do_not_fit(file, tmp_path, capsys):
    (tmp_path / "junk.pt").write_bytes(b"junk")
    assert main(["inspect", f"{file}:net", "--data", str(tmp_path / "junk.pt")]) == 1
    assert "written by torch.save" in capsys.readouterr().err
    assert main(["inspect", f"{file}:net", "--shape", "2", "5", "8", "8"]) == 1
    assert "by --shape or --data" in capsys.readouterr().err


def test_a_list_of_arguments_and_a_new_output_folder(file, tmp_path):
    torch.save([torch.randn(4, 3, 8, 8)], tmp_path / "list.pt")
    out = tmp_path / "new" / "page.html"
    assert main(["inspect", f"{file}:net", "--data", str(tmp_path / "list.pt"), "--html", str(out)]) == 0
    assert out.exists()


class Runs:
    """A loader of training runs: folders with a file named config.json."""

    @staticmethod
    def is_run(folder):
        return (folder / "config.json").exists()

    @staticmethod
    def load(folder):
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6))

    @staticmethod
    def batch(folder):
        return torch.randn(32, 5), f"Measured on 32 × 5 from {folder.name}."


@pytest.fixture
def use_loaders(monkeypatch):
    def use(*values):
        entries = [EntryPoint("runs", value, "whitenorm.runs") for value in values]
        monkeypatch.setattr(models, "entry_points", lambda group: [entry for entry in entries if entry.group == group])

    return use


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_training_run_is_inspected_on_its_own_batch(folder, use_loaders, capsys):
    use_loaders(f"{__name__}:Runs")
    assert main(["inspect", str(folder), "--layer", "dbn"]) == 0
    printed = capsys.readouterr().out
    assert "Measured on 32 × 5 from run." in printed
    assert "DecorrelatedBatchNorm" in printed
    assert main(["inspect", str(folder), "--shape", "16", "5"]) == 0
    assert "Measured" not in capsys.readouterr().out


def test_a_folder_that_is_not_a_run(tmp_path, use_loaders, capsys):
    use_loaders(f"{__name__}:Runs")
    assert main(["inspect", str(tmp_path)]) == 1
    assert "a folder without a training run" in capsys.readouterr().err


def test_a_run_without_the_lab(folder, use_loaders, capsys):
    use_loaders()
    assert main(["inspect", str(folder)]) == 1
    assert "whitenorm-lab, which reads training runs, is not installed" in capsys.readouterr().err


def test_a_run_with_a_lab_that_cannot_be_imported(folder, use_loaders, capsys):
    use_loaders("no_such_package")
    assert main(["inspect", str(folder)]) == 1
    assert "(No module named 'no_such_package')" in capsys.readouterr().err


def test_the_command_needs_the_inspect_extra_only(file, tmp_path):
    code = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"lightning", "matplotlib", "timm", "torchvision", "whitenorm_lab"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from whitenorm.cli import main
sys.exit(main(sys.argv[1:]))
"""

    files = ["--html", "a.html", "--csv", "a.csv", "--json", "a.json"]
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        code,
        "inspect",
        f"{file}:net",
        *SHAPE,
        "--layer",
        "iternorm",
        *files,
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "IterNorm" in result.stdout
    assert all((tmp_path / name).stat().st_size for name in files[1::2])


def test_a_library_that_cannot_be_imported_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert main(["inspect", "no_such_net"]) == 1
    assert "which no installed library has; pip install timm for more models" in capsys.readouterr().err


def test_a_torchvision_for_another_torch_counts_as_missing(monkeypatch):
    def fail(module):
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(models.importlib, "import_module", fail)
    with pytest.raises(OSError, match="which no installed library has; pip install torchvision timm"):
        models.load_model("resnet18")
