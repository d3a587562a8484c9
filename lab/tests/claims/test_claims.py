"""Claims as text: the page of docs, the README's lines, what guides say was found, and the tables of the command."""

import re
from pathlib import Path

import pytest

from lab.tests.helpers.stored import SHORT, format_claims_page, store_results, store_several
from whitenorm_lab.claims import command, markdown_page, verdict_snippets
from whitenorm_lab.claims.outcomes import load_outcomes, summarize
from whitenorm_lab.claims.rules import DESCRIPTION
from whitenorm_lab.cli import main
from whitenorm_lab.markdown_sections import write_section
from whitenorm_lab.papers import EXPERIMENTS
from whitenorm_lab.papers.not_built import NOT_BUILT

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture
def several(tmp_path, monkeypatch):
    return store_several(tmp_path / "results", monkeypatch)


def test_readme_and_page(tmp_path, monkeypatch):
    store_results(tmp_path / "results", "dbn-axis-swap", ["held", "not held", "not decided", "held"], monkeypatch)
    store_results(tmp_path / "results", "gw-constraints", ["not held"], monkeypatch)
    readme, page = tmp_path / "README.md", tmp_path / "docs" / "claims.md"
    advice = "before\n<!-- found: gw-constraints -->stale<!-- /found -->\n"
    readme.write_text(f"{advice}{markdown_page.TALLY_START}\nstale\n{markdown_page.TALLY_END}\nafter\n")
    page.parent.mkdir()
    page.write_text(f"before\n{markdown_page.START}\nstale\n{markdown_page.END}\nafter\n")
    arguments = ["report", "--results", str(tmp_path / "results"), "--out", str(tmp_path / "report")]
    arguments += ["--readme", str(readme), "--page", str(page)]
    assert main(arguments) == 0
    once = readme.read_text(), page.read_text()
    assert main(arguments) == 0
    assert (readme.read_text(), page.read_text()) == once
    for text in once:
        assert text.startswith("before\n")
        assert text.endswith("\nafter\n")
        assert "stale" not in text
    assert "-->[`gw-constraints`](results/gw-constraints) 1 not held<!--" in once[0]
    lines = [line for line in once[0].splitlines() if line.startswith("- ")]
    assert len(lines) == 3
    assert " 2 held, 2 not held, 1 not decided, " in lines[0]
    assert lines[2] == "- Where a claim did not hold: `dbn-axis-swap`, `gw-constraints`."
    assert f"**{summarize(load_outcomes(tmp_path / 'results', 'default'), NOT_BUILT)}**" in once[1]
    what = "[`dbn-axis-swap`](../results/dbn-axis-swap): PCA against ZCA whitening of perceptrons"
    assert f"| DBN fig. 2 | {what} | 2 | 1 | 1 | 0 | 1.5 min |" in once[1]
    # Without results there is nothing to link to.
    assert "| `dbn-imagenet`: " in once[1]
    failed = [line for line in once[1].splitlines() if line.startswith("    - **")]
    assert len(failed) == 2
    assert "&lt;script&gt;alert(1)&lt;/script&gt; & " in failed[0]
    assert "p = 0.01" in failed[0]
    rows = [line for line in once[1].splitlines() if line.startswith("| ")]
    assert {row.count("|") for row in rows} == {8}


def test_without_failures(tmp_path, monkeypatch):
    store_results(tmp_path, "gw-constraints", ["held"], monkeypatch)
    gathered = load_outcomes(tmp_path, "default")
    assert "## What did not hold\n\nNo claim was found not to hold.\n" in format_claims_page(gathered)
    assert markdown_page.format_tally(gathered).endswith("- No claim was found not to hold.")


def test_marks_must_be_there(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("start")
    with pytest.raises(ValueError, match="expected the lines start and end"):
        write_section(path, "start", "end", "text")
    assert path.read_text() == "start"


def test_found_beside_advice(several, tmp_path):
    guide = tmp_path / "docs" / "guide.md"
    guide.parent.mkdir()
    guide.write_text("take it <!-- found: gw-constraints dbn-vgg -->stale<!-- /found --> or not")
    for _ in range(2):
        verdict_snippets.update_verdicts(guide, several)
        assert guide.read_text() == (
            "take it <!-- found: gw-constraints dbn-vgg -->[`gw-constraints`](../results/gw-constraints) 3 not held; "
            "`dbn-vgg` not run<!-- /found --> or not"
        )
    guide.write_text("<!-- found: gw-constraint --><!-- /found -->")
    with pytest.raises(ValueError, match=r"got gw-constraint.*gw-constraints"):
        verdict_snippets.update_verdicts(guide, several)
    assert sorted(path.name for path in guide.parent.iterdir()) == ["guide.md"]


def test_what_the_texts_say_was_found_is_what_was():
    """Where it fails: make pages."""
    outcomes = load_outcomes(ROOT / "lab" / "results", "default")
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert verdict_snippets.fill_verdicts(path, outcomes) == text, path
        for name in re.findall(r"results/([\w-]+)/default.png", text):
            assert next(one for one in outcomes if one.experiment.id == name).content, "a picture of an earlier set-up"
    assert (
        f"{markdown_page.TALLY_START}\n\n{markdown_page.format_tally(outcomes)}\n\n{markdown_page.TALLY_END}"
        in PAGES[0].read_text()
    )
    page = ROOT / "docs" / "claims.md"
    table = markdown_page.format_page(outcomes, "default", page.parent)
    assert f"{markdown_page.START}\n\n{table}\n\n{markdown_page.END}" in page.read_text()


def test_the_table_of_a_run(several):
    """In a terminal: a line a part, the bar named, and what the run is short of with every claim but the exact one."""
    (content,) = [o.content for o in several if o.experiment.id == "gw-constraints"]
    view = command.build_verdict_table(content)
    what, _, here, verdicts = ([*column.cells] for column in view.columns)
    assert what == ["exact", "bar of our own: bar", "plain", "plain"]
    assert here[2].splitlines() == ["DBN 1 ± 0.1, BN 2 ± 0.1", "DBN 3 ± 0.1, LN 4 ± 0.1"]
    assert here[3].splitlines()[0] == "DBN 1.5 ± 0.5, BN 2 ± 0.5 (held, p = 0.01)"
    assert [verdict.startswith("not held†") for verdict in verdicts] == [False, True, True, True]
    assert view.caption == f"† {SHORT}\nJudged by {DESCRIPTION}."
    assert "1.5 min on 2 threads" in view.title


def test_the_list_has_measured_costs(several, tmp_path):
    view = command.build_experiment_table(tmp_path / "results")
    rows = dict(
        zip(view.columns[0].cells, zip(*(column.cells for column in view.columns[2:]), strict=True), strict=True)
    )
    assert rows["gw-constraints"] == (
        "1.5 min on 2 threads, no data",
        "default, 2026-01-02: 3 not held; bars: 1 not held",
    )
    assert rows["dbn-vgg"] == (f"about {EXPERIMENTS['dbn-vgg'].cost}, cifar10", "not run")
