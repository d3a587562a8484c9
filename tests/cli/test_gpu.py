"""What is counted of a GPU's work, predicted from it, and remembered of a card; there need be none."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import whitenorm
from benchmarks.roofline import cards
from benchmarks.roofline.cards import CARDS, Card
from benchmarks.roofline.prediction import predicted_seconds
from benchmarks.roofline.work import Operation, layer_work, nbytes, operations, passes, step_work
from whitenorm import cli
from whitenorm.cli.gpu import check, command
from whitenorm.cli.gpu.agreement import Row
from whitenorm.cli.gpu.cases import CASES
from whitenorm.cli.gpu.use_kernels import use_kernels
from whitenorm.ops import dispatch, launches, verified_gpus

CUDA = torch.device("cuda", 0)


def meta(*shape):
    return torch.empty(shape, device="meta")


def count_operations(run):
    return [(operation.name, operation.bytes, operation.flops) for operation in operations(run)[1]]


def test_what_is_counted_of_tiny_functions():
    x, small = meta(8, 4), meta(4)
    assert count_operations(lambda: x + x) == [("add", 256, 0)]
    assert count_operations(lambda: x.add_(1)) == [("add_", 256, 0)]
    assert count_operations(lambda: x + small) == [("add", 272, 0)]
    assert count_operations(lambda: x.t() @ x) == [("mm", 128 + 64, 2 * 4 * 4 * 8)]
    assert count_operations(lambda: torch.mul(x, 2, out=meta(8, 4))) == [("mul", 256, 0)]
    # They read nothing of what they write.
    assert count_operations(lambda: x.zero_()) == [("zero_", 128, 0)]
    assert count_operations(lambda: x.copy_(small)) == [("copy_", 144, 0)]


def test_views_and_allocations_are_free():
    x = meta(8, 4)
    assert count_operations(lambda: torch.empty_like(x.view(4, 8).t().unsqueeze(0).expand(3, -1, -1)[0].detach())) == []


def test_an_expanded_dimension_is_in_memory_once():
    matrix = meta(1, 4, 4).expand(8, -1, -1)
    assert nbytes(matrix) == 64
    assert count_operations(lambda: torch.bmm(matrix, meta(8, 4, 2))) == [("bmm", 64 + 256 + 256, 8 * 2 * 4 * 4 * 2)]


def test_a_step_of_a_model():
    layer = nn.Linear(3, 5, device="meta")
    work = step_work(lambda: layer(meta(2, 3)).sum())
    assert [operation.name for operation in work.forward] == ["addmm", "sum"]
    # Forward, and of the weight; the input needs none.
    assert work.flops == 2 * (2 * 2 * 3 * 5)


def test_launches_of_triton_count_with_their_tensors():
    x, matrix = meta(8, 4, 16), meta(4, 4)

    def run():
        launches.note("_apply", (x, matrix, None, 3, x), (5, 2))
        return x + 1

    assert operations(run)[1] == (
        Operation("add", 2 * 2048, 0),
        Operation("_apply", 2048 + 64, 0, triton=True, programs=10),
    )


def test_a_count_within_a_count():
    with launches.record_launches() as outer:
        launches.note("a", (), (1,))
        with launches.record_launches() as inner:
            launches.note("b", (), (1,))
        launches.note("c", (), (1,))
    assert ([found.kernel for found in outer], [found.kernel for found in inner]) == (["a", "b", "c"], ["b"])


def test_what_is_known_of_batch_norm():
    work = layer_work(nn.BatchNorm2d(64), (64, 64, 32, 32))
    assert (len(work.forward), len(work.backward)) == (2, 1)
    assert passes(work, (64, 64, 32, 32)) == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("name", CASES)
def test_triton_launches(name):
    """As few as were asked for: at most 8, 10 of SW, and 9 passes over x; the products are torch's."""
    pytest.importorskip("triton")
    case = CASES[name]
    work, by_torch = layer_work(case.layer(), case.shape, "triton"), layer_work(case.layer(), case.shape)
    assert 0 < work.triton_launches <= (10 if name == "SW" else 8)
    assert passes(work, case.shape) <= 9
    assert work.flops == pytest.approx(by_torch.flops, rel=1e-3)


def test_kernels_are_as_before_after_counting():
    before = dispatch._mode
    with use_kernels("torch"):
        assert dispatch._mode == "torch"
        with pytest.raises(ValueError, match="one of"), use_kernels("cuda"):
            pass
    assert dispatch._mode == before


CARD = Card("a card", bandwidth=1e12, fp32=1e13, tf32=1e14, processors=100, source="made up")


@pytest.mark.parametrize(
    ("operation", "seconds"),
    [
        (Operation("add", 0, 0), cards.TORCH_LAUNCH),
        (Operation("_apply", 0, 0, triton=True), cards.TRITON_LAUNCH),
        (Operation("add", 10**9, 0), 1e-3 / cards.BANDWIDTH_ATTAINED),
        (Operation("mm", 0, 10**10), 1e-3 / cards.FP32_ATTAINED),
        (Operation("convolution_backward", 0, 10**11), 1e-3 / cards.TF32_ATTAINED),
        (Operation("_apply", 0, 10**11, triton=True), 3e-3 / cards.TF32_ATTAINED),
        # One multiprocessor of a hundred works, or all.
        (Operation("_solve", 0, 10**9, triton=True, programs=1), 3e-3 / cards.TF32_ATTAINED),
        (Operation("_solve", 0, 10**11, triton=True, programs=500), 3e-3 / cards.TF32_ATTAINED),
    ],
)
def test_prediction(operation, seconds):
    assert predicted_seconds([operation], CARD) == pytest.approx(seconds)
    assert predicted_seconds([operation, operation], CARD) == pytest.approx(2 * seconds)


def test_a_card_that_is_not_in_the_table():
    assert cards.card_of("NVIDIA Unheard-Of") is None
    scaled = CARDS["A100 80GB"].scaled(2.039e11)
    assert (scaled.fp32, scaled.tf32) == pytest.approx((1.95e12, 1.56e13))


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A card that says what it is, and no more; and a cache of one's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    pytest.importorskip("triton")
    verified_gpus._is_trusted.cache_clear()
    yield tmp_path / "whitenorm" / "kernels.json"
    verified_gpus._is_trusted.cache_clear()


def test_a_pass_is_remembered_and_forgotten(card):
    assert not verified_gpus.is_trusted(CUDA)
    assert verified_gpus.remember(CUDA, passed=True) == card
    assert verified_gpus.is_trusted(CUDA)
    assert verified_gpus.is_trusted(torch.device("cuda"))
    verified_gpus.remember(CUDA, passed=False)
    assert not verified_gpus.is_trusted(CUDA)
    assert [path.name for path in card.parent.iterdir()] == ["kernels.json"]


def test_a_pass_is_for_one_kind_of_card_and_for_these_versions(card, monkeypatch):
    verified_gpus.remember(CUDA, passed=True)
    (kind,) = json.loads(card.read_text())["passed"]
    for words in ("A100", "(8.0)", torch.__version__, f"whitenorm {whitenorm.__version__}"):
        assert words in kind
    for module, name in (
        (torch, "__version__"),
        (sys.modules["triton"], "__version__"),
        (verified_gpus, "__version__"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(module, name, "0.0.1")
            verified_gpus._is_trusted.cache_clear()
            assert not verified_gpus.is_trusted(CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another card")
    verified_gpus._is_trusted.cache_clear()
    assert not verified_gpus.is_trusted(CUDA)
    verified_gpus.remember(CUDA, passed=True)
    assert len(json.loads(card.read_text())["passed"]) == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"passed": 3}', b"\0", b'{"passed": ["\xff"]}', b"[" * 10**5, b'{"passed": ' * 10**5],
    ids=lambda content: repr(content[:16]),
)
def test_a_damaged_file_trusts_nothing_and_is_written_anew(card, content):
    card.parent.mkdir()
    card.write_bytes(content)
    assert not verified_gpus.is_trusted(CUDA)
    verified_gpus.remember(CUDA, passed=True)
    assert verified_gpus.is_trusted(CUDA)


def is_verified(seconds=60):
    """Whether the card is trusted, asked in a child process, which may hang."""
    code = "import torch; from whitenorm.ops import verified_gpus as trust; trust.kind_of = lambda device: 'a card'; "
    code += "print(verified_gpus.is_trusted(torch.device('cuda', 0)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return done.stdout == "True\n"


def test_a_huge_file_is_not_read(card):
    verified_gpus.remember(CUDA, passed=True)
    with card.open("a") as file:
        file.write(" " * verified_gpus._LARGEST)
    verified_gpus._is_trusted.cache_clear()
    assert not verified_gpus.is_trusted(CUDA)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_trusts_nothing_and_is_written_anew(card):
    card.parent.mkdir()
    card.write_text(json.dumps({"passed": ["a card"]}))
    assert is_verified()
    card.unlink()
    os.mkfifo(card)
    assert not is_verified()
    verified_gpus.remember(CUDA, passed=True)
    assert verified_gpus.is_trusted(CUDA)


def test_a_symlink_loop_trusts_nothing_and_is_written_anew(card):
    card.parent.mkdir()
    card.symlink_to(card)
    assert not verified_gpus.is_trusted(CUDA)
    verified_gpus.remember(CUDA, passed=True)
    assert verified_gpus.is_trusted(CUDA)


# What needs a permission on the file itself, or on its folder.
FORBIDDEN = {
    "the file": [(Path, "open"), (verified_gpus.os, "replace")],
    "its folder": [(Path, "is_file"), (verified_gpus.tempfile, "mkstemp")],
}


@pytest.mark.parametrize("where", FORBIDDEN)
def test_a_cache_that_cannot_be_read_or_written(card, monkeypatch, where):
    """As without permission, which tests that run as root always have."""

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    card.parent.mkdir()
    card.write_text(json.dumps({"passed": [verified_gpus.kind_of(CUDA)]}))
    with monkeypatch.context() as changed:
        for owner, name in FORBIDDEN[where]:
            changed.setattr(owner, name, refuse)
        assert not verified_gpus.is_trusted(CUDA)
        with pytest.raises(OSError, match=rf"expected to write {card} \(got .*Permission denied\); .*XDG_CACHE_HOME"):
            verified_gpus.remember(CUDA, passed=True)
    assert [path.name for path in card.parent.iterdir()] == ["kernels.json"]


@pytest.mark.parametrize("place", ["kernels.json", "kernels.json/more", ""])
def test_something_else_in_its_place(card, place):
    """A folder where the file would be, empty or not, and a file where its folder would be: an error, and no litter."""
    (card.parent / place).mkdir(parents=True) if place else card.parent.write_bytes(b"")
    before = sorted(card.parent.parent.rglob("*"))
    assert not verified_gpus.is_trusted(CUDA)
    with pytest.raises(OSError, match=rf"expected to write {card} \(got "):
        verified_gpus.remember(CUDA, passed=True)
    assert sorted(card.parent.parent.rglob("*")) == before


def test_a_user_without_a_home_trusts_nothing(card, monkeypatch):
    def refuse(*args):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    assert not verified_gpus.is_trusted(CUDA)
    with pytest.raises(OSError, match=r"expected a home folder for the cache .*XDG_CACHE_HOME"):
        verified_gpus.remember(CUDA, passed=True)


class OnCuda:
    """As much of a CUDA tensor as the choice looks at."""

    is_cuda, is_meta, dtype, device = True, False, torch.float32, CUDA

    def numel(self):
        return 1


def test_auto_takes_triton_where_it_has_passed(card, monkeypatch):
    monkeypatch.setattr(dispatch, "Tensor", OnCuda)
    dispatch._suggest_verifying.cache_clear()
    with use_kernels("auto"):
        with pytest.warns(UserWarning, match="whitenorm gpu"):
            assert not dispatch._takes_triton(OnCuda())
        # Said once.
        assert not dispatch._takes_triton(OnCuda())
        verified_gpus.remember(CUDA, passed=True)
        assert dispatch._takes_triton(OnCuda())
        assert not dispatch._takes_triton(torch.ones(3))
        with use_kernels("torch"):
            assert not dispatch._takes_triton(OnCuda())


@pytest.mark.parametrize(
    ("mode", "words"), [("", ""), ("torch", ""), ("fast", "expected WHITENORM_KERNELS to be one of")]
)
def test_the_kernels_of_the_environment(mode, words):
    code = "import whitenorm; from whitenorm.ops import dispatch; print(dispatch._mode)"
    environment = {**os.environ, "WHITENORM_KERNELS": mode}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode == 0, done.stdout) == (not words, "" if words else f"{mode or 'auto'}\n"), done.stderr
    assert words in done.stderr


def test_without_a_card(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert cli.main(["gpu"]) == 1
    assert "expected a CUDA device (got none)" in capsys.readouterr().err
    assert cli.main(["gpu", "--device", "cpu"]) == 1
    assert "(got cpu; 0 found)" in capsys.readouterr().err


def test_without_triton(card, capsys, monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["gpu"]) == 1
    assert "expected Triton to be installed (got none)" in capsys.readouterr().err


def test_it_needs_no_extra():
    """Neither the lab's packages nor numpy."""
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
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert (done.returncode, "expected a CUDA device" in done.stderr) == (1, True), done.stderr


def answering(monkeypatch, code):
    """Let the child processes run this."""
    monkeypatch.setattr(check, "command", lambda *_: [sys.executable, "-c", code])


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
def test_a_check_that_does_not_pass(card, monkeypatch, capsys, code, words):
    verified_gpus.remember(CUDA, passed=True)
    answering(monkeypatch, code)
    assert cli.main(["gpu", "--limit", "1" if "sleep" in code else "60"]) == 1
    printed = capsys.readouterr().out
    assert words in printed
    assert "Not passed" in printed
    assert not verified_gpus.is_trusted(CUDA)


def test_a_check_that_passes(card, monkeypatch, capsys):
    answering(monkeypatch, AGREES)
    monkeypatch.setattr(command.timing, "step_seconds", lambda *_: 1e-3)
    assert cli.main(["gpu"]) == 0
    printed = capsys.readouterr().out
    assert "float32, contiguous: 1 agree, at most 1.0e-06 off (allowed 2e-04)" in printed
    assert f"kept in {card}; undo it by: whitenorm gpu --forget" in printed
    assert re.search(r"IterNorm( +1\.00 \(0\.\d\d\)){3}\n", printed)
    assert verified_gpus.is_trusted(CUDA)
    assert cli.main(["gpu", "--forget"]) == 0
    assert not verified_gpus.is_trusted(CUDA)


def test_another_card_is_predicted_by_its_bandwidth(card, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another card")
    monkeypatch.setattr(command.timing, "bandwidth", lambda device: 2.039e11 * cards.BANDWIDTH_ATTAINED)
    monkeypatch.setattr(command.timing, "step_seconds", lambda *_: 1e-3)
    answering(monkeypatch, AGREES)
    assert cli.main(["gpu"]) == 0
    assert "not in the table of cards; a copy moves 173 GB/s" in capsys.readouterr().out


def test_what_a_child_process_is_told():
    args = check.command(CUDA, "float16", "channels-last")
    assert args[1:] == [
        "-m",
        "whitenorm.cli.gpu.agreement",
        "cuda:0",
        "--dtype",
        "float16",
        "--layout",
        "channels-last",
    ]
    done = subprocess.run([*args[:3], "--help"], capture_output=True, text=True, check=True)
    assert "--dtype {float32,bfloat16,float16}" in done.stdout


def test_the_page_names_what_there_is():
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text()
    for words in ("whitenorm gpu", 'set_kernels("auto")', "$WHITENORM_KERNELS", *CARDS, *CASES):
        assert words in page
