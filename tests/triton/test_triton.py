"""The Triton kernels, in a process of their own: the interpreter has to be chosen before Triton is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

# As the dev extra asks for: the interpreter of 3.2, which torch 2.6 brings, ends in warnings of its own.
pytest.importorskip("triton", minversion="3.4")

INTERPRETED = Path(__file__).parent / "interpreted"


@pytest.mark.parametrize("name", sorted(path.name for path in INTERPRETED.glob("test_*.py")))
def test_kernels_in_the_interpreter(name):
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", str(INTERPRETED / name)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=INTERPRETED.parent.parent)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kernels_compile_for_a_card_that_is_not_there():
    """One of each, for the smallest matrices; ``python -m tools.gpu_check`` compiles all for all."""
    from tools import gpu_check

    launches = {launch.name: launch for launch in gpu_check.all_launches((16,), (torch.float32,))}
    assert set(gpu_check.PASS_OVER_X) < set(launches)
    for launch in launches.values():
        assert not gpu_check.measure(launch, "sm_80").problem, launch.name
