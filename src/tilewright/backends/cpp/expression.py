"""C++ expressions as text, with their precedence and C++ type, the operators that join them, and literals.

Parentheses are written where the grammar needs them, and around mixes whose precedence is easily misread: a shift or a
bitwise operator next to another operator, and `&&` inside `||`.

A literal gives back exactly the number it was made from.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from enum import IntEnum

from tilewright.dtypes import DType, bool_, float16, float32, float64, int32, int64, uint32, uint64
from tilewright.ir.core import Type, VectorType


class Rank(IntEnum):
    """The precedence of C++'s operators; the higher binds tighter."""

    CONDITIONAL = 1
    OR = 2
    AND = 3
    BIT_OR = 4
    BIT_XOR = 5
    BIT_AND = 6
    EQUALITY = 7
    RELATION = 8
    SHIFT = 9
    SUM = 10
    PRODUCT = 11
    UNARY = 12
    POSTFIX = 13
    ATOM = 14


RANKS = {
    "||": Rank.OR,
    "&&": Rank.AND,
    "|": Rank.BIT_OR,
    "^": Rank.BIT_XOR,
    "&": Rank.BIT_AND,
    "==": Rank.EQUALITY,
    "!=": Rank.EQUALITY,
    "<": Rank.RELATION,
    "<=": Rank.RELATION,
    ">": Rank.RELATION,
    ">=": Rank.RELATION,
    "<<": Rank.SHIFT,
    ">>": Rank.SHIFT,
    "+": Rank.SUM,
    "-": Rank.SUM,
    "*": Rank.PRODUCT,
    "/": Rank.PRODUCT,
    "%": Rank.PRODUCT,
}
# What may follow without parentheses: x + (y - z) is x + y - z, but x * (y / z) is not x * y / z.
_ASSOCIATIVE = {"+": "+-", "*": "*", "&&": ("&&",), "||": ("||",), "&": "&", "|": "|", "^": "^"}
_BITWISE = (Rank.BIT_OR, Rank.BIT_XOR, Rank.BIT_AND, Rank.SHIFT)


@dataclass(frozen=True)
class Expression:
    """C++ text that computes one value.

    `type` is the C++ type of the text. It differs from the IR's where C++ computes in another one: threadIdx.x
    is unsigned, and types narrower than int are promoted. The low bits are those of the IR's value then, and
    `arithmetic.exact` brings the text to the IR's type where more than the low bits matter. `reads` names the
    variables in the text that may still change. `unconverted` is the text before a conversion that C++ makes
    by itself next to an operand of this type. `parts` is (left text, operator, right side) of a binary operator, and
    `chain` the operators of its rank that are side by side in the text.
    """

    text: str
    rank: Rank
    type: Type
    reads: frozenset[str] = frozenset()
    unconverted: Expression | None = None
    parts: tuple[str, str, Expression] | None = None
    chain: frozenset[str] = frozenset()

    def at_least(self, rank: Rank) -> str:
        """Return the text, in parentheses if it binds less tightly than `rank`."""
        return self.text if self.rank >= rank else f"({self.text})"

    @property
    def dtype(self) -> DType:
        return self.type.element if isinstance(self.type, VectorType) else self.type


def reads_of(*parts: Expression) -> frozenset[str]:
    """Return the changing variables that any of the expressions reads."""
    return frozenset[str]().union(*(p.reads for p in parts))


def binary(operator: str, a: Expression, b: Expression, type: DType) -> Expression:
    """Join two expressions whose C++ types need no further care; `type` is the C++ type of the result."""
    rank = RANKS[operator]
    left = _operand(a, rank, clear=a.rank >= rank)
    joins = b.rank == rank and _regroups(operator, a, b)
    right = _operand(b, rank, clear=b.rank > rank or joins)
    chain = frozenset({operator}).union(a.chain if a.rank == rank else (), b.chain if joins else ())
    text = f"{left} {operator} {right}"
    return Expression(text, rank, type, reads_of(a, b), parts=(left, operator, b), chain=chain)


def _operand(x: Expression, outer: Rank, *, clear: bool) -> str:
    return x.text if clear and not _confuses(x.rank, outer) else f"({x.text})"


def _confuses(inner: Rank, outer: Rank) -> bool:
    """Return whether the precedence of two operators is easily misread."""
    if inner == outer or inner >= Rank.UNARY:
        return False
    if outer in _BITWISE or inner in _BITWISE:
        return True
    comparisons = (Rank.EQUALITY, Rank.RELATION)
    return (outer == Rank.OR and inner == Rank.AND) or (outer in comparisons and inner in comparisons)


def _regroups(operator: str, a: Expression, b: Expression) -> bool:
    """Return whether a + (b + c) may be a + b + c, and likewise for `*`: for integers of one type."""
    if a.type is not b.type or a.dtype.is_float or operator not in _ASSOCIATIVE:
        return False
    return b.chain <= frozenset(_ASSOCIATIVE[operator])


def prefix(operator: str, x: Expression, type: Type) -> Expression:
    """Return `operator x`, where the operator is a sign, `!`, `~`, `*`, `&` or a cast."""
    text = x.at_least(Rank.UNARY)
    if operator[-1] in "-&" and text.startswith(operator[-1]):
        text = f"({text})"
    return Expression(f"{operator}{text}", Rank.UNARY, type, x.reads)


_OPPOSITES = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def negated(condition: Expression) -> Expression:
    """Return `!condition`, or the opposite comparison; of floats, where NaN may come in, only of equality."""
    if condition.parts is not None and condition.parts[1] in _OPPOSITES:
        left, operator, right = condition.parts
        if operator in ("==", "!=") or not right.dtype.is_float:
            text = f"{left} {_OPPOSITES[operator]}{condition.text[len(left) + 1 + len(operator) :]}"
            return replace(condition, text=text, parts=(left, _OPPOSITES[operator], right))
    return prefix("!", condition, condition.type)


def call(function: str, arguments: tuple[Expression, ...], type: Type) -> Expression:
    """Return `function(arguments)`."""
    text = ", ".join(a.text for a in arguments)
    return Expression(f"{function}({text})", Rank.POSTFIX, type, reads_of(*arguments))


def conditional(condition: Expression, a: Expression, b: Expression, type: Type) -> Expression:
    """Return `condition ? a : b`."""
    parts = condition.at_least(Rank.OR), a.at_least(Rank.OR), b.at_least(Rank.CONDITIONAL)
    text = f"{parts[0]} ? {parts[1]} : {parts[2]}"
    return Expression(text, Rank.CONDITIONAL, type, reads_of(condition, a, b))


def converted(operator: str, x: Expression, type: DType) -> Expression:
    """Return a cast that C++ would also make by itself next to an operand of `type`."""
    return replace(prefix(operator, x, type), unconverted=x)


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
    """Return a float32 that rounds to the bfloat16 that one rounding gives: inexact results are odd."""
    near = _to_float32(value)
    if near == value:
        return near
    (bits,) = struct.unpack("<I", struct.pack("<f", near))
    if math.isinf(near) or abs(near) > abs(value):
        bits -= 1  # towards zero
    (odd,) = struct.unpack("<f", struct.pack("<I", bits | 1))
    return float(odd)
