"""Tables of a dataclass's fields, at the marks ``<!-- fields: PATH -->`` or ``<!-- options: PATH -->``."""

from __future__ import annotations

import re

import griffe

_MARK = re.compile(r"^<!-- (fields|options): ([\w.]+) -->$", re.MULTILINE)


def with_fields(text: str, package: griffe.Module) -> str:
    """The page with a table at every mark: fields by name, or as options of a command."""

    def table(match: re.Match[str]) -> str:
        return as_table(package[match[2].removeprefix("whitenorm.")], match[1] == "options")

    return _MARK.sub(table, text)


def as_table(found: griffe.Object | griffe.Alias, as_options: bool) -> str:
    """Name, default and docstring of each field."""
    rows = [_row(field, as_options) for field in found.members.values() if _is_field(field)]
    return "\n".join([f"| {'option' if as_options else 'field'} | default | |", "| --- | --- | --- |", *rows])


def _is_field(field: griffe.Object | griffe.Alias) -> bool:
    # A class variable is an attribute of the class alone.
    return field.is_attribute and bool(field.docstring) and "instance-attribute" in field.labels


def _row(field: griffe.Object | griffe.Alias, as_options: bool) -> str:
    value, words = field.value, " ".join(field.docstring.value.split())  # type: ignore[union-attr]
    name = field.name
    if as_options:
        positional = "Positional" in str(field.annotation)
        name = name.upper() if positional else f"--{name.replace('_', '-')}"
    default = "" if value is None else f"`{value}`"
    return f"| `{name}` | {default} | {words.replace('|', '&#124;')} |"
