"""The record of verified GPUs, with a pretended GPU; the files may be damaged, missing or not writable."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import whitenorm
from whitenorm.ops import verified_gpus

CUDA = torch.device("cuda", 0)


def test_a_verification_is_recorded_and_removed(gpu_record):
    assert not verified_gpus.is_verified(CUDA)
    assert verified_gpus.record(CUDA, passed=True) == gpu_record
    assert verified_gpus.is_verified(CUDA)
    assert verified_gpus.is_verified(torch.device("cuda"))
    verified_gpus.record(CUDA, passed=False)
    assert not verified_gpus.is_verified(CUDA)
    assert [path.name for path in gpu_record.parent.iterdir()] == ["kernels.json"]


def test_an_entry_is_for_one_model_of_gpu_and_these_versions(gpu_record, monkeypatch):
    verified_gpus.record(CUDA, passed=True)
    (key,) = json.loads(gpu_record.read_text())["passed"]
    for words in ("A100", "(8.0)", torch.__version__, f"whitenorm {whitenorm.__version__}"):
        assert words in key
    for module, name in (
        (torch, "__version__"),
        (sys.modules["triton"], "__version__"),
        (verified_gpus, "__version__"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, "0.0.1")
            verified_gpus._is_verified.cache_clear()
            assert not verified_gpus.is_verified(CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another card")
    verified_gpus._is_verified.cache_clear()
    assert not verified_gpus.is_verified(CUDA)
    verified_gpus.record(CUDA, passed=True)
    assert len(json.loads(gpu_record.read_text())["passed"]) == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"passed": 3}', b"\0", b'{"passed": ["\xff"]}', b"[" * 10**5, b'{"passed": ' * 10**5],
    ids=lambda content: repr(content[:16]),
)
def test_a_damaged_record_is_empty_and_can_be_rewritten(gpu_record, content):
    gpu_record.parent.mkdir()
    gpu_record.write_bytes(content)
    assert not verified_gpus.is_verified(CUDA)
    verified_gpus.record(CUDA, passed=True)
    assert verified_gpus.is_verified(CUDA)


def is_verified_in_child(seconds=60):
    """Return whether the GPU is verified, according to a child process, because reading the record may hang."""
    code = "import torch; from whitenorm.ops import verified_gpus; "
    code += "verified_gpus.device_key = lambda device: 'a card'; "
    code += "print(verified_gpus.is_verified(torch.device('cuda', 0)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds)
    assert result.returncode == 0, result.stderr
    return result.stdout == "True\n"


def test_a_huge_record_is_not_read(gpu_record):
    verified_gpus.record(CUDA, passed=True)
    with gpu_record.open("a") as file:
        file.write(" " * verified_gpus._LARGEST)
    verified_gpus._is_verified.cache_clear()
    assert not verified_gpus.is_verified(CUDA)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_a_fifo_is_empty_and_can_be_rewritten(gpu_record):
    gpu_record.parent.mkdir()
    gpu_record.write_text(json.dumps({"passed": ["a card"]}))
    assert is_verified_in_child()
    gpu_record.unlink()
    os.mkfifo(gpu_record)
    assert not is_verified_in_child()
    verified_gpus.record(CUDA, passed=True)
    assert verified_gpus.is_verified(CUDA)


def test_a_symlink_loop_is_empty_and_can_be_rewritten(gpu_record):
    gpu_record.parent.mkdir()
    gpu_record.symlink_to(gpu_record)
    assert not verified_gpus.is_verified(CUDA)
    verified_gpus.record(CUDA, passed=True)
    assert verified_gpus.is_verified(CUDA)


# Functions that need a permission on the file itself, or on its folder.
FORBIDDEN = {
    "the file": [(Path, "open"), (verified_gpus.os, "replace")],
    "its folder": [(Path, "is_file"), (verified_gpus.tempfile, "mkstemp")],
}


@pytest.mark.parametrize("where", FORBIDDEN)
def test_a_record_that_cannot_be_read_or_written(gpu_record, monkeypatch, where):
    """Simulate missing permissions, because tests may run as root."""

    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied")

    gpu_record.parent.mkdir()
    gpu_record.write_text(json.dumps({"passed": [verified_gpus.device_key(CUDA)]}))
    with monkeypatch.context() as patch:
        for owner, name in FORBIDDEN[where]:
            patch.setattr(owner, name, refuse)
        assert not verified_gpus.is_verified(CUDA)
        with pytest.raises(
            OSError, match=rf"expected to write {gpu_record} \(got .*Permission denied\); .*XDG_CACHE_HOME"
        ):
            verified_gpus.record(CUDA, passed=True)
    assert [path.name for path in gpu_record.parent.iterdir()] == ["kernels.json"]


@pytest.mark.parametrize("place", ["kernels.json", "kernels.json/more", ""])
def test_a_folder_or_file_in_the_way(gpu_record, place):
    """A folder in place of the file, empty or not, or a file in place of its folder: an error that leaves no files."""
    (gpu_record.parent / place).mkdir(parents=True) if place else gpu_record.parent.write_bytes(b"")
    before = sorted(gpu_record.parent.parent.rglob("*"))
    assert not verified_gpus.is_verified(CUDA)
    with pytest.raises(OSError, match=rf"expected to write {gpu_record} \(got "):
        verified_gpus.record(CUDA, passed=True)
    assert sorted(gpu_record.parent.parent.rglob("*")) == before


def test_a_user_without_a_home(gpu_record, monkeypatch):
    def refuse(*args):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    monkeypatch.setattr(Path, "home", refuse)
    assert not verified_gpus.is_verified(CUDA)
    with pytest.raises(OSError, match=r"expected a home folder for the cache .*XDG_CACHE_HOME"):
        verified_gpus.record(CUDA, passed=True)
