"""Operations for which CUDA has functions of its own, or PTX instructions that C++ has no words for.

Approximate functions of float32 are CUDA's intrinsics, and PTX where there is none. Arithmetic of 16-bit floats, one
number or two at a time, rounds once, to nearest even, which gives the bits of the same operation in float32 rounded to
the type: float32 has more than twice the bits. `.rn` is written out, because the assembler may contract an addition
without it with a product. Before sm_90 there is no addition and no product of bfloat16, and a multiply-add does them:

    a + b    fma(a, 1, b)          a - b    fma(b, -1, a)          a * b    fma(a, b, -0)

`min` and `max` give the other operand where one is NaN, and take -0 for less than +0. Atomic operations with semantics
and scope are small functions; their addresses are generic, so that one serves global and shared memory.

Source: PTX ISA, "Half Precision Floating Point Instructions", "atom".
"""

from __future__ import annotations

from tilewright.backends.cpp import arithmetic
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.prelude import FUNCTION, c_type
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cuda.conversions import BIT_CAST
from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int32, int64, uint16, uint32, uint64
from tilewright.ir.core import Op, Type, VectorType
from tilewright.ir.ops import Binary, Unary

_INTRINSICS = {
    "exp": "__expf",
    "log": "__logf",
    "log2": "__log2f",
    "log10": "__log10f",
    "sin": "__sinf",
    "cos": "__cosf",
    "tan": "__tanf",
    "pow": "__powf",
    "div": "__fdividef",
}
_FIRST_TANH = 75  # PTX ISA, "tanh": needs sm_75


def unary(printer: Printer, op: Unary) -> Expression:
    """Return a sign, a negation, or a call of a function of one argument."""
    if not op.approximate or (op.kind == "tanh" and printer.arch.number < _FIRST_TANH):
        return arithmetic.unary(printer, op)
    name = _INTRINSICS.get(op.kind)
    if name is None:
        name = f"{op.kind}_approximately"
        printer.prelude.need(_from_ptx(name, f"{op.kind}.approx.f32"))
    return call(name, (printer.expression(op.x),), float32)


def binary(printer: Printer, op: Binary) -> Expression:
    """Return an operator between two operands, or a call of a function of two."""
    if not op.approximate:
        return arithmetic.binary_op(printer, op)
    return call(_INTRINSICS[op.kind], (printer.expression(op.lhs), printer.expression(op.rhs)), float32)


def _from_ptx(name: str, instruction: str) -> str:
    return f"""\
{FUNCTION} float {name}(float x) {{
    float y;
    asm("{instruction} %0, %1;" : "=f"(y) : "f"(x));
    return y;
}}"""


_ONE, _MINUS_ONE, _MINUS_ZERO = 0x3F80, 0xBF80, 0x8000  # of bfloat16
_BY_FMA = {"add": ("%1", _ONE, "%2"), "sub": ("%2", _MINUS_ONE, "%1"), "mul": ("%1", "%2", _MINUS_ZERO)}


def half_function(printer: Printer, kind: str, type: Type) -> str | None:
    """Return the definition of `name(a, b)` for a 16-bit float or two of them; None where the target has none."""
    element = type.element if isinstance(type, VectorType) else type
    arch = printer.arch.number
    rounds = kind in ("add", "sub", "mul")
    if arch < (53 if element is float16 and rounds else 80):
        return None
    is_pair = isinstance(type, VectorType)
    suffix = ("f16" if element is float16 else "bf16") + ("x2" if is_pair else "")
    if rounds and element is not float16 and arch < 90:
        instruction = f"fma.rn.{suffix} %0, {', '.join(x if isinstance(x, str) else 'c' for x in _BY_FMA[kind])};"
        instruction = _with_constants(instruction, kind, is_pair)
    else:
        instruction = f"{kind}{'.rn' if rounds else ''}.{suffix} %0, %1, %2;"
    if is_pair:
        printer.prelude.need_vectors()
    c = c_type(type)
    if not is_pair:
        return f"""\
{FUNCTION} {c} {_half_name(kind, element)}({c} a, {c} b) {{
    {c} y;
    asm("{instruction}" : "=h"(y.bits) : "h"(a.bits), "h"(b.bits));
    return y;
}}"""
    printer.prelude.need(BIT_CAST)
    return f"""\
{FUNCTION} {c} {_half_name(kind, element)}({c} a, {c} b) {{
    unsigned int y;
    asm("{instruction}" : "=r"(y) : "r"(bit_cast<unsigned int>(a)), "r"(bit_cast<unsigned int>(b)));
    return bit_cast<{c}>(y);
}}"""


def _half_name(kind: str, element: DType) -> str:
    """Return what the function of an operation is called: half_add, bfloat16_min."""
    return f"{element.c_name}_{kind}"


def _with_constants(instruction: str, kind: str, is_pair: bool) -> str:
    """Return the instruction with its constant in a register of its own, which PTX asks for."""
    bits = next(x for x in _BY_FMA[kind] if isinstance(x, int))
    register, value = (".b32", bits << 16 | bits) if is_pair else (".b16", bits)
    return f"{{.reg {register} c; mov{register} c, 0x{value:x}; {instruction}}}"


# The register of an operand, by bytes or for a float.
_REGISTERS = {2: "h", 4: "r", 8: "l"}
_ADDED = {
    int32: "s32", uint32: "u32", int64: "u64", uint64: "u64", float32: "f32", float64: "f64", float16: "noftz.f16",
    bfloat16: "noftz.bf16",
}  # fmt: skip
_COMPARED = {int32: "s32", uint32: "u32", int64: "s64", uint64: "u64"}
_BITS = {int32: "b32", uint32: "b32", int64: "b64", uint64: "b64"}
_TYPES = {
    "add": _ADDED,
    "min": _COMPARED,
    "max": _COMPARED,
    "and": _BITS,
    "or": _BITS,
    "xor": _BITS,
    "exch": {**_BITS, float32: "b32", float64: "b64"},
    "cas": {**_BITS, uint16: "b16"},
}


def atomic(printer: Printer, op: Op, kind: str, dtype: DType, sem: str, scope: str) -> tuple[str, str] | None:
    """Return the name and the definition of an atomic operation, None where PTX has none for the type.

    Raises `LanguageError` for the scope of a cluster before sm_90.
    """
    demand_scope(printer, op, scope)
    ptx = _TYPES[kind].get(dtype)
    if ptx is None or (dtype is bfloat16 and printer.arch.number < 90):
        return None
    name, c = f"atomic_{kind}_{sem}_{scope}", dtype.c_name
    register = {float32: "f", float64: "d"}.get(dtype) or _REGISTERS[dtype.bits // 8]
    bits = ".bits" if dtype in (float16, bfloat16) else ""
    compared, operand, given = "", "", "%2"
    if kind == "cas":
        compared, operand, given = f"{c} expected, ", f'"{register}"(expected), ', "%2, %3"
    return (
        name,
        f"""\
{FUNCTION} {c} {name}({c}* address, {compared}{c} value) {{
    {c} old;
    asm volatile("atom.{sem}.{scope}.{kind}.{ptx} %0, [%1], {given};"
        : "={register}"(old{bits}) : "l"(address), {operand}"{register}"(value{bits}) : "memory");
    return old;
}}""",
    )


def demand_scope(printer: Printer, op: Op, scope: str) -> None:
    """Raise `LanguageError` for a scope that the target does not know."""
    if scope == "cluster" and printer.arch.number < 90:
        raise printer.refuse(
            op, f'{printer.arch} has no clusters, and no scope "cluster"', 'use scope="cta" or scope="gpu"'
        )
