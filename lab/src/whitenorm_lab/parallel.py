"""Time that a norm adds to a net in data-parallel training, in one or several processes.

Each process has one thread and its own images. DistributedDataParallel averages the gradients over the processes; the
statistics of norms are not synchronized.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from whitenorm_lab import costs
from whitenorm_lab.timing import median_ratio, time_interleaved

_RESULT, _RENDEZVOUS = "percent.json", "rendezvous"


def measure_added_percent(net: str, choice: costs.Choice, processes: int, sizes: Mapping[str, int]) -> dict[str, float]:
    """Measure the time that a norm adds to a training step and to inference, in percent of BatchNorm's.

    Args:
        net: a name for :func:`whitenorm_lab.costs.build_net`.
        choice: the norm and its place in the net.
        processes: number of processes, of which the first is measured; 1 runs in this process.
        sizes: ``batch`` of each process, ``resolution``, ``classes`` and ``rounds``.
    """
    if processes == 1:
        with _use_one_thread():
            return _measure(net, choice, sizes, lambda model: model)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_run_process, (processes, folder, net, choice, dict(sizes)), processes)
        percent: dict[str, float] = json.loads((Path(folder) / _RESULT).read_text())
    return percent


@contextmanager
def _use_one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _run_process(rank: int, processes: int, folder: str, net: str, choice: costs.Choice, sizes: dict[str, int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{_RENDEZVOUS}", rank=rank, world_size=processes)
    try:
        percent = _measure(net, choice, sizes, DistributedDataParallel)
        if rank == 0:
            (Path(folder) / _RESULT).write_text(json.dumps(percent))
        # No process may exit while another still communicates with it.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _measure(
    net: str, choice: costs.Choice, sizes: Mapping[str, int], wrap: Callable[[nn.Module], nn.Module]
) -> dict[str, float]:
    batch, resolution, classes, rounds = (sizes[name] for name in ("batch", "resolution", "classes", "rounds"))
    nets: dict[str, Any] = {
        "base": wrap(costs.build_net(net, classes)),
        "norm": wrap(costs.build_net(net, classes, choice)),
    }
    runs = {
        "step": {name: costs.build_training_step(model, batch, resolution, classes) for name, model in nets.items()},
        "inference": {name: costs.build_inference(model, batch, resolution) for name, model in nets.items()},
    }
    percent = {}
    for name, both in runs.items():
        # In the same order in every process, because they communicate; so without a limit of time.
        times = time_interleaved(both, rounds, budget=float("inf"))
        percent[name] = 100 * (median_ratio(times["norm"], times["base"]) - 1)
    return percent
