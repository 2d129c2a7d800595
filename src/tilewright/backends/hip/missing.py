"""The ops of NVIDIA's GPUs that AMD's have no counterpart of: each is refused at its line."""

from __future__ import annotations

from typing import NoReturn

from tilewright.backends.cpp.printer import Printer
from tilewright.ir import ops
from tilewright.ir.core import Op

# What the instruction is called, and what to do without it: of ops with a result, and of the others.
MISSING_VALUES: dict[type[Op], tuple[str, str]] = {
    ops.RoundToTfloat32: ("cvt.rna.tf32", "multiply float32 by a MFMA instruction for float32"),
    ops.CastPair: ("conversion of 8-bit floats", "convert on the host, or keep the data in float16"),
}
MISSING_STATEMENTS: dict[type[Op], tuple[str, str]] = {
    ops.Print: ("printf", "write the values to an array, or print on the simulator"),
}


def refuse(printer: Printer, op: Op) -> NoReturn:
    """Raise `LanguageError` for an op that only NVIDIA's GPUs have."""
    what, help = {**MISSING_VALUES, **MISSING_STATEMENTS}[type(op)]
    raise printer.refuse(op, f"{printer.arch} has no {what}", help)
