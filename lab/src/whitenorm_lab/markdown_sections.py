"""Text in a file that a command writes again and again, between two marks."""

from __future__ import annotations

from pathlib import Path


def write_between(path: Path, start: str, end: str, text: str) -> None:
    """Put the text between the marks of a file, whole or not at all."""
    write_text(path, between(path.read_text(encoding="utf-8"), start, end, text, path))


def write_text(path: Path, content: str) -> None:
    """Write a file completely or not at all."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def between(content: str, start: str, end: str, text: str, path: Path) -> str:
    """The content of a file with the text between its marks.

    Example::

        >>> between("a <start> old <end> b", "<start>", "<end>", "new", Path("README.md"))
        'a <start>\\n\\nnew\\n\\n<end> b'
    """
    before, found_start, rest = content.partition(start)
    _, found_end, after = rest.partition(end)
    if not (found_start and found_end):
        raise ValueError(f"expected the lines {start} and {end} in {path} (got not both); put them where the text goes")
    return f"{before}{start}\n\n{text}\n\n{end}{after}"
