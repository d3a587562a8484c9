"""A griffe extension: docstrings, which have reStructuredText's formulas and references, as Markdown.

Defaults in signatures become what Python itself shows: a default group size, ``Wish(64)``, reads 64.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import griffe

_LINK = re.compile(r"`([^`<>]+?)\s*<(https?://[^>]+)>`_", re.DOTALL)
_INLINE = re.compile(r":math:`(.+?)`", re.DOTALL)
_BLOCK = re.compile(r"^( *)\.\. math:: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)
_REFERENCE = re.compile(r":(?:func|class|meth|mod|data):`([\w.]+)`")
# What griffe has no section for, and would put into a box of its own.
_SHAPE = re.compile(r"^Shape:\n((?: +.*\n|\n)+)", re.MULTILINE)
# Ints of a class of their own, which are shown as what they are.
_NUMBER = re.compile(r"^Wish\((\d+)\)$")
_EXAMPLE = re.compile(r"^( *)Examples?::\n+", re.MULTILINE)
# Several arguments with one text, which goes on in lines that are indented further.
_TOGETHER = re.compile(r"^( +)(\*{0,2}\w+(?:, \*{0,2}\w+)+):( .*(?:\n\1 +\S.*)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        places = public_names(pkg)
        for module in modules(pkg):
            for found in _objects(module):
                if found.docstring is not None:
                    found.docstring.value = as_markdown(found.docstring.value, lambda name: places.get(name))
                if found.is_function:
                    _show_numbers(found)


def _show_numbers(function: griffe.Object) -> None:
    """Replace defaults such as ``Wish(64)`` by the number alone."""
    for parameter in function.parameters:
        if (number := _NUMBER.match(str(parameter.default))) is not None:
            parameter.default = number[1]


def as_markdown(text: str, place: Callable[[str], str | None]) -> str:
    r"""The same text; ``place`` tells the full path of a name that has a page, or None.

    >>> as_markdown("Σ is :math:`A A^T`, see :func:`sqrt`.", {"sqrt": "whitenorm.solvers.sqrt"}.get)
    'Σ is \\(A A^T\\), see [`sqrt`][whitenorm.solvers.sqrt].'
    """

    def reference(match: re.Match[str]) -> str:
        path = place(match[1])
        return f"`{match[1]}`" if path is None else f"[`{match[1]}`][{path}]"

    text = _LINK.sub(lambda match: f"[{' '.join(match[1].split())}]({match[2]})", text)
    text = _INLINE.sub(lambda match: rf"\({' '.join(match[1].split())}\)", text)
    text = _BLOCK.sub(lambda match: rf"{match[1]}\[{' '.join(match[2].split())}\]", text)
    text = _REFERENCE.sub(reference, text)
    text = _SHAPE.sub(lambda match: f"**Shape:** {' '.join(match[1].split())}\n\n", text)
    text = _EXAMPLE.sub(r"\1Examples:\n", text)
    return _TOGETHER.sub(_one_by_one, text)


def _one_by_one(match: re.Match[str]) -> str:
    return "\n".join(f"{match[1]}{name}:{match[3]}" for name in match[2].split(", "))


def modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """A module and all inside it."""
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from modules(inner)


def _objects(found: griffe.Object) -> Iterator[griffe.Object]:
    yield found
    for member in found.members.values():
        if isinstance(member, griffe.Object) and not member.is_module:
            yield from _objects(member)


def public_names(package: griffe.Module) -> dict[str, str]:
    """The full path of every name in an ``__all__``: by itself, and by all its public paths."""
    found: dict[str, str] = {}
    for module in modules(package):
        for name in exported(module):
            path = f"{module.path}.{name}"
            # A name that several rooms have is the outermost's.
            found.setdefault(name, path)
            found[path] = path
    return found


def exported(module: griffe.Module) -> list[str]:
    """The names in a module's ``__all__``."""
    return [str(name) for name in module.exports or ()]
