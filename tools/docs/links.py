"""Links that leave ``docs/``: right where the repository is read, and turned into what a site can have."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path

# Files of the repository that are pages of the site.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# Where pictures from outside of docs/ are in the site.
PICTURES = "pictures"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


class Outside:
    """Where the links of one page lead.

    Args:
        root: the repository's folder.
        source: the page's file in it, such as ``docs/guide.md``.
        uri: the page's place in the site, such as ``guide.md``.
    """

    def __init__(self, root: Path, source: str, uri: str) -> None:
        self.root, self.source, self.uri = root, source, uri

    def pictures(self, text: str) -> dict[str, Path]:
        """The pictures outside of ``docs/`` that the page shows: place in the site, and file."""
        found = [self._target(match[3])[0] for match in _LINK.finditer(text) if match[1]]
        return {f"{PICTURES}/{path}": self.root / path for path in found if _is_outside(path)}

    def resolved(self, text: str) -> str:
        """The page with links to other pages, its pictures, and in place of links to other files their text."""
        parts = _CODE.split(text)
        # Every second part is code.
        parts[::2] = [_LINK.sub(self._resolved, part) for part in parts[::2]]
        return "".join(parts)

    def _resolved(self, match: re.Match[str]) -> str:
        path, anchor = self._target(match[3])
        if path in PAGES:
            # Headings of the README are on other pages here.
            return f"[{match[2]}]({self._from_here(PAGES[path])})"
        if not _is_outside(path):
            return f"{match[1]}[{match[2]}]({self._from_here(path.removeprefix('docs/'))}{anchor})"
        if not (self.root / path).exists():
            # mkdocs knows how to complain.
            return match[0]
        return f"![{match[2]}]({self._from_here(f'{PICTURES}/{path}')})" if match[1] else match[2]

    def _target(self, link: str) -> tuple[str, str]:
        path, mark, anchor = link.partition("#")
        folder = posixpath.dirname(self.source)
        # An anchor by itself is of this page.
        path = posixpath.normpath(posixpath.join(folder, path)) if path else self.source
        return path, mark + anchor

    def _from_here(self, uri: str) -> str:
        return os.path.relpath(uri, posixpath.dirname(self.uri) or ".").replace(os.sep, "/")


def _is_outside(path: str) -> bool:
    return not path.startswith("docs/") and path not in PAGES
