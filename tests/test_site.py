"""The site and the README's table made from results: all of it is there, as text, whole, and good in a browser."""

import re
import shutil
from html.parser import HTMLParser

import matplotlib.pyplot as plt
import pytest
from browser import look

from whitenorm.cli import main
from whitenorm.lab.experiments import EXPERIMENTS
from whitenorm.lab.experiments.not_built import NOT_BUILT
from whitenorm.lab.marked import write_between
from whitenorm.lab.reproduce import claims
from whitenorm.lab.reproduce.outcomes import PAPERS, commit, gather, hardware, summary
from whitenorm.lab.reproduce.results import Run, Store
from whitenorm.lab.reproduce.site import files, write_site

HOSTILE = '<script>alert(1)</script> & "quotes" | a*b_c ``<b>``'
LONG = "W" * 300
MACHINE = {"commit": "a" * 40, "whitenorm": "0.1", "torch": "2", "python": "3", "processor": "P<x>", "threads": 2}


def store_results(folder, name, verdicts, size, text=HOSTILE):
    """Results as if an experiment had been run, with a picture of a size."""
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
        "parameters": {"lrs": [0.1, 0.5], "note": text},
        "finished": "2026-01-02T03:04:05+00:00",
        "seconds": 90.0,
        "machine": MACHINE,
        "claims": judged,
    }
    store = Store(folder, name, "default")
    store.write(content, [Run({"lr": lr}, seed, {"loss": 1.0}, 1.0) for lr in (1, 2) for seed in range(3)])
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
        self.found, self.text = {}, ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.found.setdefault(tag, []).append(dict(attributes))

    def handle_data(self, data):
        self.text += data


def test_every_experiment_is_of_a_known_paper():
    assert {experiment.paper for experiment in EXPERIMENTS.values()} <= set(PAPERS)


def test_index_counts_and_lists_all(site):
    page = Page(site / "index.html")
    assert "5 claims of the papers in 2 experiments: 2 held, 2 not held, 1 not decided, 0 not run." in page.text
    for experiment in EXPERIMENTS.values():
        assert experiment.id in page.text
    for words in ("Welch's t-test", "P<x>, 2 threads, torch 2", "aaaaaaaaaa", "2026-01-02", "3.0 min", "default"):
        assert words in page.text


def test_what_was_not_run_is_listed(results, tmp_path):
    shutil.copytree(results / "gw-constraints", tmp_path / "results/gw-constraints")
    outcomes = gather(tmp_path / "results", "default")
    write_site(outcomes, "default", tmp_path / "site")
    missing = len(EXPERIMENTS) - 1
    assert summary(outcomes, []).endswith(f" {missing} experiments not run.")
    text = Page(tmp_path / "site/index.html").text
    assert "dbn-axis-swapDBN fig. 2––––not run" in text
    assert summary(outcomes, NOT_BUILT) in text
    page = Page(tmp_path / "site/dbn.html")
    assert "Not run at default scale." in page.text
    assert "img" not in page.found
    assert "| – | – | – | – | not run |" in claims.markdown(outcomes, "default")


def test_paper_page_has_claims_with_verdicts(site):
    page = Page(site / "dbn.html")
    assert page.text.count("✓ held") == 2 + 1
    assert page.text.count("✗ not held") == 1 + 1
    assert page.text.count("? not decided") == 1 + 1
    for words in ("1\u00a0±\u00a00.5", "PCA whitening swaps axes", "p\u00a0=\u00a00.01", "1.5 min", "fig. 2"):
        assert words in page.text
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
                assert any(section["id"] == place for section in pages[file].found["section"]), address


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
    failed = [line for line in once.splitlines() if line.startswith("- ")]
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
        outcomes = gather(tmp_path, "default")
        write_site(outcomes, "default", tmp_path / "site")
        pages = [Page(tmp_path / "site" / name).text for name in ("index.html", "gw.html")]
        table = claims.markdown(outcomes, "default").replace("\\", "")
        assert [known.otherwise in text for text in (*pages, table)] == [shown] * 3
