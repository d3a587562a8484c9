"""Killed runs resume to the same bits, a folder belongs to one run, and damage is detected."""

import errno
import json
import os
import random
import shutil
import signal
import time

import pytest
import torch

from lab.tests.helpers import torture
from lab.tests.helpers.runs import Stop
from lab.tests.helpers.torture import CASES, build_options, is_same_run, train
from whitenorm_lab import checksum
from whitenorm_lab.cli import main
from whitenorm_lab.training import Train, fit, load, lock
from whitenorm_lab.training.checkpoints import list_checkpoints
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.lock import lock_folder

# Cases of the fast tests.
SAMPLE = ("plain", "folder, 2 workers")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return torture.write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def get_whole_run(images, tmp_path_factory):
    """Return a function that trains an uninterrupted run of each case once, and returns its folder."""
    folders, root = {}, tmp_path_factory.mktemp("whole")

    def get(case):
        if case not in folders:
            folders[case] = root / case
            code, output = train(build_options(case, images, folders[case]))
            assert code == 0, output
        return folders[case]

    return get


# Killed in the middle of an epoch, and after the first step of another.
@pytest.mark.parametrize(
    "case", [case if case in SAMPLE else pytest.param(case, marks=pytest.mark.slow) for case in CASES]
)
def test_killed_run_resumes_to_the_same_bits(case, images, get_whole_run, tmp_path):
    options = build_options(case, images, tmp_path / "run")
    for step in (4, 7):
        code, output = train(options, step)
        assert code == -signal.SIGKILL, output
    code, output = train(options)
    assert code == 0, output
    assert is_same_run(tmp_path / "run", get_whole_run(case))


@pytest.mark.parametrize("case", ["steps", "steps and test-every", "plain"])
def test_run_killed_after_the_last_step_finishes(case, images, get_whole_run, tmp_path):
    options = build_options(case, images, tmp_path / "run")
    assert train(options)[0] == 0
    for name in ("outcome.json", "weights.pt"):
        (tmp_path / "run" / name).unlink()
    assert train(options)[0] == 0
    assert is_same_run(tmp_path / "run", get_whole_run(case))


def test_workers_do_not_change_the_numbers(images, get_whole_run, tmp_path):
    options = build_options("folder", images, tmp_path / "run")
    assert train({**options, "workers": 2})[0] == 0
    assert is_same_run(tmp_path / "run", get_whole_run("folder"))


@pytest.fixture(scope="module")
def run_after_kill(images, tmp_path_factory):
    """Folder of a run that was killed before its eighth step, with two checkpoints."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    assert train(build_options("plain", images, folder), 7)[0] == -signal.SIGKILL
    return folder


@pytest.fixture
def run_copy(images, get_whole_run, run_after_kill, tmp_path):
    """Options and folder of a copy of the killed run, and the folder of an uninterrupted run."""
    folder = shutil.copytree(run_after_kill, tmp_path / "run")
    return build_options("plain", images, folder), folder, get_whole_run("plain")


FOREIGN = {
    "empty": lambda content: {},
    "a list": lambda content: [1],
    "without scheduler": lambda content: {k: v for k, v in content.items() if k != "lr_schedulers"},
    "without our entry": lambda content: {**content, "whitenorm": None},
    "more history": lambda content: {
        **content,
        "whitenorm": {**content["whitenorm"], "history": content["whitenorm"]["history"] * 2},
    },
    "other history": lambda content: {**content, "whitenorm": {**content["whitenorm"], "history": [{"colour": 1}]}},
    "another net": lambda content: {**content, "state_dict": {"x": torch.ones(1)}},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_checkpoints_are_set_aside(kind, run_copy, capsys):
    options, folder, _ = run_copy
    newest = list_checkpoints(folder / "checkpoints")[-1]
    content = FOREIGN[kind](torch.load(newest, weights_only=True))
    newest.write_bytes(checksum.to_archive(content))
    fit(Train(**options))
    output = capsys.readouterr().out
    assert f"{newest} is not used: it" in output
    assert "step-000000006.ckpt" in output.split("Resuming from")[1].splitlines()[0]
    assert newest.with_name(f"{newest.name}.damaged1").exists()


def test_flipped_bits_are_detected(run_copy):
    """Anywhere in a checkpoint, the weights, the configuration and the result."""
    _, folder, whole = run_copy
    draw = random.Random(0)
    for path, read in [
        (list_checkpoints(folder / "checkpoints")[-1], checksum.read_archive),
        (whole / "weights.pt", checksum.read_archive),
        (whole / "config.json", lambda path: checksum.verify_checksum(json.loads(path.read_bytes()))),
        (whole / "outcome.json", lambda path: checksum.verify_checksum(json.loads(path.read_bytes()))),
    ]:
        content, damaged = path.read_bytes(), folder / "damaged"
        read(path)
        for _ in range(40):
            changed = bytearray(content)
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            if path.suffix == ".json" and changed.split() == content.split():
                continue
            damaged.write_bytes(changed)
            try:
                result = read(damaged)
            except ValueError:
                continue
            assert path.suffix == ".json", "a changed archive was read"
            assert result == read(path), "the change was not in whitespace"


def test_starts_again_without_an_intact_checkpoint(run_copy):
    options, folder, whole = run_copy
    for path in list_checkpoints(folder / "checkpoints"):
        path.write_bytes(b"{}")
    code, output = train(options)
    assert code == 0, output
    assert "There is no earlier checkpoint; training starts from the beginning." in output
    assert is_same_run(folder, whole)


@pytest.mark.parametrize("name", ["config.json", "outcome.json", "weights.pt"])
def test_damaged_results_are_written_again(name, run_copy):
    options, folder, whole = run_copy
    assert train(options)[0] == 0
    (folder / name).write_bytes(b"{}")
    if name != "outcome.json":
        with pytest.raises(OSError, match=r"expected .* as whitenorm-lab train writes it"):
            load(folder)
    code, output = train(options)
    assert code == 0, output
    if name != "config.json":
        assert f"It is renamed to {name}.damaged1." in output
    assert is_same_run(folder, whole)


def test_checkpoints_identify_the_configuration_if_its_file_is_damaged(run_copy):
    options, folder, _ = run_copy
    (folder / "config.json").write_bytes(b"")
    before = list_checkpoints(folder / "checkpoints")
    with pytest.raises(ValueError, match=r"expected the configuration .*lr \(was 0.1, now 0.2\)"):
        fit(Train(**{**options, "lr": 0.2}))
    assert list_checkpoints(folder / "checkpoints") == before


def test_deeply_nested_json_is_an_error(tmp_path):
    (tmp_path / "outcome.json").write_bytes(b"[" * 10**5)
    with pytest.raises(OSError, match=r"damaged or foreign file: it is nested too deeply\)"):
        RunFolder(tmp_path).read_result()


def test_two_processes_in_one_folder(tmp_path, capsys):
    args = ["train", "custom", "--net", "mlp-8", "--dataset", "digits", "--epochs", "1", "--folder", str(tmp_path)]
    with lock_folder(tmp_path):
        assert main(args) == 1
    assert f"(got a run in it: process {os.getpid()} on " in capsys.readouterr().err
    (tmp_path / "lock").write_text("process 1 on here")
    assert main(args) == 0, "a lock file that no process holds"
    assert not (tmp_path / "lock").exists()


def enter(folder):
    with lock_folder(folder):
        pass


def can_enter(folder):
    """Return whether another process can lock a folder."""
    process = torture._CONTEXT.Process(target=enter, args=(folder,))
    process.start()
    process.join(60)
    return process.exitcode == 0


def test_second_attempt_does_not_release_the_lock(tmp_path):
    """Reading the lock file, which closes a descriptor of it, does not release the lock either."""
    with lock_folder(tmp_path):
        for _ in range(2):
            with pytest.raises(OSError, match=f"got a run in it: process {os.getpid()} on"):
                enter(tmp_path)
            assert not can_enter(tmp_path)
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
        assert not can_enter(tmp_path)
    assert can_enter(tmp_path)


def fork_and_die(folder, pipe):
    """Lock a folder, fork a process that sleeps, and kill this one."""
    with lock_folder(folder):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        pipe.send(child)
        os.kill(os.getpid(), signal.SIGKILL)


def test_forked_process_does_not_hold_the_lock(tmp_path):
    ours, theirs = torture._CONTEXT.Pipe()
    process = torture._CONTEXT.Process(target=fork_and_die, args=(tmp_path, theirs))
    process.start()
    child = ours.recv()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    try:
        assert can_enter(tmp_path)
    finally:
        # It was still running.
        os.kill(child, signal.SIGKILL)


def fork_and_leave(folder):
    """Lock a folder, let a forked process leave the block, and check that the folder is still locked."""
    with lock_folder(folder):
        child = os.fork()
        if child == 0:
            return
        os.waitpid(child, 0)
        with pytest.raises(OSError, match=f"got a run in it: process {os.getpid()} on"):
            enter(folder)


def test_forked_process_does_not_release_the_lock(tmp_path):
    process = torture._CONTEXT.Process(target=fork_and_leave, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert can_enter(tmp_path)


def test_file_system_without_locks_is_an_error(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with pytest.raises(OSError, match=r"on a file system that can lock files \(got: .*No locks available\)"):
        enter(tmp_path)


def test_folder_without_a_checkpoint_can_be_reused(tmp_path):
    options = {"dataset": "digits", "epochs": 1, "quiet": True, "folder": tmp_path}
    with pytest.raises(InterruptedError):
        fit(Train(**options, net="mlp-8"), callbacks=[Stop(0)])
    assert (tmp_path / "config.json").exists()
    assert fit(Train(**options, net="mlp-16")).config["net"] == "mlp-16"
    with pytest.raises(ValueError, match="expected the configuration"):
        fit(Train(**options, net="mlp-8"))


def test_folder_locked_by_another_process_is_an_error(tmp_path):
    options = {**torture.PLAIN, "folder": tmp_path, "quiet": True}
    with lock_folder(tmp_path):
        code, output = train(options)
    assert code == 1
    assert f"(got a run in it: process {os.getpid()} on " in output
