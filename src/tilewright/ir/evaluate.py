"""What is known of the results of pure integer ops: their values on constants, their facts from the operands' facts.

Values are used to fold, and on the host to check a launch. Bool counts as an integer of one bit. Floats are left to the
backends, which own their rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from tilewright.arch import MAX_BLOCK, MAX_GRID
from tilewright.dtypes import DType, bool_
from tilewright.ir import facts as rules
from tilewright.ir.core import Op, Value, VectorType
from tilewright.ir.facts import Facts, truncated_division
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Binary, Cast, Compare, Constant, Select, Special, Unary

COMPARE: dict[str, Callable[[Any, Any], Any]] = {  # Any: numbers, or arrays of them
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


def reduce_to(value: int, dtype: DType) -> int:
    """Return the value of the type that equals `value` modulo 2**bits (two's complement)."""
    if dtype.kind == "bool":
        return int(value != 0)
    low = value & ((1 << dtype.bits) - 1)
    return low - (1 << dtype.bits) if low > dtype.highest else low


def all_ones(dtype: DType) -> int:
    """Return the value of an integer type (or bool) with every bit set."""
    return -1 if dtype.kind == "int" else dtype.highest


def binary(kind: str, a: int, b: int, dtype: DType) -> int | None:
    """Return `a kind b` in an integer type, or None where C++ leaves it undefined."""
    match kind:
        case "add":
            result = a + b
        case "sub":
            result = a - b
        case "mul":
            result = a * b
        case "div" | "rem" if b == 0:
            return None
        case "div":
            result = truncated_division(a, b)
        case "rem":
            result = a - b * truncated_division(a, b)
        case "min":
            result = min(a, b)
        case "max":
            result = max(a, b)
        case "and":
            result = a & b
        case "or":
            result = a | b
        case "xor":
            result = a ^ b
        case "shl" | "shr" if not 0 <= b < dtype.bits:
            return None
        case "shl":
            result = a << b
        case "shr":
            result = a >> b
        case _:
            return None
    return reduce_to(result, dtype)


def unary(kind: str, x: int, dtype: DType) -> int | None:
    """Return `kind x` in an integer type, or None for an operation that is not folded."""
    match kind:
        case "neg":
            return reduce_to(-x, dtype)
        case "bit_not":
            return reduce_to(~x, dtype)
        case "not":
            return int(not x)
        case "abs":
            return reduce_to(abs(x), dtype)
        case _:
            return None


COMPUTED = (Binary, Compare, Unary, Cast, Select)  # the ops that `evaluate` computes; instructions are not among them


def evaluate(value: Value, known: Mapping[Value, int]) -> int:
    """Return what an integer expression over known values is worth on the host.

    Raises `KeyError` when the expression depends on something that is not known.
    """
    return evaluate_further(value, dict(known))


def evaluate_further(value: Value, known: dict[Value, int]) -> int:
    """Evaluate, and add to `known` what is computed on the way: a value that is used many times is computed once.

    Raises `KeyError` as `evaluate` does.
    """
    if value not in known:
        result = _result_of(value, known)
        if result is None:
            raise KeyError(value)
        known[value] = result
    return known[value]


def _result_of(value: Value, known: dict[Value, int]) -> int | None:
    op, type = value.definition, value.type
    if not isinstance(type, DType) or type.is_float:
        return None
    if isinstance(op, Constant):
        return int(op.value)
    if isinstance(op, Select):
        return evaluate_further(op.on_true if evaluate_further(op.condition, known) else op.on_false, known)
    if not isinstance(op, COMPUTED):
        return None
    operands = [evaluate_further(v, known) for v in op.operands]
    if isinstance(op, Binary):
        return binary(op.kind, operands[0], operands[1], type)
    if isinstance(op, Compare):
        return int(COMPARE[op.kind](operands[0], operands[1]))
    return unary(op.kind, operands[0], type) if isinstance(op, Unary) else reduce_to(operands[0], type)


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
        return _side(op.on_true, op.condition, True).join(_side(op.on_false, op.condition, False))
    if isinstance(op, Cast):
        source = op.x.type
        known = isinstance(source, DType) and not source.is_float and type is not bool_
        return rules.wrap(facts_of(op.x), type) if known else rules.unknown(type)
    if isinstance(op, Compare):
        return Facts(0, 1)
    return (op.facts() if isinstance(op, Instruction) else None) or rules.unknown(type)


def _side(value: Value, condition: Value, holds: bool) -> Facts:
    """Return the facts of one side of a select: of `x + n` where the condition bounds x.

    So `0 if x == 3 else x + 1` of an x between 0 and 3 lies there too, and a ring's next stage is one of its stages.
    """
    known, test = facts_of(value), condition.definition
    if not isinstance(test, Compare) or not isinstance(test.lhs.type, DType) or test.lhs.type.is_float:
        return known
    limit, offset = facts_of(test.rhs).constant, _offset_from(value, test.lhs)
    if limit is None or offset is None:
        return known
    x = _bounded(facts_of(test.lhs), test.kind if holds else OPPOSITE[test.kind], limit)
    low, high = max(known.low, x.low + offset), min(known.high, x.high + offset)
    fits = value.dtype.lowest <= x.low + offset and x.high + offset <= value.dtype.highest
    return Facts(low, high, known.divisor) if fits and low <= high else known


def _offset_from(value: Value, x: Value) -> int | None:
    """Return n where a value is `x + n` or `x - n`."""
    if value is x:
        return 0
    op = value.definition
    if not isinstance(op, Binary) or op.kind not in ("add", "sub") or op.lhs is not x:
        return None
    n = facts_of(op.rhs).constant
    return n if n is None or op.kind == "add" else -n


def _bounded(x: Facts, kind: str, limit: int) -> Facts:
    """Return the facts of an x for which `x kind limit` holds; where it never does, x as it is."""
    low, high = x.low, x.high
    if kind in ("eq", "ge", "gt"):
        low = max(low, limit + (kind == "gt"))
    if kind in ("eq", "le", "lt"):
        high = min(high, limit - (kind == "lt"))
    if kind == "ne":
        low, high = low + (low == limit), high - (high == limit)
    return Facts(low, high, x.divisor) if low <= high else x


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


def step_facts(step: Value) -> Facts:
    """Return the facts of a loop's step, with its sign where the sums and products that it is computed of have one.

    A step is not 0, and a signed result that does not fit is undefined, as in C++: `grid_dim.x * block_dim.x` is
    positive although its bounds say that it may wrap.
    """
    known, exact = facts_of(step), _exact_facts(step)
    if exact.low >= 0:
        return Facts(max(known.low, 1), max(known.high, 1), known.divisor)
    if exact.high <= 0:
        return Facts(min(known.low, -1), min(known.high, -1), known.divisor)
    return known


def _exact_facts(value: Value, depth: int = 8) -> Facts:
    """Return the facts of a sum, difference or product as if no result of it wrapped."""
    op = value.definition
    known = facts_of(value)
    if not isinstance(op, Binary) or not depth or value.dtype.kind != "int":
        return known
    rule = {"add": rules.add, "sub": rules.subtract, "mul": rules.multiply}.get(op.kind)
    return known if rule is None else rule(_exact_facts(op.lhs, depth - 1), _exact_facts(op.rhs, depth - 1))


def index_facts(start: Value, stop: Value, step: Value) -> Facts:
    """Return the facts of a loop's index inside the loop: between start and stop, and start plus some steps."""
    first, last, stride = facts_of(start), facts_of(stop), step_facts(step)
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
