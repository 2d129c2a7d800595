"""The facts of an op's integer result, from the facts of its operands."""

from __future__ import annotations

from tilewright.arch import MAX_BLOCK, MAX_GRID
from tilewright.dtypes import DType, bool_
from tilewright.ir import facts as rules
from tilewright.ir.core import Op, Value, VectorType
from tilewright.ir.facts import Facts
from tilewright.ir.ops import Binary, Cast, Compare, Constant, Select, Special, Unary


def facts_of(value: Value) -> Facts:
    """Return what is known of an integer or bool value, at least its type's range."""
    type = value.type
    assert not isinstance(type, VectorType), value
    return value.facts or rules.unknown(type)


def infer(op: Op, type: object) -> Facts | None:
    """Return the facts of the result of a pure op, None for floats and vectors."""
    if not isinstance(type, DType) or type.is_float:
        return None
    if isinstance(op, Binary):
        return rules.wrap(_binary(op.kind, facts_of(op.lhs), facts_of(op.rhs), type), type)
    if isinstance(op, Constant):
        return rules.exactly(int(op.value))
    if isinstance(op, Special):
        return special_facts(op.name)
    if isinstance(op, Unary):
        return _unary(op, type)
    if isinstance(op, Select):
        return facts_of(op.on_true).join(facts_of(op.on_false))
    if isinstance(op, Cast):
        source = op.x.type
        known = isinstance(source, DType) and not source.is_float and type is not bool_
        return rules.wrap(facts_of(op.x), type) if known else rules.unknown(type)
    if isinstance(op, Compare):
        return Facts(0, 1)
    return rules.unknown(type)


def special_facts(name: str, block: tuple[int, int, int] | None = None) -> Facts:
    """Return the facts of a special register, of a kernel that runs with `block` threads where that is known."""
    group, _, axis_name = name.partition(".")
    axis = "xyz".index(axis_name)
    threads = MAX_BLOCK[axis] if block is None else block[axis]
    if group == "thread_idx":
        return Facts(0, threads - 1, 0 if threads == 1 else 1)
    if group == "block_idx":
        return Facts(0, MAX_GRID[axis] - 1)
    if group == "grid_dim":
        return Facts(1, MAX_GRID[axis])
    return Facts(1, threads) if block is None else rules.exactly(threads)


def index_facts(start: Value, stop: Value, step: Value) -> Facts:
    """Return the facts of a loop's index inside the loop: between start and stop, and start plus some steps."""
    first, last, stride = facts_of(start), facts_of(stop), facts_of(step)
    assert isinstance(start.type, DType)
    low, high = start.type.lowest, start.type.highest
    if stride.low > 0:
        low, high = first.low, last.high - 1
    elif stride.high < 0:
        low, high = last.low + 1, first.high
    if first.constant is not None and stride.constant is not None and low <= high:
        span = (high - low) // abs(stride.low) * abs(stride.low)
        low, high = (low, low + span) if stride.low > 0 else (high - span, high)
    if low > high:  # the loop never runs
        return first
    return rules.exactly(low) if low == high else Facts(low, high, rules.add(first, stride).divisor)


def _unary(op: Unary, type: DType) -> Facts:
    source = op.x.type
    if op.kind in ("popcount", "clz"):
        return Facts(0, 64)
    if not isinstance(source, DType) or source.is_float:  # isnan and its like
        return rules.unknown(type)
    known = facts_of(op.x)
    if op.kind == "neg":
        return rules.wrap(rules.subtract(rules.exactly(0), known), type)
    if op.kind == "abs":
        bound = max(abs(known.low), abs(known.high))
        least = 0 if known.low <= 0 <= known.high else min(abs(known.low), abs(known.high))
        return rules.wrap(Facts(least, bound, known.divisor), type)
    if op.kind == "not" and source is bool_:
        return Facts(1 - known.high, 1 - known.low)
    if op.kind == "bit_not":
        return rules.wrap(Facts(-1 - known.high, -1 - known.low), type)
    return rules.unknown(type)


def _binary(kind: str, a: Facts, b: Facts, type: DType) -> Facts:
    match kind:
        case "add":
            return rules.add(a, b)
        case "sub":
            return rules.subtract(a, b)
        case "mul":
            return rules.multiply(a, b)
        case "div":
            return rules.divide(a, b, type)
        case "rem":
            return rules.remainder(a, b, type)
        case "min":
            return rules.minimum(a, b)
        case "max":
            return rules.maximum(a, b)
        case "and":
            return rules.bit_and(a, b, type)
        case "or" | "xor":
            return rules.bit_or_xor(a, b, type)
        case "shl":
            return rules.shift_left(a, b, type)
        case "shr":
            return rules.shift_right(a, b, type)
        case _:
            return rules.unknown(type)
