"""Atomic operations with semantics and scope, as small functions of inline PTX.

Source: PTX ISA, "atom"; its addresses are generic, so that one function serves global and shared memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.dtypes import DType, bfloat16, float16, float32, float64, int32, int64, uint16, uint32, uint64
from tilewright.ir.core import Op

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer

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
