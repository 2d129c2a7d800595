"""The slots of structured ops: a loop's carried value, a branch's result, each with all values it consists of.

A slot of a For or While is its initial value, the block arguments, the value that the body yields and the
result; a slot of an If is the values that its two branches yield and the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Block, Value
from tilewright.ir.ops import For, If, While, Yield

Structured = For | While | If


def yield_of(block: Block) -> Yield:
    """Return the op that ends a nested block."""
    last = block.ops[-1]
    assert isinstance(last, Yield), last
    return last


def carried(op: For | While) -> tuple[Value, ...]:
    """Return the carried values as the body's arguments, without a For's index."""
    return op.body.arguments[1:] if isinstance(op, For) else op.body.arguments


def keep_slots(op: Structured, kept: Sequence[int]) -> None:
    """Drop all slots but those numbered in `kept`."""
    if len(kept) == len(op.results):
        return

    def pick(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([values[n] for n in kept])

    if isinstance(op, If):
        ends = [yield_of(op.then), yield_of(op.otherwise)]
    else:
        ends = [yield_of(op.body)]
        op.init = pick(op.init)
        index = op.body.arguments[:1] if isinstance(op, For) else ()
        op.body.arguments = index + pick(carried(op))
        if isinstance(op, While):
            op.condition.arguments = pick(op.condition.arguments)
    for end in ends:
        end.values = pick(end.values)
    op.results = pick(op.results)


def add_slot(loop: For, init: Value, argument: Value, following: Value) -> Value:
    """Let a loop carry one more value, and return its last one."""
    result = Value(argument.type, facts=argument.facts)
    result.definition = loop
    end = yield_of(loop.body)
    loop.init = (*loop.init, init)
    loop.body.arguments = (*loop.body.arguments, argument)
    end.values = (*end.values, following)
    loop.results = (*loop.results, result)
    return result
