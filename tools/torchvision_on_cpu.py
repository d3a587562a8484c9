"""Make torchvision's wheel importable beside a CPU build of torch.

The wheel on PyPI is a CUDA build: its extension modules name libc10_cuda.so and libtorch_cuda.so, and a few symbols in
them, which a CPU build of torch does not have. Two small libraries that define just these symbols let the extensions
load, with their CPU kernels. Called by ``make setup``; does nothing for CUDA builds of torch. Needs a C compiler.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

SONAMES = ("libc10_cuda.so", "libtorch_cuda.so")
# The only one that is a variable; all others are functions, which CPU code never calls.
VARIABLE = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
SITE = Path(sysconfig.get_path("purelib"))


def main() -> None:
    import torch

    spec = importlib.util.find_spec("torchvision")
    if torch.version.cuda is not None or spec is None or spec.origin is None:
        return
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        sys.exit("expected a C compiler to make torchvision importable on CPU torch (got none); install gcc")
    extensions = [path for path in Path(spec.origin).parent.glob("*.so") if path.stem in ("_C", "image")]
    symbols = sorted({symbol for path in extensions for symbol in list_missing_symbols(path)})
    folder = SITE / "torchvision_on_cpu"
    folder.mkdir(exist_ok=True)
    source = folder / "stubs.c"
    source.write_text("\n".join(format_stub(i, symbol) for i, symbol in enumerate(symbols)) + "\n")
    empty = folder / "empty.c"
    empty.write_text("int torchvision_on_cpu;\n")
    for soname, code in zip(SONAMES, (source, empty), strict=True):
        command = [compiler, "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", str(folder / soname), str(code)]
        subprocess.run(command, check=True)
    # The dynamic linker finds a library that is already loaded under this name.
    load = "; ".join(f"ctypes.CDLL({str(folder / soname)!r}, ctypes.RTLD_GLOBAL)" for soname in SONAMES)
    (SITE / "torchvision_on_cpu.pth").write_text(f"import ctypes; {load}\n")
    subprocess.run([sys.executable, "-c", "import torchvision; torchvision.ops.nms"], check=True)


def list_missing_symbols(extension: Path) -> list[str]:
    """Return the symbols of CUDA's libraries that an extension needs."""
    lines = subprocess.run(
        ["nm", "-D", "--undefined-only", str(extension)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    names = [line.split()[-1].split("@")[0] for line in lines]
    return [name for name in names if "3c104cuda" in name or "2at4cuda" in name]


def format_stub(index: int, symbol: str) -> str:
    """Return C code that defines a symbol, as a function that must not be called or as a variable."""
    if symbol == VARIABLE:
        return f'char stub_{index}[64] __asm__("{symbol}");'
    return f'void stub_{index}(void) __asm__("{symbol}"); void stub_{index}(void) {{ __builtin_trap(); }}'


if __name__ == "__main__":
    main()
