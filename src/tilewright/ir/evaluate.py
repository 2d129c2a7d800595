"""The value of pure integer ops on constants: used to fold, and on the host to check a launch.

Bool counts as an integer of one bit. Floats are left to the backends, which own their rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from tilewright.dtypes import DType
from tilewright.ir.core import Value
from tilewright.ir.facts import truncated_division
from tilewright.ir.ops import Binary, Cast, Compare, Constant, Select, Unary

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


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


def evaluate(value: Value, known: Mapping[Value, int]) -> int:
    """Return what an integer expression over known values is worth on the host.

    Raises `KeyError` when the expression depends on something that is not known.
    """
    return _evaluate(value, dict(known))


def _evaluate(value: Value, known: dict[Value, int]) -> int:
    """Evaluate and remember: a value that is used many times is computed once."""
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
        return _evaluate(op.on_true if _evaluate(op.condition, known) else op.on_false, known)
    if not isinstance(op, (Binary, Compare, Unary, Cast)):
        return None
    operands = [_evaluate(v, known) for v in op.operands]
    if isinstance(op, Binary):
        return binary(op.kind, operands[0], operands[1], type)
    if isinstance(op, Compare):
        return int(COMPARE[op.kind](operands[0], operands[1]))
    return unary(op.kind, operands[0], type) if isinstance(op, Unary) else reduce_to(operands[0], type)
