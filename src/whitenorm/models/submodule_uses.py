"""Read from a module's source how it uses its submodules, for code that cannot be traced."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import nn
from torch.utils._pytree import tree_leaves

# CALLED is a call with one input, TOUCHED any other call or read of an attribute, and OPENED anything else, after which
# the module's own submodules may be used, too.
CALLED, TOUCHED, OPENED = "called", "touched", "opened"

_HARMLESS_CALLS = {"len", "isinstance", "hasattr", "type", "super", "bool", "id"}
_VALUES, _ITEMS = {"values", "children"}, {"items", "named_children"}
# Attributes that give access to submodules without naming them.
_GIVES_MODULES = {"modules", "named_modules", "get_submodule", "_modules", "apply", "__dict__"} | _VALUES | _ITEMS

Path = tuple[str, ...]


class Use(NamedTuple):
    """A use of one submodule, or of several if an index or a loop chooses among them.

    Attributes:
        modules: the submodules.
        how: ``CALLED``, ``TOUCHED`` or ``OPENED``.
    """

    modules: list[nn.Module]
    how: str


def find_uses(module: nn.Module) -> list[Use] | None:
    """Find all uses of submodules in forward and in the methods that it calls; None if the source cannot be read."""
    if "forward" in vars(module):
        return None
    uses: list[Use] = []
    visited: set[tuple[nn.Module, str]] = set()
    pending = [(module, "forward")]
    while pending:
        owner, method = pending.pop()
        if (owner, method) in visited:
            continue
        visited.add((owner, method))
        for definition in _find_definitions(type(owner), method):
            tree = _parse_source(definition)
            if tree is None:
                return None
            collector = _UseCollector(owner, tree)
            uses += collector.uses
            pending += collector.methods
    return uses


def _find_definitions(kind: type, name: str) -> Iterator[Any]:
    """Yield the functions of this name in a class and its bases, as each may call the next."""
    for base in kind.__mro__:
        if base not in (nn.Module, object) and name in vars(base):
            function = vars(base)[name]
            # The function of a property, a cached property or a class method.
            for attribute in ("fget", "func", "__func__"):
                function = getattr(function, attribute, function)
            # A static method has no self; its arguments are seen where it is called.
            if callable(function) and not isinstance(vars(base)[name], staticmethod):
                yield inspect.unwrap(function)


def _parse_source(function: Any) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    return next((node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))), None)


class _UseCollector(ast.NodeVisitor):
    """Collect the uses of ``self`` and its submodules, also through local variables, in the source of one method."""

    def __init__(self, module: nn.Module, tree: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.module = module
        self.uses: list[Use] = []
        self.methods: list[tuple[nn.Module, str]] = []
        self_argument = [*tree.args.posonlyargs, *tree.args.args][:1]
        self.names: dict[str, set[Path]] = {argument.arg: {()} for argument in self_argument}
        # The first pass finds the local variables, which a loop may use above the line that assigns them.
        for _ in range(2):
            self.uses.clear()
            for statement in tree.body:
                self.visit(statement)

    def _find_paths(self, node: ast.expr) -> set[Path]:
        """Return the paths of the submodules, or of their attributes, that an expression may refer to."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id, set())
        if isinstance(node, ast.Attribute):
            return {(*path, node.attr) for path in self._find_paths(node.value)}
        if isinstance(node, ast.Subscript):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            return {(*path, "*" if key is None else str(key)) for path in self._find_paths(node.value)}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            key = node.args[1].value if isinstance(node.args[1], ast.Constant) else "*"
            return {(*path, str(key)) for path in self._find_paths(node.args[0])}
        return set()

    def _visit_unless_path(self, *nodes: ast.expr) -> None:
        for node in nodes:
            if not self._find_paths(node):
                self.visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if self._find_paths(node):
            self._visit_reference(node)
            return
        paths = self._find_paths(node.func)
        is_plain = len(node.args) == 1 and not node.keywords and not isinstance(node.args[0], ast.Starred)
        for path in paths:
            self._record(path, CALLED if is_plain else TOUCHED)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Name) and node.func.id in _HARMLESS_CALLS:
            self._visit_unless_path(*arguments)
            return
        for part in arguments if paths else [node.func, *arguments]:
            self.visit(part)

    def _visit_reference(self, node: Any) -> None:
        paths = self._find_paths(node)
        if isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            for path in paths:
                self._record(path, OPENED)
        if isinstance(node, ast.Subscript):
            self.visit(node.slice)
        if not paths and not isinstance(node, ast.Name):
            self.visit(node.value)

    visit_Name = visit_Attribute = visit_Subscript = _visit_reference  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> None:
        paths = self._find_paths(node.value)
        if paths and all(isinstance(target, ast.Name) for target in node.targets):
            for target in node.targets:
                self._bind(target, paths)
            return
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        self._bind(node.target, self._find_elements(node.iter))
        for statement in [*node.body, *node.orelse]:
            self.visit(statement)

    def _visit_comprehension(self, node: Any) -> None:
        for generator in node.generators:
            self._bind(generator.target, self._find_elements(generator.iter))
            for test in generator.ifs:
                self._visit_test(test)
        for part in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            self.visit(part)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _visit_comprehension  # noqa: N815

    def visit_Compare(self, node: ast.Compare) -> None:
        self._visit_unless_path(node.left, *node.comparators)

    def _visit_test(self, node: ast.expr) -> None:
        """Visit an expression of which only the truth value is used."""
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._visit_test(value)
        elif isinstance(node, ast.UnaryOp):
            self._visit_test(node.operand)
        else:
            self._visit_unless_path(node)

    def _visit_choice(self, node: Any) -> None:
        self._visit_test(node.test)
        for part in ast.iter_child_nodes(node):
            if part is not node.test:
                self.visit(part)

    visit_If = visit_IfExp = visit_While = _visit_choice  # noqa: N815

    def _find_elements(self, node: ast.expr) -> Any:
        """Return the paths of an iterable's elements: a set, or a list of sets if the elements are tuples."""
        paths = self._find_paths(node)
        if paths:
            return {(*path, "*") for path in paths}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "enumerate":
                return [set(), self._find_elements(node.args[0])]
            if node.func.id == "zip":
                return [self._find_elements(argument) for argument in node.args]
            if node.func.id in ("reversed", "list", "tuple") and node.args:
                return self._find_elements(node.args[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
            children = {(*path, "*") for path in self._find_paths(node.func.value)}
            if children and node.func.attr in _VALUES | _ITEMS:
                return children if node.func.attr in _VALUES else [set(), children]
        self.visit(node)
        return set()

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name) and isinstance(value, set):
            if value:
                self.names.setdefault(target.id, set()).update(value)
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, list):
            for part, paths in zip(target.elts, value, strict=False):
                self._bind(part, paths)
        else:
            for path in _flatten_paths(value):
                self._record(path, OPENED)

    def _record(self, path: Path, how: str) -> None:
        modules, rest = self._resolve(path)
        if not rest:
            self.uses.append(Use(modules, how))
            return
        for module in modules:
            value = inspect.getattr_static(module, rest[0], None)
            gives_modules = rest[0] in _GIVES_MODULES or any(isinstance(leaf, nn.Module) for leaf in tree_leaves(value))
            self.uses.append(Use([module], OPENED if gives_modules else TOUCHED))
            self.methods.append((module, rest[0]))

    def _resolve(self, path: Path) -> tuple[list[nn.Module], Path]:
        """Return the modules at a path, as far as there are any, and the rest of the path."""
        modules = [self.module]
        for i, name in enumerate(path):
            children = [child for module in modules for child in module._modules.items()]
            parts = [part for key, part in children if part is not None and name in ("*", key)]
            if not parts:
                return modules, path[i:]
            modules = parts
        return modules, ()


def _flatten_paths(value: Any) -> Iterator[Path]:
    """Yield all paths in nested lists of sets."""
    if isinstance(value, set):
        yield from value
    else:
        for part in value:
            yield from _flatten_paths(part)
