"""The site made from results: all of it is there, as text, whole, and good in a browser."""

import dataclasses
import re
import shutil
from html import unescape

import pytest

from lab.tests.helpers.stored import (
    HOSTILE,
    LONG,
    MACHINE,
    SHORT,
    Page,
    format_claims_page,
    store_results,
    store_several,
)
from tests.helpers.browser import look
from whitenorm_lab.claims import command, markdown_page, outcomes
from whitenorm_lab.claims.outcomes import PAPERS, commit, gather, hardware, summary
from whitenorm_lab.claims.results import Store
from whitenorm_lab.claims.rules import PAIRED_HOLM, WELCH
from whitenorm_lab.claims.site import files, index, write_site
from whitenorm_lab.cli import main
from whitenorm_lab.papers import EXPERIMENTS
from whitenorm_lab.papers.not_built import NOT_BUILT, NotBuilt


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    store_results(folder, "dbn-axis-swap", ["held", "not held", "not decided", "held"], (6, 4))
    store_results(folder, "gw-constraints", ["not held"], (9, 3.6), text=LONG)
    return folder


@pytest.fixture(scope="module")
def site(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("web") / "new" / "site"
    assert main(["report", "--results", str(results), "--out", str(folder)]) == 0
    return folder


def test_every_experiment_is_of_a_known_paper():
    assert {experiment.paper for experiment in EXPERIMENTS.values()} <= set(PAPERS)


def test_index_counts_and_lists_all(site):
    page = Page(site / "index.html")
    assert f" in {len(EXPERIMENTS)} experiments: 2 held, 2 not held, 1 not decided, " in page.text
    for experiment in EXPERIMENTS.values():
        assert experiment.id in page.text
    for words in ("Welch's t-test", "P<x>, 2 threads, torch 2", "aaaaaaaaaa", "2026-01-02", "3.0 min", "default"):
        assert words in page.text


def test_what_was_not_run_is_listed(results, tmp_path):
    shutil.copytree(results / "gw-constraints", tmp_path / "results/gw-constraints")
    gathered = gather(tmp_path / "results", "default")
    write_site(gathered, "default", tmp_path / "site")
    assert summary(gathered, []).endswith(f" {len(EXPERIMENTS) - 1} experiments not run.")
    asked = len(EXPERIMENTS["dbn-axis-swap"].claims)
    text = Page(tmp_path / "site/index.html").text
    assert re.search(rf"dbn-axis-swapDBN fig. 2✓ ?0✗ ?0\? ?0– ?{asked}not run", text)
    assert summary(gathered, NOT_BUILT) in text
    page = Page(tmp_path / "site/dbn.html")
    assert "Not run at default scale." in page.text
    assert "img" not in page.found
    # Its claims are there all the same.
    for claim in EXPERIMENTS["dbn-axis-swap"].claims:
        assert f"{claim.text}{claim.paper}–– not run" in page.text
    assert f"| 0 | 0 | 0 | {asked} | not run |" in format_claims_page(gathered)


def test_paper_page_has_claims_with_verdicts(site):
    page = Page(site / "dbn.html")
    assert page.text.count("✓ held") == 2 + 1
    assert page.text.count("✗ not held") == 1 + 1
    assert page.text.count("? not decided") == 1 + 1
    for words in ("1\u00a0±\u00a00.5", "PCA whitening swaps axes", "p\u00a0=\u00a00.01", "fig. 2"):
        assert words in page.text
    assert "Default scale, 6 runs: 2 settings × 3 seeds, 1.5 min on 2 threads. Images" in page.text
    assert {"class": "mean"} in page.found["span"]
    assert {"scope": "col", "role": "columnheader"} in page.found["th"]
    assert all(image["alt"] for image in page.found["img"])


def test_all_text_is_escaped(site):
    for path in site.glob("*.html"):
        page = Page(path)
        assert "script" not in page.found
        assert "b" not in page.found
    assert HOSTILE in Page(site / "dbn.html").text
    assert "<script>" not in (site / "dbn.html").read_text()


def test_links_resolve(site):
    pages = {path.name: Page(path) for path in site.glob("*.html")}
    assert set(pages) == {"index.html", "dbn.html", "iternorm.html", "sw.html", "gw.html"}
    for name, page in pages.items():
        for attributes in page.found["a"] + page.found["link"] + page.found.get("img", []):
            address = attributes.get("href") or attributes["src"]
            if address.startswith(("data:", "https://arxiv.org/")):
                continue
            file, _, place = address.partition("#")
            assert (site / file).is_file(), (name, address)
            if place:
                assert place in pages[file].places, address


def test_raw_values_are_beside(site, results):
    assert (site / "data/gw-constraints.json").read_bytes() == (results / "gw-constraints/default.json").read_bytes()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["index", "dbn", "gw"])
def test_in_a_browser(site, name, width):
    look(site / f"{name}.html", width, dark=width == 390).check()


def test_a_broken_figure_is_seen(site, tmp_path):
    copy = shutil.copytree(site, tmp_path / "copy")
    (copy / "figures/gw-constraints.png").unlink()
    assert look(copy / "gw.html", 1280).broken_images == 1


def test_nothing_half_written(results, tmp_path, monkeypatch):
    out = tmp_path / "site"
    write_site(gather(results, "default"), "default", out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def full(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(files, "index_page", full)
    with pytest.raises(OSError, match="no space left"):
        write_site(gather(results, "default")[:1], "default", out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_folder_keeps_what_is_not_of_the_site(results, tmp_path):
    (tmp_path / "CNAME").write_text("mine")
    for _ in range(2):
        write_site(gather(results, "default"), "default", tmp_path)
    assert (tmp_path / "CNAME").read_text() == "mine"
    assert not list(tmp_path.glob(".new-*"))


def test_another_index_is_not_overwritten(results, tmp_path, capsys):
    (tmp_path / "index.html").write_text("mine")
    assert main(["report", "--results", str(results), "--out", str(tmp_path)]) == 1
    assert "choose another --out" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "mine"


def test_no_results(tmp_path, capsys):
    assert main(["report", "--results", str(tmp_path / "none"), "--out", str(tmp_path / "site")]) == 1
    assert "whitenorm-lab reproduce ID --scale default" in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_a_run_without_a_figure_says_so(results, tmp_path):
    copy = shutil.copytree(results, tmp_path / "results")
    (copy / "gw-constraints/default.png").unlink()
    write_site(gather(copy, "default"), "default", tmp_path / "site")
    assert "There is no figure of this run." in Page(tmp_path / "site/gw.html").text
    (copy / "gw-constraints/default.png").write_bytes(b"not a picture")
    with pytest.raises(OSError, match="to be a PNG"):
        write_site(gather(copy, "default"), "default", tmp_path / "site")


def test_commit_in_words():
    assert commit({"machine": {"commit": "b" * 40 + "+changes"}}) == "bbbbbbbbbb with changes"
    assert commit({"machine": {"commit": None}}) == "none: an installed package"


def test_hardware_names_each_thing_once():
    contents = [{"machine": {**MACHINE, "threads": threads}} for threads in (1, 2, 1)]
    assert hardware(contents) == "P<x>, 1/2 threads, torch 2, Python 3, whitenorm 0.1"
    assert hardware(contents[:1]) == "P<x>, 1 thread, torch 2, Python 3, whitenorm 0.1"


def test_the_reason_of_a_claim_that_does_not_hold(tmp_path):
    """It stands with the claim wherever that is shown, and nowhere when the claim held."""
    experiment = EXPERIMENTS["gw-constraints"]
    (known,) = [claim for claim in experiment.claims if claim.reason]
    for verdict, shown in (("not held", True), ("held", False)):
        store_results(tmp_path, experiment.id, [verdict], (4, 3))
        store = Store(tmp_path, experiment.id, "default")
        content = store.read()
        runs = content.pop("runs")
        store.write({**content, "claims": [{**content["claims"][0], "claim": known.text}]}, runs)
        gathered = gather(tmp_path, "default")
        write_site(gathered, "default", tmp_path / "site")
        pages = [Page(tmp_path / "site" / name).text for name in ("index.html", "gw.html")]
        table = unescape(format_claims_page(gathered)).replace("\\", "")
        assert [known.reason in text for text in (*pages, table)] == [shown] * 3


@pytest.fixture
def several(tmp_path, monkeypatch):
    gathered = store_several(tmp_path / "results", monkeypatch)
    write_site(gathered, "default", tmp_path / "site")
    return gathered, tmp_path / "site"


def test_claims_of_several_parts_are_lists(several):
    gathered, site = several
    for name in ("gw.html", "index.html"):
        page = Page(site / name)
        assert {"class": "parts"} in page.found["ul"]
        lines = page.text.replace("\u00a0", " ")
        assert "DBN 1.5 ± 0.5, BN 2 ± 0.5 ✓ held p = 0.01" in lines
        assert "DBN 3 ± 0.5, LN 2 ± 0.5 ✗ not held the other way, p = 0.02" in lines
        assert "; DBN" not in lines
    assert "DBN 1 ± 0.1, BN 2 ± 0.1 DBN 3 ± 0.1, LN 4 ± 0.1" in Page(site / "gw.html").text.replace("\u00a0", " ")
    table = format_claims_page(gathered)
    assert "\n        - DBN 1.5 ± 0.5, BN 2 ± 0.5 (held, p = 0.01)\n        - DBN 3 ± 0.5" in table
    assert "Here: 1 of 2 parts not held.\n" in table


def test_what_a_run_is_short_of_stands_with_its_claims(several):
    gathered, site = several
    page = Page(site / "gw.html")
    assert page.text.count(SHORT) == 1
    assert "gw-constraints-scale" in page.places
    # With every claim but the exact one.
    assert page.text.count("smaller run") == 3
    assert SHORT in Page(site / "index.html").text
    assert f"- `gw-constraints`: {SHORT}" in format_claims_page(gathered)


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
    gathered = gather(tmp_path / "results", "default")
    write_site(gathered, "default", tmp_path / "site")
    page = Page(tmp_path / "site/gw.html")
    assert (
        "Not run at default scale with this set-up; of an earlier one, which was changed, there are results."
        in page.text
    )
    assert {"href": "data/gw-constraints.json"} in page.found["a"]
    assert "not held" not in page.text.split("Constraint", 1)[1].split("Not built")[0]
    assert "1 of them since their set-up was changed." in summary(gathered, [])
    assert main(["reproduce", "gw-constraints", "--judge", "--out", str(tmp_path / "results")]) == 1


def test_bars_of_our_own_are_apart(several):
    gathered, site = several
    page = Page(site / "gw.html")
    assert page.text.index("exact") < page.text.index("Set here, not claimed by the paper") < page.text.index("7.25 %")
    assert re.search(r"Bars of our own: 1 not held, \d+ not run.", page.text)
    text = Page(site / "index.html").text
    assert "gw-constraintsBars of our own: 1 not held." in text
    assert f" in {len(EXPERIMENTS)} experiments: 1 held, 3 not held, 0 not decided, " in text
    assert "    - Bar of our own: **bar.**" in format_claims_page(gathered)


def test_the_rule_of_each_entry_is_said(several):
    gathered, site = several
    assert PAIRED_HOLM.words in Page(site / "gw.html").text
    assert WELCH.words in Page(site / "dbn.html").text
    text = Page(site / "index.html").text
    assert f"1 experiment judged by {PAIRED_HOLM.words}: gw-constraints." in text
    assert f"1 experiment judged by {WELCH.words}: dbn-axis-swap." in text
    assert f"Judged by {WELCH.words}: `dbn-axis-swap`." in format_claims_page(gathered)


def test_what_is_not_built_is_listed(several, monkeypatch, tmp_path):
    missing = (NotBuilt("GW", "table 9", "A <net>", "its data & code are gone"),)
    for module in (outcomes, index, markdown_page, command):
        monkeypatch.setattr(module, "NOT_BUILT", missing)
    gathered, site = several
    write_site(gathered, "default", site)
    words = "A <net>its data & code are goneGW table 9––––not built"
    assert words in Page(site / "index.html").text
    assert "1 experiment not built." in Page(site / "index.html").text
    page = Page(site / "gw.html")
    assert "not-built" in page.places
    assert "A <net>GW table 9its data & code are gone" in page.text
    assert "not-built" not in Page(site / "dbn.html").places
    assert "| A &lt;net&gt; (its data & code are gone) | – | – | – | – | not built |" in format_claims_page(gathered)
    assert any(
        "not built: its data" in cell for cell in command.build_experiment_table(tmp_path / "results").columns[3].cells
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_parts_and_bars_in_a_browser(several, width):
    for name in ("index", "gw"):
        seen = look(several[1] / f"{name}.html", width, dark=width == 1280)
        seen.check()
        assert seen.cut == []
