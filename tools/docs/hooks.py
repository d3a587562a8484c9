"""What mkdocs does with the pages beside its own: the hooks of ``mkdocs.yml``."""

from __future__ import annotations

import ast
import functools
from pathlib import Path
from typing import Any

import griffe
from docstrings import exported, modules
from fields import with_fields
from formulas import as_mathml
from links import PAGES, Outside
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
# Pages that are files of the repository as they stand.
_INCLUDED = {uri: path for path, uri in PAGES.items() if path != "README.md"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Every page says in its footer which version it is of."""
    version = ast.literal_eval(str(_package()["_version.__version__"].value))
    config.copyright = f"whitenorm {version}, MIT licence"
    return config


def on_pre_build(config: MkDocsConfig) -> None:
    """A public name without a docstring has no page to stand on."""
    bare = undocumented(_package())
    if bare:
        raise PluginError(f"expected a docstring for every name of an __all__ (got none for {', '.join(bare)})")


def undocumented(package: griffe.Module) -> list[str]:
    """Names of an ``__all__`` that lack a docstring; a module's is what it begins with."""
    found = [(module, name) for module in modules(package) for name in exported(module)]
    return [f"{room.path}.{name}" for room, name in found if not name.startswith("__") and not room[name].docstring]


@functools.cache
def _package() -> griffe.Module:
    package = griffe.load("whitenorm", search_paths=[ROOT / "src"], resolve_aliases=True)
    assert isinstance(package, griffe.Module)
    return package


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Files of the repository that are pages too, and the pictures that pages show from outside of ``docs/``."""
    for uri, path in _INCLUDED.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text(encoding="utf-8")))
    pictures: dict[str, Path] = {}
    for file in files.documentation_pages():
        pictures.update(_outside(file.src_uri).pictures(file.content_string))
    for uri, picture in pictures.items():
        if picture.exists():
            files.append(File.generated(config, uri, abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    return _outside(page.file.src_uri).resolved(with_fields(markdown, _package()))


def on_page_content(html: str, **kwargs: Any) -> str:
    return as_mathml(html)


def _outside(uri: str) -> Outside:
    return Outside(ROOT, _INCLUDED.get(uri, f"docs/{uri}"), uri)
