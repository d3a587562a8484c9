"""Running an experiment: every setting with every seed, kept as it goes, then judged and drawn."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch

from whitenorm_lab.claims.experiment import Claim, Context, Experiment
from whitenorm_lab.claims.plots import save
from whitenorm_lab.claims.results import Results, Run, Store
from whitenorm_lab.claims.rules import FIRST, SECOND
from whitenorm_lab.claims.verdicts import Judgement, judge
from whitenorm_lab.machine import machine

Watch = Callable[[int, int, float, Run | None], None]
"""Told of progress: runs done, runs in all, how much of those under way, and a run that has just ended."""


def reproduce(
    experiment: Experiment,
    folder: Path,
    scale: str = "default",
    seeds: int | None = None,
    data_root: Path | None = None,
    watch: Watch = lambda done, total, share, run: None,
) -> dict[str, Any]:
    """Run what has not been run, judge the claims, write JSON and picture; returns what the JSON holds.

    A call that was interrupted goes on where it was: runs that ended are kept one by one.
    """
    store = Store(folder, experiment.id, scale)
    runs = _all_runs(experiment, store, scale, seeds or experiment.seeds[scale], data_root, watch)
    made = {
        "parameters": experiment.scales[scale],
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": sum(run.seconds for run in runs),
        "machine": machine(),
        "rule": SECOND.name,
    }
    content = _judge_and_draw(experiment, store, scale, made, runs)
    store.forget()
    return content


def judge_again(experiment: Experiment, folder: Path, scale: str = "default") -> dict[str, Any]:
    """Judge and draw the runs that there are, by the claims and figures of today; nothing is run.

    The rule is the one that they were made under.
    """
    store = Store(folder, experiment.id, scale)
    content = store.read()
    if content is None:
        raise ValueError(
            f"expected results of {experiment.id} at {scale} scale in {folder} (got none); run it without --judge"
        )
    if not experiment.made(content):
        raise ValueError(
            f"expected results of {experiment.id} as this version sets it up (got others in {folder}); run it without "
            "--judge"
        )
    made = {name: content[name] for name in ("parameters", "finished", "seconds", "machine")}
    made["rule"] = content.get("rule", FIRST.name)
    return _judge_and_draw(experiment, store, scale, made, content["runs"])


def _judge_and_draw(
    experiment: Experiment, store: Store, scale: str, made: dict[str, Any], runs: Results
) -> dict[str, Any]:
    content = {
        "experiment": experiment.id,
        "paper": experiment.paper,
        "where": experiment.where,
        "title": experiment.title,
        "scale": scale,
        **made,
        "claims": judged(experiment, runs, scale, made["rule"]),
    }
    # The picture first: were it to fail, the runs are still there to go on from.
    figure = experiment.draw(runs)
    save(figure, store.picture)
    plt.close(figure)
    store.write(content, runs)
    return {**content, "runs": runs}


def _all_runs(
    experiment: Experiment, store: Store, scale: str, seeds: int, data_root: Path | None, watch: Watch
) -> Results:
    first = experiment.first_seed
    planned = [
        Run(settings, seed, {}, 0.0)
        for settings in experiment.plan(experiment.scales[scale])
        for seed in range(first, first + seeds)
    ]
    _take_over(experiment, store, planned)
    done = {run.key(): run for run in store.done()}
    number = 0
    for run in planned:
        if run.key() in done:
            number += 1
            watch(number, len(planned), 0.0, done[run.key()])
    for runs in _at_once(experiment, [run for run in planned if run.key() not in done]):

        def progress(share: float, number: int = number, runs: list[Run] = runs) -> None:
            watch(number, len(planned), share * len(runs), None)

        progress(0.0)
        _make(experiment, store, runs, data_root, progress)
        for later in reversed(range(len(runs))):
            number += 1
            watch(number, len(planned), float(later), runs[-1 - later])
    kept = {run.key(): run for run in store.done()}
    return Results(kept[run.key()] for run in planned)


def _take_over(experiment: Experiment, store: Store, planned: list[Run]) -> None:
    """Keep runs that other experiments have made already as this one's own."""
    done = {run.key() for run in store.done()}
    elsewhere = [run for name in experiment.shares for run in store.beside(name).all()]
    for run in planned:
        if run.key() not in done and (same := next(filter(run.same, elsewhere), None)):
            store.add(replace(same, settings=run.settings))


def _at_once(experiment: Experiment, runs: list[Run]) -> list[list[Run]]:
    """Runs one by one, or all seeds of the same settings together."""
    if experiment.run_seeds is None:
        return [[run] for run in runs]
    return [list(same) for _, same in groupby(runs, key=lambda run: run.settings)]


def _make(
    experiment: Experiment, store: Store, runs: list[Run], data_root: Path | None, progress: Callable[[float], None]
) -> None:
    """Make runs of the same settings, each of which counts with its share of the time, and keep them."""
    start = time.perf_counter()
    contexts = [Context(run.seed, data_root, progress, store.folder(run)) for run in runs]
    settings = runs[0].settings
    if experiment.run_seeds is not None:
        found = experiment.run_seeds(settings, contexts)
    else:
        torch.manual_seed(runs[0].seed)
        found = [experiment.run(settings, contexts[0])]
    seconds = (time.perf_counter() - start) / len(runs)
    for run, values in zip(runs, found, strict=True):
        run.values, run.seconds = values, seconds
        store.add(run)
        shutil.rmtree(store.folder(run), ignore_errors=True)


def judged(experiment: Experiment, runs: Results, scale: str, rule: str) -> list[dict[str, Any]]:
    """Every claim with our numbers and the verdict."""
    found: dict[Claim, Judgement] = {}
    # Bars of our own are a family apart, so that they cost the paper's claims nothing.
    for ours in (False, True):
        family = [claim for claim in experiment.claims if claim.ours is ours]
        found |= dict(zip(family, judge([claim.judge(runs) for claim in family], experiment.rule(rule)), strict=True))
    rows = []
    for claim in experiment.claims:
        judgement = found[claim]
        if scale == "smoke" and not claim.exact and judgement.verdict != "not run":
            judgement = Judgement("not decided", judgement.ours, "smoke scale shows that it runs, not more")
        row = {"claim": experiment.wording(claim, scale), "paper": claim.paper, **_written(judgement)}
        rows.append({**row, "parts": [_written(part) for part in judgement.parts]} if judgement.parts else row)
    return rows


def _written(judgement: Judgement) -> dict[str, Any]:
    return {"ours": judgement.ours, "verdict": judgement.verdict, "why": judgement.why}
