"""``whitenorm gpu`` and the choice of kernels, with a pretended GPU."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.roofline.cards import CARDS
from whitenorm import cli
from whitenorm.cli.gpu import check, command
from whitenorm.cli.gpu.agreement import Row
from whitenorm.cli.gpu.cases import CASES
from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.ops import dispatch, verified_gpus

CUDA = torch.device("cuda", 0)


def test_use_kernels_restores_the_mode():
    before = dispatch._mode
    with use_kernels("torch"):
        assert dispatch._mode == "torch"
        with pytest.raises(ValueError, match="one of"), use_kernels("cuda"):
            pass
    assert dispatch._mode == before


class OnCuda:
    """The attributes of a CUDA tensor that the choice of kernels reads."""

    is_cuda, is_meta, dtype, device = True, False, torch.float32, CUDA

    def numel(self):
        return 1


def test_auto_uses_triton_on_verified_gpus(gpu_record, monkeypatch):
    monkeypatch.setattr(dispatch, "Tensor", OnCuda)
    dispatch._suggest_verifying.cache_clear()
    with use_kernels("auto"):
        with pytest.warns(UserWarning, match="whitenorm gpu"):
            assert not dispatch._takes_triton(OnCuda())
        # Warned once.
        assert not dispatch._takes_triton(OnCuda())
        verified_gpus.record(CUDA, passed=True)
        assert dispatch._takes_triton(OnCuda())
        assert not dispatch._takes_triton(torch.ones(3))
        with use_kernels("torch"):
            assert dispatch.choose_kernels(OnCuda(), None, 4) is dispatch.TORCH


@pytest.mark.parametrize(
    ("mode", "words"), [("", ""), ("torch", ""), ("fast", "expected WHITENORM_KERNELS to be one of")]
)
def test_the_environment_variable(mode, words):
    code = "import whitenorm; from whitenorm.ops import dispatch; print(dispatch._mode)"
    environment = {**os.environ, "WHITENORM_KERNELS": mode}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (result.returncode == 0, result.stdout) == (not words, "" if words else f"{mode or 'auto'}\n"), result.stderr
    assert words in result.stderr


def test_without_a_card(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert cli.main(["gpu"]) == 1
    assert "expected a CUDA device (got none)" in capsys.readouterr().err
    assert cli.main(["gpu", "--device", "cpu"]) == 1
    assert "(got cpu; 0 found)" in capsys.readouterr().err


def test_without_triton(gpu_record, capsys, monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["gpu"]) == 1
    assert "expected Triton to be installed (got none)" in capsys.readouterr().err


def test_the_command_needs_no_extra():
    """It imports neither numpy nor the lab's packages."""
    code = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"matplotlib", "numpy", "rich", "tyro", "torchvision", "lightning"}:
            raise ModuleNotFoundError(f"refused: {name}", name=name)
sys.meta_path.insert(0, Refuse())
import torch
torch.cuda.device_count = lambda: 0
from whitenorm.cli import main
sys.exit(main(["gpu"]))
"""
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert (result.returncode, "expected a CUDA device" in result.stderr) == (1, True), result.stderr


def test_the_interpreter_verifies_nothing(gpu_record, capsys, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert cli.main(["gpu"]) == 1
    assert "(got TRITON_INTERPRET=1" in capsys.readouterr().err


@pytest.fixture
def report(tmp_path, monkeypatch):
    """A path for the report, which describes a pretended GPU."""
    monkeypatch.setattr(command, "describe_machine", lambda device: {"gpu": "NVIDIA A100-SXM4-80GB"})
    return tmp_path / "report.json"


def replace_child_code(monkeypatch, code):
    """Let the child processes run this code."""
    monkeypatch.setattr(check, "build_command", lambda *_: [sys.executable, "-c", code])


AGREES = f"import json; print('a line of others'); print(json.dumps([{list(Row('IterNorm', 'output', 1e-6, 2e-4))}]))"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended by SIGSEGV"),
        ("raise RuntimeError('an illegal memory access')", "RuntimeError: an illegal memory access"),
        ("import time; time.sleep(60)", "no answer within 1 s"),
        ('print(\'[["IterNorm", "output", 0.5, 2e-4]]\')', "IterNorm: output is off by 5.0e-01 (allowed 2e-04)"),
        ('print(\'[["IterNorm", "output", NaN, 2e-4]]\')', "output is off by nan"),
        ("print('[]')", "nothing was compared"),
        ("print('3')", "exit code 0"),
        ("", "exit code 0"),
    ],
)
def test_a_check_that_does_not_pass(gpu_record, report, monkeypatch, capsys, code, words):
    verified_gpus.record(CUDA, passed=True)
    replace_child_code(monkeypatch, code)
    assert cli.main(["gpu", "--limit", "1" if "sleep" in code else "60", "--report", str(report)]) == 1
    printed = capsys.readouterr().out
    assert words in printed
    assert "Not passed" in printed
    assert "compute-sanitizer --tool memcheck python -m whitenorm.cli.gpu.agreement cuda:0" in printed
    values = json.loads(report.read_text())
    assert not values["passed"]
    assert any(words in line for line in values["lines"])
    assert values["seconds"] is None
    assert not verified_gpus.is_verified(CUDA)


def test_a_check_that_passes(gpu_record, report, monkeypatch, capsys):
    replace_child_code(monkeypatch, AGREES)
    monkeypatch.setattr(command, "measure_bandwidth", lambda device: 1.73e11)
    monkeypatch.setattr(command, "measure_step", lambda *_: 1e-3)
    assert cli.main(["gpu", "--report", str(report)]) == 0
    printed = capsys.readouterr().out
    assert f"All results are in {report}." in printed
    values = json.loads(report.read_text())
    assert values["passed"]
    assert values["rows"][0] == Row("IterNorm", "output", 1e-6, 2e-4)._asdict()
    assert values["seconds"]["IterNorm"] == {"norm": 1e-3, "torch": 1e-3, "triton": 1e-3}
    fields = (Path(__file__).parents[2] / "benchmarks" / "results" / "gpu" / "README.md").read_text()
    assert all(f"| `{field}` |" in fields for field in values)
    assert "float32, contiguous: 1 agree, at most 1.0e-06 off (allowed 2e-04)" in printed
    assert f"recorded in {gpu_record}; undo it with: whitenorm gpu --forget" in printed
    assert "A copy moves 173 GB/s." in printed
    assert re.search(r"IterNorm( +1\.00){3}\n", printed)
    assert verified_gpus.is_verified(CUDA)
    assert cli.main(["gpu", "--forget"]) == 0
    assert not verified_gpus.is_verified(CUDA)


@pytest.mark.parametrize("part", [check.PARTS[0], check.PARTS[-1]], ids=lambda part: part.module.split(".")[-1])
def test_the_command_of_the_child_processes(part):
    args = check.build_command(CUDA, part)
    assert args[1:] == ["-m", part.module, "cuda:0", *part.arguments]
    result = subprocess.run([*args[:3], "--help"], capture_output=True, text=True, check=True)
    assert all(argument in result.stdout for argument in ("--small", *part.arguments))


def test_the_page_names_all_cards_and_cases():
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    for words in ("whitenorm gpu", 'set_kernels("auto")', "$WHITENORM_KERNELS", *CARDS, *CASES):
        assert words in page
