"""The lab uses only the library's public names: those that a public module lists in its ``__all__``."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import whitenorm_lab

ROOT = Path(whitenorm_lab.__file__).parent


def list_library_imports(path):
    """Yield (module, name) for each name of the library that a file imports; the name is None for ``import module``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names if alias.name.split(".")[0] == "whitenorm")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "whitenorm":
            yield from ((node.module, alias.name) for alias in node.names)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_public_names_of_the_library_are_used(path):
    for module, name in list_library_imports(path):
        assert not any(part.startswith("_") for part in module.split(".")), module
        if name is not None:
            public = importlib.import_module(module).__all__
            assert name in public, f"{name} is not in {module}.__all__"


def test_the_commands_start_without_the_lab_packages_loaded():
    code = "import sys, whitenorm_lab.cli; print(*({'torchvision', 'lightning', 'matplotlib'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
