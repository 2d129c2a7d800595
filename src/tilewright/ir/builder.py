"""Appends ops to blocks: the one way to make IR. Folds while building and records facts and places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tilewright.dtypes import DType
from tilewright.ir.core import Block, Op, Type, Value
from tilewright.ir.evaluate import infer
from tilewright.ir.fold import simplify
from tilewright.ir.ops import constant
from tilewright.source import SourceLocation


class Builder:
    """A cursor at the end of a block.

    `locate` returns the user's current source line; it is asked once an op.
    """

    def __init__(self, block: Block, locate: Callable[[], SourceLocation | None] = lambda: None) -> None:
        self.block: Block = block
        self.locate = locate

    @contextmanager
    def inside(self, block: Block) -> Iterator[Block]:
        """Append to another block for a while."""
        outer, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = outer

    def emit(self, op: Op, *types: Type) -> tuple[Value, ...]:
        """Append an op whose results have these types, without folding."""
        op.results = tuple([Value(t) for t in types])
        for value in op.results:
            value.definition = op
            if op.is_pure:
                value.facts = infer(op, value.type)
        if op.location is None:
            op.location = self.locate()
        self.block.ops.append(op)
        return op.results

    def pure(self, op: Op, type: Type) -> Value:
        """Return the result of a pure op: folded where it can be, appended otherwise."""
        assert op.is_pure, op
        simpler = simplify(op, type)
        if isinstance(simpler, Value):
            return simpler
        if isinstance(simpler, Op):
            simpler.location = op.location
            return self.pure(simpler, type)
        if simpler is not None:
            assert isinstance(type, DType), op
            return constant(simpler, type)
        result = self.emit(op, type)[0]
        if result.facts is None or result.facts.constant is None:
            return result
        # The facts leave one value only: no need of the op.
        self.block.ops.pop()
        assert isinstance(type, DType), op
        return constant(result.facts.low, type)
