"""The simplification rules for pure ops. One function, used while building and again by the pass.

`simplify(op, type)` returns a number when the result is constant, another value when the result equals it,
a simpler op, or None when there is nothing to do. Every rule is exact in two's complement arithmetic, or is
guarded by a range fact. Of floats only what no rounding can touch is folded: x * 1, x / 1, signs.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from tilewright.dtypes import DType, bool_, float32, float64
from tilewright.ir import evaluate
from tilewright.ir.core import Op, Type, Value
from tilewright.ir.evaluate import OPPOSITE, facts_of
from tilewright.ir.facts import Facts
from tilewright.ir.instruction import Instruction
from tilewright.ir.ops import Binary, Bitcast, Cast, Compare, Constant, Extract, Pack, Select, Special, Unary, constant

Simplified = Value | Op | int | float | None

_COMMUTATIVE = frozenset({"add", "mul", "and", "or", "xor", "min", "max"})


def constant_of(value: Value) -> int | float | bool | None:
    """Return the number that a value is known to be at compile time, or None."""
    if isinstance(value.definition, Constant):
        return value.definition.value
    return value.facts.constant if value.facts is not None else None


def simplify(op: Op, type: Type) -> Simplified:
    """Return something simpler than a pure op, or None."""
    if isinstance(op, Binary) and isinstance(type, DType):
        return _float_binary(op, type) if type.is_float else _integer_binary(op, type)
    if isinstance(op, Unary):
        return _unary(op, type)
    if isinstance(op, Compare):
        return _compare(op)
    if isinstance(op, Select):
        return _select(op)
    if isinstance(op, Cast):
        return _cast(op, type)
    if isinstance(op, Instruction):
        return op.fold([constant_of(v) for v in op.operands], type)
    if isinstance(op, Bitcast) and op.x.type == type:
        return op.x
    if isinstance(op, Extract) and isinstance(op.vector.definition, Pack):
        return op.vector.definition.elements[op.lane]
    return None


# --- integer arithmetic --------------------------------------------------------------------------------


def _integer_binary(op: Binary, type: DType) -> Simplified:
    a, b = op.lhs, op.rhs
    x, y = constant_of(a), constant_of(b)
    if x is not None and y is not None:
        return evaluate.binary(op.kind, int(x), int(y), type)
    if x is not None and op.kind in _COMMUTATIVE:
        return Binary(op.kind, b, a)  # the constant on the right, so that each rule below looks in one place
    if y is not None:
        return _with_constant(op, a, int(y), type)
    if a is b and op.kind in ("sub", "xor"):
        return 0
    if a is b and op.kind in ("and", "or", "min", "max"):
        return a
    if op.kind in ("min", "max"):
        return _ordered(op, facts_of(a), facts_of(b))
    return None


def _ordered(op: Binary, a: Facts, b: Facts) -> Simplified:
    """min(a, b) and max(a, b) where the ranges do not overlap."""
    if a.high <= b.low:
        return op.lhs if op.kind == "min" else op.rhs
    if b.high <= a.low:
        return op.rhs if op.kind == "min" else op.lhs
    return None


def _with_constant(op: Binary, a: Value, y: int, type: DType) -> Simplified:
    match op.kind:
        case "add" | "sub" | "or" | "xor" | "shl" | "shr" if y == 0:
            return a
        case "mul" | "and" if y == 0:
            return 0
        case "mul" | "div" if y == 1:
            return a
        case "and" if y == evaluate.all_ones(type):
            return a
        case "or" if y == evaluate.all_ones(type):
            return y
        case "add" | "sub":
            return _sum(op, a, y, type)
        case "mul":
            return _product(a, y, type)
        case "div" if y > 0:
            return _quotient(a, y, type)
        case "rem" if y > 0:
            return _remainder(a, y, type)
        case "min" | "max":
            return _ordered(op, facts_of(a), facts_of(op.rhs))
        case _:
            return None


def _parts(value: Value, kind: str) -> tuple[Value, int] | None:
    """Return (x, c) when the value is `x kind c` with a constant c."""
    op = value.definition
    if isinstance(op, Binary) and op.kind == kind:
        c = constant_of(op.rhs)
        if c is not None:
            return op.lhs, int(c)
    return None


def _sum(op: Binary, a: Value, y: int, type: DType) -> Simplified:
    """(x + c) + y -> x + (c + y), likewise with differences; x + -3 -> x - 3, which is how it is written by hand."""
    total = y if op.kind == "add" else -y
    x = a
    if (inner := _parts(a, "add")) is not None:
        x, total = inner[0], total + inner[1]
    elif (inner := _parts(a, "sub")) is not None:
        x, total = inner[0], total - inner[1]
    if type.is_signed:
        total = evaluate.reduce_to(total, type)
    kind = "sub" if total < 0 else "add"
    if x is a and kind == op.kind:
        return None
    return Binary(kind, x, constant(evaluate.reduce_to(-total if kind == "sub" else total, type), type))


def _product(a: Value, y: int, type: DType) -> Simplified:
    """(x * c) * y -> x * (c * y)."""
    inner = _parts(a, "mul")
    if inner is None:
        return None
    return Binary("mul", inner[0], constant(evaluate.reduce_to(inner[1] * y, type), type))


def _quotient(a: Value, y: int, type: DType) -> Simplified:
    """Simplify a / y for y > 0.

    x / y             -> 0                  for -y < x < y
    (x * c) / y       -> x * (c / y)        where y divides c and x * c does not overflow
    (x / c) / y       -> x / (c * y)        where c > 0 and c * y does not overflow
    (m + r) / y       -> m / y              for 0 <= r < y, m >= 0 a multiple of y, without overflow
    """
    known = facts_of(a)
    if -y < known.low and known.high < y:
        return 0
    product = _parts(a, "mul")
    if product is not None and product[1] % y == 0 and _no_overflow(product, type):
        return Binary("mul", product[0], constant(product[1] // y, type))
    nested = _parts(a, "div")
    if nested is not None and nested[1] > 0 and nested[1] * y <= type.highest:
        return Binary("div", nested[0], constant(nested[1] * y, type))
    split = _multiple_and_rest(a, y, type)
    if split is not None and facts_of(split[1]).high < y:
        return Binary("div", split[0], constant(y, type))
    return None


def _remainder(a: Value, y: int, type: DType) -> Simplified:
    """Simplify a % y for y > 0.

    x % y             -> 0                  for multiples of y
    x % y             -> x                  for -y < x < y
    (x % c) % y       -> x % y              where y divides c
    (m + r) % y       -> r % y              for r >= 0, m >= 0 a multiple of y, without overflow
    """
    known = facts_of(a)
    if known.divisor % y == 0:
        return 0
    if -y < known.low and known.high < y:
        return a
    nested = _parts(a, "rem")
    if nested is not None and nested[1] != 0 and nested[1] % y == 0:
        return Binary("rem", nested[0], constant(y, type))
    split = _multiple_and_rest(a, y, type)
    return Binary("rem", split[1], constant(y, type)) if split is not None else None


def _multiple_and_rest(a: Value, y: int, type: DType) -> tuple[Value, Value] | None:
    """Return (m, r) when a = m + r without overflow, m >= 0 is a multiple of y, and r >= 0."""
    op = a.definition
    if not (isinstance(op, Binary) and op.kind == "add"):
        return None
    x, z = facts_of(op.lhs), facts_of(op.rhs)
    if x.low < 0 or z.low < 0 or x.high + z.high > type.highest:
        return None
    if x.divisor % y == 0:
        return op.lhs, op.rhs
    return (op.rhs, op.lhs) if z.divisor % y == 0 else None


def _no_overflow(product: tuple[Value, int], type: DType) -> bool:
    x, c = facts_of(product[0]), product[1]
    return type.lowest <= min(x.low * c, x.high * c) and max(x.low * c, x.high * c) <= type.highest


# --- the other ops -------------------------------------------------------------------------------------


def _float_binary(op: Binary, type: DType) -> Simplified:
    """Drop factors of 1: x * 1 -> x, 1 * x -> x, x / 1 -> x. Exact for every x, also infinities and NaN.

    Constants are computed here: NVRTC's own folding makes -0.0 of fmax(-0.0, 0.0).
    """
    a, b = op.lhs.definition, op.rhs.definition
    if type in (float32, float64) and isinstance(a, Constant) and isinstance(b, Constant):
        return _float_constants(op.kind, type, a.value, b.value)
    one = [isinstance(v.definition, Constant) and v.definition.value == 1 for v in (op.lhs, op.rhs)]
    if one[1] and op.kind in ("mul", "div"):
        return op.lhs
    return op.rhs if one[0] and op.kind == "mul" else None


def _float_constants(kind: str, type: DType, a: float, b: float) -> float | None:
    """Return a finite result of two numbers, as the device rounds it; None where it is left to the device."""
    if kind not in ("add", "sub", "mul", "min", "max"):
        return None
    if kind == "min":
        greatest = _float_constants("max", type, -a, -b)
        return None if greatest is None else -greatest
    if kind == "max":
        return a + b if a == b == 0 else max(a, b) if math.isfinite(a) and math.isfinite(b) else None
    exact = a + b if kind == "add" else a - b if kind == "sub" else a * b
    if type is float32 and math.isfinite(exact):
        # Of two float32, the sum or product in float64 rounds to the same float32 as the exact one.
        exact = struct.unpack("f", struct.pack("f", exact))[0] if abs(exact) < 2.0**127 else math.inf
    return exact if math.isfinite(exact) else None


def _unary(op: Unary, type: Type) -> Simplified:
    inner = op.x.definition
    if not isinstance(type, DType) or not isinstance(op.x.type, DType):
        return None
    if isinstance(inner, Unary) and op.kind == inner.kind in ("neg", "not", "bit_not") and inner.x.type is type:
        return inner.x
    if op.kind == "not" and isinstance(inner, Compare) and not inner.lhs.dtype.is_float:
        return Compare(OPPOSITE[inner.kind], inner.lhs, inner.rhs)  # of floats, a NaN makes both false
    x = constant_of(op.x)
    if x is None:
        return None
    if not op.x.type.is_float:
        return evaluate.unary(op.kind, int(x), type)
    return -x if op.kind == "neg" else None


def _compare(op: Compare) -> Simplified:
    if not isinstance(op.lhs.type, DType) or op.lhs.type.is_float:
        return None
    if op.lhs is op.rhs:
        return int(op.kind in ("eq", "le", "ge"))
    a, b = facts_of(op.lhs), facts_of(op.rhs)
    if _always(op.kind, a, b):
        return 1
    if _always(OPPOSITE[op.kind], a, b):
        return 0
    return _moved(op)


def _moved(op: Compare) -> Op | None:
    """Compare x + 2 < 10 as x < 8, where nothing overflows.

    Besides being shorter, it keeps NVRTC from a fault: `for (f = 0; f < 3; f += 1)` whose body asks for `f + 1 < 3`
    and `f == 2` ends after one iteration (13.0 and 13.5 do so).
    """
    inner, number = op.lhs.definition, constant_of(op.rhs)
    if not isinstance(inner, Binary) or inner.kind not in ("add", "sub") or number is None:
        return None
    type, offset, x = inner.result.type, constant_of(inner.rhs), facts_of(inner.lhs)
    if offset is None or not isinstance(type, DType):
        return None
    offset = int(offset) if inner.kind == "add" else -int(offset)
    limit = int(number) - offset
    if min(x.low + offset, limit) < type.lowest or max(x.high + offset, limit) > type.highest:
        return None
    return Compare(op.kind, inner.lhs, constant(limit, type))


def _always(kind: str, a: Facts, b: Facts) -> bool:
    match kind:
        case "lt":
            return a.high < b.low
        case "le":
            return a.high <= b.low
        case "gt":
            return a.low > b.high
        case "ge":
            return a.low >= b.high
        case "eq":
            return a.low == a.high == b.low == b.high
        case _:
            return a.high < b.low or b.high < a.low


def _select(op: Select) -> Simplified:
    chosen = constant_of(op.condition)
    if chosen is not None:
        return op.on_true if chosen else op.on_false
    if op.on_true is op.on_false:
        return op.on_true
    if op.on_true.type is bool_ and constant_of(op.on_true) == 1 and constant_of(op.on_false) == 0:
        return op.condition
    return None


def _cast(op: Cast, type: Type) -> Simplified:
    """Convert nothing, constants, and integers to a wider type and back."""
    source = op.x.type
    if source == type:
        return op.x
    if not isinstance(type, DType) or not isinstance(source, DType) or source.is_float:
        return None
    inner = op.x.definition
    if isinstance(inner, Cast) and inner.x.type is type and not type.is_float and source.bits >= type.bits:
        return inner.x if source is not bool_ else None
    x = constant_of(op.x)
    if x is None:
        return None
    if not type.is_float:
        return evaluate.reduce_to(int(x), type)
    return float(x) if abs(int(x)) <= (2**8 if type.bits > 8 else 2**3) else None  # exact in every such type


# --- what values are made of: keys of those that are computed alike, and sums taken apart ------------------


def identity_of(value: Value) -> Any:  # Any: what is equal for values that are computed alike
    """Return a key that two values share if the same pure arithmetic gives them."""
    op = value.definition
    if isinstance(op, Constant):
        return ("constant", value.type, op.value)
    if isinstance(op, Special):
        return ("special", op.name)
    if isinstance(op, Binary):
        return (op.kind, value.type, identity_of(op.lhs), identity_of(op.rhs))
    return ("cast", value.type, identity_of(op.x)) if isinstance(op, Cast) else value


def linear_terms(value: Value) -> tuple[dict[Any, int], int]:
    """Return what an integer is a sum of: factors of terms, by their keys, and a number."""
    terms: dict[Any, int] = {}
    constant = 0
    pending = [(value, 1)]
    while pending:
        part, factor = pending.pop()
        op = part.definition
        if isinstance(op, Constant):
            constant += factor * int(op.value)
        elif isinstance(op, Binary) and op.kind in ("add", "sub"):
            pending += [(op.lhs, factor), (op.rhs, factor if op.kind == "add" else -factor)]
        elif isinstance(op, Binary) and op.kind == "mul" and isinstance(op.rhs.definition, Constant):
            pending.append((op.lhs, factor * int(op.rhs.definition.value)))
        else:
            key = identity_of(part)
            terms[key] = terms.get(key, 0) + factor
    return {key: factor for key, factor in terms.items() if factor}, constant
