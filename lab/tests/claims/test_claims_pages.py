"""The papers' pages in the documentation: built by mkdocs, linked, searchable, and readable in a browser."""

import json
import re
import shutil
from pathlib import Path

import pytest

from lab.tests.helpers.stored import Page, store_results
from tests.helpers.browser import look

pytest.importorskip("material", reason="mkdocs-material is not installed")

from mkdocs.commands.build import build
from mkdocs.config import load_config

ROOT = Path(__file__).parents[3]
CONFIG = """
site_name: results
strict: true
use_directory_urls: false
theme:
  name: material
  font: false
  palette:
    - {media: "(prefers-color-scheme: light)", scheme: default}
    - {media: "(prefers-color-scheme: dark)", scheme: slate}
extra_css: [assets/site.css]
validation: {omitted_files: warn, absolute_links: warn, unrecognized_links: warn, anchors: warn}
hooks: [tools/docs/claims.py]
plugins: [search]
markdown_extensions: [attr_list, md_in_html, tables, toc: {permalink: true}]
nav: [index.md, claims.md, guides/guide.md, claims/dbn.md, claims/iternorm.md, claims/sw.md, claims/gw.md]
"""
GUIDE = """# Guide

[`gw-constraints`](../../lab/results/gw-constraints) 1 held; `dbn-vgg` not run.
![figure](../../lab/results/gw-constraints/default.png)
[times](../../benchmarks/results/full.json)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "tools/docs", root / "tools/docs")
    (root / "docs/guides").mkdir(parents=True)
    (root / "docs/assets").mkdir()
    shutil.copy(ROOT / "docs/assets/site.css", root / "docs/assets")
    (root / "benchmarks/results").mkdir(parents=True)
    (root / "benchmarks/results/full.json").write_text("{}")
    (root / "mkdocs.yml").write_text(CONFIG)
    (root / "docs/index.md").write_text("# Start\n")
    (root / "docs/claims.md").write_text("# Claims\n\n## How a claim is judged\n")
    (root / "docs/guides/guide.md").write_text(GUIDE)
    with pytest.MonkeyPatch.context() as monkeypatch:
        store_results(root / "lab/results", "dbn-axis-swap", ["held", "not held"], monkeypatch)
        store_results(root / "lab/results", "gw-constraints", ["held"], monkeypatch, text="less")
        yield root


@pytest.fixture(scope="module")
def site(project):
    build(load_config(str(project / "mkdocs.yml"), site_dir=str(project / "out")))
    return project / "out"


def test_page_of_a_paper(site):
    page = Page(site / "claims/dbn.html")
    assert "PCA against ZCA whitening of perceptrons" in page.text
    assert "✗ not held" in page.text
    assert {"dbn-axis-swap", "dbn-vgg", "not-built"} <= page.places
    assert all(image["alt"] for image in page.found["img"])
    # Text of results is escaped.
    assert "<script>alert(1)" not in (site / "claims/dbn.html").read_text()
    assert '<script>alert(1)</script> & "quotes" | a*b_c ``<b>``' in page.text


def test_links_lead_to_files_and_anchors(site):
    pages = {path: Page(path) for path in (*site.glob("*.html"), *site.glob("claims/*.html"), *site.glob("guides/*"))}
    for path, page in pages.items():
        for attributes in page.found["a"] + page.found.get("img", []):
            address = attributes.get("href") or attributes.get("src") or "."
            file, _, place = address.partition("#")
            if path.name == "404.html" or address.startswith(("http", "javascript:")) or address == ".":
                continue
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), (path, address)
            if place and place != "__skip" and target in pages:
                assert place in pages[target].places, (path, address)


def test_names_and_folders_become_links(site):
    page = Page(site / "guides/guide.html")
    addresses = {attributes.get("href") for attributes in page.found["a"]}
    assert {
        "../claims/gw.html#gw-constraints",
        "../claims/dbn.html#dbn-vgg",
        "../benchmarks/results/full.json",
    } <= addresses
    assert "../lab/results/gw-constraints/default.png" in {attributes["src"] for attributes in page.found["img"]}


def test_a_wrong_anchor_fails_the_build(project):
    """The pages' links are validated by mkdocs."""
    page = project / "docs/claims.md"
    text = page.read_text()
    try:
        page.write_text("# Claims\n")
        with pytest.raises(Exception, match="strict mode"):
            build(load_config(str(project / "mkdocs.yml"), site_dir=str(project / "wrong")))
    finally:
        page.write_text(text)


def test_figures_are_drawn_again_only_from_other_runs(project, site):
    figures = {path: path.stat().st_mtime_ns for path in (project / "build/figures").iterdir()}
    assert len(figures) == 2
    build(load_config(str(project / "mkdocs.yml"), site_dir=str(project / "again")))
    assert {path: path.stat().st_mtime_ns for path in (project / "build/figures").iterdir()} == figures
    with pytest.MonkeyPatch.context() as monkeypatch:
        store_results(project / "lab/results", "gw-constraints", ["held"], monkeypatch, text="other")
        build(load_config(str(project / "mkdocs.yml"), site_dir=str(project / "again")))
    assert len(list((project / "build/figures").iterdir())) == 3


def test_search_finds_experiments(site):
    docs = json.loads((site / "search/search_index.json").read_text())["docs"]
    places = {entry["location"]: entry["text"] for entry in docs}
    section = places["claims/dbn.html#pca-against-zca-whitening-of-perceptrons"]
    assert "PCA whitening swaps axes" in re.sub("<[^>]*>", "", section)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(site, width, dark):
    seen = look(site / "claims/dbn.html", width, dark=dark)
    assert seen.scroll_width <= width
    assert seen.smallest_font[0] >= 12, seen.smallest_font
    assert (seen.clashes, seen.broken_images, seen.unnamed_plots, seen.requests) == ([], 0, 0, [])


def test_tables_fit_a_phone(site):
    script = "[...document.querySelectorAll('table')].filter(e => e.scrollWidth > innerWidth).length"
    assert look(site / "claims/dbn.html", 390, act=lambda page: page.evaluate(script)).answer == 0


def test_anchors_are_below_the_header(site):
    script = """() => {
        location.hash = '#dbn-axis-swap';
        const heading = document.getElementById('dbn-axis-swap').parentElement.getBoundingClientRect();
        return heading.top - document.querySelector('.md-header').getBoundingClientRect().bottom;
    }"""
    distance = look(site / "claims/dbn.html", 390, act=lambda page: page.evaluate(script)).answer
    assert 0 <= distance < 100
