"""The site of the documentation: it builds strictly, has every public name, and is good in a browser."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import whitenorm
from tests.helpers.browser import look

for module in ("mkdocs", "material", "mkdocstrings", "griffe", "latex2mathml"):
    pytest.importorskip(module, reason="the documentation's tools are not installed")

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "docs"))
docstrings, fields, formulas, links = (
    importlib.import_module(name) for name in ("docstrings", "fields", "formulas", "links")
)

# Text that is wider than its box, in a box that does not scroll.
CUT = """() => [...document.querySelectorAll('.md-content *')].filter(e =>
  ['hidden', 'clip'].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
  .map(e => e.textContent.trim().slice(0, 40))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documentation") / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        build, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def package():
    griffe = importlib.import_module("griffe")
    return griffe.load("whitenorm", search_paths=[ROOT / "src"], resolve_aliases=True)


def pages_of(site):
    return [path for path in site.glob("**/*.html") if path.name != "404.html"]


def test_every_page_says_its_version(site):
    pages = pages_of(site)
    assert len(pages) > 20
    for page in pages:
        assert f"whitenorm {whitenorm.__version__}, MIT licence" in page.read_text(encoding="utf-8"), page


def test_every_public_name_is_on_a_page(site, package):
    anchors = set()
    for page in (site / "api").glob("*.html"):
        anchors.update(re.findall(r'id="([\w.]+)"', page.read_text(encoding="utf-8")))
    documented = {package[path.removeprefix("whitenorm.")].canonical_path for path in anchors if _is_in(package, path)}
    names = [(room, name) for room in docstrings.modules(package) for name in docstrings.exported(room)]
    assert len(names) > 60
    missing = [f"{room.path}.{name}" for room, name in names if not _has_page(room[name], documented, anchors)]
    assert missing == []


def _is_in(package, path):
    try:
        return path.startswith("whitenorm.") and bool(package[path.removeprefix("whitenorm.")])
    except KeyError:
        return False


def _has_page(found, documented, anchors):
    """A room has one when all its names have."""
    return found.is_module or found.canonical_path in documented or found.path in anchors


def test_nothing_is_left_of_other_markup(site):
    for page in pages_of(site):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r":(?:math|func|class|meth|mod|data):|arithmatex|\.\. math|<!-- (?:fields|options):", text)
    assert "<math" in (site / "how-it-works.html").read_text(encoding="utf-8")


def test_signatures_show_default_group_sizes_as_numbers(site):
    text = re.sub(r"<[^>]+>", "", (site / "api" / "layers.html").read_text(encoding="utf-8"))
    assert re.search(r"IterNorm\(\s*num_features,\s*group_size=64,", text)
    assert "Wish" not in text


def test_nothing_is_fetched_from_elsewhere(site):
    for page in pages_of(site):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', text), page
        assert not re.search(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(?:https?:)?//', text), page


LOOKS = [
    *((page, 1280, False) for page in ("index", "how-it-works", "gpu", "api/layers")),
    *((page, 390, True) for page in ("index", "how-it-works", "gpu", "api/layers")),
    *(("guide", width, dark) for width in (1280, 390) for dark in (False, True)),
]


@pytest.mark.parametrize(("page", "width", "dark"), LOOKS)
def test_in_a_browser(site, page, width, dark):
    seen = look(site / f"{page}.html", width, dark, act=lambda shown: shown.evaluate(CUT))
    assert seen.errors == []
    assert seen.requests == []
    assert seen.scroll_width <= width
    assert seen.clashes == []
    assert seen.broken_images == 0
    assert seen.unnamed_plots == 0
    assert seen.answer == []
    # Exponents are smaller than what they belong to.
    assert seen.smallest_font[0] >= 10.5, seen.smallest_font


def test_search_has_the_words(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    for word, place in (
        ("LayerWhitening", "transformers.html"),
        ("recalibrate_", "training.html"),
        ("onnxruntime", "shipping.html"),
        ("semantic versioning", "changelog.html"),
        ("whitenorm.solvers.Newton", "api/solvers.html"),
    ):
        found = [entry["location"] for entry in index["docs"] if word in entry["text"] + entry["title"]]
        assert any(location.startswith(place) for location in found), (word, found)


def test_search_works_in_a_page_that_is_a_file(site):
    def search(page):
        page.click("input.md-search__input")
        page.keyboard.type("recalibrate_")
        page.wait_for_selector(".md-search-result__item")
        return [link.get_attribute("href") for link in page.query_selector_all(".md-search-result__link")]

    seen = look(site / "index.html", 1280, act=search)
    assert any("api/models.html" in address for address in seen.answer)
    assert seen.errors == []


def test_docstrings_as_markdown():
    text = (
        "See `DBN <https://arxiv.org/abs/1>`_ and :func:`sqrt`, not :func:`other`.\n\n.. math:: a\n          = b\n\n"
        "Args:\n    weight, bias: γ and\n        β.\n\nShape:\n    ``(N, C)``\n    or not.\n\n"
        "Example::\n\n    >>> 1\n    1"
    )
    assert docstrings.as_markdown(text, {"sqrt": "whitenorm.solvers.sqrt"}.get) == (
        "See [DBN](https://arxiv.org/abs/1) and [`sqrt`][whitenorm.solvers.sqrt], not `other`.\n\n\\[a = b\\]\n\n"
        "Args:\n    weight: γ and\n        β.\n    bias: γ and\n        β.\n\n**Shape:** ``(N, C)`` or not.\n\n"
        "Examples:\n    >>> 1\n    1"
    )


def test_links_that_leave_the_pages():
    page = links.Outside(ROOT, "docs/api/page.md", "api/page.md")
    text = (
        "[a](../guide.md#where) [b](../../CHANGELOG.md) [c](../../results/gw-nmt) [d](https://x.org) [e](#here)\n"
        "![f](../../results/gw-nmt/default.png) [g](../../nowhere)\n```\n[h](../../results)\n```\n"
    )
    assert page.resolved(text) == (
        "[a](../guide.md#where) [b](../changelog.md) c [d](https://x.org) [e](#here)\n"
        "![f](../pictures/results/gw-nmt/default.png) [g](../../nowhere)\n```\n[h](../../results)\n```\n"
    )
    assert page.pictures(text) == {
        "pictures/results/gw-nmt/default.png": ROOT / "lab" / "results" / "gw-nmt" / "default.png",
    }


def test_fields_of_a_dataclass(package):
    table = fields.with_fields("<!-- options: whitenorm_lab.demo.Demo -->", package)
    assert "| `--batch-size` | `64` | Images a step. |" in table
    assert "| `MODEL` |  | A torchvision" in fields.with_fields(
        "<!-- options: whitenorm.cli.inspect.Inspect -->", package
    )
    assert "`task`" not in fields.with_fields("<!-- fields: whitenorm_lab.training.config.Run -->", package)


def test_formulas_are_mathml():
    page = formulas.as_mathml(r'<p><span class="arithmatex">\(a &lt; b\)</span></p><div class="arithmatex">\[x\]</div>')
    assert page.count("<math") == 2
    assert '<div class="formula"><math' in page
    assert "arithmatex" not in page


def test_a_broken_link_fails_the_build(tmp_path):
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("nav:")[0]
    config = re.sub(r"^watch:.*$", "", config, flags=re.MULTILINE).replace("[src]", f"[{ROOT / 'src'}]")
    # Pages of results, of which there are none here.
    config = config.replace("tools/docs/claims.py, ", "")
    (tmp_path / "mkdocs.yml").write_text(config.replace("tools/docs", str(ROOT / "tools" / "docs")))
    docs = tmp_path / "docs"
    (docs / "assets").mkdir(parents=True)
    for name in ("assets/iframe-worker.js", "assets/site.css"):
        (docs / name).write_bytes((ROOT / "docs" / name).read_bytes())
    (docs / "index.md").write_text("# A page\n\n[a](no-page.md) [b](guide.md#no-anchor) [c][whitenorm.no_name]\n")
    (docs / "guide.md").write_text("# A guide\n")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(build, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    for what in ("no-page.md", "no-anchor", "whitenorm.no_name"):
        assert what in done.stderr


def test_a_public_name_without_a_docstring_is_found(package, monkeypatch):
    hooks = importlib.import_module("hooks")
    assert hooks.undocumented(package) == []
    monkeypatch.setattr(package["solvers.newton.Newton"], "docstring", None)
    assert hooks.undocumented(package) == ["whitenorm.solvers.Newton"]
