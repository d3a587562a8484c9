"""Time the data path and the training step of ResNet-20 that it feeds.

``python -m benchmarks.data_path`` times, for several numbers of threads, the preparation of a batch of CIFAR's size
(gather, normalize, crop, flip), a training step on it, and a step in Lightning's loop, which adds scores, a schedule
and hooks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from whitenorm_lab import nets
from whitenorm_lab.data import Dataset, Split
from whitenorm_lab.machine import describe_machine
from whitenorm_lab.tasks.classification.images import TrainBatches
from whitenorm_lab.tasks.classification.task import Classification
from whitenorm_lab.timing import median_ratio, summarise, time_interleaved
from whitenorm_lab.training import Train, fit

BATCH = 128
IMAGES = 50_000
_LOOP_STEPS = 4


def measure(threads: int, rounds: int) -> dict[str, Any]:
    """Measure the milliseconds of a batch, of a step, and of a step in Lightning's loop on a number of threads."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    images = torch.randint(256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
    split = Split(images, torch.randint(10, (IMAGES,)))
    config = Train(net="resnet20", augment=True, epochs=1, steps=_LOOP_STEPS, batch_size=BATCH, quiet=True)
    model = nets.build("resnet20", 10)
    task = Classification(config)
    task.set_normalization(images)
    batches = cycle(TrainBatches(split, BATCH, 0, True, lambda: 0))
    dataset = Dataset("random", split, Split(images[:0], split.labels[:0]), 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9)
    fixed = task.prepare_batch(next(batches))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(fixed.images), fixed.labels).backward()
        optimizer.step()

    seconds: list[float] = []
    runs: dict[str, Callable[[], object]] = {
        "batch": lambda: task.prepare_batch(next(batches)),
        "step": step,
        "loop": lambda: seconds.append(fit(config, dataset=dataset).seconds / _LOOP_STEPS),
    }
    times = time_interleaved(runs, rounds)
    times["loop"] = seconds[1:]
    report: dict[str, Any] = {name: summarise(values)._asdict() for name, values in times.items()}
    report["threads"] = threads
    report["images_per_second"] = {name: round(1e3 * BATCH / report[name]["ms"]) for name in runs}
    report["batch_to_step"] = median_ratio(times["batch"], times["step"])
    report["loop_to_step"] = median_ratio(times["loop"], times["step"])
    return report


def main() -> None:
    results = {"machine": describe_machine(), "load": os.getloadavg()[0], "batch": BATCH}
    results["measured"] = [measure(threads, rounds=9) for threads in (1, 2)]
    path = Path(__file__).parent / "results" / "data_path.json"
    path.write_text(json.dumps(results, indent=1) + "\n")
    for row in results["measured"]:
        speed = row["images_per_second"]
        print(
            f"{row['threads']} threads: data {speed['batch']} images/s, ResNet-20 {speed['step']}, in the loop "
            f"{speed['loop']}; a batch takes {row['batch_to_step']:.2%} of a step, the loop {row['loop_to_step']:.2f}×"
        )


if __name__ == "__main__":
    main()
