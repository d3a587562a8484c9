"""Stored results as pages of the documentation: built, linked, and good in a browser."""

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
validation: {omitted_files: warn, absolute_links: warn, unrecognized_links: warn, anchors: warn}
hooks: [tools/docs/claims.py]
plugins: [search]
markdown_extensions: [attr_list, md_in_html, tables]
nav: [index.md, claims.md, guides/guide.md, claims/dbn.md, claims/iternorm.md, claims/sw.md, claims/gw.md]
"""
GUIDE = """# Guide

[`gw-constraints`](../../lab/results/gw-constraints) 1 held; `dbn-vgg` not run.
![figure](../../lab/results/gw-constraints/default.png)
[times](../../benchmarks/results/full.json)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "tools/docs", root / "tools/docs")
    (root / "docs/guides").mkdir(parents=True)
    (root / "benchmarks/results").mkdir(parents=True)
    (root / "benchmarks/results/full.json").write_text("{}")
    (root / "mkdocs.yml").write_text(CONFIG)
    (root / "docs/index.md").write_text("# Start\n")
    (root / "docs/claims.md").write_text("# Claims\n\n## How a claim is judged\n")
    (root / "docs/guides/guide.md").write_text(GUIDE)
    store_results(root / "lab/results", "dbn-axis-swap", ["held", "not held"], (6, 4))
    store_results(root / "lab/results", "gw-constraints", ["held"], (9, 3.6), text="less")
    build(load_config(str(root / "mkdocs.yml"), site_dir=str(root / "out")))
    return root / "out"


def test_a_page_a_paper(site):
    page = Page(site / "claims/dbn.html")
    assert "PCA against ZCA whitening of perceptrons" in page.text
    assert "✗ not held" in page.text
    assert {"dbn-axis-swap", "dbn-axis-swap-scale", "dbn-vgg", "not-built"} <= page.places
    # What results say is text.
    assert "<script>alert(1)" not in (site / "claims/dbn.html").read_text()


def test_links_lead_somewhere(site):
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


def test_names_and_folders_lead_to_the_pages(site):
    page = Page(site / "guides/guide.html")
    addresses = {attributes.get("href") for attributes in page.found["a"]}
    assert {
        "../claims/gw.html#gw-constraints",
        "../claims/dbn.html#dbn-vgg",
        "../benchmarks/results/full.json",
    } <= addresses
    assert "../lab/results/gw-constraints/default.png" in {attributes["src"] for attributes in page.found["img"]}


def test_they_are_found_by_search(site):
    docs = json.loads((site / "search/search_index.json").read_text())["docs"]
    places = {entry["location"]: entry["text"] for entry in docs}
    assert "PCA whitening swaps axes" in re.sub("<[^>]*>", "", places["claims/dbn.html#dbn-axis-swap"])


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_browser(site, width, dark):
    seen = look(site / "claims/dbn.html", width, dark=dark)
    assert seen.scroll_width <= width
    assert seen.smallest_font[0] >= 12, seen.smallest_font
    assert seen.cut == []
    assert (seen.clashes, seen.broken_images, seen.unnamed_plots, seen.requests) == ([], 0, 0, [])
