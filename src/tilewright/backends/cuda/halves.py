"""Arithmetic of 16-bit floats by PTX's own instructions, one number or two at a time.

Each rounds once, to nearest even, which gives the bits of the same operation in float32 rounded to the type: float32
has more than twice the bits. `.rn` is written out, because the assembler may contract an addition without it with a
product. Before sm_90 there is no addition and no product of bfloat16, and a multiply-add does them:

    a + b    fma(a, 1, b)          a - b    fma(b, -1, a)          a * b    fma(a, b, -0)

`min` and `max` give the other operand where one is NaN, and take -0 for less than +0.

Source: PTX ISA, "Half Precision Floating Point Instructions".
"""

from __future__ import annotations

from tilewright.backends.cpp.prelude import FUNCTION, c_type
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.cuda.conversions import BIT_CAST
from tilewright.dtypes import DType, float16
from tilewright.ir.core import Type, VectorType

_ONE, _MINUS_ONE, _MINUS_ZERO = 0x3F80, 0xBF80, 0x8000  # of bfloat16
_BY_FMA = {"add": ("%1", _ONE, "%2"), "sub": ("%2", _MINUS_ONE, "%1"), "mul": ("%1", "%2", _MINUS_ZERO)}


def function(printer: Printer, kind: str, type: Type) -> str | None:
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
{FUNCTION} {c} {name(kind, element)}({c} a, {c} b) {{
    {c} y;
    asm("{instruction}" : "=h"(y.bits) : "h"(a.bits), "h"(b.bits));
    return y;
}}"""
    printer.prelude.need(BIT_CAST)
    return f"""\
{FUNCTION} {c} {name(kind, element)}({c} a, {c} b) {{
    unsigned int y;
    asm("{instruction}" : "=r"(y) : "r"(bit_cast<unsigned int>(a)), "r"(bit_cast<unsigned int>(b)));
    return bit_cast<{c}>(y);
}}"""


def name(kind: str, element: DType) -> str:
    """Return what the function of an operation is called: half_add, bfloat16_min."""
    return f"{element.c_name}_{kind}"


def _with_constants(instruction: str, kind: str, is_pair: bool) -> str:
    """Return the instruction with its constant in a register of its own, which PTX asks for."""
    bits = next(x for x in _BY_FMA[kind] if isinstance(x, int))
    register, value = (".b32", bits << 16 | bits) if is_pair else (".b16", bits)
    return f"{{.reg {register} c; mov{register} c, 0x{value:x}; {instruction}}}"
