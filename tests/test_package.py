"""The package as a whole: what it exports, and that torch is all it needs."""

import importlib
import subprocess
import sys

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
assert not any(name.startswith("whitenorm.lab") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_every_command_is_there_and_in_the_help(capsys):
    pytest.importorskip("matplotlib")
    for name, command in cli.COMMANDS.items():
        module = importlib.import_module(command.module)
        assert hasattr(module, command.options)
        assert callable(module.run), name
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in cli.COMMANDS)
