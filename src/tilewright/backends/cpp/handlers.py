"""The handlers that all dialects share, by the op that each prints."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.backends.cpp import arithmetic, atomics, buffers, control, conversions, memory, threads, vectors
from tilewright.backends.cpp.dialect import ExpressionHandler, StatementHandler
from tilewright.backends.cpp.expression import Expression
from tilewright.backends.cpp.printer import Printer
from tilewright.ir import ops
from tilewright.ir.core import Op, VectorType


def _pack(printer: Printer, op: ops.Pack) -> Expression:
    type = op.result.type
    assert isinstance(type, VectorType), op
    printer.type_name(type)
    return vectors.packed(tuple(arithmetic.exact(printer, e) for e in op.elements), type)


def _bitcast(printer: Printer, op: ops.Bitcast) -> Expression:
    load, type = op.x.definition, op.result.type
    if isinstance(load, ops.Load) and op.x in printer.inlined and isinstance(op.x.type, VectorType):
        return memory.load_as(printer, load, type)
    return conversions.bitcast(printer, op)


def _extract(printer: Printer, op: ops.Extract) -> Expression:
    return vectors.lane_of(printer.expression(op.vector), op.lane)


EXPRESSIONS: Mapping[type[Op], ExpressionHandler] = {
    ops.Constant: arithmetic.constant,
    ops.Special: threads.special,
    ops.Unary: arithmetic.unary,
    ops.Binary: arithmetic.binary_op,
    ops.Compare: arithmetic.compare,
    ops.Fma: arithmetic.fma,
    ops.Select: arithmetic.select,
    ops.Cast: conversions.cast,
    ops.Bitcast: _bitcast,
    ops.Pack: _pack,
    ops.Extract: _extract,
    ops.Load: memory.load,
    ops.Atomic: atomics.atomic,
}

STATEMENTS: Mapping[type[Op], StatementHandler] = {
    ops.Allocate: buffers.allocate,
    ops.Store: memory.store,
    ops.For: control.for_loop,
    ops.While: control.while_loop,
    ops.If: control.branch,
    ops.Inside: threads.nothing,
}
