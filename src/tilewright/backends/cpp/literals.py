"""Numbers as C++ literals. Every literal gives back exactly the number it was made from."""

from __future__ import annotations

import math
import struct

from tilewright.backends.cpp.expression import Expression, Rank
from tilewright.dtypes import DType, bool_, float16, float32, float64, int32, int64, uint32, uint64

_SUFFIX = {int32: "", uint32: "u", int64: "LL", uint64: "ULL"}


def literal(value: float, dtype: DType) -> Expression:
    """Return a constant of a type; types narrower than int give an int literal, as C++ promotes them anyway."""
    if dtype is bool_:
        return Expression("true" if value else "false", Rank.ATOM, bool_)
    if not dtype.is_float:
        return _integer(int(value), dtype)
    if dtype.is_narrow_float:
        return _half(float(value), dtype)
    return _float(float(value), dtype)


def _integer(value: int, dtype: DType) -> Expression:
    if dtype.bits < 32:
        dtype = int32
    suffix = _SUFFIX[dtype]
    if dtype.kind == "int" and value == dtype.lowest:  # -2147483648 would negate a number that int cannot hold
        return Expression(f"-{-value - 1}{suffix} - 1", Rank.SUM, dtype)
    fits = dtype.bits == 64 and int32.lowest < value <= int32.highest
    plain = Expression(str(value), _rank(value), int32) if fits else None
    return Expression(f"{value}{suffix}", _rank(value), dtype, unconverted=plain)


def _rank(value: float) -> Rank:
    return Rank.UNARY if value < 0 or math.copysign(1, value) < 0 else Rank.ATOM


def _float(value: float, dtype: DType) -> Expression:
    suffix = "f" if dtype is float32 else ""
    if dtype is float32:
        value = _to_float32(value)
    if math.isfinite(value):
        text = _shortest_float32(value) if dtype is float32 else repr(value)
        if not any(c in text for c in ".e"):
            text += ".0"
        return Expression(text + suffix, _rank(value), dtype)
    word = "nan" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    if dtype is float64:
        bits = {"nan": "0x7ff8000000000000", "infinity": "0x7ff0000000000000", "-infinity": "0xfff0000000000000"}[word]
        return Expression(f"__longlong_as_double({bits} /* {word} */)", Rank.POSTFIX, dtype)
    bits = {"nan": "0x7fc00000", "infinity": "0x7f800000", "-infinity": "0xff800000"}[word]
    return Expression(f"__int_as_float({bits} /* {word} */)", Rank.POSTFIX, dtype)


def _to_float32(value: float) -> float:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        return math.copysign(math.inf, value)
    return float(rounded)


def _shortest_float32(value: float) -> str:
    """Return the fewest decimal digits that read back as the same float32; nine always do."""
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if _to_float32(float(text)) == value:
            break
    return repr(float(text))


def _half(value: float, dtype: DType) -> Expression:
    if dtype.bits == 8:
        bits = _float8_bits(value, dtype)
    else:
        bits = float16_bits(value) if dtype is float16 else bfloat16_bits(value)
    return Expression(f"{dtype.c_name}{{0x{bits:0{dtype.bits // 4}x} /* {value!r} */}}", Rank.POSTFIX, dtype)


def _float8_bits(value: float, dtype: DType) -> int:
    """Return the bits of a number that an 8-bit float represents."""
    import numpy as np

    return int(np.array(value).astype(dtype.numpy).view(np.uint8))


def float16_bits(value: float) -> int:
    """Return the bits of a number rounded to float16."""
    try:
        packed = struct.pack("<e", value)
    except OverflowError:
        packed = struct.pack("<e", math.copysign(math.inf, value))
    return int.from_bytes(packed, "little")


def bfloat16_bits(value: float) -> int:
    """Return the bits of a number that bfloat16 represents, or of the nearest one (ties to even)."""
    if math.isnan(value):
        return 0x7FC0
    bits = int.from_bytes(struct.pack("<f", _round_to_odd(value)), "little")
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _round_to_odd(value: float) -> float:
    """Return a float32 from which rounding once more to bfloat16 is as rounding once: inexact results are odd."""
    near = _to_float32(value)
    if near == value:
        return near
    (bits,) = struct.unpack("<I", struct.pack("<f", near))
    if math.isinf(near) or abs(near) > abs(value):
        bits -= 1  # towards zero
    (odd,) = struct.unpack("<f", struct.pack("<I", bits | 1))
    return float(odd)
