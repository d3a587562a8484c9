"""The package as a whole: what it exports, and that torch is all it needs."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import whitenorm
from whitenorm import cli


def test_exports():
    for name in whitenorm.__all__:
        assert hasattr(whitenorm, name)


def test_the_library_imports_torch_alone():
    """Neither the lab's packages nor numpy are needed to import and use the layers."""
    code = """
import sys
from pathlib import Path
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"matplotlib", "numpy", "rich", "tyro"}:
            raise ModuleNotFoundError(f"refused: {name}", name=name)
sys.meta_path.insert(0, Refuse())
import torch, whitenorm
whitenorm.IterNorm(8)(torch.randn(4, 8, 3, 3)).sum().backward()
assert not any(name.startswith("whitenorm_lab") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_the_library_is_tested_without_the_lab():
    """As ``make test-torch`` does it: without the lab's packages, what needs them is not collected."""
    code = """
import importlib.machinery, sys
import pytest
LAB = {"lightning", "matplotlib", "pandas", "PIL", "playwright", "pycocotools", "rich", "sacrebleu", "scipy",
       "sentencepiece", "timm", "torchmetrics", "torchvision", "transformers", "tyro"}
class Absent(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in LAB else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Absent
sys.exit(pytest.main(["--collect-only", "--quiet", "--no-header", "-p", "no:cacheprovider"]))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "tests/test_solvers.py" in done.stdout
    assert "tests/test_training.py" not in done.stdout


# From the lowest on; a room imports from those before it. Two on one line do not import each other.
ROOMS = [
    ["_version", "runtime"],
    ["solvers"],
    ["kernels"],
    ["core"],
    ["functional"],
    ["layers"],
    ["models", "diagnostics", "losses", "gpu"],
    ["integrations"],
    ["lab"],
    ["cli"],
    ["__main__"],
]
FLOOR = {name: floor for floor, names in enumerate(ROOMS) for name in names}


def imported(path):
    """The rooms that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "whitenorm":
            names = [f"whitenorm.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from {name.split(".")[1] for name in names if name.startswith("whitenorm.")}


def test_imports_point_downward():
    root = Path(whitenorm.__file__).parent
    for path in root.rglob("*.py"):
        room = path.relative_to(root).parts[0].removesuffix(".py")
        if room != "__init__":
            for other in imported(path):
                assert other == room or FLOOR[other] < FLOOR[room], f"{path.relative_to(root)} imports {other}"


def test_every_command_is_there_and_in_the_help(capsys):
    pytest.importorskip("matplotlib")
    for name, command in cli.COMMANDS.items():
        module = importlib.import_module(command.module)
        if command.options is None:
            assert callable(module.main), name
            continue
        assert hasattr(module, command.options)
        assert callable(module.run), name
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in cli.COMMANDS)
