"""DBN table B.3: what one DBN adds to the time of ImageNet's residual nets on several GPUs, against one (table B.4).

Paper, seconds an iteration: on several GPUs +79 % of a training step (18 layers), +69 % (34), +120 % (50), +177 %
(101), of inference +28, +29, +32, +36 %; on one GPU +55 to +9 %, +29 to +6 %. "The overhead of multi-GPU
parallelization is relatively high" in that implementation. Here the processes of a data-parallel training stand for
GPUs: two, of one thread each, whose gradients DDP averages, against one. Each has its own statistics, as there.
Command: ``whitenorm-lab reproduce dbn-cost-parallel``. The default scale has two processes with batches of 2 at 128².
"""

from __future__ import annotations

from collections.abc import Callable
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
_PLACE = {"step": 0, "inference": 1}


def plan(scale: Settings) -> list[Settings]:
    """Every net in one process and in several."""
    fed = {name: scale[name] for name in ("batch", "resolution", "classes", "rounds")}
    return [
        {"table": table, "model": net, "processes": processes, **fed}
        for table, processes in (("B.3", scale["processes"]), ("B.4", 1))
        for net in scale["nets"]
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Percent that one DBN adds to BatchNorm's training step and inference."""
    return {**measure_added_percent(settings["model"], _CHOICE, settings["processes"], settings)}


def _printed(table: str, value: str) -> dict[str, float]:
    return {
        net: percent[_PLACE[value]]
        for net, percent in (DBN_L1_PARALLEL_PERCENT if table == "B.3" else DBN_L1_PERCENT).items()
    }


def _more_in_parallel(value: str) -> Callable[[Results], Evidence]:
    def judge(results: Results) -> Evidence:
        alone, together = results.where(table="B.4"), results.where(table="B.3")
        return every(
            *(
                lower(
                    alone.values(value, model=net),
                    together.values(value, model=net),
                    (f"{net} adds %, one process", "several"),
                )
                for net in results.levels("model")
            )
        )

    return judge


def draw(results: Results) -> Figure:
    """Training and inference, a row a table."""
    panels: list[Any] = []
    for table in ("B.3", "B.4"):
        found = results.where(table=table)
        processes = found[0].settings["processes"]
        title = f"{processes} processes" if processes > 1 else "one process"
        panels += [(found, value, _printed(table, value), title) for value in _PLACE]
    return overheads.picture(panels)


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
            _more_in_parallel("step"),
            reason="A DBN's own statistics are not exchanged here: only gradients are, as many as with BatchNorm.",
        ),
        Claim(
            "Training in parallel: added time at most as printed",
            "18 … 101 layers: +79, +69, +120, +177 %",
            overheads.within("step", _printed("B.3", "step"), "B.3"),
            bar=True,
        ),
        Claim(
            "Inference in parallel: added time at most as printed",
            "+28, +29, +32, +36 %",
            overheads.within("inference", _printed("B.3", "inference"), "B.3"),
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
