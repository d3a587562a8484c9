"""Loads the compiled kernels for this CPU, or tells why there are none.

The binaries have no reference to torch or Python. Their threads are those of the OpenMP runtime that torch has loaded,
so that ``torch.set_num_threads`` applies.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import NamedTuple

import torch

# The binary for each of torch's CPU capabilities, from the best to the one that every CPU runs.
_BINARIES = {"AVX512": "kernels-avx512.so", "AVX2": "kernels-avx2.so", "DEFAULT": "kernels-portable.so"}
# Changes with the arguments of the functions below; the same number as in kernels.cpp.
_VERSION = 2

_ARGUMENTS = {
    "wn_moments": "xv i pp i",
    "wn_apply": "xv xv pp i pp i",
    "wn_map_gradients": "xv xv p i pp pppp i",
    "wn_input_gradient": "xv xv xv p i p ppp i i",
    "wn_newton": "p ll f i p i",
    "wn_newton_backward": "ppp ll f i p i",
    "wn_whiten_samples": "xv xv pp f i ppp i",
    "wn_whiten_samples_backward": "xv xv xv p ppp f i pp i",
    "wn_whiten_batch": "xv xv pp f i ppp i",
    "wn_whiten_batch_backward": "xv xv xv p ppp f i pp i",
}
_TYPES = {"x": c_void_p, "v": c_void_p, "p": c_void_p, "i": c_int, "l": c_int64, "f": c_float}


class Library(NamedTuple):
    """The loaded binary, or None and the reason."""

    functions: ctypes.CDLL | None
    description: str


@functools.cache
def load_library() -> Library:
    """Load the best binary that this CPU runs, once per process."""
    capability = torch.backends.cpu.get_cpu_capability()
    names = list(_BINARIES.values())
    start = list(_BINARIES).index(capability) if capability in _BINARIES else len(names) - 1
    paths = [path for name in names[start:] if (path := Path(__file__).with_name(name)).exists()]
    if not paths:
        return Library(None, "not compiled: install whitenorm from source with a C++ compiler (g++ or clang++)")
    try:
        functions = ctypes.CDLL(str(paths[0]))
    except OSError as error:
        return Library(None, f"not loaded: {error}")
    if functions.wn_version() != _VERSION:
        return Library(None, f"not loaded: {paths[0].name} is of another version of whitenorm; install it again")
    for name, types in _ARGUMENTS.items():
        function = getattr(functions, name)
        function.argtypes = [_TYPES[letter] for letter in types if letter != " "]
        function.restype = c_int
    return Library(functions, paths[0].stem)
