"""GW table 1: number of constraints on the outputs of BN, BW, GN and GW, and the ranges of m and g with a solution.

Paper: 2d, d(d+3)/2, 2gm and mg(g+3)/2 equations over a batch; m ≥ 2, m ≥ (d+3)/2, g ≤ d/2, g ≤ (√(8d+9) - 3)/2. The
formulas hold for any d, m and g; here they are checked for a few.

The equations are counted as the rank of the constraints' Jacobian at a random normalised output, and the ranges as the
sizes with no more equations than values. That is necessary for a solution but not sufficient: the rank of centered
values is below their number, so whitening d features needs m > d.

Cost: seconds. Command: ``whitenorm-lab reproduce gw-constraints``.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from whitenorm.diagnostics import constraint_number, feasible_range, measured_constraint_number
from whitenorm_lab.claims.evidence import Evidence, exactly
from whitenorm_lab.claims.experiment import Claim, Context, Experiment, Settings
from whitenorm_lab.claims.plots import add_grid_and_legend
from whitenorm_lab.claims.results import Results

_NAMES = {"bn": "BN", "bw": "BW", "gn": "GN", "gw": "GW"}


def plan(scale: Settings) -> list[Settings]:
    """Return each method over its variable: batch methods over m, group methods over g."""
    d, m = scale["features"], scale["batch"]
    divisors = [g for g in range(1, d + 1) if d % g == 0]
    over_batch = [{"method": method, "features": d, "batch": b} for method in ("bn", "bw") for b in scale["batches"]]
    return over_batch + [
        {"method": method, "features": d, "batch": m, "groups": g} for method in ("gn", "gw") for g in divisors
    ]


def run(settings: Settings, context: Context) -> dict[str, Any]:
    """Return the formula's number, the rank, the number of values, and whether a solution exists."""
    generator = torch.Generator().manual_seed(context.seed)
    return {
        "attained": _has_solution(**settings),
        "formula": constraint_number(**settings),
        "rank": measured_constraint_number(**settings, generator=generator),
        "values": settings["features"] * settings["batch"],
    }


def _has_solution(method: str, features: int, batch: int, groups: int = 1) -> bool:
    """Return whether centered values can have a covariance of full rank; otherwise no matrix can whiten them."""
    dimension = {"bn": 1, "bw": features, "gn": 1, "gw": groups}[method]
    samples = batch if method in ("bn", "bw") else features // groups
    return samples > dimension


def _judge_numbers(results: Results) -> Evidence:
    solvable = [run for run in results if run.values["attained"]]
    equal = sum(run.values["rank"] == run.values["formula"] for run in solvable)
    return exactly(equal == len(solvable), f"rank equal to the formula in {equal} of {len(solvable)} set-ups")


def _judge_ranges(results: Results) -> Evidence:
    wrong = []
    for run in results:
        limits = feasible_range(run.settings["method"], run.settings["features"])
        size = run.settings["batch"] if limits.what == "batch" else run.settings["groups"]
        inside = size >= limits.least and (limits.most is None or size <= limits.most)
        if inside != (run.values["formula"] <= run.values["values"]):
            wrong.append(run.settings)
    return exactly(not wrong, f"as printed in {len(results) - len(wrong)} of {len(results)} set-ups")


def _judge_solvable(results: Results) -> Evidence:
    """Judge whether a solution exists wherever there are no more equations than values."""
    inside = [run for run in results if run.values["formula"] <= run.values["values"]]
    unsolvable = [run.settings for run in inside if not run.values["attained"]]
    methods = ", ".join(sorted({_NAMES[settings["method"]] for settings in unsolvable}))
    exceptions = f", not all of {methods}" if unsolvable else ""
    return exactly(not unsolvable, f"{len(inside) - len(unsolvable)} of {len(inside)} set-ups have one{exceptions}")


def draw(results: Results) -> Figure:
    """Draw constraints over m and over g, by formula and by rank, with the number of values."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for panel, methods, key in ((axes[0], ("bn", "bw"), "batch"), (axes[1], ("gn", "gw"), "groups")):
        for method in methods:
            runs = results.where(method=method)
            sizes = [run.settings[key] for run in runs]
            (line,) = panel.plot(sizes, runs.values("formula"), label=f"{_NAMES[method]}, formula")
            panel.plot(sizes, runs.values("rank"), "o", color=line.get_color(), label=f"{_NAMES[method]}, rank")
        panel.plot(sizes, runs.values("values"), color="grey", linestyle=":", label="values in the output")
        panel.set(xlabel="batch size m" if key == "batch" else "groups g", ylabel="constraints")
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        add_grid_and_legend(panel)
    return figure


EXPERIMENT = Experiment(
    id="gw-constraints",
    paper="GW",
    where="table 1",
    title="Constraint numbers, and the ranges of m and g",
    cost="10 s",
    claims=(
        Claim("Constraints of BN, BW, GN and GW", "2d, d(d+3)/2, 2gm, mg(g+3)/2", _judge_numbers, exact=True),
        Claim("Ranges of m and g", "m ≥ 2, m ≥ (d+3)/2, g ≤ d/2, g ≤ (√(8d+9) - 3)/2", _judge_ranges, exact=True),
        Claim(
            "Within the range there is a normalised output",
            'the ranges are "to ensure a feasible solution"; m ≥ d and g ≤ √d advised for stability',
            _judge_solvable,
            exact=True,
            reason="The rank of centered values is below their number, so whitening d features needs m > d.",
        ),
    ),
    scales={
        "smoke": {"features": 8, "batch": 3, "batches": [1, 2, 3, 6, 12]},
        "default": {"features": 24, "batch": 8, "batches": [1, 2, 4, 8, 13, 14, 16, 24, 32, 48]},
        "paper": {"features": 36, "batch": 12, "batches": [1, 2, 4, 8, 16, 19, 20, 24, 36, 48, 64]},
    },
    seeds={"smoke": 1, "default": 3, "paper": 5},
    plan=plan,
    run=run,
    draw=draw,
)
