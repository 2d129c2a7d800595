"""Which class of instruction an op is, and which operations it does, for counting.

Ops are counted as the IR has them. What is free or gone in machine code (registers' loads and stores, packing,
constants) is not counted; loops that are unrolled have no branches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.ir import ops
from tilewright.ir.core import Kernel, Op, Space
from tilewright.ir.instruction import Instruction

# fmt: off
_SPECIAL_FUNCTIONS = frozenset({
    "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "erf", "pow", "atan2", "fmod", "div",
})
_UNCOUNTED = (ops.Constant, ops.Bitcast, ops.Pack, ops.Extract, ops.Allocate, ops.Inside, ops.While, ops.Yield)
# fmt: on


def _arithmetic(op: Any) -> str:  # Any: a Unary or Binary
    if not op.operands[0].dtype.is_float:
        return "integer"
    return "special function" if op.kind in _SPECIAL_FUNCTIONS else "float"


def _memory(what: str) -> Callable[[Any], str | None]:
    def name(op: Any) -> str | None:  # Any: a Load, Store or Atomic
        space = op.buffer.space
        return None if space is Space.REGISTER else f"{space.value} {what}"

    return name


_CLASSES: dict[type[Op], str | Callable[[Any], str | None]] = {
    ops.Special: "integer",
    ops.Unary: _arithmetic,
    ops.Binary: _arithmetic,
    ops.Compare: lambda op: "float" if op.lhs.dtype.is_float else "integer",
    ops.Fma: "fma",
    ops.Select: "select",
    ops.Cast: "convert",
    ops.CastPair: "convert",
    ops.RoundToTfloat32: "convert",
    ops.Load: _memory("load"),
    ops.Store: _memory("store"),
    ops.Atomic: _memory("atomic"),
    ops.If: "branch",
    ops.For: "branch",
    ops.Print: "print",
    ops.Assert: "branch",
}


def class_of(op: Op) -> str | None:
    """Return the class that an op is counted in, None for what is not counted."""
    if isinstance(op, Instruction):
        return op.COUNTED
    if isinstance(op, _UNCOUNTED) or (isinstance(op, ops.For) and op.unroll == 0):
        return None
    found = _CLASSES[type(op)]
    return found if isinstance(found, str) else found(op)


def operations_of(op: Op, warp: int) -> tuple[str, int, bool] | None:
    """Return the unit that does an op's arithmetic, how many operations, and whether those are a warp's.

    `warp` is how many threads a warp has. A fused multiply-add is two operations. None for what does no arithmetic
    on floats and no matrix product.
    """
    if isinstance(op, Instruction):
        return op.work(warp)
    if isinstance(op, ops.Fma):
        return str(op.a.dtype), 2, False
    if isinstance(op, (ops.Unary, ops.Binary)) and op.operands[0].dtype.is_float:
        return str(op.operands[0].dtype), 1, False
    return None


def loops_of(kernel: Kernel) -> dict[Op, Op]:
    """Return for the yield that ends a loop's body the loop, where an iteration costs a branch."""
    found: dict[Op, Op] = {}
    for op in kernel.body.walk():
        if (isinstance(op, ops.For) and op.unroll != 0) or isinstance(op, ops.While):
            found[op.body.ops[-1]] = op
    return found
