"""The documentation site builds without warnings, covers every public name, and renders well in a browser."""

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

# Building the site takes as long as all other tests of this folder.
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "docs"))
docstrings, hooks = (importlib.import_module(name) for name in ("docstrings", "hooks"))

# Elements that hide part of their text.
CLIPPED = """() => [...document.querySelectorAll('.md-content *')].filter(e =>
  ['hidden', 'clip'].includes(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
  .map(e => e.textContent.trim().slice(0, 40))"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    return folder


@pytest.fixture(scope="module")
def package():
    griffe = importlib.import_module("griffe")
    return griffe.load("whitenorm", search_paths=[ROOT / "src"], resolve_aliases=True)


def read_pages(site):
    return {path: path.read_text(encoding="utf-8") for path in site.glob("**/*.html") if path.name != "404.html"}


def public_objects(package):
    """Return every object named in an ``__all__``, by its full path."""
    return {
        f"{module.path}.{name}": module[str(name)]
        for module in docstrings.iterate_modules(package)
        for name in module.exports or ()
    }


def test_every_page_shows_the_version(site):
    pages = read_pages(site)
    assert len(pages) > 20
    for path, text in pages.items():
        assert f"whitenorm {whitenorm.__version__}, MIT licence" in text, path


def test_every_public_name_is_on_a_page(site, package):
    anchors = set()
    for page in (site / "api").glob("*.html"):
        anchors.update(re.findall(r'id="([\w.]+)"', page.read_text(encoding="utf-8")))
    documented = {package[path.removeprefix("whitenorm.")].canonical_path for path in anchors if is_in(package, path)}
    objects = public_objects(package)
    assert len(objects) > 60
    # A module is covered by its names.
    missing = [
        path
        for path, obj in objects.items()
        if not (obj.is_module or obj.canonical_path in documented or obj.path in anchors)
    ]
    assert missing == []


def is_in(package, path):
    try:
        return path.startswith("whitenorm.") and bool(package[path.removeprefix("whitenorm.")])
    except KeyError:
        return False


def test_every_public_name_has_a_docstring(package):
    bare = [
        path
        for path, obj in public_objects(package).items()
        if not obj.docstring and not path.rpartition(".")[2].startswith("__")
    ]
    assert bare == []


def test_no_restructured_text_is_left(site):
    pages = read_pages(site)
    for path, text in pages.items():
        assert not re.search(r":(?:math|func|class|meth|mod|data):|arithmatex|\.\. math", text), path
    assert "<math" in pages[site / "algorithm.html"]


def test_signatures_show_default_group_sizes_as_numbers(site):
    text = re.sub(r"<[^>]+>", "", (site / "api" / "layers.html").read_text(encoding="utf-8"))
    assert re.search(r"IterNorm\(\s*num_features,\s*group_size=64,", text)


def test_pages_load_nothing_from_other_hosts(site):
    for path, text in read_pages(site).items():
        assert not re.search(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', text), path
        assert not re.search(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="(?:https?:)?//', text), path


VIEWS = [
    *((page, 1280, False) for page in ("index", "algorithm", "gpu", "api/layers")),
    *((page, 390, True) for page in ("index", "algorithm", "gpu", "api/layers")),
    *((page, width, dark) for page in ("choosing", "claims/sw") for width in (1280, 390) for dark in (False, True)),
]


@pytest.mark.parametrize(("page", "width", "dark"), VIEWS)
def test_layout_in_a_browser(site, page, width, dark):
    view = look(site / f"{page}.html", width, dark, act=lambda browser_page: browser_page.evaluate(CLIPPED))
    assert view.errors == []
    assert view.requests == []
    assert view.scroll_width <= width
    assert view.clashes == []
    assert view.broken_images == 0
    assert view.unnamed_plots == 0
    assert view.answer == []
    # Exponents are smaller than the rest of a formula.
    assert view.smallest_font[0] >= 10.5, view.smallest_font


def test_search_index_covers_pages_and_docstrings(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    for word, page in (
        ("LayerWhitening", "transformers.html"),
        ("recalibrate_", "training.html"),
        ("onnxruntime", "deployment.html"),
        ("semantic versioning", "changelog.html"),
        ("whitenorm.solvers.Newton", "api/solvers.html"),
    ):
        locations = [entry["location"] for entry in index["docs"] if word in entry["text"] + entry["title"]]
        assert any(location.startswith(page) for location in locations), (word, locations)


def test_search_works_from_a_local_file(site):
    def search(page):
        page.click("input.md-search__input")
        page.keyboard.type("recalibrate_")
        page.wait_for_selector(".md-search-result__item")
        return [link.get_attribute("href") for link in page.query_selector_all(".md-search-result__link")]

    view = look(site / "index.html", 1280, act=search)
    assert any("api/models.html" in address for address in view.answer)
    assert view.errors == []


def test_docstrings_become_markdown():
    text = (
        "See `DBN <https://arxiv.org/abs/1>`_ and :func:`sqrt`, not :func:`other`.\n\n.. math:: a\n          = b\n\n"
        "Args:\n    weight, bias: γ and\n        β.\n\nShape:\n    ``(N, C)``\n    or not.\n\n"
        "Example::\n\n    >>> 1\n    1"
    )
    assert docstrings.to_markdown(text, {"sqrt": "whitenorm.solvers.sqrt"}) == (
        "See [DBN](https://arxiv.org/abs/1) and [`sqrt`][whitenorm.solvers.sqrt], not `other`.\n\n\\[a = b\\]\n\n"
        "Args:\n    weight: γ and\n        β.\n    bias: γ and\n        β.\n\n**Shape:** ``(N, C)`` or not.\n\n"
        "Examples:\n    >>> 1\n    1"
    )


def test_formulas_become_mathml():
    text = '<p><span class="arithmatex">\\(a &lt; b\\)</span></p><div class="arithmatex">\\[x\\]</div>'
    html = hooks.on_page_content(text)
    assert html.count("<math") == 2
    assert '<div class="formula"><math' in html
    assert "arithmatex" not in html


def test_a_broken_link_fails_the_build(tmp_path):
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("nav:")[0]
    config = re.sub(r"^watch:.*$", "", config, flags=re.MULTILINE).replace("[src", f"[{ROOT / 'src'}")
    # The pages of results need stored results.
    config = config.replace("tools/docs/claims.py, ", "")
    (tmp_path / "mkdocs.yml").write_text(config.replace("tools/docs", str(ROOT / "tools" / "docs")))
    docs = tmp_path / "docs"
    (docs / "assets").mkdir(parents=True)
    for name in ("assets/iframe-worker.js", "assets/site.css"):
        (docs / name).write_bytes((ROOT / "docs" / name).read_bytes())
    (docs / "index.md").write_text("# A page\n\n[a](no-page.md) [b](guide.md#no-anchor) [c][whitenorm.no_name]\n")
    (docs / "guide.md").write_text("# A guide\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode != 0
    for target in ("no-page.md", "no-anchor", "whitenorm.no_name"):
        assert target in process.stderr
