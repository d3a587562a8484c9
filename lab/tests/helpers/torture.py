"""Kill training runs and damage their files: when resumed, they must end in the same bits as an uninterrupted run.

``make torture`` kills runs twenty times at random, damages a file of every second run, and prints a tally. The tests
use the same functions to kill runs at a few chosen steps.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import torch
from lightning.pytorch import Callback
from torchvision.io import write_png

from whitenorm_lab import data
from whitenorm_lab.training import Train, fit

# Three steps per epoch, with every source of randomness: order, crops, mixup, dropout.
PLAIN = {"net": "wrn-10-1", "norm": "dbn", "where": "l1", "dataset": "digits", "dropout": 0.3, "augment": True}
PLAIN |= {"mixup": 0.4, "train_images": 100, "test_images": 61, "batch_size": 32, "epochs": 3, "checkpoint_steps": 1}
FOLDER = {"net": "cnn-1", "norm": "iternorm", "image_size": 16, "augment": True, "mixup": 0.4, "epochs": 3}
FOLDER |= {"batch_size": 16, "checkpoint_steps": 1}
CASES = {
    "plain": PLAIN,
    "epochs": {**PLAIN, "checkpoint_steps": None},
    "steps": {**PLAIN, "steps": 8, "checkpoint_steps": None},
    "steps and test-every": {**PLAIN, "steps": 8, "test_every": 2},
    "test-every": {**PLAIN, "test_every": 2, "checkpoint_steps": None},
    "precision 64": {**PLAIN, "precision": "64"},
    "validation, Adam": {**PLAIN, "validation_images": 50, "optimizer": "adam", "lr": 0.01},
    "folder": {**FOLDER, "workers": 0},
    "folder, 2 workers": {**FOLDER, "workers": 2},
}
_CONTEXT = multiprocessing.get_context("forkserver")
# Import slow modules once for all processes.
_CONTEXT.set_forkserver_preload(["whitenorm_lab.training.run", "whitenorm_lab.tasks.classification.imagefolder"])


class Kill(Callback):
    """Kill the process before a step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, module, batch, i):
        if trainer.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def write_images(root):
    """Write images of digits as PNG files with one folder per class: 48 for training and 17 for testing."""
    digits = data.load("digits")
    for name, split, count in (("train", digits.train, 48), ("val", digits.test, 17)):
        for i in range(count):
            path = root / name / str(int(split.labels[i]) % 3) / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_png(split.images[i].expand(3, 8, 8).contiguous(), str(path))
    return root


def build_options(case, images, folder):
    options = {**CASES[case], "folder": folder, "progress": False}
    return options if "dataset" in options else {**options, "dataset": f"imagefolder:{images}"}


def _train(options, step, after, log):
    """Train in this process, and kill it before a step or after some seconds; the output goes to a file."""
    torch.set_num_threads(1)
    multiprocessing.set_start_method("fork", force=True)
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if after is not None:
        threading.Thread(target=lambda: (time.sleep(after), os.kill(os.getpid(), signal.SIGKILL)), daemon=True).start()
    try:
        fit(Train(**options), callbacks=[] if step is None else [Kill(step)])
    except (OSError, ValueError) as error:
        # Like the command.
        print(f"whitenorm: {error}", flush=True)
        sys.exit(1)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)


def train(options, step=None, after=None):
    """Train in a new process; return its exit code and its output."""
    log = options["folder"].with_name(options["folder"].name + ".log")
    log.unlink(missing_ok=True)
    process = _CONTEXT.Process(target=_train, args=(options, step, after, str(log)))
    process.start()
    process.join(300)
    return process.exitcode, log.read_text(errors="replace") if log.exists() else ""


def read_metrics(folder):
    """Return the values of all epochs except times."""
    epochs = json.loads((folder / "outcome.json").read_text())["epochs"]
    return [{name: value for name, value in epoch.items() if "second" not in name} for epoch in epochs]


def has_same_outcome(a, b):
    """Return whether two runs ended with the same values and weights."""
    states = [torch.load(folder / "weights.pt", weights_only=True) for folder in (a, b)]
    return (
        read_metrics(a) == read_metrics(b)
        and states[0].keys() == states[1].keys()
        and all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    )


def damage(folder, draw):
    """Damage a random file of a run, if there is one; return what was done."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".ckpt", ".json", ".pt")]
    if not files:
        return "nothing"
    path = draw.choice(files)
    content = bytearray(path.read_bytes())
    kind = draw.choice(["a bit", "cut", "empty", "foreign"])
    if kind == "a bit":
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    content = {"a bit": content, "cut": content[: len(content) // 2], "empty": b"", "foreign": b"{}"}[kind]
    path.write_bytes(content)
    return f"{path.suffix} {kind}"


def run_trial(case, images, whole, seconds, folder, draw, has_damage):
    """Kill a run up to three times, damage a file after the first if asked to, let it end, and return how it ended."""
    options, killed, damaged = build_options(case, images, folder), 0, "nothing"
    for _ in range(draw.randint(1, 3)):
        code, output = train(options, after=draw.uniform(0.1, seconds))
        killed += code == -signal.SIGKILL
        if has_damage and damaged == "nothing":
            damaged = damage(folder, draw)
    code, output = train(options)
    if "Traceback" in output:
        return killed, damaged, f"TRACEBACK\n{output}"
    if code != 0:
        return killed, damaged, f"REFUSED {output.strip().splitlines()[-1]}"
    return killed, damaged, "same" if has_same_outcome(folder, whole) else "OTHER NUMBERS"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, tally, kills, trials = random.Random(options.seed), Counter(), 0, 0
    root = Path(tempfile.mkdtemp(prefix="whitenorm-torture-"))
    images, wholes = write_images(root / "images"), {}
    while kills < options.kills:
        case = list(CASES)[trials % len(CASES)]
        if case not in wholes:
            start = time.monotonic()
            code, output = train(build_options(case, images, root / f"whole {case}"))
            assert code == 0, output
            wholes[case] = root / f"whole {case}", time.monotonic() - start
        killed, damaged, end = run_trial(case, images, *wholes[case], root / f"run {trials}", draw, trials % 2 == 1)
        kills, trials = kills + killed, trials + 1
        tally[end.split()[0]] += 1
        print(f"{kills:>3} kills: {case}, {killed} killed, damaged: {damaged}: {end}", flush=True)
    print(
        f"{kills} kills in {trials} runs, seed {options.seed}: " + ", ".join(f"{n} {end}" for end, n in tally.items())
    )
    if set(tally) == {"same"}:
        shutil.rmtree(root)
        return 0
    print(f"The runs are in {root}.")
    return 1


if __name__ == "__main__":
    # Under its full name, by which the child processes import it.
    from lab.tests.helpers import torture

    sys.exit(torture.main())
