"""PTX instructions that do not access memory: each family returns the types of its operands and a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

LANES = np.arange(32)
# NumPy's types of PTX's: b and u are unsigned, s is signed.
DTYPES = {f"{kind}{8 * size}": f"{code}{size}" for kind, code in zip("busf", "uuif", strict=True) for size in (2, 4, 8)}
DTYPES["pred"] = "?"

Function = Callable[..., Any]

_BINARY: dict[str, Function] = {
    "add": np.add,
    "sub": np.subtract,
    "min": np.fmin,
    "max": np.fmax,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_UNARY: dict[str, Function] = {
    "not": np.invert,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "rcp": np.reciprocal,
    "ex2": np.exp2,
}
_COMPARISONS: dict[str, Function] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    # "u" is unordered: true where an operand is NaN.
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "neu": np.not_equal,
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}


def find_operation(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    """Return the types of an instruction's sources, and its function of their values."""
    kind, type_ = name[0], name[-1]
    if kind in _BINARY:
        return (type_, type_), _BINARY[kind]
    if kind in _UNARY:
        return (type_,), _UNARY[kind]
    return _FAMILIES[kind](name)


def _setp(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    return (name[-1], name[-1]), _COMPARISONS[name[1]]


def _selp(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    return (name[-1], name[-1], "pred"), lambda a, b, choice: np.where(choice, a, b)


def _mul(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    type_ = name[-1]
    if name[1] == "wide":
        wide = _widen(type_)
        return (type_, type_), lambda a, b: a.astype(wide) * b
    if name[1] == "hi":
        wide, bits = _widen(type_), int(type_[1:])
        return (type_, type_), lambda a, b: ((a.astype(wide) * b) >> bits).astype(DTYPES[type_])
    return (type_, type_), np.multiply


def _mad(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    types, multiply = _mul(name)
    total = f"{name[-1][0]}{2 * int(name[-1][1:])}" if name[1] == "wide" else name[-1]
    return (*types, total), lambda a, b, c: multiply(a, b) + c


def _widen(type_: str) -> str:
    return f"{DTYPES[type_][0]}{2 * int(DTYPES[type_][1:])}"


def _fma(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    if name[-1] == "bf16x2":
        return ("b32",) * 3, _fma_of_pairs
    return ("f32",) * 3, lambda a, b, c: (a.astype("f8") * b + c).astype("f4")


def _fma_of_pairs(*registers: np.ndarray) -> np.ndarray:
    low, high = (
        _round_to_bf16((a.astype("f8") * b + c).astype("f4").view("u4"))
        for a, b, c in zip(*[widen(register[None], "bf16") for register in registers], strict=True)
    )
    return high << 16 | low


def _div(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    return (name[-1], name[-1]), np.divide if name[-1] == "f32" else _divide


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Divide integers and round towards zero; anything where b is zero."""
    b = np.where(b == 0, 1, b).astype(b.dtype)
    return (a - np.fmod(a, b)) // b


def _rem(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    return (name[-1], name[-1]), lambda a, b: np.fmod(a, np.where(b == 0, 1, b).astype(b.dtype))


def _shift(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    shift = np.left_shift if name[0] == "shl" else np.right_shift
    return (name[-1], "u32"), lambda a, b: shift(a, b.astype(a.dtype))


def _bfe(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    def extract(a: np.ndarray, first: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Extract bits, which :func:`np.right_shift` extends by the sign of signed integers."""
        return (a << (32 - first - length).astype(a.dtype)) >> (32 - length).astype(a.dtype)

    return (name[-1], "u32", "u32"), extract


def _prmt(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    def permute(a: np.ndarray, b: np.ndarray, selector: np.ndarray) -> np.ndarray:
        both = np.stack((a, b), 1).view("u1")  # [lanes, 8]
        picked = [both[LANES, selector >> 4 * i & 7] for i in range(4)]
        signs = [np.where(selector >> 4 * i & 8, np.where(byte >> 7, 255, 0), byte) for i, byte in enumerate(picked)]
        return np.stack(signs, 1).astype("u1").view("u4")[:, 0]

    return ("b32",) * 3, permute


def _cvt(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    target, source = name[-2:]
    if target == "tf32":
        return ("b32",), lambda a: (a + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    if source == "bf16":
        return ("b16",), lambda a: a.astype("u4") << 16
    if target == "bf16x2":
        return ("b32", "b32"), lambda high, low: _round_to_bf16(high) << 16 | _round_to_bf16(low)
    if target == "f16x2":
        return (
            "f32",
            "f32",
        ), lambda high, low: high.astype("f2").view("u2").astype("u4") << 16 | low.astype("f2").view("u2")
    if target == "bf16":
        return ("b32",), lambda a: _round_to_bf16(a).astype("u2")
    return (source,), lambda a: a.astype(DTYPES[target])


def _round_to_bf16(bits: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16, to even where there are two."""
    rounded = (bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(bits.view("f4")), np.uint32(0x7FFF), rounded).astype("u4")


def _shfl(name: tuple[str, ...]) -> tuple[tuple[str, ...], Function]:
    lane = {"bfly": lambda b: LANES ^ b, "idx": lambda b: b & 31, "down": lambda b: np.minimum(LANES + b, 31)}[name[2]]
    return ("b32", "b32", "b32", "b32"), lambda a, b, clamp, members: a[lane(b)]


_FAMILIES: dict[str, Callable[[tuple[str, ...]], tuple[tuple[str, ...], Function]]] = {
    "setp": _setp,
    "selp": _selp,
    "mul": _mul,
    "mad": _mad,
    "fma": _fma,
    "div": _div,
    "rem": _rem,
    "shl": _shift,
    "shr": _shift,
    "bfe": _bfe,
    "prmt": _prmt,
    "cvt": _cvt,
    "shfl": _shfl,
}


def find_product(name: tuple[str, ...]) -> Function:
    """Return the function of an ``mma`` instruction: of the registers of A, B and C ``[registers, lanes]`` to D's."""
    size, source = int(name[3].split("k")[1]), name[-3]
    row, column = LANES >> 2, LANES & 3
    if source == "tf32":
        assert size == 8, name
        rows_of_a, columns_of_a = zip(*[(row + 8 * (i % 2), column + 4 * (i // 2)) for i in range(4)], strict=True)
        rows_of_b, columns_of_b = zip(*[(column + 4 * i, row) for i in range(2)], strict=True)
    else:
        # Each register holds two neighbours.
        assert size == 16, name
        rows_of_a, columns_of_a = zip(
            *[(row + 8 * (i % 2), 2 * column + 8 * (i // 2) + j) for i in range(4) for j in range(2)], strict=True
        )
        rows_of_b, columns_of_b = zip(*[(2 * column + 8 * i + j, row) for i in range(2) for j in range(2)], strict=True)
    at_a, at_b = (np.array(rows_of_a), np.array(columns_of_a)), (np.array(rows_of_b), np.array(columns_of_b))
    rows_of_c, columns_of_c = zip(*[(row + 8 * (i // 2), 2 * column + i % 2) for i in range(4)], strict=True)
    at_c = np.array(rows_of_c), np.array(columns_of_c)

    def multiply(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        left, right = np.empty((16, size)), np.empty((size, 8))
        left[at_a], right[at_b] = widen(a, source), widen(b, source)
        return (c.view("f4") + (left @ right)[at_c]).astype("f4").view("u4")

    return multiply


def widen(registers: np.ndarray, type_: str) -> np.ndarray:
    """Return the values in registers ``[registers, lanes]`` as float32, in two rows per register for 16-bit types."""
    if type_ == "tf32":
        return (registers & np.uint32(0xFFFFE000)).view("f4")
    halves = np.stack((registers & np.uint32(0xFFFF), registers >> 16), 1).reshape(-1, 32)
    return (halves << 16).view("f4") if type_ == "bf16" else halves.astype("u2").view("f2").astype("f4")


def parse_constant(text: str, type_: str) -> np.ndarray | None:
    """Return an immediate in all lanes, or None if the operand is none."""
    if text.startswith("0f"):
        return np.full(32, int(text[2:], 16), "u4").view(DTYPES[type_])
    try:
        value = int(text.removesuffix("U"), 0)
    except ValueError:
        return None
    if type_ == "pred":
        return np.full(32, bool(value))
    size = np.dtype(DTYPES[type_]).itemsize
    return np.full(32, value & (2 ** (8 * size) - 1), f"u{size}").view(DTYPES[type_])


def encode_argument(value: Any, parameter: str, register: str) -> np.ndarray:
    """Return an argument as ``ld.param`` loads it: an integer is extended to the register's size."""
    if parameter == "f32":
        return np.full(32, value, "f4").view("u4")
    bits = 64 if register.startswith("%rd") else 32
    return np.full(32, math.trunc(value) % 2**bits, f"u{bits // 8}")
