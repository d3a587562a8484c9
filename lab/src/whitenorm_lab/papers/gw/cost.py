"""GW tables A2 and A3: time that GW adds to a training step of ResNet-50, by placement, and BW_Σ.

Paper: V100, ms per iteration over 100, batch 256, 224²: BN 419; GW (g = 64) at S1 437, S1-B1 518, S1-B2 514, S1-B3 634,
S1-B12 589, everywhere 796; BW_Σ at S1-B2 550; ResNet-101 and ResNeXt-50 likewise at S1-B2 (ResNeXt-101 is omitted).

Default scale: batch 8 at 128² on ResNet-50 alone. Only ratios to BatchNorm can be compared: the paper's times are of a
GPU, and include the optimizer.

Cost: 3 minutes. Command: ``whitenorm-lab reproduce gw-cost``.
"""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from whitenorm_lab.claims.evidence import Evidence, every
from whitenorm_lab.claims.experiment import Claim, Experiment, Settings
from whitenorm_lab.claims.results import Results
from whitenorm_lab.costs import RESNET50
from whitenorm_lab.papers.shared.overheads import (
    build_settings,
    draw_overheads,
    expect_at_most_printed,
    expect_rising_step_times,
    run,
)
from whitenorm_lab.published import S1_B2_PERCENT, STEP_PERCENT

_MODELS = ("GW S1", "GW S1-B1", "GW S1-B2", "GW S1-B3", "GW S1-B12", "GW full", "BW_Σ S1-B2")


def plan(scale: Settings) -> list[Settings]:
    """Return all placements in ResNet-50, and GW and BW_Σ at S1-B2 in larger nets."""
    runs: list[tuple[str, str, tuple[str, ...]]] = [("A2", scale["net"], _MODELS)]
    runs += [(f"A3, {net}", net, ("GW S1-B2", "BW_Σ S1-B2")) for net in scale["larger"]]
    return [
        build_settings(table, net, {model: RESNET50[model] for model in models}, scale, ["step"])
        for table, net, models in runs
    ]


def _judge_printed(results: Results) -> Evidence:
    return every(
        *(expect_at_most_printed("step", _find_printed(table), table)(results) for table in results.levels("table"))
    )


def _find_printed(table: str) -> dict[str, float]:
    return STEP_PERCENT if table == "A2" else S1_B2_PERCENT[table.removeprefix("A3, ")]


def draw(results: Results) -> Figure:
    """Draw the added time of a training step per net."""
    tables = {table: results.where(table=table) for table in results.levels("table")}
    panels: list[Any] = [(runs, "step", _find_printed(table), runs.levels("net")[0]) for table, runs in tables.items()]
    return draw_overheads(panels)


EXPERIMENT = Experiment(
    id="gw-cost",
    paper="GW",
    where="tables A2 and A3",
    title="Training step of ResNet-50 with GW, by placement",
    cost="3 min",
    claims=(
        Claim(
            "GW and BW_Σ add at most what is printed", "4.3 … 90 % by placement, BW_Σ 31.3 %", _judge_printed, bar=True
        ),
        Claim(
            "One GW adds least, all norms most",
            "4.3, 22.7, 90 %",
            expect_rising_step_times(["GW S1", "GW S1-B2", "GW full"], "A2"),
        ),
        Claim(
            "At B3, with 4 times the channels, GW adds more than at B1 and B2",
            "51.3 % over 23.6 and 22.7",
            lambda results: every(
                *(expect_rising_step_times([place, "GW S1-B3"], "A2")(results) for place in ("GW S1-B1", "GW S1-B2"))
            ),
        ),
        Claim(
            "At B12 GW adds more than at B2, less than at B3",
            "22.7, 40.6, 51.3 %",
            expect_rising_step_times(["GW S1-B2", "GW S1-B12", "GW S1-B3"], "A2"),
            reason=(
                "On a CPU, computing the matrix of every sample costs more than applying it, so the number of layers "
                "counts more than that of their channels: B12 has twice as many layers as B3."
            ),
        ),
        Claim(
            "GW adds less than BW_Σ", "22.7 against 31.3 %", expect_rising_step_times(["GW S1-B2", "BW_Σ S1-B2"], "A2")
        ),
    ),
    scales={
        "smoke": {"net": "resnet-tiny", "larger": [], "batch": 2, "resolution": 32, "classes": 10, "rounds": 2},
        "default": {"net": "resnet50", "larger": [], "batch": 8, "resolution": 128, "classes": 1000, "rounds": 3},
        "paper": {
            "net": "resnet50",
            "larger": list(S1_B2_PERCENT),
            "batch": 256,
            "resolution": 224,
            "classes": 1000,
            "rounds": 100,
        },
    },
    seeds={"smoke": 1, "default": 10, "paper": 5},
    plan=plan,
    run=run,
    draw=draw,
    reduction=(
        "Times are of a CPU and without the optimizer, the paper's of a V100: only ratios and orders can be compared. "
        "Batch 8 at 128² instead of 256 at 224², ResNet-50 alone, 10 repetitions of 3 instead of 100 rounds."
    ),
)
