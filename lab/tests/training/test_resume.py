"""Runs that are killed go on to the same bits; a folder belongs to one of them; damage is seen."""

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
from lab.tests.helpers.torture import CASES, build_options, has_same_outcome, train
from whitenorm_lab import checksum
from whitenorm_lab.cli import main
from whitenorm_lab.training import Train, fit, load, lock
from whitenorm_lab.training.checkpoints import list_checkpoints
from whitenorm_lab.training.folder import RunFolder
from whitenorm_lab.training.lock import lock_folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return torture.write_images(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def wholes(images, tmp_path_factory):
    """Runs that nothing stopped, made when they are asked for."""
    made, folder = {}, tmp_path_factory.mktemp("wholes")

    def whole(case):
        if case not in made:
            made[case] = folder / case
            code, said = train(build_options(case, images, made[case]))
            assert code == 0, said
        return made[case]

    return whole


# In the middle of an epoch, and after the first step of another.
@pytest.mark.parametrize("case", CASES)
def test_killed(case, images, wholes, tmp_path):
    options = build_options(case, images, tmp_path / "run")
    for step in (4, 7):
        code, said = train(options, step)
        assert code == -signal.SIGKILL, said
    code, said = train(options)
    assert code == 0, said
    assert has_same_outcome(tmp_path / "run", wholes(case))


@pytest.mark.parametrize("case", ["steps", "steps and test-every", "plain"])
def test_killed_after_the_last_step(case, images, wholes, tmp_path):
    options = build_options(case, images, tmp_path / "run")
    assert train(options)[0] == 0
    for name in ("outcome.json", "weights.pt"):
        (tmp_path / "run" / name).unlink()
    assert train(options)[0] == 0
    assert has_same_outcome(tmp_path / "run", wholes(case))


def test_workers_do_not_change_the_numbers(images, wholes, tmp_path):
    options = build_options("folder", images, tmp_path / "run")
    assert train({**options, "workers": 2})[0] == 0
    assert has_same_outcome(tmp_path / "run", wholes("folder"))


@pytest.fixture(scope="module")
def killed(images, tmp_path_factory):
    """A run that was killed before its eighth step, with two checkpoints."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    assert train(build_options("plain", images, folder), 7)[0] == -signal.SIGKILL
    return folder


@pytest.fixture
def stopped(images, wholes, killed, tmp_path):
    """Options and folder of a copy of it, and the run that nothing stopped."""
    folder = shutil.copytree(killed, tmp_path / "run")
    return build_options("plain", images, folder), folder, wholes("plain")


FOREIGN = {
    "empty": lambda content: {},
    "a list": lambda content: [1],
    "without scheduler": lambda content: {k: v for k, v in content.items() if k != "lr_schedulers"},
    "without ours": lambda content: {**content, "whitenorm": None},
    "more history": lambda content: {
        **content,
        "whitenorm": {**content["whitenorm"], "history": content["whitenorm"]["history"] * 2},
    },
    "other history": lambda content: {**content, "whitenorm": {**content["whitenorm"], "history": [{"colour": 1}]}},
    "another net": lambda content: {**content, "state_dict": {"x": torch.ones(1)}},
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_checkpoints_are_set_aside(kind, stopped, capsys):
    options, folder, _ = stopped
    newest = list_checkpoints(folder / "checkpoints")[-1]
    content = FOREIGN[kind](torch.load(newest, weights_only=True))
    newest.write_bytes(checksum.to_archive(content))
    fit(Train(**options))
    said = capsys.readouterr().out
    assert f"{newest} is not used: it" in said
    assert "step-000000006.ckpt" in said.split("Resuming from")[1].splitlines()[0]
    assert newest.with_name(f"{newest.name}.damaged1").exists()


def test_flipped_bytes_are_seen(stopped):
    """In any place of a checkpoint, and of the files that say what a run is and gave."""
    _, folder, whole = stopped
    draw = random.Random(0)
    for path, read in [
        (list_checkpoints(folder / "checkpoints")[-1], checksum.read_archive),
        (whole / "weights.pt", checksum.read_archive),
        (whole / "config.json", lambda path: checksum.verify_checksum(json.loads(path.read_bytes()))),
        (whole / "outcome.json", lambda path: checksum.verify_checksum(json.loads(path.read_bytes()))),
    ]:
        content, spoilt = path.read_bytes(), folder / "spoilt"
        read(path)
        for _ in range(40):
            changed = bytearray(content)
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            if path.suffix == ".json" and changed.split() == content.split():
                continue
            spoilt.write_bytes(changed)
            try:
                found = read(spoilt)
            except ValueError:
                continue
            assert path.suffix == ".json", "an archive that was changed was read"
            assert found == read(path), "what was changed was not whitespace"


def test_no_checkpoint_is_left(stopped):
    options, folder, whole = stopped
    for path in list_checkpoints(folder / "checkpoints"):
        path.write_bytes(b"{}")
    code, said = train(options)
    assert code == 0, said
    assert "There is no earlier checkpoint; training starts from the beginning." in said
    assert has_same_outcome(folder, whole)


@pytest.mark.parametrize("name", ["config.json", "outcome.json", "weights.pt"])
def test_damaged_results_are_made_again(name, stopped):
    options, folder, whole = stopped
    assert train(options)[0] == 0
    (folder / name).write_bytes(b"{}")
    if name != "outcome.json":
        with pytest.raises(OSError, match=r"expected .* as whitenorm-lab train writes it"):
            load(folder)
    code, said = train(options)
    assert code == 0, said
    if name != "config.json":
        assert f"It is renamed to {name}.damaged1." in said
    assert has_same_outcome(folder, whole)


def test_another_configuration_whose_record_is_damaged(stopped):
    """Its checkpoints say whose they are."""
    options, folder, _ = stopped
    (folder / "config.json").write_bytes(b"")
    before = list_checkpoints(folder / "checkpoints")
    with pytest.raises(ValueError, match=r"expected the configuration .*lr \(was 0.1, now 0.2\)"):
        fit(Train(**{**options, "lr": 0.2}))
    assert list_checkpoints(folder / "checkpoints") == before


def test_a_record_that_is_nested_too_deeply(tmp_path):
    (tmp_path / "outcome.json").write_bytes(b"[" * 10**5)
    with pytest.raises(OSError, match=r"damaged or foreign file: it is nested too deeply\)"):
        RunFolder(tmp_path).read_result()


def test_two_processes_in_one_folder(tmp_path, capsys):
    args = ["train", "custom", "--net", "mlp-8", "--dataset", "digits", "--epochs", "1", "--folder", str(tmp_path)]
    with lock_folder(tmp_path):
        assert main(args) == 1
    assert f"(got a run in it: process {os.getpid()} on " in capsys.readouterr().err
    (tmp_path / "lock").write_text("process 1 on here")
    assert main(args) == 0, "a lock that nobody holds"
    assert not (tmp_path / "lock").exists()


def enter(folder):
    with lock_folder(folder):
        pass


def enters(folder):
    """Whether another process gets into a folder."""
    process = torture._CONTEXT.Process(target=enter, args=(folder,))
    process.start()
    process.join(60)
    return process.exitcode == 0


def test_a_second_attempt_does_not_give_up_the_lock(tmp_path):
    """Nor does reading the file, which closes a descriptor of it."""
    with lock_folder(tmp_path):
        for _ in range(2):
            with pytest.raises(OSError, match=f"got a run in it: process {os.getpid()} on"):
                enter(tmp_path)
            assert not enters(tmp_path)
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
        assert not enters(tmp_path)
    assert enters(tmp_path)


def fork_and_die(folder, pipe):
    """Hold a folder, fork a process that stays, and be killed."""
    with lock_folder(folder):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        pipe.send(child)
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_process_forks_does_not_hold_its_folder(tmp_path):
    ours, theirs = torture._CONTEXT.Pipe()
    process = torture._CONTEXT.Process(target=fork_and_die, args=(tmp_path, theirs))
    process.start()
    child = ours.recv()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    try:
        assert enters(tmp_path)
    finally:
        # It still ran.
        os.kill(child, signal.SIGKILL)


def fork_and_leave(folder):
    """Hold a folder, let a forked process leave the block, and fail unless the folder is still held."""
    with lock_folder(folder):
        child = os.fork()
        if child == 0:
            return
        os.waitpid(child, 0)
        with pytest.raises(OSError, match=f"got a run in it: process {os.getpid()} on"):
            enter(folder)


def test_a_forked_process_does_not_give_up_the_lock(tmp_path):
    process = torture._CONTEXT.Process(target=fork_and_leave, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert enters(tmp_path)


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    with pytest.raises(OSError, match=r"on a file system that can lock files \(got: .*No locks available\)"):
        enter(tmp_path)


def test_a_folder_without_a_checkpoint_is_nobodys(tmp_path):
    options = {"dataset": "digits", "epochs": 1, "quiet": True, "folder": tmp_path}
    with pytest.raises(InterruptedError):
        fit(Train(**options, net="mlp-8"), callbacks=[Stop()])
    assert (tmp_path / "config.json").exists()
    assert fit(Train(**options, net="mlp-16")).config["net"] == "mlp-16"
    with pytest.raises(ValueError, match="expected the configuration"):
        fit(Train(**options, net="mlp-8"))


class Stop(torture.Callback):
    """Fails at the start."""

    def on_train_batch_start(self, trainer, module, batch, i):
        raise InterruptedError


def test_another_process_holds_the_folder(tmp_path):
    """And what it started to read images does not hold it when it is gone."""
    options = {**torture.PLAIN, "folder": tmp_path, "quiet": True}
    with lock_folder(tmp_path):
        code, said = train(options)
    assert code == 1
    assert f"(got a run in it: process {os.getpid()} on " in said
