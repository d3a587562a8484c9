"""Run the tests of the Triton kernels in a separate process, which sets the interpreter before importing Triton."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.sampling import mark_slow

# As in the dev extra; the kernels need tuples as arguments, which Triton has since 3.3.
pytest.importorskip("triton", minversion="3.4")

INTERPRETED = Path(__file__).parent / "interpreted"


MODULES = sorted(path.name for path in INTERPRETED.glob("test_*.py"))


@pytest.mark.parametrize("name", mark_slow(MODULES, sample=["test_per_sample.py"]))
def test_kernels_in_the_interpreter(name):
    command = [sys.executable, "-m", "pytest", "--quiet", "-p", "no:cacheprovider", str(INTERPRETED / name)]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=INTERPRETED.parent.parent)
    assert result.returncode == 0, result.stdout + result.stderr


def test_kernels_compile_without_a_gpu():
    """Compile each kernel once, for the smallest matrices; ``python -m tools.gpu_check`` compiles all cases."""
    from tools import gpu_check

    launches = {launch.name: launch for launch in gpu_check.collect_launches("sm_80", (16,), (torch.float32,))}
    assert set(gpu_check.PASS_OVER_X) < set(launches)
    for launch in launches.values():
        assert not gpu_check.compile_launch(launch, "sm_80").problem, launch.name
