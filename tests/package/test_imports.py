"""Imports point downward: each room of the library imports only from rooms below it, and never from the lab."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import whitenorm

ROOT = Path(whitenorm.__file__).parent
# From the top to the bottom. Rooms on one line do not import each other.
LEVELS = [
    ["__main__"],
    ["cli", "integrations"],
    ["models", "diagnostics", "losses"],
    ["layers"],
    ["functional"],
    ["ops"],
    ["solvers"],
    ["_runtime", "_suggest", "_version"],
]
LEVEL_OF_ROOM = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
# The only files that import more than torch and the standard library when they are imported.
OPTIONAL_PACKAGES = {
    "cli/inspect.py": {"pandas", "rich", "tyro"},
    "integrations/lightning.py": {"lightning", "pytorch_lightning"},
    "integrations/timm.py": {"timm"},
    "integrations/transformers.py": {"transformers"},
}


def find_room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def is_optional(path, package):
    name = path.relative_to(ROOT).as_posix()
    return package in OPTIONAL_PACKAGES.get(name, ()) or (name.startswith("ops/triton/") and package == "triton")


def list_imports(tree):
    """Return the full names of the modules that a file's import statements name."""
    names = []
    for node in tree:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "expected absolute imports"
            # `from whitenorm import layers` names a module, `from whitenorm.layers import IterNorm` a class.
            is_root = node.module == "whitenorm"
            names += [f"whitenorm.{alias.name}" for alias in node.names] if is_root else [node.module]
    return names


def walk_module_level(node):
    """Yield the nodes that run when a file is imported: all but the bodies of functions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from walk_module_level(child)


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_downward(path):
    room = find_room(path)
    tree = ast.parse(path.read_text())
    for name in list_imports(ast.walk(tree)):
        package, *rest = name.split(".")
        assert package != "whitenorm_lab"
        if package == "whitenorm":
            other = rest[0]
            assert other == room or LEVEL_OF_ROOM[other] > LEVEL_OF_ROOM[room], f"{room} imports {name}"
    for name in list_imports(walk_module_level(tree)):
        package = name.split(".")[0]
        is_known = package in ("torch", "whitenorm") or package in sys.stdlib_module_names
        assert is_known or is_optional(path, package), f"{package} is imported at module level"


def test_every_room_has_a_level():
    assert {find_room(path) for path in FILES} == set(LEVEL_OF_ROOM)


def test_the_library_has_no_lab():
    assert not list(ROOT.rglob("lab"))


def run_without(packages, code):
    """Run code in a process in which some packages cannot be imported, and return it when it has ended."""
    refuse = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {set(packages)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""
    return subprocess.run([sys.executable, "-W", "ignore", "-c", refuse + code], capture_output=True, text=True)


INSPECT = {"pandas", "rich", "tyro"}
LAB = {
    "lightning", "matplotlib", "PIL", "pycocotools", "sacrebleu", "scipy", "sentencepiece", "timm", "torchmetrics",
    "torchvision", "transformers", "whitenorm_lab",
}  # fmt: skip


def test_the_layers_need_torch_alone():
    code = """
import torch, whitenorm
whitenorm.IterNorm(8)(torch.randn(4, 8, 3, 3)).sum().backward()
"""
    result = run_without({*LAB, *INSPECT, "numpy", "triton"}, code)
    assert result.returncode == 0, result.stderr


def test_the_command_without_arguments_lists_the_commands():
    code = """
from whitenorm.cli import main
sys.exit(main([]))
"""
    result = run_without(LAB | INSPECT, code)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name in ("inspect", "gpu", "bench"))


def test_inspect_needs_its_extra_alone(tmp_path):
    pytest.importorskip("tyro")
    model = tmp_path / "model.py"
    model.write_text("from torch import nn\nnet = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))\n")
    files = {"--html": tmp_path / "page.html", "--csv": tmp_path / "table.csv"}
    args = ["inspect", f"{model}:net", "--layer", "gw", *(str(part) for pair in files.items() for part in pair)]
    code = f"""
from whitenorm.cli import main
path = list(sys.path)
code = main({args})
assert sys.path == path
sys.exit(code)
"""
    result = run_without(LAB, code)
    assert result.returncode == 0, result.stderr
    assert all(file.exists() for file in files.values())


def test_inspect_without_its_extra_says_what_to_install():
    result = run_without(LAB | INSPECT, 'from whitenorm.cli import main\nsys.exit(main(["inspect", "resnet18"]))')
    assert result.returncode == 1
    assert "pip install 'whitenorm[inspect]'" in result.stderr
