"""DBN table B.3: the time that one DBN adds to ImageNet's residual nets on several GPUs, against one GPU (table B.4).

Paper, seconds per iteration: on several GPUs +79 % of a training step (18 layers), +69 % (34), +120 % (50), +177 %
(101), of inference +28, +29, +32, +36 %; on one GPU +55 to +9 %, +29 to +6 %. "The overhead of multi-GPU
parallelization is relatively high" in that implementation.

Here the processes of data-parallel training stand in for GPUs: two processes of one thread each, whose gradients DDP
averages, against one. As in the paper, each process has its own statistics.

Default scale: two processes with batches of 2 at 128².
Cost: 7 min. Command: ``whitenorm-lab reproduce dbn-cost-parallel``.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, every, lower
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.costs import Choice
from whitenorm_lab.papers.shared import overheads
from whitenorm_lab.parallel import measure_added_percent
from whitenorm_lab.published import DBN_L1_PARALLEL_PERCENT, DBN_L1_PERCENT

_CHOICE = Choice("dbn", "l1")
_INDEX = {"step": 0, "inference": 1}


def plan(scale: Settings) -> list[Settings]:
    """Plan a run of every net in several processes and in one."""
    parameters = {name: scale[name] for name in ("batch", "resolution", "classes", "rounds")}
    return [
        {"table": table, "model": net, "processes": processes, **parameters}
        for table, processes in (("B.3", scale["processes"]), ("B.4", 1))
        for net in scale["nets"]
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Measure the percentage that one DBN adds to BatchNorm's training step and inference."""
    return {**measure_added_percent(settings["model"], _CHOICE, settings["processes"], settings)}


def _get_printed(table: str, value: str) -> dict[str, float]:
    return {
        net: percent[_INDEX[value]]
        for net, percent in (DBN_L1_PARALLEL_PERCENT if table == "B.3" else DBN_L1_PERCENT).items()
    }


def _check_step_adds_more(results: Results) -> Evidence:
    return every(
        *(
            lower(
                results.values("step", table="B.4", model=net),
                results.values("step", table="B.3", model=net),
                (f"{net} adds %, one process", "several"),
            )
            for net in results.levels("model")
        )
    )


def draw(results: Results) -> Figure:
    """Draw the overheads of training and inference, one row per table."""
    panels: list[Any] = []
    for table in ("B.3", "B.4"):
        runs = results.where(table=table)
        processes = runs[0].settings["processes"]
        title = f"{processes} processes" if processes > 1 else "one process"
        panels += [(runs, value, _get_printed(table, value), title) for value in _INDEX]
    return overheads.draw_overheads(panels)


EXPERIMENT = Experiment(
    id="dbn-cost-parallel",
    paper="DBN",
    where="table B.3",
    title="Time with one DBN in several processes",
    cost="7 min",
    claims=(
        Claim(
            "One DBN adds a larger share of a training step in parallel than alone",
            "+79, +69, +120, +177 % against +55, +32, +16, +9 %",
            _check_step_adds_more,
            reason="A DBN's own statistics are not exchanged here: only gradients are, as many as with BatchNorm.",
        ),
        Claim(
            "Training in parallel: added time at most as printed",
            "18 … 101 layers: +79, +69, +120, +177 %",
            overheads.expect_at_most_printed("step", _get_printed("B.3", "step"), "B.3"),
            bar=True,
        ),
        Claim(
            "Inference in parallel: added time at most as printed",
            "+28, +29, +32, +36 %",
            overheads.expect_at_most_printed("inference", _get_printed("B.3", "inference"), "B.3"),
            bar=True,
        ),
    ),
    scales={
        "smoke": {"nets": ["resnet18"], "processes": 2, "batch": 2, "resolution": 32, "classes": 10, "rounds": 2},
        "default": {
            "nets": ["resnet18", "resnet34", "resnet50", "resnet101"],
            "processes": 2,
            "batch": 2,
            "resolution": 128,
            "classes": 1000,
            "rounds": 3,
        },
        "paper": {
            "nets": ["resnet18", "resnet34", "resnet50", "resnet101"],
            "processes": 4,
            "batch": 64,
            "resolution": 224,
            "classes": 1000,
            "rounds": 10,
        },
    },
    seeds={"smoke": 1, "default": 5, "paper": 5},
    plan=plan,
    run=run,
    draw=draw,
    reduction="Times are of a CPU without the optimizer's part, the paper's of 2 to 8 GPUs: only ratios and orders "
    "compare. Two processes of one thread with batches of 2 at 128² for a batch of 256 at 224²; 3 rounds for 10.",
)
