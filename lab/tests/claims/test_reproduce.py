"""Experiments: the rule of verdicts, files that survive an interruption, and every entry at smoke scale."""

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


def test_asking_results():
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
def experiment():
    calls = []

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

    made = Experiment(
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
    return made, calls


def test_results_and_picture(experiment, tmp_path):
    content = reproduce(experiment[0], tmp_path)
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


def test_smoke_decides_only_what_is_exact(experiment, tmp_path):
    content = reproduce(experiment[0], tmp_path, "smoke", seeds=4)
    assert [claim["verdict"] for claim in content["claims"]] == ["not decided", "held"]


def test_parts_of_a_claim_are_kept(experiment, tmp_path):
    """With their own numbers and verdicts; a claim of one has none, nor has what smoke scale does not decide."""
    both = Claim("both", "yes", lambda r: every(exactly(True, "1 of 1"), exactly(len(r) > 99, f"{len(r)} runs")))
    made = dataclasses.replace(experiment[0], claims=(both, experiment[0].claims[0]))
    several, one = reproduce(made, tmp_path)["claims"]
    assert several["parts"] == [
        {"ours": "1 of 1", "verdict": "held", "why": "counted"},
        {"ours": "9 runs", "verdict": "not held", "why": "counted"},
    ]
    assert "parts" not in one
    assert Store(tmp_path, "mine", "default").read()["claims"] == [several, one]
    assert "parts" not in reproduce(made, tmp_path, "smoke")["claims"][0]


def test_an_interrupted_call_goes_on(experiment, tmp_path):
    made, calls = experiment
    calls.append("stop")
    with pytest.raises(StoppedError):
        reproduce(made, tmp_path)
    assert not (tmp_path / "mine" / "default.json").exists()
    # As if killed in the middle of a line.
    with (tmp_path / "mine" / "default.partial.jsonl").open("a") as file:
        file.write('{"settings": {"size": 2}, "se')
    del calls[:]
    seen = []
    content = reproduce(made, tmp_path, on_progress=lambda done, total, share, run: seen.append((done, total)))
    assert calls == [(2, 1), (2, 2), (3, 0), (3, 1), (3, 2)]
    assert [(run.settings["size"], run.seed) for run in content["runs"]] == [
        (s, i) for s in (1, 2, 3) for i in range(3)
    ]
    assert seen[-1] == (9, 9)


def test_runs_of_another_experiment_are_taken_over(experiment, tmp_path):
    """From its results, or from what an interrupted call has made, whatever their names; others are run."""
    made, calls = experiment

    def named(id, variant, **changes):
        plan = lambda scale: [{"variant": f"{variant} {size}", "size": size} for size in scale["sizes"]]  # noqa: E731
        return dataclasses.replace(made, id=id, plan=plan, **changes)

    claims = (Claim("all there", "yes", lambda results: exactly(True, f"{len(results)} runs")),)
    scales = {**made.scales, "default": {"sizes": [2, 3, 4]}}
    other = named("other", "net", claims=claims, scales=scales, draw=lambda results: plt.figure())
    first = reproduce(other, tmp_path)
    del calls[:]
    mine = named("mine", "mine", shares=("other", "not-run"))
    content = reproduce(mine, tmp_path)
    assert calls == [(1, 0), (1, 1), (1, 2)]
    assert content["runs"].values("value", variant="mine 2") == first["runs"].values("value", variant="net 2")
    (tmp_path / "other" / "default.json").unlink()
    Store(tmp_path, "other", "default").add(first["runs"][0])
    del calls[:]
    reproduce(mine, tmp_path)
    assert (2, 0) not in calls
    assert (2, 1) in calls


def test_seeds_of_the_same_settings_are_made_at_once(experiment, tmp_path):
    """Those that are not there yet; each counts with its share of the time."""
    made, calls = experiment
    alone = reproduce(made, tmp_path / "alone")
    Store(tmp_path, "mine", "default").add(alone["runs"][1])
    del calls[:]
    together, seen = [], []

    def run_seeds(settings, contexts):
        together.append((settings["size"], [context.seed for context in contexts]))
        return [made.run(settings, context) for context in contexts]

    watch = lambda done, total, share, run: seen.append((done + share, total))  # noqa: E731
    content = reproduce(dataclasses.replace(made, run_seeds=run_seeds), tmp_path, on_progress=watch)
    assert together == [(1, [0, 2]), (2, [0, 1, 2]), (3, [0, 1, 2])]
    assert [(run.key(), run.values) for run in content["runs"]] == [(run.key(), run.values) for run in alone["runs"]]
    assert content["runs"][3].seconds == content["runs"][4].seconds > 0
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    # One was there, and two are half done.
    assert (2, 9) in seen


def test_judge_again_runs_nothing(experiment, tmp_path):
    """New claims of runs that were made; where and when they were made stays."""
    made, calls = experiment
    reproduce(made, tmp_path)
    before = Store(tmp_path, "mine", "default").read()
    del calls[:]
    claim = Claim("2 below 1", "no", lambda r: lower(r.values("value", size=2), r.values("value", size=1), NAMES))
    (tmp_path / "mine" / "default.partial.jsonl").write_text("of another call\n")
    after = judge_again(dataclasses.replace(made, claims=(claim,)), tmp_path)
    assert calls == []
    assert [claim["verdict"] for claim in after["claims"]] == ["not held"]
    assert {**after, "claims": 0} == {**before, "claims": 0}
    assert Store(tmp_path, "mine", "default").read()["claims"] == after["claims"]
    assert (tmp_path / "mine" / "default.partial.jsonl").exists()
    with pytest.raises(ValueError, match="got none"):
        judge_again(made, tmp_path / "empty")


def test_command(tmp_path, capsys, monkeypatch):
    # Wide enough for no cell to be wrapped.
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


def test_what_is_piped_is_not_cut(tmp_path, capsys, monkeypatch):
    """A line per experiment, per claim, and per summary, however wide the terminal is said to be."""
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
    shown_table = Table("id", title="Experiments")
    shown_table.add_row("gw-histogram")
    print_table(Console(file=out, force_terminal=True, width=40), shown_table)
    assert "│ gw-histogram │" in out.getvalue()


def test_without_a_terminal_a_line_now_and_then():
    """So that a log tells how far a run of hours is; one that was interrupted counts with what it took."""
    now, out = [0.0], io.StringIO()
    with show_progress("dbn-vgg", Console(file=out, width=20), clock=lambda: now[0]) as watch:
        watch(1, 4, 0.0, Run({}, 0, {}, 100.0))
        assert out.getvalue() == ""
        now[0] = 40.0
        watch(1, 4, 0.5, None)
        now[0] = 50.0
        watch(2, 4, 0.0, Run({}, 1, {}, 50.0))
    assert out.getvalue() == "dbn-vgg: 1.5 of 4 runs, left 0:04:10\n"


def test_on_a_terminal_a_bar():
    out = io.StringIO()
    with show_progress("dbn-vgg", Console(file=out, force_terminal=True, width=100)) as watch:
        watch(1, 4, 0.0, Run({}, 0, {}, 100.0))
    assert "1/4 runs" in out.getvalue()
    assert "left 0:05:00" in out.getvalue()


# Python's error of it is none of a value.
NESTED = b"[" * 10**5


def test_damaged_results_are_seen(tmp_path):
    """A digit that changed, in the results and in the runs of an interrupted call."""
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
