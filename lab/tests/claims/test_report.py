"""The Markdown pages of ``whitenorm-lab report``: complete, linked, and written whole or not at all."""

import dataclasses
import re
import shutil
from html import unescape
from pathlib import Path

import matplotlib.image
import pytest

from lab.tests.helpers.stored import HOSTILE, MACHINE, SHORT, format_claims_page, store_results, store_several
from whitenorm_lab.claims import command, markdown_page, outcomes, pages, report
from whitenorm_lab.claims.outcomes import PAPERS, describe_hardware, format_commit, load_outcomes, summarize
from whitenorm_lab.claims.report import write_report
from whitenorm_lab.claims.results import Store
from whitenorm_lab.claims.rules import DESCRIPTION
from whitenorm_lab.cli import main
from whitenorm_lab.papers import EXPERIMENTS
from whitenorm_lab.papers.not_built import NOT_BUILT, NotBuilt

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as monkeypatch:
        verdicts = ["held", "not held", "not decided", "held"]
        store_results(folder, "dbn-axis-swap", verdicts, monkeypatch)
        store_results(folder, "gw-constraints", ["not held"], monkeypatch, text="less")
        yield folder


@pytest.fixture(scope="module")
def report_folder(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("web") / "new" / "report"
    assert main(["report", "--results", str(results), "--out", str(folder)]) == 0
    return folder


def read(path):
    """Text as a viewer shows it, in this much: entities, escapes and no-break spaces are resolved."""
    return re.sub(r"\\([\\`*_\[\]])", r"\1", unescape(path.read_text(encoding="utf-8"))).replace("\u00a0", " ")


def read_section(path, name):
    """The part of a page that an experiment's anchor leads to."""
    return read(path).split(f'<a id="{name}"></a>')[1].split("\n## ")[0]


def test_every_experiment_is_of_a_known_paper():
    assert {experiment.paper for experiment in EXPERIMENTS.values()} <= set(PAPERS)


def test_index_counts_and_lists_all(report_folder):
    text = read(report_folder / "README.md")
    assert f" in {len(EXPERIMENTS)} experiments: 2 held, 2 not held, 1 not decided, " in text
    for experiment in EXPERIMENTS.values():
        assert f"[`{experiment.id}`]({experiment.paper.lower()}.md#{experiment.id})" in text
    for words in ("the paired t-test", "P<x>, 2 threads, torch 2", "aaaaaaaaaa", "3.0 min", "default"):
        assert words in text
    assert "[Decorrelated Batch Normalization (DBN)](dbn.md)" in text
    assert "**✓ 2 held, ✗ 1 not held, ? 1 not decided, – " in text


def test_experiments_without_results_are_listed(results, tmp_path):
    shutil.copytree(results / "gw-constraints", tmp_path / "results/gw-constraints")
    gathered = load_outcomes(tmp_path / "results", "default")
    write_report(gathered, "default", tmp_path / "report")
    assert summarize(gathered, []).endswith(f" {len(EXPERIMENTS) - 1} experiments not run.")
    claims_of_it = EXPERIMENTS["dbn-axis-swap"].claims
    index = read(tmp_path / "report/README.md")
    assert f"PCA against ZCA whitening of perceptrons | 0 | 0 | 0 | {len(claims_of_it)} | not run |" in index
    assert summarize(gathered, NOT_BUILT) in index
    text = read(tmp_path / "report/dbn.md")
    assert "**Not run** at default scale." in text
    assert "![" not in text
    for claim in claims_of_it:
        assert f"| {claim.text} | {claim.paper} | – | **– not run** |" in text
    assert f"| 0 | 0 | 0 | {len(claims_of_it)} | not run |" in format_claims_page(gathered)


def test_paper_page_has_claims_with_verdicts(report_folder):
    text = read_section(report_folder / "dbn.md", "dbn-axis-swap")
    assert text.count("**✓ held**") == 2
    assert text.count("**✗ not held**") == 1
    assert text.count("**? not decided**") == 1
    for words in ("1 ± 0.5", "PCA whitening swaps axes", "p = 0.01", "fig. 2", "2026-01-02", "commit aaaaaaaaaa,"):
        assert words in text
    assert "Default scale, 6 runs: 2 settings × 3 seeds, 1.5 min on 2 threads. Images" in text
    assert "![PCA against ZCA whitening of perceptrons, as measured here: DBN fig. 2](" in text
    # Numbers stay with their signs on one line.
    assert "1\u00a0±\u00a00.5" in (report_folder / "dbn.md").read_text()


def test_text_is_escaped(report_folder):
    for path in report_folder.glob("*.md"):
        text = re.sub(r"``.*?``|`[^`]*`", "", path.read_text())
        assert set(re.findall(r"<[^>]*>", text)) <= {
            pages.GENERATED,
            '<details markdown="1">',
            "</details>",
            "<summary>",
            "</summary>",
            "</a>",
            "<br>",
            *(f'<a id="{name}">' for name in EXPERIMENTS),
        }
    assert HOSTILE in read(report_folder / "dbn.md")
    rows = [line for line in (report_folder / "dbn.md").read_text().splitlines() if line.startswith("| ")]
    assert {row.count("|") for row in rows} == {5}


def test_links_lead_to_files_and_anchors(report_folder):
    texts = {path.name: path.read_text() for path in report_folder.glob("*.md")}
    assert set(texts) == {"README.md", "dbn.md", "iternorm.md", "sw.md", "gw.md"}
    for name, text in texts.items():
        addresses = re.findall(r"\]\(([^)]+)\)", text)
        assert addresses
        for address in addresses:
            if address.startswith("https://arxiv.org/"):
                continue
            file, _, anchor = address.partition("#")
            assert (report_folder / file).is_file(), (name, address)
            if anchor:
                headings = re.findall(r"^## (.*)$", texts[file], re.MULTILINE)
                slugs = {heading.lower().replace(" ", "-") for heading in headings}
                assert f'<a id="{anchor}"></a>' in texts[file] or anchor in slugs, address


def test_raw_values_and_figures_are_beside(report_folder, results):
    name = "gw-constraints/default.json"
    assert (report_folder / "results" / name).read_bytes() == (results / name).read_bytes()
    # Drawn from the raw values: there is no figure among the results.
    assert not list(results.rglob("*.png"))
    assert matplotlib.image.imread(report_folder / "results/gw-constraints/default.png").std() > 0


def test_nothing_half_written(results, tmp_path, monkeypatch):
    out = tmp_path / "report"
    write_report(load_outcomes(results, "default"), "default", out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(report, "format_index_page", full)
    with pytest.raises(OSError, match="no space left"):
        write_report(load_outcomes(results, "default")[:1], "default", out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_other_files_in_the_folder_stay(results, tmp_path):
    (tmp_path / "CNAME").write_text("mine")
    for _ in range(2):
        write_report(load_outcomes(results, "default"), "default", tmp_path)
    assert (tmp_path / "CNAME").read_text() == "mine"
    assert not list(tmp_path.glob(".new-*"))


def test_another_index_is_not_overwritten(results, tmp_path, capsys):
    (tmp_path / "README.md").write_text("mine")
    assert main(["report", "--results", str(results), "--out", str(tmp_path)]) == 1
    assert "choose another --out" in capsys.readouterr().err
    assert (tmp_path / "README.md").read_text() == "mine"


def test_no_results(tmp_path, capsys):
    assert main(["report", "--results", str(tmp_path / "none"), "--out", str(tmp_path / "report")]) == 1
    assert "whitenorm-lab reproduce ID --scale default" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_index_of_stored_results(results, tmp_path, capsys):
    copy = shutil.copytree(results, tmp_path / "results")
    arguments = ["report", "--results", str(copy), "--out", str(tmp_path / "report"), "--index"]
    assert main(arguments) == 0
    assert main(arguments) == 0
    rows = [line for line in (copy / "README.md").read_text().splitlines() if line.startswith("| [")]
    what = "[`dbn-axis-swap`](dbn-axis-swap) | PCA against ZCA whitening of perceptrons | DBN fig. 2"
    assert rows[0] == f"| {what} | 2 | 1 | 1 | 0 | 2026-01-02 | default | 3 |"
    assert len(rows) == 2
    (copy / "README.md").write_text("mine")
    assert main(arguments) == 1
    assert "choose another --results" in capsys.readouterr().err
    assert (copy / "README.md").read_text() == "mine"


def test_committed_index_of_results_is_current():
    """If this fails, run ``make pages``."""
    folder = ROOT / "lab/results"
    assert (folder / "README.md").read_text() == pages.format_results_index(load_outcomes(folder, "default"), folder)


def test_only_figures_that_pages_show_are_committed():
    texts = [path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))]
    shown = {path for text in texts for path in re.findall(r"lab/results/[\w-]+/\w+\.png", text)}
    lines = (ROOT / ".gitignore").read_text().splitlines()
    assert "lab/results/*/*.png" in lines
    assert {line.removeprefix("!") for line in lines if line.startswith("!lab/results/")} == shown
    for path in shown:
        assert (ROOT / path).is_file()


def test_commit_in_words():
    assert format_commit({"machine": {"commit": "b" * 40 + "+changes"}}) == "bbbbbbbbbb with changes"
    assert format_commit({"machine": {"commit": None}}) == "none: an installed package"


def test_hardware_names_each_thing_once():
    contents = [{"machine": {**MACHINE, "threads": threads}} for threads in (1, 2, 1)]
    assert describe_hardware(contents) == "P<x>, 1/2 threads, torch 2, Python 3, whitenorm 0.1"
    assert describe_hardware(contents[:1]) == "P<x>, 1 thread, torch 2, Python 3, whitenorm 0.1"


def test_the_reason_of_a_claim_that_does_not_hold(tmp_path, monkeypatch):
    """It stands with the claim wherever that is shown, and nowhere when the claim held."""
    experiment = EXPERIMENTS["gw-constraints"]
    (known,) = [claim for claim in experiment.claims if claim.reason]
    for verdict, shown in (("not held", True), ("held", False)):
        store_results(tmp_path, experiment.id, [verdict], monkeypatch)
        store = Store(tmp_path, experiment.id, "default")
        content = store.read()
        runs = content.pop("runs")
        store.write({**content, "claims": [{**content["claims"][0], "claim": known.text}]}, runs)
        gathered = load_outcomes(tmp_path, "default")
        write_report(gathered, "default", tmp_path / "report")
        texts = [read(tmp_path / "report" / name) for name in ("README.md", "gw.md")]
        table = unescape(format_claims_page(gathered)).replace("\\", "")
        assert [known.reason in text for text in (*texts, table)] == [shown] * 3


@pytest.fixture
def several(tmp_path, monkeypatch):
    gathered = store_several(tmp_path / "results", monkeypatch)
    write_report(gathered, "default", tmp_path / "report")
    return gathered, tmp_path / "report"


def test_claims_of_several_parts_are_lists(several):
    gathered, folder = several
    lines = read(folder / "gw.md")
    first = "• DBN 1.5 ± 0.5, BN 2 ± 0.5: ✓ held, p = 0.01"
    assert f"{first}<br>• DBN 3 ± 0.5, LN 2 ± 0.5: ✗ not held, the other way, p = 0.02 |" in lines
    assert "; DBN" not in lines
    assert "• DBN 1 ± 0.1, BN 2 ± 0.1<br>• DBN 3 ± 0.1, LN 4 ± 0.1" in lines
    for table in (format_claims_page(gathered), read(folder / "README.md")):
        assert "\n        - DBN 1.5 ± 0.5, BN 2 ± 0.5 (held, p = 0.01)\n        - DBN 3 ± 0.5" in table
        assert "Here: 1 of 2 parts not held.\n" in table


def test_methods_of_one_part_are_lines():
    claim = {"claim": "", "paper": "", "ours": "DBN 1 ± 0.1, BN 2 ± 1e-05, difference 1 ± 0", "verdict": "held"}
    text = pages._tabulate([{**claim, "parts": [{}], "reason": "", "short": "", "why": ""}])
    assert "DBN 1 ± 0.1<br>BN 2 ± 1e-05<br>difference 1 ± 0 |" in text.replace("\u00a0", " ")


def test_the_reduction_of_a_run_stands_with_its_claims(several):
    gathered, folder = several
    text = read_section(folder / "gw.md", "gw-constraints")
    assert text.count(SHORT) == 1
    # With every claim but the exact one.
    assert text.count("‡") == 1 + 3
    for table in (format_claims_page(gathered), read(folder / "README.md")):
        assert f"- `gw-constraints`: {SHORT}" in table


@pytest.mark.parametrize("change", ["parameters", "seeds"])
def test_runs_of_an_earlier_set_up_are_not_counted(several, tmp_path, change):
    store = Store(tmp_path / "results", "gw-constraints", "default")
    content = store.read()
    runs = content.pop("runs")
    if change == "parameters":
        content["parameters"] = {"images": 7}
    else:
        runs = [dataclasses.replace(run, seed=run.seed + 1) for run in runs]
    store.write(content, runs)
    gathered = load_outcomes(tmp_path / "results", "default")
    write_report(gathered, "default", tmp_path / "report")
    text = read_section(tmp_path / "report/gw.md", "gw-constraints")
    words = "**Not run** at default scale with this set-up; of an earlier one, which was changed, [there are results]"
    assert f"{words}(results/gw-constraints/default.json)." in text
    assert "not held" not in text
    assert "1 of them since their set-up was changed." in summarize(gathered, [])
    assert "| – | – | – | – | 2026-01-02 (earlier set-up) |" in pages.format_results_index(
        gathered, tmp_path / "results"
    )
    assert main(["reproduce", "gw-constraints", "--judge", "--out", str(tmp_path / "results")]) == 1


def test_bars_of_our_own_are_apart(several):
    gathered, folder = several
    text = read(folder / "gw.md")
    section = read_section(folder / "gw.md", "gw-constraints")
    order = [section.index(words) for words in ("exact", "set here, not claimed by the paper", "7.25 %")]
    assert order == sorted(order)
    assert re.search(r"Bars of our own: ✗ 1 not held, – \d+ not run\.", text)
    index = read(folder / "README.md")
    assert f" in {len(EXPERIMENTS)} experiments: 1 held, 3 not held, 0 not decided, " in index
    for table in (format_claims_page(gathered), index):
        assert "    - Bar of our own: **bar.**" in table
        assert "| 0 | 3 and 1 bar | 0 | 0 | 1.5 min |" in table


def test_the_rule_is_stated_and_results_of_an_earlier_one_say_so(several):
    gathered, folder = several
    assert f"Judged by [{DESCRIPTION}](" in read_section(folder / "gw.md", "gw-constraints")
    assert "Judged by [an earlier rule" in read_section(folder / "dbn.md", "dbn-axis-swap")
    for table in (unescape(format_claims_page(gathered)), read(folder / "README.md")):
        assert "by the paired t-test, one-sided, at a level of 5 %" in table


def test_what_is_not_built_is_listed(several, monkeypatch, tmp_path):
    missing = (NotBuilt("GW", "table 9", "A <net>", "its data & code are gone"),)
    for module in (outcomes, markdown_page, command):
        monkeypatch.setattr(module, "NOT_BUILT", missing)
    gathered, folder = several
    write_report(gathered, "default", folder)
    index = read(folder / "README.md")
    assert "A <net> (its data & code are gone) | – | – | – | – | not built |" in index
    assert "1 experiment not built." in index
    assert "## Not built" in read(folder / "gw.md")
    assert "- A <net> (GW table 9): its data & code are gone." in read(folder / "gw.md")
    assert "Not built" not in read(folder / "dbn.md")
    assert "| A &lt;net&gt; (its data & code are gone) | – | – | – | – | not built |" in format_claims_page(gathered)
    assert any(
        "not built: its data" in cell for cell in command.build_experiment_table(tmp_path / "results").columns[3].cells
    )
