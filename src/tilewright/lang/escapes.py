"""Finds device values that left the loop or branch in which they were computed.

A variable takes its value along; what a list, an attribute or a closure was given inside a loop is not seen by
the tracer, and outside means nothing: the loop has run many times by then, or not at all.
"""

from __future__ import annotations

from tilewright.errors import LanguageError
from tilewright.ir.core import Block, Kernel, Op, Value
from tilewright.ir.ops import Constant


def refuse_escapes(kernel: Kernel) -> None:
    """Raise `LanguageError` at the first use of a value that is not visible there."""
    _block(kernel.body, {p.target for p in kernel.parameters if isinstance(p.target, Value)})


def _block(block: Block, visible: set[Value]) -> None:
    own = set(block.arguments) - visible
    visible |= own
    for op in block.ops:
        for value in op.operands:
            if value not in visible and not isinstance(value.definition, Constant):
                raise _escape(op, value)
        for inner in op.blocks:
            _block(inner, visible)
        own.update(op.results)
        visible.update(op.results)
    visible -= own


def _escape(op: Op, value: Value) -> LanguageError:
    name = f"the value {value.name!r}" if value.name else "a value"
    source = value.definition.location if value.definition is not None else None
    return LanguageError(
        f"{name} is used outside of the loop or branch that computes it",
        details=[] if source is None else [f"it is computed at {source}"],
        location=op.location,
        help="keep it in a variable, tw.registers or a tensor; a list or an attribute that is changed inside a loop "
        "or branch of the device does not carry it (tw.static_range loops while tracing)",
    )
