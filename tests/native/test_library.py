"""Which binary is loaded, what is said where none is, and which tensors are refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import whitenorm
from whitenorm.ops import dispatch
from whitenorm.ops.native import library, steps, views

X86_BINARIES = {"DEFAULT": "kernels-portable", "AVX2": "kernels-avx2", "AVX512": "kernels-avx512"}
CPU = torch.backends.cpu.get_cpu_capability()


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """Return an empty folder in which binaries are looked for, by a function that no longer remembers one."""
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    library.load_library.cache_clear()
    yield tmp_path
    library.load_library.cache_clear()


def test_without_binaries(folder):
    functions, description = library.load_library()
    assert functions is None
    assert description.startswith("not compiled: install whitenorm from source with a C++ compiler")
    assert dispatch.describe_backends()["native"] == description
    whitenorm.set_kernels("auto")
    with pytest.raises(
        ValueError, match=r'expected the compiled CPU kernels for kernels "native" \(got none: not comp'
    ):
        whitenorm.set_kernels("native")
    x = torch.randn(8, 4)
    assert dispatch.choose_kernels(x, None, 4) is dispatch.TORCH
    assert whitenorm.IterNorm(4)(x).isfinite().all()


def test_a_file_that_cannot_be_loaded(folder):
    (folder / "kernels-portable.so").write_bytes(b"no library")
    functions, description = library.load_library()
    assert functions is None
    assert description.startswith("not loaded: ")
    assert "kernels-portable.so" in description


def test_another_version(folder, monkeypatch):
    shutil.copy(Path(steps.__file__).with_name("kernels-portable.so"), folder)
    monkeypatch.setattr(library, "_VERSION", library._VERSION + 1)
    functions, description = library.load_library()
    assert functions is None
    assert description == "not loaded: kernels-portable.so is of another version of whitenorm; install it again"


AGREEMENT = """
import torch, whitenorm
from tests.helpers.cases import TOLERANCE
from tests.native.test_threads import run_layers
from whitenorm.ops.native.library import load_library
whitenorm.set_kernels("native")
results = run_layers()
whitenorm.set_kernels("torch")
for actual, expected in zip(results, run_layers(), strict=True):
    assert (actual - expected).abs().max() <= TOLERANCE[torch.float32] * expected.abs().max().clamp_min(1)
print(load_library().description)
"""


def run_python(code, **environment):
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("capability", [name for name in X86_BINARIES if name != CPU])
@pytest.mark.skipif(CPU not in ("AVX2", "AVX512"), reason="this CPU runs only the portable binary")
def test_binaries_for_other_instruction_sets(capability):
    """By torch's own variable for its kernels."""
    if list(X86_BINARIES).index(capability) > list(X86_BINARIES).index(CPU):
        pytest.skip(f"this CPU has no {capability}")
    code, output = run_python(AGREEMENT, ATEN_CPU_CAPABILITY=capability.lower())
    assert code == 0, output
    assert output.strip() == X86_BINARIES[capability]


def test_the_environment_variable():
    code, output = run_python(
        "import whitenorm.ops.dispatch as d; print(d.describe_backends())", WHITENORM_KERNELS="native"
    )
    assert code == 0, output
    assert "'mode': 'native'" in output


def test_info(capsys):
    from whitenorm.cli import bench

    bench.main(["--info"])
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {"mode", "torch", "native", "triton"}
    assert lines["mode"] == "native"
    assert lines["native"] == f"{library.load_library().description}, for CPU tensors"


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(2, 3, 4),
        torch.zeros(2, 3, 4, 1, 0),
        torch.zeros(1, 1, 1025, 1, 1),
        torch.zeros(2, 3, 4, 1, 5, dtype=torch.float64),
        torch.zeros(2, 3, 4, 1, 5, dtype=torch.int32),
    ],
    ids=["rank", "empty", "features", "float64", "int32"],
)
def test_inputs_that_are_refused(x):
    with pytest.raises(ValueError, match=r"expected x\[N, G, K, J, P\] in float32, bfloat16 or float16 with K of at m"):
        views.arrange(False, None, x)


def test_tensors_of_different_shapes_are_refused():
    x, other = torch.zeros(2, 3, 4, 1, 5), torch.zeros(2, 3, 4, 1, 6)
    with pytest.raises(ValueError, match="expected tensors of one shape"):
        views.arrange(False, None, x, other)
    with pytest.raises(ValueError, match="expected tensors of one shape"):
        views.arrange(False, other, x)


@pytest.mark.parametrize(
    "matrix",
    [torch.zeros(2, 3, 4), torch.zeros(2, 4, 4, dtype=torch.float64), torch.zeros(2, 4, 4, device="meta")],
    ids=["shape", "dtype", "device"],
)
def test_matrices_that_are_refused(matrix):
    with pytest.raises(ValueError, match=r"expected a float32 tensor of shape \(2, 4, 4\) on the CPU"):
        views.matrix_argument(matrix, (2, 4, 4))


def test_no_memory(monkeypatch):
    """A function that returns 1 could not allocate."""
    functions = library.load_library().functions
    monkeypatch.setattr(functions, "wn_newton", lambda *args: 1)
    with pytest.raises(MemoryError, match="workspace of wn_newton"):
        steps._NativeNewton(5).solve(torch.eye(3)[None])
