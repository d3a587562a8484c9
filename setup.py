"""Compile the CPU kernels, if there is a compiler; everything else is in pyproject.toml.

The binaries refer neither to Python nor to torch, so that one wheel per platform serves all versions of both.
``WHITENORM_NATIVE=0`` builds a wheel without them, for any platform.
"""

import os
import platform
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/whitenorm/ops/native")
X86 = {
    "avx512": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx2", "-mfma", "-mf16c"],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "portable": [],
}
# -fopenmp only here and not for the linker: the threads are those of the runtime that torch has loaded.
FLAGS = ["-std=c++17", "-O3", "-g0", "-fopenmp", "-fvisibility=hidden", "-Wno-psabi"]


def list_kernels() -> list[Extension]:
    """Return one binary per instruction set of this machine's architecture."""
    if os.environ.get("WHITENORM_NATIVE") == "0":
        return []
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    return [
        Extension(
            f"whitenorm.ops.native.kernels-{name}",
            [str(FOLDER / "kernels.cpp")],
            depends=[str(path) for path in sorted(FOLDER.glob("*.h"))],
            extra_compile_args=[*FLAGS, *flags],
            language="c++",
        )
        for name, flags in (X86 if is_x86 else {"portable": []}).items()
    ]


class BuildKernels(build_ext):
    """Builds plain shared libraries, and goes on without them if that fails."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:
            print(f"whitenorm: could not compile {ext.name} ({error}); torch's kernels are used.", file=sys.stderr)
            self.failed.append(ext)

    def run(self) -> None:
        self.failed: list[Extension] = []
        super().run()

    def get_outputs(self) -> list[str]:
        return [path for path in super().get_outputs() if Path(path).exists()]

    def copy_extensions_to_source(self) -> None:
        """Copy the libraries into the checkout, for an editable install."""
        self.extensions = [ext for ext in self.extensions if ext not in self.failed]
        super().copy_extensions_to_source()


class PlatformWheel(bdist_wheel):
    """Tags a wheel with kernels for its platform and every version of Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        python, abi, tag = super().get_tag()
        return (python, abi, tag) if self.root_is_pure else ("py3", "none", tag)


setup(ext_modules=list_kernels(), cmdclass={"build_ext": BuildKernels, "bdist_wheel": PlatformWheel})
