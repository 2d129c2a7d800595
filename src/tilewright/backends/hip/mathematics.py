"""Functions of floats: those that the library can make of the GPU's instructions, and the refusal of the others."""

from __future__ import annotations

from tilewright.backends.cpp import arithmetic
from tilewright.backends.cpp.expression import Expression
from tilewright.backends.cpp.printer import Printer
from tilewright.backends.hip.library import PIECES
from tilewright.dtypes import float32
from tilewright.ir.ops import Binary, Unary

_OPERATORS = ("neg", "not", "add", "sub", "mul", "div")


def unary(printer: Printer, op: Unary) -> Expression:
    """Return a sign, a negation, or a call of a function of one argument."""
    _demand(printer, op)
    return arithmetic.unary(printer, op)


def binary(printer: Printer, op: Binary) -> Expression:
    """Return an operator between two operands, or a call of a function of two."""
    _demand(printer, op)
    return arithmetic.binary_op(printer, op)


def _demand(printer: Printer, op: Unary | Binary) -> None:
    dtype = op.operands[0].dtype
    if not dtype.is_float or op.kind in _OPERATORS:
        return
    computed = float32 if dtype.is_narrow_float else dtype
    name = op.kind if op.kind.startswith("is") else arithmetic.float_function(op.kind, computed)
    if name in PIECES:
        return
    single = arithmetic.float_function(op.kind, float32) in PIECES
    raise printer.refuse(
        op,
        f"{printer.arch} has no instruction for {op.kind} of {dtype}, and the math library of ROCm is not linked",
        "compute it in float32, for which there is one"
        if single
        else "compute it on the host, or from exp, exp2, log, log2, log10, sqrt and rsqrt of float32",
    )
