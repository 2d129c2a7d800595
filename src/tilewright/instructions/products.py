"""Products of integers that C++ has no operator for: the high half of a product, dot products of bytes, differences.

All are pure and of one thread. On AMD's GPUs they are written in C++, from which clang chooses instructions.

Source: PTX ISA, "mul" (.hi), "dp4a", "dp2a", "sad".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.values import Array
from tilewright.dtypes import DType, int32, int64, uint32, uint64
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.effects import attribute, operand
from tilewright.ir.evaluate import facts_of
from tilewright.ir.facts import Facts
from tilewright.ir.instruction import ScalarInstruction
from tilewright.tensors.arithmetic import elementwise
from tilewright.trace.mathematics import as_integer
from tilewright.trace.scalar import Scalar, as_scalar, is_typed
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer


# --- what a kernel says ----------------------------------------------------------------------------------


@elementwise(2)
def mul_hi(a: Any, b: Any) -> Scalar:
    """Return the high half of the product of two integers of 32 or of 64 bits (PTX mul.hi).

    Both are of one type, which is the result's; a Python number takes the type of the other.
    """
    x, y = _alike(a, b, "tw.mul_hi")
    return Scalar(current("tw.mul_hi").pure(MulHi(x.value, y.value), x.dtype))


@elementwise(3)
def dp4a(a: Any, b: Any, c: Any = 0) -> Scalar:
    """Return c plus the dot product of the four bytes of a with those of b (PTX dp4a).

    The bytes are int8 where the operand is int32 and uint8 where it is uint32. The result is uint32 if both are, and
    int32 otherwise; so is c. The sum wraps.
    """
    return _dot("tw.dp4a", a, b, c, 4, high=False)


@elementwise(3)
def dp2a(a: Any, b: Any, c: Any = 0, *, high: bool = False) -> Scalar:
    """Return c plus the dot product of the two halves of a with two bytes of b: the low ones or the high ones.

    As `dp4a`, with int16 or uint16 halves in a (PTX dp2a.lo and dp2a.hi).
    """
    if not isinstance(high, bool):
        raise LanguageError(f"high= of tw.dp2a is True or False, known while tracing, got {high!r}")
    return _dot("tw.dp2a", a, b, c, 2, high=high)


@elementwise(3)
def sad(a: Any, b: Any, c: Any = 0) -> Scalar:
    """Return c + |a - b| of two int32 or two uint32, as uint32 (PTX sad); the difference is exact, the sum wraps."""
    x, y = _alike(a, b, "tw.sad", 32)
    z = as_scalar(c, uint32)
    return Scalar(current("tw.sad").pure(Sad(x.value, y.value, z.value), uint32))


def _alike(a: Any, b: Any, what: str, *bits: int) -> tuple[Scalar, Scalar]:
    """Return two integers of one type; a Python number takes the other's."""
    widths = bits or (32, 64)
    if _is_untyped(a) and not _is_untyped(b):
        y = as_integer(b, what, *widths)
        return as_scalar(a, y.dtype), y
    x = as_integer(a, what, *widths)
    y = as_scalar(b, x.dtype) if _is_untyped(b) else as_integer(b, what, *widths)
    if x.dtype is not y.dtype:
        raise LanguageError(
            f"{what} takes two integers of one type, got {x.dtype} and {y.dtype}",
            help=f"convert one of them: x.to({x.dtype!r})",
        )
    return x, y


def _is_untyped(x: object) -> bool:
    """Say whether a value takes its type from the one beside it: a Python int, or one that comes with each launch."""
    return isinstance(x, int) or (isinstance(x, Scalar) and not is_typed(x))


def _dot(what: str, a: Any, b: Any, c: Any, parts: int, *, high: bool) -> Scalar:
    x, y = as_integer(a, what, 32), as_integer(b, what, 32)
    type = uint32 if x.dtype is y.dtype is uint32 else int32
    z = as_scalar(c, type)
    return Scalar(current(what).pure(Dot(parts, high, x.value, y.value, z.value), type))


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class MulHi(ScalarInstruction):
    """result = the upper half of the bits of a * b, all of one type."""

    a: Value = operand()
    b: Value = operand()

    COUNTED: ClassVar[str | None] = "integer"
    RESERVED: ClassVar[str] = "mul_hi"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.a.type == self.b.type == self.result.type, "the types of a product differ")
        expect(self.a.type in (int32, uint32, int64, uint64), f"no high half of a product of {self.a.type}")

    def compute(self, *operands: Array) -> Array:
        a, b = operands
        if self.a.dtype.bits == 32:
            wide = np.int64 if self.a.dtype.is_signed else np.uint64
            return np.asarray(((a.astype(wide) * b.astype(wide)) >> wide(32)).astype(a.dtype))
        return _high_of_128(a, b)

    def facts(self) -> Facts:
        x, y = facts_of(self.a), facts_of(self.b)
        corners = [(i * j) >> self.a.dtype.bits for i in (x.low, x.high) for j in (y.low, y.high)]
        return Facts(min(corners), max(corners))

    def cuda(self, printer: Printer) -> Expression:
        name = {int32: "__mulhi", uint32: "__umulhi", int64: "__mul64hi", uint64: "__umul64hi"}[self.result.dtype]
        return call(name, (exact(printer, self.a), exact(printer, self.b)), self.result.type)

    def hip(self, printer: Printer) -> Expression:
        type = self.result.dtype
        wide = {int32: "long long", uint32: "unsigned long long", int64: "__int128", uint64: "unsigned __int128"}[type]
        c = type.c_name
        printer.prelude.need(
            f"{FUNCTION} {c} mul_hi_{type}({c} a, {c} b) {{\n    return ({c})(({wide})a * b >> {type.bits});\n}}"
        )
        return call(f"mul_hi_{type}", (exact(printer, self.a), exact(printer, self.b)), type)


@dataclass(eq=False)
class Dot(ScalarInstruction):
    """result = c + the sum of the products of `parts` parts of a, of 32 / parts bits, with as many bytes of b."""

    parts: int = attribute()
    high: bool = attribute()
    a: Value = operand()
    b: Value = operand()
    c: Value = operand()

    COUNTED: ClassVar[str | None] = "integer"
    RESERVED: ClassVar[str] = r"dp[24]a_\w+"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.parts in (2, 4) and not (self.high and self.parts == 4), "four bytes, or two halves")
        expect({self.a.type, self.b.type} <= {int32, uint32}, "operands are int32 or uint32")
        type = uint32 if self.a.type is self.b.type is uint32 else int32
        expect(self.c.type is self.result.type is type, f"the sum is {type}")

    def compute(self, *operands: Array) -> Array:
        a, b, c = operands
        total = c.astype(np.int64)
        width, first = 32 // self.parts, 2 if self.high else 0
        for n in range(self.parts):
            total = total + _part(a, n, width, self.a.dtype) * _part(b, first + n, 8, self.b.dtype)
        return np.asarray(total.astype(c.dtype))

    def cuda(self, printer: Printer) -> Expression:
        suffix = "" if self.parts == 4 else ".hi" if self.high else ".lo"
        return self._called(
            printer,
            f'asm("dp{self.parts}a{suffix}.{_letter(self.a)}.{_letter(self.b)} %0, %1, %2, %3;" '
            ': "=r"(c) : "r"(a), "r"(b), "r"(c));',
        )

    def hip(self, printer: Printer) -> Expression:
        width, first = 32 // self.parts, 16 if self.high else 0
        x = f"({'' if self.a.dtype.is_signed else 'unsigned '}{'char' if width == 8 else 'short'})"
        x = x.replace("(char", "(signed char")
        y = "(signed char)" if self.b.dtype.is_signed else "(unsigned char)"
        shift = f"8 * i + {first}" if first else "8 * i"
        c = self.result.dtype.c_name
        return self._called(
            printer,
            f"for (int i = 0; i < {self.parts}; i++) c += ({c})({x}(a >> {width} * i) * {y}(b >> ({shift})));",
        )

    def _called(self, printer: Printer, statement: str) -> Expression:
        half = "" if self.parts == 4 else "_hi" if self.high else "_lo"
        name = f"dp{self.parts}a{half}_{_letter(self.a)}_{_letter(self.b)}"
        a, b, c = (v.dtype.c_name for v in (self.a, self.b, self.c))
        printer.prelude.need(
            f"// c plus the dot product of {self.parts} parts of a and bytes of b.\n"
            f"{FUNCTION} {c} {name}({a} a, {b} b, {c} c) {{\n    {statement}\n    return c;\n}}"
        )
        return call(name, tuple(exact(printer, v) for v in self.operands), self.result.type)


@dataclass(eq=False)
class Sad(ScalarInstruction):
    """result: uint32 = c + |a - b|, of two int32 or two uint32."""

    a: Value = operand()
    b: Value = operand()
    c: Value = operand()

    COUNTED: ClassVar[str | None] = "integer"
    RESERVED: ClassVar[str] = r"sad_\w+"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.a.type == self.b.type and self.a.type in (int32, uint32), "two int32 or two uint32")
        expect(self.c.type is self.result.type is uint32, "the sum is uint32")

    def compute(self, *operands: Array) -> Array:
        a, b, c = operands
        difference = np.abs(a.astype(np.int64) - b.astype(np.int64))
        return (difference + c.astype(np.int64)).astype(np.uint32)

    def cuda(self, printer: Printer) -> Expression:
        name = "__sad" if self.a.dtype is int32 else "__usad"
        return call(name, tuple(exact(printer, v) for v in self.operands), uint32)

    def hip(self, printer: Printer) -> Expression:
        letter, c = _letter(self.a), self.a.dtype.c_name
        printer.prelude.need(
            f"{FUNCTION} unsigned int sad_{letter}({c} a, {c} b, unsigned int c) {{\n"
            "    return c + (a < b ? (unsigned int)b - (unsigned int)a : (unsigned int)a - (unsigned int)b);\n}"
        )
        return call(f"sad_{letter}", tuple(exact(printer, v) for v in self.operands), uint32)


# --- what they compute -----------------------------------------------------------------------------------

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def _high_of_128(a: Array, b: Array) -> Array:
    """Return the upper 64 bits of a product of two integers of 64 bits.

    The halves of unsigned numbers are multiplied; a negative number is 2**64 less than its bits say.
    """
    x, y = a.astype(np.uint64), b.astype(np.uint64)
    low = (x & _LOW) * (y & _LOW)
    middle = (x >> _HALF) * (y & _LOW) + (low >> _HALF)  # below 2**64
    other = (x & _LOW) * (y >> _HALF) + (middle & _LOW)
    high = (x >> _HALF) * (y >> _HALF) + (middle >> _HALF) + (other >> _HALF)
    if a.dtype.kind == "i":
        nothing = np.uint64(0)
        high = high - np.where(a < 0, y, nothing) - np.where(b < 0, x, nothing)
    return np.asarray(high.astype(a.dtype))


def _part(x: Array, number: int, width: int, type: DType) -> Array:
    """Return one part of a word as int64, with its sign where the word is signed."""
    part = (x.astype(np.int64) >> np.int64(width * number)) & np.int64((1 << width) - 1)
    if not type.is_signed:
        return np.asarray(part)
    sign = np.int64(1 << (width - 1))
    return np.asarray((part ^ sign) - sign)


def _letter(value: Value) -> str:
    return "s32" if value.dtype.is_signed else "u32"
