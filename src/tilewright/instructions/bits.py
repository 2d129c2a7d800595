"""Bits of words: permuted bytes, logic by table, shifts over two words, fields of bits, the first bit, reversal.

All are pure and of one thread. On AMD's GPUs they are written in C++, from which clang chooses instructions.

Source: PTX ISA, "prmt", "lop3", "shf", "bfind", "brev", "bfe", "bfi"; CUDA, __ffs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.arguments import shown
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.expression import Expression, call, prefix
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.integers import leading_zeros
from tilewright.backends.sim.values import Array
from tilewright.dtypes import DType, int32, int64, uint32, uint64
from tilewright.errors import LanguageError
from tilewright.ir.core import Value
from tilewright.ir.effects import attribute, operand, operands
from tilewright.ir.facts import Facts
from tilewright.ir.instruction import ScalarInstruction
from tilewright.tensors.arithmetic import elementwise
from tilewright.trace.mathematics import as_integer, as_word
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer

_MODES = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")


# --- what a kernel says ----------------------------------------------------------------------------------


@elementwise(3)
def byte_permute(a: Any, b: Any, selector: Any, mode: str | None = None) -> Scalar:
    """Return four bytes chosen from the eight of a (bytes 0 to 3) and b (4 to 7), as uint32 (PTX prmt.b32).

    Byte n of the result is the one that the low three bits of nibble n of the selector name; where the nibble's fourth
    bit is set, it is that byte's sign in all eight bits. `mode` is one of PTX's: "f4e" and "b4e" (four bytes forwards
    or backwards), "rc8", "ecl", "ecr", "rc16"; they read the two low bits of the selector.
    """
    if mode is not None and mode not in _MODES:
        raise LanguageError(f"a mode of tw.byte_permute is None or one of {', '.join(_MODES)}, got {shown(mode)}")
    values = tuple(as_word(x, "tw.byte_permute").value for x in (a, b, selector))
    return Scalar(current("tw.byte_permute").pure(BytePermute(mode or "", values), uint32))


@elementwise(3)
def lop3(a: Any, b: Any, c: Any, table: int | Callable[[int, int, int], int]) -> Scalar:
    """Return a function of each bit of three words of 32 bits, as uint32 (PTX lop3.b32).

    `table` is the function's truth table, PTX's immLut, or a Python function of three integers that is made of
    `&`, `|`, `^` and `~`: `tw.lop3(a, b, c, lambda a, b, c: (a & b) ^ c)`.
    """
    found: object = table(0xF0, 0xCC, 0xAA) if callable(table) else table
    number = found & 0xFF if callable(table) and isinstance(found, int) else found
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 0xFF:
        raise LanguageError(
            f"the table of tw.lop3 is a number from 0 to 255, or a function that gives an int, got {shown(found)}"
        )
    values = tuple(as_word(x, "tw.lop3").value for x in (a, b, c))
    return Scalar(current("tw.lop3").pure(Lop3(number, values), uint32))


@elementwise(3)
def funnel_shift_left(low: Any, high: Any, amount: Any, *, clamp: bool = False) -> Scalar:
    """Return the upper word of the 64 bits high:low shifted left, as uint32 (PTX shf.l.b32).

    The amount is taken modulo 32; with `clamp`, an amount above 32 is 32.
    """
    return _funnel("left", low, high, amount, clamp)


@elementwise(3)
def funnel_shift_right(low: Any, high: Any, amount: Any, *, clamp: bool = False) -> Scalar:
    """Return the lower word of the 64 bits high:low shifted right, as uint32 (PTX shf.r.b32).

    The amount is taken modulo 32; with `clamp`, an amount above 32 is 32.
    """
    return _funnel("right", low, high, amount, clamp)


@elementwise(1)
def ffs(x: Any) -> Scalar:
    """Return the position of the lowest set bit of an integer of 32 or 64 bits, as int32: 1 for bit 0, and 0 for 0."""
    value = as_integer(x, "tw.ffs", 32, 64)
    return Scalar(current("tw.ffs").pure(FindFirstSet(value.value), int32))


@elementwise(1)
def brev(x: Any) -> Scalar:
    """Return an integer of 32 or 64 bits with its bits in reverse order, in its type (PTX brev)."""
    value = as_integer(x, "tw.brev", 32, 64)
    return Scalar(current("tw.brev").pure(ReverseBits(value.value), value.dtype))


@elementwise(3)
def bfe(x: Any, start: Any, length: Any) -> Scalar:
    """Return `length` bits of an integer of 32 or 64 bits from bit `start` on, in its type (PTX bfe).

    A signed type is sign-extended, an unsigned one zero-extended. Bits beyond those of the type count as its sign, or
    zero. Only the low eight bits of `start` and `length` are used.
    """
    value = as_integer(x, "tw.bfe", 32, 64)
    places = (as_word(start, "tw.bfe").value, as_word(length, "tw.bfe").value)
    return Scalar(current("tw.bfe").pure(ExtractField(value.value, *places), value.dtype))


@elementwise(4)
def bfi(field: Any, into: Any, start: Any, length: Any) -> Scalar:
    """Return `into` with `length` bits from bit `start` on replaced by the low bits of `field` (PTX bfi).

    Both are integers of 32 or 64 bits of one width; the result has the type of `into`. Bits beyond the type's are
    dropped. Only the low eight bits of `start` and `length` are used.
    """
    if isinstance(into, int):
        inserted = as_integer(field, "tw.bfi", 32, 64)
        base = as_scalar(into, inserted.dtype)
    else:
        base = as_integer(into, "tw.bfi", 32, 64)
        inserted = as_scalar(field, base.dtype) if isinstance(field, int) else as_integer(field, "tw.bfi", 32, 64)
    if inserted.dtype.bits != base.dtype.bits:
        raise LanguageError(f"tw.bfi takes integers of one width, got {inserted.dtype} and {base.dtype}")
    places = (as_word(start, "tw.bfi").value, as_word(length, "tw.bfi").value)
    op = InsertField(inserted.to(base.dtype).value, base.value, *places)
    return Scalar(current("tw.bfi").pure(op, base.dtype))


def _funnel(direction: str, low: Any, high: Any, amount: Any, clamp: bool) -> Scalar:
    what = f"tw.funnel_shift_{direction}"
    if not isinstance(clamp, bool):
        raise LanguageError(f"clamp= of {what} is True or False, known while tracing, got {shown(clamp)}")
    values = tuple(as_word(x, what).value for x in (low, high, amount))
    return Scalar(current(what).pure(FunnelShift(direction, clamp, values), uint32))


# --- the ops ---------------------------------------------------------------------------------------------


class _OfWords(ScalarInstruction):
    """An instruction of three words that gives a word: a function of the C++ text that calls it."""

    COUNTED: ClassVar[str | None] = "integer"
    words: tuple[Value, ...]

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(all(v.type is uint32 for v in (*self.words, self.result)) and len(self.words) == 3, "words are uint32")

    def _call(self, printer: Printer, name: str, arguments: str = "") -> Expression:
        return call(f"{name}{arguments}", tuple(exact(printer, v) for v in self.words), uint32)


@dataclass(eq=False)
class BytePermute(_OfWords):
    """result = four of the eight bytes of the first two words, chosen by the third; a mode is one of PTX's, or ""."""

    mode: str = attribute()
    words: tuple[Value, ...] = operands()

    RESERVED: ClassVar[str] = r"byte_permute(_\w+)?"

    def compute(self, *operands: Array) -> Array:
        a, b, selector = (x.astype(np.uint64) for x in operands)
        both = a | b << np.uint64(32)
        result: Array = np.zeros_like(both | selector)
        for n in range(4):
            nibble = _NIBBLES[self.mode](selector, np.uint64(n))
            byte = (both >> (np.uint64(8) * (nibble & np.uint64(7)))) & np.uint64(0xFF)
            signs = (byte >> np.uint64(7)) * np.uint64(0xFF)
            chosen = np.where(nibble & np.uint64(8), signs, byte)
            result = result | chosen << np.uint64(8 * n)
        return np.asarray(result.astype(np.uint32))

    def cuda(self, printer: Printer) -> Expression:
        name = f"byte_permute_{self.mode}" if self.mode else "byte_permute"
        suffix = f".{self.mode}" if self.mode else ""
        printer.prelude.need(_of_words(name, f"prmt.b32{suffix} %0, %1, %2, %3;"))
        return self._call(printer, name)

    def hip(self, printer: Printer) -> Expression:
        name = f"byte_permute_{self.mode}" if self.mode else "byte_permute"
        printer.prelude.need(_HIP_PERMUTE.format(name=name, nibble=_HIP_NIBBLES[self.mode], function=FUNCTION))
        return self._call(printer, name)


@dataclass(eq=False)
class Lop3(_OfWords):
    """result = the function of three words, bit by bit, that has this truth table."""

    table: int = attribute()
    words: tuple[Value, ...] = operands()

    RESERVED: ClassVar[str] = "lop3"

    def compute(self, *operands: Array) -> Array:
        a, b, c = operands
        result: Array = np.zeros_like(a | b | c)
        for n in range(8):
            if self.table >> n & 1:
                term = (a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c)
                result = result | term
        return np.asarray(result)

    def cuda(self, printer: Printer) -> Expression:
        printer.prelude.need(f"""\
// A function of each bit of three words; its truth table is PTX's immLut.
template <int table>
{FUNCTION} unsigned int lop3(unsigned int a, unsigned int b, unsigned int c) {{
    unsigned int result;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(a), "r"(b), "r"(c), "n"(table));
    return result;
}}""")
        return self._call(printer, "lop3", f"<0x{self.table:02x}>")

    def hip(self, printer: Printer) -> Expression:
        printer.prelude.need(f"""\
// A function of each bit of three words; bit 4 a + 2 b + c of its truth table is the result of the bits a, b, c.
template <int table>
{FUNCTION} unsigned int lop3(unsigned int a, unsigned int b, unsigned int c) {{
    unsigned int result = 0;
    for (int i = 0; i < 8; i++) {{
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }}
    return result;
}}""")
        return self._call(printer, "lop3", f"<0x{self.table:02x}>")


@dataclass(eq=False)
class FunnelShift(_OfWords):
    """result = a word of the 64 bits of two, low and high, shifted by an amount; modulo 32, or at most 32."""

    direction: str = attribute()
    clamp: bool = attribute()
    words: tuple[Value, ...] = operands()

    RESERVED: ClassVar[str] = r"funnel_shift_\w+"

    def compute(self, *operands: Array) -> Array:
        low, high, amount = (x.astype(np.uint64) for x in operands)
        by = np.minimum(amount, np.uint64(32)) if self.clamp else amount & np.uint64(31)
        both = high << np.uint64(32) | low
        shifted = (both << by) >> np.uint64(32) if self.direction == "left" else both >> by
        return np.asarray(shifted.astype(np.uint32))

    def cuda(self, printer: Printer) -> Expression:
        return self._call(printer, f"__funnelshift_{self.direction[0]}{'c' if self.clamp else ''}")

    def hip(self, printer: Printer) -> Expression:
        name = f"funnel_shift_{self.direction}{'_clamped' if self.clamp else ''}"
        by = "(n < 32 ? n : 32)" if self.clamp else "(n & 31)"
        shifted = f"both << {by} >> 32" if self.direction == "left" else f"both >> {by}"
        printer.prelude.need(f"""\
{FUNCTION} unsigned int {name}(unsigned int low, unsigned int high, unsigned int n) {{
    const unsigned long long both = (unsigned long long)high << 32 | low;
    return (unsigned int)({shifted});
}}""")
        return self._call(printer, name)


class _OfInteger(ScalarInstruction):
    COUNTED: ClassVar[str | None] = "integer"

    def _expect_integer(self, expect: Callable[[bool, str], None], value: Value) -> None:
        expect(value.type in (int32, uint32, int64, uint64), f"an integer of 32 or 64 bits, not {value.type}")


@dataclass(eq=False)
class FindFirstSet(_OfInteger):
    """result: int32 = 1 + the number of the lowest one bit of x, 0 for 0."""

    x: Value = operand()

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        self._expect_integer(expect, self.x)
        expect(self.result.type is int32, "a place is int32")

    def compute(self, *operands: Array) -> Array:
        (x,) = operands
        lowest = x & (~x + x.dtype.type(1))
        return np.where(x == 0, 0, 8 * x.dtype.itemsize - leading_zeros(lowest).astype(np.int32)).astype(np.int32)

    def facts(self) -> Facts:
        return Facts(0, self.x.dtype.bits)

    def cuda(self, printer: Printer) -> Expression:
        return call("__ffsll" if self.x.dtype.bits == 64 else "__ffs", (exact(printer, self.x),), int32)

    def hip(self, printer: Printer) -> Expression:
        name = "__builtin_ffsll" if self.x.dtype.bits == 64 else "__builtin_ffs"
        return call(name, (exact(printer, self.x),), int32)


@dataclass(eq=False)
class ReverseBits(_OfInteger):
    """result = the bits of x in reverse order."""

    x: Value = operand()

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        self._expect_integer(expect, self.x)
        expect(self.result.type == self.x.type, "types differ")

    def compute(self, *operands: Array) -> Array:
        (x,) = operands
        type = np.dtype(f"u{x.dtype.itemsize}").type
        bits = x.astype(type)
        for step, mask in zip((1, 2, 4, 8, 16, 32), _SWAPS, strict=True):
            if step < 8 * x.dtype.itemsize:
                low = type(mask & ((1 << 8 * x.dtype.itemsize) - 1))
                bits = (bits >> type(step) & low) | (bits & low) << type(step)
        return np.asarray(bits.astype(x.dtype))

    def cuda(self, printer: Printer) -> Expression:
        return self._call(printer, "__brevll" if self.x.dtype.bits == 64 else "__brev")

    def hip(self, printer: Printer) -> Expression:
        return self._call(printer, f"__builtin_bitreverse{self.x.dtype.bits}")

    def _call(self, printer: Printer, name: str) -> Expression:
        type = self.x.dtype
        reversed = call(name, (exact(printer, self.x),), uint64 if type.bits == 64 else uint32)
        return prefix(f"({type.c_name})", reversed, type) if type.is_signed else reversed


@dataclass(eq=False)
class ExtractField(_OfInteger):
    """result = `length` bits of x from `start` on, with their sign where the type is signed."""

    x: Value = operand()
    start: Value = operand()
    length: Value = operand()

    RESERVED: ClassVar[str] = r"extract_field_\w+"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        self._expect_integer(expect, self.x)
        expect(self.result.type == self.x.type, "types differ")
        expect(self.start.type is self.length.type is uint32, "places are uint32")

    def compute(self, *operands: Array) -> Array:
        x, start, length = operands
        bits, type = 8 * x.dtype.itemsize, x.dtype.type
        start, length = start & np.uint32(0xFF), length & np.uint32(0xFF)
        shifted = np.right_shift(x, np.minimum(start, np.uint32(bits)).astype(x.dtype))  # beyond: zeros, or the sign
        rest = (np.uint32(bits) - np.minimum(length, np.uint32(bits))).astype(x.dtype)
        field = np.right_shift(np.left_shift(shifted, rest), rest)
        return np.asarray(np.where(length == 0, type(0), field).astype(x.dtype))

    def cuda(self, printer: Printer) -> Expression:
        if self.x.dtype.bits == 64:  # no instruction: an H200 gives 0 for bfe.u64 from bit 256 on, where PTX says bit 0
            return self.hip(printer)
        name, c, letter = _field_names("extract_field", self.x.dtype)
        printer.prelude.need(f"""\
{FUNCTION} {c} {name}({c} x, unsigned int start, unsigned int length) {{
    {c} field;
    asm("bfe.{letter} %0, %1, %2, %3;" : "=r"(field) : "r"(x), "r"(start), "r"(length));
    return field;
}}""")
        return call(name, tuple(exact(printer, v) for v in self.operands), self.result.type)

    def hip(self, printer: Printer) -> Expression:
        name, c, _ = _field_names("extract_field", self.x.dtype)
        bits, signed = self.x.dtype.bits, self.x.dtype.is_signed
        u = "unsigned long long" if bits == 64 else "unsigned int"
        beyond = f"x >> {bits - 1}" if signed else "0"
        printer.prelude.need(f"""\
{FUNCTION} {c} {name}({c} x, unsigned int start, unsigned int length) {{
    start &= 255;
    length &= 255;
    const {c} rest = start < {bits} ? x >> start : {beyond};
    if (length == 0 || length >= {bits}) return length == 0 ? 0 : rest;
    return ({c})(({u})rest << ({bits} - length)) >> ({bits} - length);
}}""")
        return call(name, tuple(exact(printer, v) for v in self.operands), self.result.type)


@dataclass(eq=False)
class InsertField(_OfInteger):
    """result = `into` with `length` bits from `start` on taken from the low bits of `field`."""

    field: Value = operand()
    into: Value = operand()
    start: Value = operand()
    length: Value = operand()

    RESERVED: ClassVar[str] = r"insert_field_\w+"

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        self._expect_integer(expect, self.into)
        expect(self.result.type == self.into.type == self.field.type, "types differ")
        expect(self.start.type is self.length.type is uint32, "places are uint32")

    def compute(self, *operands: Array) -> Array:
        field, into, start, length = operands
        bits, unsigned = 8 * into.dtype.itemsize, np.dtype(f"u{into.dtype.itemsize}")
        one = unsigned.type(1)
        start = (start & np.uint32(0xFF)).astype(unsigned)
        length = (length & np.uint32(0xFF)).astype(unsigned)
        ones = np.where(length >= bits, ~unsigned.type(0), np.left_shift(one, length) - one)
        mask = np.left_shift(ones, start)  # by as many bits as the type has: 0
        moved = np.left_shift(field.astype(unsigned), start)
        return np.asarray(((into.astype(unsigned) & ~mask) | (moved & mask)).astype(into.dtype))

    def cuda(self, printer: Printer) -> Expression:
        if self.into.dtype.bits == 64:  # as for ExtractField
            return self.hip(printer)
        name, c, _ = _field_names("insert_field", self.into.dtype)
        printer.prelude.need(f"""\
{FUNCTION} {c} {name}({c} field, {c} into, unsigned int start, unsigned int length) {{
    {c} result;
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(result) : "r"(field), "r"(into), "r"(start), "r"(length));
    return result;
}}""")
        return call(name, tuple(exact(printer, v) for v in self.operands), self.result.type)

    def hip(self, printer: Printer) -> Expression:
        name, c, _ = _field_names("insert_field", self.into.dtype)
        bits = self.into.dtype.bits
        u = "unsigned long long" if bits == 64 else "unsigned int"
        printer.prelude.need(f"""\
{FUNCTION} {c} {name}({c} field, {c} into, unsigned int start, unsigned int length) {{
    start &= 255;
    length &= 255;
    if (start >= {bits}) return into;
    const {u} mask = (length < {bits} ? (({u})1 << length) - 1 : ~({u})0) << start;
    return ({c})((({u})into & ~mask) | (({u})field << start & mask));
}}""")
        return call(name, tuple(exact(printer, v) for v in self.operands), self.result.type)


# --- what they compute and how they are written ------------------------------------------------------------

_SWAPS = tuple(int(pattern * (64 // len(pattern)), 2) for pattern in ("01", "0011", "00001111", "0" * 8 + "1" * 8,
               "0" * 16 + "1" * 16, "0" * 32 + "1" * 32))  # fmt: skip

# The nibble of the selector that a byte of the result has, in each mode of prmt (PTX ISA, table of "prmt").
_NIBBLES: dict[str, Callable[[Array, Any], Array]] = {
    "": lambda s, n: s >> (np.uint64(4) * n) & np.uint64(15),
    "f4e": lambda s, n: (s & np.uint64(3)) + n,
    "b4e": lambda s, n: (s & np.uint64(3)) - n & np.uint64(7),
    "rc8": lambda s, n: s & np.uint64(3),
    "ecl": lambda s, n: np.maximum(s & np.uint64(3), n),
    "ecr": lambda s, n: np.minimum(s & np.uint64(3), n),
    "rc16": lambda s, n: (s & np.uint64(1)) * np.uint64(2) + (n & np.uint64(1)),
}
_HIP_NIBBLES = {
    "": "selector >> 4 * i & 15",
    "f4e": "(selector & 3) + i",
    "b4e": "((selector & 3) - i) & 7",
    "rc8": "selector & 3",
    "ecl": "(selector & 3) > i ? selector & 3 : i",
    "ecr": "(selector & 3) < i ? selector & 3 : i",
    "rc16": "2 * (selector & 1) + (i & 1)",
}
_HIP_PERMUTE = """\
// Four bytes of the eight of a and b; 8 in a nibble of the selector asks for the byte's sign.
{function} unsigned int {name}(unsigned int a, unsigned int b, unsigned int selector) {{
    const unsigned long long both = (unsigned long long)b << 32 | a;
    unsigned int result = 0;
    for (unsigned int i = 0; i < 4; i++) {{
        const unsigned int nibble = {nibble};
        const unsigned int byte = (unsigned int)(both >> 8 * (nibble & 7)) & 255;
        result |= (nibble & 8 ? (byte >> 7) * 255 : byte) << 8 * i;
    }}
    return result;
}}"""


def _of_words(name: str, instruction: str) -> str:
    """Return the definition of a function of three words."""
    return f"""\
{FUNCTION} unsigned int {name}(unsigned int a, unsigned int b, unsigned int c) {{
    unsigned int result;
    asm("{instruction}" : "=r"(result) : "r"(a), "r"(b), "r"(c));
    return result;
}}"""


def _field_names(stem: str, type: DType) -> tuple[str, str, str]:
    """Return the name of a function of fields, the C++ type of the integer, and PTX's."""
    letter = f"{'s' if type.is_signed else 'u'}{type.bits}"
    return f"{stem}_{letter}", type.c_name, letter
