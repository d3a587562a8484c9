"""Running experiments: results, resuming, shared runs, judging again, progress, and the command."""

import dataclasses
import io
import json
import math

import matplotlib.image
import matplotlib.pyplot as plt
import pytest
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from whitenorm_lab.claims import plots
from whitenorm_lab.claims.evidence import every, exactly, lower
from whitenorm_lab.claims.experiment import Claim, Experiment
from whitenorm_lab.claims.progress import show_progress
from whitenorm_lab.claims.results import Results, Run, Store
from whitenorm_lab.claims.runner import judge_again, reproduce
from whitenorm_lab.cli import main
from whitenorm_lab.papers import EXPERIMENTS
from whitenorm_lab.terminal import print_table

NAMES = ("one", "other")


def test_results_are_queried_by_settings():
    runs = [
        Run({"norm": norm, "lr": lr}, seed, {"loss": lr * 2 + seed + (norm == "BN")}, 1.0)
        for norm in ("BN", "DBN")
        for lr in (1, 0.5)
        for seed in (0, 1)
    ]
    results = Results(runs)
    assert results.levels("lr") == [1, 0.5]
    assert results.values("loss", norm="BN", lr=1) == [3, 4]
    assert results.mean("loss", norm="DBN", lr=0.5) == 1.5
    assert results.best("lr", "loss", norm="BN").levels("lr") == [0.5]
    runs[2].values["loss"] = math.nan
    assert results.best("lr", "loss", norm="BN").levels("lr") == [1]
    with pytest.raises(ValueError, match=r"expected runs with .*'GN'"):
        results.where(norm="GN")


class StoppedError(Exception):
    pass


@pytest.fixture
def calls():
    return []


@pytest.fixture
def experiment(calls):
    def run(settings, context):
        if (settings["size"], context.seed) == (2, 1) and "stop" in calls:
            raise StoppedError
        calls.append((settings["size"], context.seed))
        context.progress(0.5)
        return {"value": math.inf if settings["size"] == 3 else settings["size"] + 0.1 * context.seed}

    def draw(results):
        figure, axes = plt.subplots()
        axes.plot(results.values("value", size=1))
        return figure

    return Experiment(
        id="mine",
        paper="P",
        where="fig. 1",
        title="sizes",
        cost="1 s",
        claims=(
            Claim("1 below 2", "yes", lambda r: lower(r.values("value", size=1), r.values("value", size=2), NAMES)),
            Claim("all there", "yes", lambda r: exactly(len(r) > 2, f"{len(r)} runs"), exact=True),
        ),
        scales={"smoke": {"sizes": [1, 2]}, "default": {"sizes": [1, 2, 3]}, "paper": {"sizes": [1, 2, 3]}},
        seeds={"smoke": 2, "default": 3, "paper": 3},
        plan=lambda scale: [{"size": size} for size in scale["sizes"]],
        run=run,
        draw=draw,
        min_seeds=3,
    )


def test_results_and_picture(experiment, tmp_path):
    content = reproduce(experiment, tmp_path)
    assert [claim["verdict"] for claim in content["claims"]] == ["held", "held"]
    written = json.loads((tmp_path / "mine" / "default.json").read_text())
    assert written["runs"][0] == {
        "settings": {"size": 1},
        "seed": 0,
        "values": {"value": 1.0},
        "seconds": written["runs"][0]["seconds"],
    }
    assert written["runs"][-1]["values"] == {"value": "inf"}
    assert {"commit", "torch", "processor"} <= set(written["machine"])
    read = Store(tmp_path, "mine", "default").read()
    assert read["runs"].values("value", size=3) == [math.inf] * 3
    assert matplotlib.image.imread(tmp_path / "mine" / "default.png").std() > 0
    assert [path.name for path in (tmp_path / "mine").iterdir() if "partial" in path.name or "tmp" in path.name] == []


def test_smoke_scale_decides_only_exact_claims(experiment, tmp_path):
    content = reproduce(experiment, tmp_path, "smoke", seeds=4)
    assert [claim["verdict"] for claim in content["claims"]] == ["not decided", "held"]


def test_parts_of_a_claim_are_stored(experiment, tmp_path):
    """Each has its own values and verdict; claims of one part have no parts, nor do claims at smoke scale."""
    both = Claim("both", "yes", lambda r: every(exactly(True, "1 of 1"), exactly(len(r) > 99, f"{len(r)} runs")))
    with_parts = dataclasses.replace(experiment, claims=(both, experiment.claims[0]))
    several, one = reproduce(with_parts, tmp_path)["claims"]
    assert several["parts"] == [
        {"ours": "1 of 1", "verdict": "held", "why": "counted"},
        {"ours": "9 runs", "verdict": "not held", "why": "counted"},
    ]
    assert "parts" not in one
    assert Store(tmp_path, "mine", "default").read()["claims"] == [several, one]
    assert "parts" not in reproduce(with_parts, tmp_path, "smoke")["claims"][0]


def test_an_interrupted_call_resumes(experiment, calls, tmp_path):
    calls.append("stop")
    with pytest.raises(StoppedError):
        reproduce(experiment, tmp_path)
    assert not (tmp_path / "mine" / "default.json").exists()
    # As if killed while it wrote a line.
    with (tmp_path / "mine" / "default.partial.jsonl").open("a") as file:
        file.write('{"settings": {"size": 2}, "se')
    del calls[:]
    seen = []
    content = reproduce(experiment, tmp_path, on_progress=lambda done, total, share, run: seen.append((done, total)))
    assert calls == [(2, 1), (2, 2), (3, 0), (3, 1), (3, 2)]
    assert [(run.settings["size"], run.seed) for run in content["runs"]] == [
        (s, i) for s in (1, 2, 3) for i in range(3)
    ]
    assert seen[-1] == (9, 9)


def test_runs_of_another_experiment_are_reused(experiment, calls, tmp_path):
    """From its results, or from an interrupted call, whatever their variant's name; only missing runs are made."""

    def rename_variant(id, variant, **changes):
        plan = lambda scale: [{"variant": f"{variant} {size}", "size": size} for size in scale["sizes"]]  # noqa: E731
        return dataclasses.replace(experiment, id=id, plan=plan, **changes)

    claims = (Claim("all there", "yes", lambda results: exactly(True, f"{len(results)} runs")),)
    scales = {**experiment.scales, "default": {"sizes": [2, 3, 4]}}
    other = rename_variant("other", "net", claims=claims, scales=scales, draw=lambda results: plt.figure())
    first = reproduce(other, tmp_path)
    del calls[:]
    mine = rename_variant("mine", "mine", shares=("other", "not-run"))
    content = reproduce(mine, tmp_path)
    assert calls == [(1, 0), (1, 1), (1, 2)]
    assert content["runs"].values("value", variant="mine 2") == first["runs"].values("value", variant="net 2")
    (tmp_path / "other" / "default.json").unlink()
    Store(tmp_path, "other", "default").add(first["runs"][0])
    del calls[:]
    reproduce(mine, tmp_path)
    assert (2, 0) not in calls
    assert (2, 1) in calls


def test_missing_seeds_of_the_same_settings_are_run_at_once(experiment, calls, tmp_path):
    """Each run is credited with an equal share of the time."""
    alone = reproduce(experiment, tmp_path / "alone")
    Store(tmp_path, "mine", "default").add(alone["runs"][1])
    del calls[:]
    together, seen = [], []

    def run_seeds(settings, contexts):
        together.append((settings["size"], [context.seed for context in contexts]))
        return [experiment.run(settings, context) for context in contexts]

    watch = lambda done, total, share, run: seen.append((done + share, total))  # noqa: E731
    content = reproduce(dataclasses.replace(experiment, run_seeds=run_seeds), tmp_path, on_progress=watch)
    assert together == [(1, [0, 2]), (2, [0, 1, 2]), (3, [0, 1, 2])]
    assert [(run.key(), run.values) for run in content["runs"]] == [(run.key(), run.values) for run in alone["runs"]]
    assert content["runs"][3].seconds == content["runs"][4].seconds > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    # One run was stored, and two are half done.
    assert (2, 9) in seen


def test_judge_again_runs_nothing(experiment, calls, tmp_path):
    """It replaces the claims, and keeps the runs, their time and machine."""
    reproduce(experiment, tmp_path)
    before = Store(tmp_path, "mine", "default").read()
    del calls[:]
    claim = Claim("2 below 1", "no", lambda r: lower(r.values("value", size=2), r.values("value", size=1), NAMES))
    (tmp_path / "mine" / "default.partial.jsonl").write_text("of another call\n")
    after = judge_again(dataclasses.replace(experiment, claims=(claim,)), tmp_path)
    assert calls == []
    assert [claim["verdict"] for claim in after["claims"]] == ["not held"]
    assert {**after, "claims": 0} == {**before, "claims": 0}
    assert Store(tmp_path, "mine", "default").read()["claims"] == after["claims"]
    assert (tmp_path / "mine" / "default.partial.jsonl").exists()
    with pytest.raises(ValueError, match="got none"):
        judge_again(experiment, tmp_path / "empty")


@pytest.mark.parametrize("earlier", [{"rule": "Welch"}, {}])
def test_results_of_an_earlier_rule_are_judged_again_by_the_current_one(experiment, tmp_path, earlier):
    content = reproduce(experiment, tmp_path)
    store = Store(tmp_path, "mine", "default")
    rule, runs = content.pop("rule"), content.pop("runs")
    store.write({**content, **earlier, "claims": []}, runs)
    assert store.read().get("rule") == earlier.get("rule")
    again = judge_again(experiment, tmp_path)
    assert again["rule"] == rule == "paired, Holm"
    assert again["claims"] == content["claims"]


def test_command(tmp_path, capsys, monkeypatch):
    # Wide enough that no cell is wrapped.
    monkeypatch.setenv("COLUMNS", "250")
    assert main(["reproduce", "gw-constraints", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    assert "held" in capsys.readouterr().out
    assert main(["reproduce", "gw-constraints", "--judge", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    assert "held" in capsys.readouterr().out
    assert main(["reproduce", "gw-constraints", "--judge", "--out", str(tmp_path)]) == 1
    assert "run it without --judge" in capsys.readouterr().err
    assert main(["reproduce", "--list", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "not run" in printed
    with pytest.raises(SystemExit):
        main(["reproduce", "no-such"])
    assert "expected experiments that whitenorm-lab reproduce --list shows (got no-such)" in capsys.readouterr().err
    (tmp_path / "gw-constraints" / "smoke.json").write_text("{")
    assert main(["reproduce", "--list", "--out", str(tmp_path)]) == 1
    assert "run it again" in capsys.readouterr().err


def test_piped_tables_are_not_cut(tmp_path, capsys, monkeypatch):
    """There is one line per experiment, claim and summary, whatever COLUMNS says."""
    monkeypatch.setenv("COLUMNS", "30")
    assert main(["reproduce", "--list", "--out", str(tmp_path)]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows[0] == ["id", "what", "cost, data", "last run"]
    assert {len(row) for row in rows} == {4}
    assert [row[0] for row in rows[1 : len(EXPERIMENTS) + 1]] == list(EXPERIMENTS)
    assert all(EXPERIMENTS[row[0]].title in row[1] for row in rows[1 : len(EXPERIMENTS) + 1])

    arguments = ["--out", str(tmp_path), "--scale", "smoke"]
    assert main(["reproduce", "gw-histogram", *arguments]) == 0
    claims = EXPERIMENTS["gw-histogram"].claims
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows[2 : len(claims) + 2]] == [[claim.text, claim.paper] for claim in claims]
    report = ["report", "--results", str(tmp_path), "--out", str(tmp_path / "site"), "--scale", "smoke"]
    assert main(report) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_table_on_a_terminal():
    out = io.StringIO()
    table = Table("id", title="Experiments")
    table.add_row("gw-histogram")
    print_table(Console(file=out, force_terminal=True, width=40), table)
    assert "│ gw-histogram │" in out.getvalue()


def test_progress_without_a_terminal():
    """A line now and then shows the progress in a log; runs of an interrupted call count in the estimate."""
    now, out = [0.0], io.StringIO()
    with show_progress("dbn-vgg", Console(file=out, width=20), clock=lambda: now[0]) as watch:
        watch(1, 4, 0.0, Run({}, 0, {}, 100.0))
        assert out.getvalue() == ""
        now[0] = 40.0
        watch(1, 4, 0.5, None)
        now[0] = 50.0
        watch(2, 4, 0.0, Run({}, 1, {}, 50.0))
    assert out.getvalue() == "dbn-vgg: 1.5 of 4 runs, left 0:04:10\n"


def test_progress_on_a_terminal():
    out = io.StringIO()
    with show_progress("dbn-vgg", Console(file=out, force_terminal=True, width=100)) as watch:
        watch(1, 4, 0.0, Run({}, 0, {}, 100.0))
    assert "1/4 runs" in out.getvalue()
    assert "left 0:05:00" in out.getvalue()


# Raises RecursionError in Python's parser.
NESTED = b"[" * 10**5


def test_damaged_results_are_detected(tmp_path):
    """A changed digit is, in the results and in the runs of an interrupted call."""
    store = Store(tmp_path, "mine", "default")
    run = Run({"lr": 0.5}, 0, {"loss": 1.25, "curve": [1.0, math.inf]}, 2.0)
    store.add(run)
    assert store.read_partial() == [run]
    partial = tmp_path / "mine" / "default.partial.jsonl"
    partial.write_bytes(partial.read_bytes().replace(b"1.25", b"1.35") + b"\xff\n[1]\n" + NESTED + b"\n")
    assert store.read_partial() == []
    names = ("experiment", "title", "scale", "parameters", "finished", "machine", "claims")
    store.write({**dict.fromkeys(names, "x"), "seconds": 1.0}, [run])
    assert store.read()["runs"] == [run]
    content = store.results.read_bytes()
    for old, new in (
        (b"1.25", b"1.35"),
        (b'"title": "x"', b'"title": "y"'),
        (content, b"{}"),
        (content, b"\xff"),
        (content, NESTED),
    ):
        store.results.write_bytes(content.replace(old, new))
        with pytest.raises(OSError, match="to be results of whitenorm-lab reproduce"):
            store.read()


@pytest.mark.parametrize(("photograph", "mode"), [(False, "RGBA"), (True, "P")])
def test_large_pictures_are_saved_in_fewer_colours(tmp_path, photograph, mode):
    figure, axes = plt.subplots(figsize=(6, 6))
    axes.imshow(torch.rand(600, 600, 3) if photograph else torch.eye(8))
    plots.save_figure(figure, tmp_path / "picture.png")
    plt.close(figure)
    with Image.open(tmp_path / "picture.png") as picture:
        assert (picture.size, picture.mode) == ((960, 960), mode)
