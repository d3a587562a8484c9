"""Run an experiment with every setting and seed, store each run when it ends, then judge and draw the results."""

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

from whitenorm_lab.claims import rules
from whitenorm_lab.claims.experiment import Claim, Context, Experiment
from whitenorm_lab.claims.plots import save_figure
from whitenorm_lab.claims.results import Results, Run, Store
from whitenorm_lab.claims.verdicts import Judgement, judge
from whitenorm_lab.machine import describe_machine

ProgressCallback = Callable[[int, int, float, Run | None], None]
"""Called with the number of completed runs, the number of all runs, the completed share of those in progress, and a run
that has just ended."""


def reproduce(
    experiment: Experiment,
    folder: Path,
    scale: str = "default",
    seeds: int | None = None,
    data_root: Path | None = None,
    on_progress: ProgressCallback = lambda done, total, share, run: None,
) -> dict[str, Any]:
    """Make the missing runs, judge the claims, and write JSON and figure; return the content of the JSON.

    An interrupted call resumes, because each run is stored when it ends.
    """
    store = Store(folder, experiment.id, scale)
    runs = _make_runs(experiment, store, scale, seeds or experiment.seeds[scale], data_root, on_progress)
    header = {
        "parameters": experiment.scales[scale],
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "seconds": sum(run.seconds for run in runs),
        "machine": describe_machine(),
    }
    content = _judge_and_draw(experiment, store, scale, header, runs)
    store.remove_partial()
    return content


def judge_again(experiment: Experiment, folder: Path, scale: str = "default") -> dict[str, Any]:
    """Judge and draw stored runs by the current claims and figure, without running anything."""
    store = Store(folder, experiment.id, scale)
    content = store.read()
    if content is None:
        raise ValueError(
            f"expected results of {experiment.id} at {scale} scale in {folder} (got none); run it without --judge"
        )
    if not experiment.matches_setup(content):
        raise ValueError(
            f"expected results of {experiment.id} with its current set-up (got those of an earlier one in {folder}); "
            "run it without --judge"
        )
    header = {name: content[name] for name in ("parameters", "finished", "seconds", "machine")}
    return _judge_and_draw(experiment, store, scale, header, content["runs"])


def _judge_and_draw(
    experiment: Experiment, store: Store, scale: str, header: dict[str, Any], runs: Results
) -> dict[str, Any]:
    content = {
        "experiment": experiment.id,
        "paper": experiment.paper,
        "where": experiment.where,
        "title": experiment.title,
        "scale": scale,
        **header,
        "rule": rules.NAME,
        "claims": judge_claims(experiment, runs, scale),
    }
    # First the figure: if drawing fails, the stored runs are still there to resume from.
    figure = experiment.draw(runs)
    save_figure(figure, store.picture)
    plt.close(figure)
    store.write(content, runs)
    return {**content, "runs": runs}


def _make_runs(
    experiment: Experiment,
    store: Store,
    scale: str,
    seeds: int,
    data_root: Path | None,
    on_progress: ProgressCallback,
) -> Results:
    """Make all runs of the plan that are not stored yet, and return all in the plan's order."""
    first = experiment.first_seed
    planned = [
        Run(settings, seed, {}, 0.0)
        for settings in experiment.plan(experiment.scales[scale])
        for seed in range(first, first + seeds)
    ]
    _copy_shared_runs(experiment, store, planned)
    stored = {run.key(): run for run in store.read_partial()}
    done = 0
    for run in planned:
        if run.key() in stored:
            done += 1
            on_progress(done, len(planned), 0.0, stored[run.key()])
    for batch in _group_seeds(experiment, [run for run in planned if run.key() not in stored]):

        def progress(share: float, done: int = done, size: int = len(batch)) -> None:
            on_progress(done, len(planned), share * size, None)

        progress(0.0)
        _make_batch(experiment, store, batch, data_root, progress)
        # The runs of a batch end together: while they are reported one by one, the others count as completed shares.
        for i, run in enumerate(batch, 1):
            on_progress(done + i, len(planned), float(len(batch) - i), run)
        done += len(batch)
    stored = {run.key(): run for run in store.read_partial()}
    return Results(stored[run.key()] for run in planned)


def _copy_shared_runs(experiment: Experiment, store: Store, planned: list[Run]) -> None:
    """Store runs that other experiments have made as this experiment's own."""
    stored = {run.key() for run in store.read_partial()}
    shared = [run for name in experiment.shares for run in store.read_runs_of(name)]
    for run in planned:
        if run.key() not in stored and (equivalent := next(filter(run.is_equivalent, shared), None)):
            store.add(replace(equivalent, settings=run.settings))


def _group_seeds(experiment: Experiment, runs: list[Run]) -> list[list[Run]]:
    """Group runs with the same settings if the experiment runs all seeds at once."""
    if experiment.run_seeds is None:
        return [[run] for run in runs]
    return [list(batch) for _, batch in groupby(runs, key=lambda run: run.settings)]


def _make_batch(
    experiment: Experiment, store: Store, batch: list[Run], data_root: Path | None, progress: Callable[[float], None]
) -> None:
    """Make and store runs with the same settings; each is credited with an equal share of the time."""
    start = time.perf_counter()
    contexts = [Context(run.seed, data_root, progress, store.get_run_folder(run)) for run in batch]
    settings = batch[0].settings
    if experiment.run_seeds is not None:
        all_values = experiment.run_seeds(settings, contexts)
    else:
        torch.manual_seed(batch[0].seed)
        all_values = [experiment.run(settings, contexts[0])]
    seconds = (time.perf_counter() - start) / len(batch)
    for run, values in zip(batch, all_values, strict=True):
        run.values, run.seconds = values, seconds
        store.add(run)
        shutil.rmtree(store.get_run_folder(run), ignore_errors=True)


def judge_claims(experiment: Experiment, runs: Results, scale: str) -> list[dict[str, Any]]:
    """Return every claim with our values and the verdict, as stored in the results."""
    judgements: dict[Claim, Judgement] = {}
    # Our own bars are corrected as a family of their own, so that they do not weaken the tests of the paper's claims.
    for bar in (False, True):
        family = [claim for claim in experiment.claims if claim.bar is bar]
        evidence = [claim.judge(runs) for claim in family]
        judgements |= dict(zip(family, judge(evidence, experiment.min_seeds), strict=True))
    rows = []
    for claim in experiment.claims:
        judgement = judgements[claim]
        if scale == "smoke" and not claim.exact and judgement.verdict != "not run":
            judgement = Judgement("not decided", judgement.ours, "smoke scale shows that it runs, not more")
        row = {"claim": experiment.word_claim(claim, scale), "paper": claim.paper, **_to_dict(judgement)}
        rows.append({**row, "parts": [_to_dict(part) for part in judgement.parts]} if judgement.parts else row)
    return rows


def _to_dict(judgement: Judgement) -> dict[str, Any]:
    return {"ours": judgement.ours, "verdict": judgement.verdict, "why": judgement.why}
