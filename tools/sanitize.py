"""Run the tests of the C++ kernels with a binary that checks every access and every operation: ``make sanitize``.

The binary is compiled with GCC's address and undefined-behavior sanitizers, and takes the place of all binaries in a
temporary copy of the package. Python itself is not instrumented, so the sanitizers' libraries are preloaded.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
NATIVE = Path("whitenorm/ops/native")
COMPILER = os.environ.get("CXX", "g++")
# As in setup.py, except for the optimization. AVX2 is what machines that run the tests have in common.
FLAGS = ["-std=c++17", "-O1", "-g", "-fopenmp", "-fvisibility=hidden", "-Wno-psabi", "-fPIC", "-shared"]
X86_FLAGS = ["-mavx2", "-mfma", "-mf16c"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
BINARIES = ("kernels-avx512.so", "kernels-avx2.so", "kernels-portable.so")


def main(args):
    """Run pytest with the arguments, or on the tests of the kernels, and return its exit code."""
    if sys.platform != "linux" or shutil.which(COMPILER) is None:
        print(f"skipped: the sanitizers need Linux and {COMPILER}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "whitenorm"
        shutil.copytree(ROOT / "src/whitenorm", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        compile_kernels(Path(folder) / NATIVE)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join((folder, os.environ.get("PYTHONPATH", ""))),
            "LD_PRELOAD": ":".join(find_library(name) for name in ("libasan.so", "libubsan.so")),
            # CPython and torch keep much of their memory until the process ends.
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OMP_NUM_THREADS": "1",
        }
        check = f"import whitenorm; assert whitenorm.__file__.startswith({folder!r}), whitenorm.__file__"
        subprocess.run([sys.executable, "-c", check], env=environment, check=True)
        # Without pytest's capture, which loses the report of a sanitizer that ends the process.
        command = [sys.executable, "-m", "pytest", "--quiet", "--capture=no", *(args or ["tests/native"])]
        return subprocess.run(command, env=environment, cwd=ROOT).returncode


def compile_kernels(folder):
    """Compile the kernels of a folder, once, for the names of all binaries."""
    flags = [*FLAGS, *SANITIZERS]
    if platform.machine().lower() in ("x86_64", "amd64"):
        flags += X86_FLAGS
    first, *others = (folder / name for name in BINARIES)
    subprocess.run([COMPILER, *flags, str(folder / "kernels.cpp"), "-o", str(first)], check=True)
    for path in others:
        shutil.copy(first, path)


def find_library(name):
    command = [COMPILER, f"-print-file-name={name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
