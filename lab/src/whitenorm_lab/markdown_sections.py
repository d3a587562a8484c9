"""Sections of text files that commands generate, between two markers."""

from __future__ import annotations

from pathlib import Path


def write_section(path: Path, start: str, end: str, text: str) -> None:
    """Replace the text between the markers in a file, atomically."""
    write_text(path, replace_section(path.read_text(encoding="utf-8"), start, end, text, path))


def write_text(path: Path, content: str) -> None:
    """Write a file atomically."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def replace_section(content: str, start: str, end: str, text: str, path: Path) -> str:
    """Return a file's content with the text between the markers replaced; ``path`` is for the error message.

    Example::

        >>> replace_section("a <start> old <end> b", "<start>", "<end>", "new", Path("README.md"))
        'a <start>\\n\\nnew\\n\\n<end> b'
    """
    before, found_start, after_start = content.partition(start)
    _, found_end, after = after_start.partition(end)
    if not (found_start and found_end):
        raise ValueError(
            f"expected the lines {start} and {end} in {path} (at least one is missing); put them where the text goes"
        )
    return f"{before}{start}\n\n{text}\n\n{end}{after}"
