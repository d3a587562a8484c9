"""Griffe extension for mkdocstrings that converts the reStructuredText in docstrings to Markdown.

Docstrings follow PyTorch's conventions: formulas as ``:math:``, references as ``:class:``, ``Example::`` blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import griffe

_LINK = re.compile(r"`([^`<>]+?)\s*<(https?://[^>]+)>`_", re.DOTALL)
_INLINE_MATH = re.compile(r":math:`(.+?)`", re.DOTALL)
_MATH_BLOCK = re.compile(r"^( *)\.\. math:: *(.*(?:\n\1 +\S.*)*)", re.MULTILINE)
_REFERENCE = re.compile(r":(?:func|class|meth|mod|data):`([\w.]+)`")
_SHAPE = re.compile(r"^Shape:\n((?: +.*\n|\n)+)", re.MULTILINE)
_EXAMPLE = re.compile(r"^( *)Examples?::\n+", re.MULTILINE)
# One entry for several arguments, possibly continued on lines with a larger indent: "weight, bias: affine parameters".
_JOINT_ARGUMENTS = re.compile(r"^( +)(\*{0,2}\w+(?:, \*{0,2}\w+)+):( .*(?:\n\1 +\S.*)*)", re.MULTILINE)
# A default of an int subclass, such as Wish(64), is shown as the number.
_INT_SUBCLASS = re.compile(r"^[A-Z]\w*\((\d+)\)$")


class Docstrings(griffe.Extension):
    """Convert every docstring of a package after it is loaded."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        paths = public_paths(pkg)
        for obj in _iterate_objects(pkg):
            if obj.docstring is not None:
                obj.docstring.value = to_markdown(obj.docstring.value, paths)
            if obj.is_function:
                for parameter in obj.parameters:
                    if match := _INT_SUBCLASS.match(str(parameter.default)):
                        parameter.default = match[1]


def to_markdown(text: str, paths: Mapping[str, str]) -> str:
    r"""Convert a docstring to Markdown; ``paths`` maps the names that have a page to their full paths.

    >>> to_markdown("Σ is :math:`A A^T`, see :func:`sqrt`.", {"sqrt": "whitenorm.solvers.sqrt"})
    'Σ is \\(A A^T\\), see [`sqrt`][whitenorm.solvers.sqrt].'
    """

    def link_reference(match: re.Match[str]) -> str:
        name = match[1]
        return f"[`{name}`][{paths[name]}]" if name in paths else f"`{name}`"

    def split_arguments(match: re.Match[str]) -> str:
        return "\n".join(f"{match[1]}{name}:{match[3]}" for name in match[2].split(", "))

    text = _LINK.sub(lambda match: f"[{_join_lines(match[1])}]({match[2]})", text)
    text = _INLINE_MATH.sub(lambda match: rf"\({_join_lines(match[1])}\)", text)
    text = _MATH_BLOCK.sub(lambda match: rf"{match[1]}\[{_join_lines(match[2])}\]", text)
    text = _REFERENCE.sub(link_reference, text)
    # Griffe has no Shape section and would render it as an admonition.
    text = _SHAPE.sub(lambda match: f"**Shape:** {_join_lines(match[1])}\n\n", text)
    text = _EXAMPLE.sub(r"\1Examples:\n", text)
    return _JOINT_ARGUMENTS.sub(split_arguments, text)


def public_paths(package: griffe.Module) -> dict[str, str]:
    """Map every name in an ``__all__``, short and fully qualified, to its full path."""
    paths: dict[str, str] = {}
    for module in iterate_modules(package):
        for name in module.exports or ():
            path = f"{module.path}.{name}"
            # The outermost module wins if several export the same name.
            paths.setdefault(str(name), path)
            paths[path] = path
    return paths


def iterate_modules(module: griffe.Module) -> Iterator[griffe.Module]:
    """Yield a module and its submodules, outermost first."""
    yield module
    for submodule in module.modules.values():
        if not submodule.is_alias:
            yield from iterate_modules(submodule)


def _iterate_objects(obj: griffe.Object) -> Iterator[griffe.Object]:
    yield obj
    for member in obj.members.values():
        if isinstance(member, griffe.Object):
            yield from _iterate_objects(member)


def _join_lines(text: str) -> str:
    return " ".join(text.split())
