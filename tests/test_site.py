"""The site and the README's table made from results: all of it is there, as text, whole, and good in a browser."""

import dataclasses
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from browser import look

from whitenorm.cli import main
from whitenorm.lab.experiments import EXPERIMENTS
from whitenorm.lab.experiments.not_built import NOT_BUILT, NotBuilt
from whitenorm.lab.marked import write_between
from whitenorm.lab.reproduce import claims, command, found, outcomes
from whitenorm.lab.reproduce.outcomes import PAPERS, commit, gather, hardware, summary
from whitenorm.lab.reproduce.results import Run, Store
from whitenorm.lab.reproduce.rules import FIRST, SECOND
from whitenorm.lab.reproduce.site import files, index, write_site

HOSTILE = '<script>alert(1)</script> & "quotes" | a*b_c ``<b>``'
LONG = "W" * 300
MACHINE = {"commit": "a" * 40, "whitenorm": "0.1", "torch": "2", "python": "3", "processor": "P<x>", "threads": 2}


def store_results(folder, name, verdicts, size, text=HOSTILE, **more):
    """Results as if an experiment had been run, with a picture of a size, and ``more`` in them."""
    judged = [
        {"claim": f"{n} {text}", "paper": text, "ours": f"1 ± 0.5 {text}", "verdict": verdict, "why": "p = 0.01" * n}
        for n, verdict in enumerate(verdicts)
    ]
    experiment = EXPERIMENTS[name]
    content = {
        "experiment": name,
        "paper": experiment.paper,
        "where": experiment.where,
        "title": experiment.title,
        "scale": "default",
        "parameters": experiment.scales["default"],
        "finished": "2026-01-02T03:04:05+00:00",
        "seconds": 90.0,
        "machine": MACHINE,
        "claims": judged,
        **more,
    }
    store = Store(folder, name, "default")
    store.write(content, [Run({"lr": lr}, seed + experiment.first_seed, {}, 1.0) for lr in (1, 2) for seed in range(3)])
    figure, axes = plt.subplots(figsize=size)
    axes.plot([1, 2])
    figure.savefig(store.picture, dpi=110)
    plt.close(figure)


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


class Page(HTMLParser):
    """Attributes of all elements by tag, and the text."""

    def __init__(self, path):
        super().__init__()
        self.found, self.text, self.places = {}, "", set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.found.setdefault(tag, []).append(dict(attributes))
        self.places.add(dict(attributes).get("id"))

    def handle_data(self, data):
        self.text += data


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
    assert f"| 0 | 0 | 0 | {asked} | not run |" in claims.markdown(gathered, "default")


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
    assert "whitenorm reproduce ID --scale default" in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_a_run_without_a_figure_says_so(results, tmp_path):
    copy = shutil.copytree(results, tmp_path / "results")
    (copy / "gw-constraints/default.png").unlink()
    write_site(gather(copy, "default"), "default", tmp_path / "site")
    assert "There is no figure of this run." in Page(tmp_path / "site/gw.html").text
    (copy / "gw-constraints/default.png").write_bytes(b"not a picture")
    with pytest.raises(OSError, match="to be a PNG"):
        write_site(gather(copy, "default"), "default", tmp_path / "site")


def test_readme(results, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{claims.START}\nstale\n{claims.END}\nafter\n")
    arguments = ["report", "--results", str(results), "--out", str(tmp_path / "site"), "--readme", str(readme)]
    assert main(arguments) == 0
    once = readme.read_text()
    assert main(arguments) == 0
    assert readme.read_text() == once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "stale" not in once
    assert f"**{summary(gather(results, 'default'), NOT_BUILT)}**" in once
    assert (
        "| DBN fig. 2 | `dbn-axis-swap`: PCA against ZCA whitening of perceptrons | 2 | 1 | 1 | 0 | 1.5 min |" in once
    )
    failed = [line for line in once.splitlines() if line.startswith("  - ")]
    assert len(failed) == 2
    assert r"\<script\>alert(1)\</script\> & " in failed[0]
    assert "p = 0.01" in failed[0]
    rows = [line for line in once.splitlines() if line.startswith("| ")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {8}


def test_readme_without_failures(tmp_path):
    store_results(tmp_path, "gw-constraints", ["held"], (4, 3))
    assert claims.markdown(gather(tmp_path, "default"), "default").endswith("No claim was found not to hold.")


def test_marks_must_be_there(tmp_path):
    path = tmp_path / "README.md"
    path.write_text("start")
    with pytest.raises(ValueError, match="expected the lines start and end"):
        write_between(path, "start", "end", "text")
    assert path.read_text() == "start"


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
    (known,) = [claim for claim in experiment.claims if claim.otherwise]
    for verdict, shown in (("not held", True), ("held", False)):
        store_results(tmp_path, experiment.id, [verdict], (4, 3))
        store = Store(tmp_path, experiment.id, "default")
        content = store.read()
        runs = content.pop("runs")
        store.write({**content, "claims": [{**content["claims"][0], "claim": known.text}]}, runs)
        gathered = gather(tmp_path, "default")
        write_site(gathered, "default", tmp_path / "site")
        pages = [Page(tmp_path / "site" / name).text for name in ("index.html", "gw.html")]
        table = claims.markdown(gathered, "default").replace("\\", "")
        assert [known.otherwise in text for text in (*pages, table)] == [shown] * 3


SHORT = "Trained on a tenth of the images."
PARTS = [
    {"ours": "DBN 1.5 ± 0.5, BN 2 ± 0.5", "verdict": "held", "why": "p = 0.01"},
    {"ours": "DBN 3 ± 0.5, LN 2 ± 0.5", "verdict": "not held", "why": "the other way, p = 0.02"},
]


@pytest.fixture
def several(tmp_path, monkeypatch):
    """An entry with a claim of parts, one without, one that is exact and a bar of our own, at a reduced scale."""
    known = EXPERIMENTS["gw-constraints"]
    exact, bar, plain = (
        dataclasses.replace(known.claims[0], text=text, exact=text == "exact", ours=text == "bar", otherwise="")
        for text in ("exact", "bar", "plain")
    )
    entry = dataclasses.replace(known, claims=(exact, bar, plain), reduction=SHORT)
    monkeypatch.setitem(EXPERIMENTS, known.id, entry)
    base = {"paper": "less", "verdict": "not held", "why": "p = 0.3"}
    judged = [
        {**base, "claim": "exact", "ours": "3 of 4"},
        {**base, "claim": "bar", "ours": "7.25 %"},
        {
            **base,
            "claim": "plain",
            "ours": "DBN 1 ± 0.1, BN 2 ± 0.1; DBN 3 ± 0.1, LN 4 ± 0.1",
            "why": "1 of 2 parts not held: p = 1; …",
        },
        {**base, "claim": "plain", "ours": "both", "why": "1 of 2 parts not held: p = 0.02", "parts": PARTS},
    ]
    made = {"parameters": entry.scales["default"], "claims": judged, "rule": SECOND.name}
    store_results(tmp_path / "results", known.id, [], (9, 3.6), text="", **made)
    store_results(tmp_path / "results", "dbn-axis-swap", ["held"], (4, 3), text="")
    gathered = gather(tmp_path / "results", "default")
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
    table = claims.markdown(gathered, "default")
    assert "\n    - DBN 1.5 ± 0.5, BN 2 ± 0.5 (held, p = 0.01)\n    - DBN 3 ± 0.5" in table
    assert "Here: 1 of 2 parts not held.\n" in table


def test_what_a_run_is_short_of_stands_with_its_claims(several):
    gathered, site = several
    page = Page(site / "gw.html")
    assert page.text.count(SHORT) == 1
    assert "gw-constraints-scale" in page.places
    # With every claim but the exact one.
    assert page.text.count("smaller run") == 3
    assert SHORT in Page(site / "index.html").text
    assert f"- `gw-constraints`: {SHORT}" in claims.markdown(gathered, "default")


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
    assert "  - Bar of our own: **bar.**" in claims.markdown(gathered, "default")


def test_the_rule_of_each_entry_is_said(several):
    gathered, site = several
    assert SECOND.words in Page(site / "gw.html").text
    assert FIRST.words in Page(site / "dbn.html").text
    text = Page(site / "index.html").text
    assert f"1 experiment judged by {SECOND.words}: gw-constraints." in text
    assert f"1 experiment judged by {FIRST.words}: dbn-axis-swap." in text
    assert f"Judged by {FIRST.words}: `dbn-axis-swap`." in claims.markdown(gathered, "default")


def test_what_is_not_built_is_listed(several, monkeypatch, tmp_path):
    missing = (NotBuilt("GW", "table 9", "A <net>", "its data & code are gone"),)
    for module in (outcomes, index, claims, command):
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
    assert "| A \\<net\\> (its data & code are gone) | – | – | – | – | not built |" in claims.markdown(
        gathered, "default"
    )
    assert any("not built: its data" in cell for cell in command.table(tmp_path / "results").columns[3].cells)


@pytest.mark.parametrize("width", [1280, 390])
def test_parts_and_bars_in_a_browser(several, width):
    for name in ("index", "gw"):
        seen = look(several[1] / f"{name}.html", width, dark=width == 1280)
        seen.check()
        assert seen.cut == []


def test_the_table_of_a_run(several):
    """In a terminal: a line a part, the bar named, and what the run is short of with every claim but the exact one."""
    (content,) = [o.content for o in several[0] if o.experiment.id == "gw-constraints"]
    view = command.verdicts(content)
    what, _, here, verdicts = ([*column.cells] for column in view.columns)
    assert what == ["exact", "bar of our own: bar", "plain", "plain"]
    assert here[2].splitlines() == ["DBN 1 ± 0.1, BN 2 ± 0.1", "DBN 3 ± 0.1, LN 4 ± 0.1"]
    assert here[3].splitlines()[0] == "DBN 1.5 ± 0.5, BN 2 ± 0.5 (held, p = 0.01)"
    assert [verdict.startswith("not held†") for verdict in verdicts] == [False, True, True, True]
    assert view.caption == f"† {SHORT}\nJudged by {SECOND.words}."
    assert "1.5 min on 2 threads" in view.title


def test_the_list_has_measured_costs(several, tmp_path):
    view = command.table(tmp_path / "results")
    rows = dict(
        zip(view.columns[0].cells, zip(*(column.cells for column in view.columns[2:]), strict=True), strict=True)
    )
    assert rows["gw-constraints"] == (
        "1.5 min on 2 threads, no data",
        "default, 2026-01-02: 3 not held; bars: 1 not held",
    )
    assert rows["dbn-vgg"] == (f"about {EXPERIMENTS['dbn-vgg'].cost}, cifar10", "not run")


def test_found_beside_advice(several, tmp_path):
    guide = tmp_path / "docs" / "guide.md"
    guide.parent.mkdir()
    guide.write_text("take it <!-- found: gw-constraints dbn-vgg -->stale<!-- /found --> or not")
    for _ in range(2):
        found.write_found(guide, several[0])
        assert guide.read_text() == (
            "take it <!-- found: gw-constraints dbn-vgg -->[`gw-constraints`](../results/gw-constraints) 3 not held; "
            "`dbn-vgg` not run<!-- /found --> or not"
        )
    guide.write_text("<!-- found: gw-constraint --><!-- /found -->")
    with pytest.raises(ValueError, match=r"got gw-constraint.*gw-constraints"):
        found.write_found(guide, several[0])
    assert sorted(path.name for path in guide.parent.iterdir()) == ["guide.md"]


@pytest.mark.parametrize("path", ["README.md", "docs/guide.md"])
def test_what_the_texts_say_was_found_is_what_was(path):
    """Where it fails: whitenorm report --readme README.md --guides docs/guide.md."""
    root = Path(__file__).parents[1]
    text = (root / path).read_text(encoding="utf-8")
    assert "<!-- found: " in text
    outcomes = gather(root / "results", "default")
    assert found.with_found(root / path, outcomes) == text
    if claims.START in text:
        assert claims.markdown(outcomes, "default") in text
    for name in re.findall(r"results/([\w-]+)/default.png", text):
        assert next(one for one in outcomes if one.experiment.id == name).content, "a picture of an earlier set-up"
