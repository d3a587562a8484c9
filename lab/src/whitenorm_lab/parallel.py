"""What a norm adds to a net's time in several processes that share the gradients, beside what it adds in one.

Every process has one thread and images of its own, and the nets are as DDP makes them: gradients are averaged over the
processes, statistics of norms are those of a process alone.
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
from whitenorm_lab.timing import interleaved, ratio

_RESULT, _MEETING = "percent.json", "meeting"


def added_percent(net: str, choice: costs.Choice, processes: int, fed: Mapping[str, int]) -> dict[str, float]:
    """Percent of BatchNorm's time that a norm adds to a training step and to inference, by the first process.

    Args:
        net: a name of :func:`whitenorm_lab.costs.make`.
        choice: the norm and where the net has it.
        processes: how many; one is this process itself.
        fed: ``batch`` of each process, ``resolution``, ``classes`` and ``rounds``.
    """
    if processes == 1:
        with _one_thread():
            return _percent(net, choice, fed, lambda model: model)
    with tempfile.TemporaryDirectory() as folder:
        spawn(_process, (processes, folder, net, choice, dict(fed)), processes)
        found: dict[str, float] = json.loads((Path(folder) / _RESULT).read_text())
    return found


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _process(rank: int, processes: int, folder: str, net: str, choice: costs.Choice, fed: dict[str, int]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{_MEETING}", rank=rank, world_size=processes)
    try:
        found = _percent(net, choice, fed, DistributedDataParallel)
        if rank == 0:
            (Path(folder) / _RESULT).write_text(json.dumps(found))
        # None leaves while another still needs it.
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _percent(
    net: str, choice: costs.Choice, fed: Mapping[str, int], wrap: Callable[[nn.Module], nn.Module]
) -> dict[str, float]:
    batch, resolution, classes, rounds = (fed[name] for name in ("batch", "resolution", "classes", "rounds"))
    nets: dict[str, Any] = {
        "base": wrap(costs.make(net, classes)),
        "norm": wrap(costs.make(net, classes, choice)),
    }
    runs = {
        "step": {name: costs.training_step(model, batch, resolution, classes) for name, model in nets.items()},
        "inference": {name: costs.inference(model, batch, resolution) for name, model in nets.items()},
    }
    # The order of runs is the same in every process.
    times = {what: interleaved(both, rounds, budget=float("inf")) for what, both in runs.items()}
    return {what: 100 * (ratio(found["norm"], found["base"]) - 1) for what, found in times.items()}
