"""What passes ask of branches and loops: the slots of their values, how often a loop runs, which values are identical.

A slot of a For or While is its initial value, the block arguments, the value that the body yields and the
result; a slot of an If is the values that its two branches yield and the result.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tilewright.ir.core import Block, Value
from tilewright.ir.evaluate import facts_of
from tilewright.ir.ops import Constant, For, If, While, Yield

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


def trip_count(op: For) -> int | None:
    """Return how often a loop's body runs, or None where it depends on the launch.

    The bounds need not be constants: `for i in range(x, 8, 8)` with 0 <= x < 8 runs once.
    """
    bounds = trip_bounds(op)
    return bounds[0] if bounds is not None and bounds[0] == bounds[1] else None


def trip_bounds(op: For) -> tuple[int, int] | None:
    """Return the fewest and the most times that a loop's body runs, or None where the step has no known sign."""
    start, stop, step = (facts_of(v) for v in (op.start, op.stop, op.step))
    if step.low > 0:
        least, most = stop.low - start.high, stop.high - start.low
        short, long = step.low, step.high
    elif step.high < 0:
        least, most = start.low - stop.high, start.high - stop.low
        short, long = -step.high, -step.low
    else:
        return None
    # The range spans between `least` and `most` numbers; strides divide it, rounded up.
    return max(-(-least // long), 0), max(-(-most // short), 0)


def identity(value: Value) -> Hashable:
    """Return a key that two values share only if they are the same number.

    Constants are in no block, so equal ones are many objects. Floats are distinguished by their text, which
    keeps 0.0 and -0.0 apart and makes one NaN equal to another.
    """
    op = value.definition
    if isinstance(op, Constant):
        return (value.type, repr(op.value))
    return value


def take_over_name(value: Value, replaced: Value) -> None:
    """Give a value that replaces another one the user's name for it, if it has none of its own."""
    if value.name is None and not isinstance(value.definition, Constant):
        value.name = replaced.name
