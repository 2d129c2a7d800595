"""How approximate functions of float32 are spelled: CUDA's intrinsics, and PTX for those that have none."""

from __future__ import annotations

from tilewright.backends.cpp import arithmetic
from tilewright.backends.cpp.expression import Expression, call
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cpp.printer import Printer
from tilewright.dtypes import float32
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
