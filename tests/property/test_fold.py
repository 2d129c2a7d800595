"""Folding is exact: an expression built with folding is worth what plain two's complement arithmetic says.

The reference computes on Python integers of any size and reduces them itself; it shares no code with the IR.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.helpers.slow import examples

from tilewright.dtypes import DType, bool_, float32, float64, int8, int32, int64, uint8, uint32
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Value
from tilewright.ir.evaluate import evaluate, facts_of, index_facts
from tilewright.ir.facts import Facts
from tilewright.ir.ops import Binary, Cast, Compare, Constant, Select, Unary, constant

INTEGERS = [int8, uint8, int32, uint32, int64]
BINARY = ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]


class Undefined(Exception):
    """C++ gives the expression no value."""


def reduced(x: int, dtype: DType) -> int:
    if dtype is bool_:
        return 1 if x else 0
    x %= 2**dtype.bits
    return x - 2**dtype.bits if dtype.kind == "int" and x >= 2 ** (dtype.bits - 1) else x


def reference_binary(kind: str, x: int, y: int, dtype: DType) -> int:
    if kind in ("div", "rem") and y == 0:
        raise Undefined
    if kind in ("shl", "shr") and not 0 <= y < dtype.bits:
        raise Undefined
    quotient = 0
    if kind in ("div", "rem"):
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
    table = {
        "add": lambda: x + y,
        "sub": lambda: x - y,
        "mul": lambda: x * y,
        "div": lambda: quotient,
        "rem": lambda: x - quotient * y,
        "min": lambda: min(x, y),
        "max": lambda: max(x, y),
        "and": lambda: x & y,
        "or": lambda: x | y,
        "xor": lambda: x ^ y,
        "shl": lambda: x * 2**y,
        "shr": lambda: x // 2**y,
    }
    return reduced(table[kind](), dtype)


def reference_compare(kind: str, x: int, y: int) -> int:
    table = {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
    return int(table[kind])


@dataclass
class Case:
    """A value of the IR with its reference value, None where C++ leaves it undefined."""

    value: Value
    expected: int | None


def near_edges(dtype: DType) -> st.SearchStrategy[int]:
    small = st.integers(max(dtype.lowest, -40), min(dtype.highest, 40))
    edges = st.sampled_from([dtype.lowest, dtype.lowest + 1, dtype.highest, dtype.highest - 1])
    return st.one_of(small, small, edges, st.integers(dtype.lowest, dtype.highest))


@st.composite
def leaves(draw: st.DrawFn, dtype: DType) -> Case:
    number = draw(near_edges(dtype))
    if draw(st.integers(0, 2)) == 0:
        return Case(constant(number, dtype), number)
    facts = None
    if draw(st.booleans()):
        low = max(number - draw(st.sampled_from([0, 1, 5, 100])), dtype.lowest)
        high = min(number + draw(st.sampled_from([0, 1, 7, 64])), dtype.highest)
        divisors = [d for d in (1, 2, 3, 4, 8, 16, 32) if number % d == 0]
        facts = Facts(low, high, draw(st.sampled_from(divisors)))
    return Case(Value(dtype, facts=facts), number)


def operate(draw: st.DrawFn, builder: Builder, pool: list[Case], dtype: DType) -> Case:
    """Apply a random op to values of the pool of one type, or to bools that come from them."""
    a, b = (draw(st.sampled_from(pool)) for _ in range(2))
    match draw(st.sampled_from(["binary", "binary", "binary", "constant", "unary", "select", "cast", "compare"])):
        case "binary":
            return binary(builder, draw(st.sampled_from(BINARY)), a, b, dtype)
        case "constant":
            kind = draw(st.sampled_from(BINARY))
            number = draw(st.integers(0, dtype.bits - 1) if kind in ("shl", "shr") else near_edges(dtype))
            return binary(builder, kind, a, Case(constant(number, dtype), number), dtype)
        case "unary":
            kind = draw(st.sampled_from(["neg", "abs", "bit_not"]))
            value = builder.pure(Unary(kind, a.value), dtype)
            if a.expected is None:
                return Case(value, None)
            exact = {"neg": -a.expected, "abs": abs(a.expected), "bit_not": -1 - a.expected}[kind]
            return Case(value, reduced(exact, dtype))
        case "cast":
            other = draw(st.sampled_from([*INTEGERS, bool_]))
            there = builder.pure(Cast(a.value), other)
            value = builder.pure(Cast(there), dtype)
            return Case(value, None if a.expected is None else reduced(reduced(a.expected, other), dtype))
        case "compare":
            condition = compare(draw, builder, a, b)
            value = builder.pure(Cast(condition.value), dtype)
            return Case(value, condition.expected)
        case _:
            condition = compare(draw, builder, a, b)
            c = draw(st.sampled_from(pool))
            value = builder.pure(Select(condition.value, a.value, c.value), dtype)
            defined = None not in (condition.expected, a.expected, c.expected)
            return Case(value, (a.expected if condition.expected else c.expected) if defined else None)


def binary(builder: Builder, kind: str, a: Case, b: Case, dtype: DType) -> Case:
    value = builder.pure(Binary(kind, a.value, b.value), dtype)
    try:
        assert a.expected is not None and b.expected is not None
        return Case(value, reference_binary(kind, a.expected, b.expected, dtype))
    except (AssertionError, Undefined):
        return Case(value, None)


def compare(draw: st.DrawFn, builder: Builder, a: Case, b: Case) -> Case:
    kind, negate = draw(st.sampled_from(COMPARE)), draw(st.booleans())
    value = builder.pure(Compare(kind, a.value, b.value), bool_)
    if negate:
        value = builder.pure(Unary("not", value), bool_)
    if a.expected is None or b.expected is None:
        return Case(value, None)
    return Case(value, reference_compare(kind, a.expected, b.expected) ^ negate)


@examples(200, 600)
@given(st.data())
def test_folded_expressions_keep_their_value(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(INTEGERS))
    inputs = [data.draw(leaves(dtype)) for _ in range(3)]
    known = {case.value: case.expected for case in inputs if case.value.definition is None}
    builder = Builder(Block())
    pool = list(inputs)
    for _ in range(data.draw(st.integers(1, 8))):
        case = operate(data.draw, builder, pool, dtype)
        pool.append(case)
        if case.expected is None:
            continue
        facts = facts_of(case.value)
        assert facts.low <= case.expected <= facts.high
        assert case.expected % facts.divisor == 0 if facts.divisor else case.expected == 0
        assert evaluate(case.value, known) == case.expected


@examples(150, 400)
@given(st.data())
def test_an_address_of_a_tile_splits_into_its_coordinates(data: st.DataObject) -> None:
    """(k * 8 + t) / 8 -> k, (k * 8 + t) % 8 -> t, and what follows from facts of other sizes."""
    dtype = data.draw(st.sampled_from([int8, uint8, int32]))
    y = data.draw(st.sampled_from([1, 2, 3, 8, 32, 100]))
    multiple = data.draw(st.one_of(st.sampled_from([y, y, min(2 * y, 127)]), st.integers(1, 127)))
    low = data.draw(st.sampled_from([0, 0, 1, -2] if dtype.is_signed else [0, 1]))
    k = Value(dtype, facts=Facts(low, data.draw(st.integers(2, max(dtype.highest // multiple, 2)))))
    t = Value(dtype, facts=Facts(0, data.draw(st.integers(0, 120))))
    builder = Builder(Block())
    address = builder.pure(
        Binary("add", builder.pure(Binary("mul", k, constant(multiple, dtype)), dtype), t),
        dtype,
    )
    quotient = builder.pure(Binary("div", address, constant(y, dtype)), dtype)
    rest = builder.pure(Binary("rem", address, constant(y, dtype)), dtype)
    for x in (low, low + 1, facts_of(k).high):
        for z in {0, facts_of(t).high // 2, facts_of(t).high}:
            expected = reduced(reduced(x * multiple, dtype) + z, dtype)
            assert evaluate(quotient, {k: x, t: z}) == reference_binary("div", expected, y, dtype)
            assert evaluate(rest, {k: x, t: z}) == reference_binary("rem", expected, y, dtype)
    fits = facts_of(k).high * multiple + facts_of(t).high <= dtype.highest
    if (
        dtype is int32
        and fits
        and 0 < facts_of(t).high < y
        and multiple == y
        and 0 <= facts_of(k).low < facts_of(k).high
    ):
        assert quotient is k
        assert rest is t


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5), st.integers(0, 6), st.integers(0, 6))
@example(0, 8, 3, 0, 0)
def test_a_loop_index_obeys_its_facts(start: int, stop: int, step: int, below: int, above: int) -> None:
    assume(step != 0)
    first = Value(int32, facts=Facts(start - below, start)) if below else constant(start, int32)
    last = Value(int32, facts=Facts(stop - below, stop + above)) if above else constant(stop, int32)
    facts = index_facts(first, last, constant(step, int32))
    for i in range(start, stop, step):
        assert facts.low <= i <= facts.high
        assert i % facts.divisor == 0 if facts.divisor else i == 0


@pytest.mark.parametrize(("c", "y"), [(2, 64), (100, 100), (3, 5), (-3, 5)])
def test_quotients_of_quotients_stay_in_the_type(c: int, y: int) -> None:
    builder = Builder(Block())
    x = Value(int8)
    inner = builder.pure(Binary("div", x, constant(c, int8)), int8)
    outer = builder.pure(Binary("div", inner, constant(y, int8)), int8)
    for number in range(-128, 128):
        once = reference_binary("div", number, c, int8)
        assert evaluate(outer, {x: number}) == reference_binary("div", once, y, int8)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_lowest_number_has_no_negative(dtype: DType) -> None:
    x = Value(dtype)
    builder = Builder(Block())
    lowest = constant(dtype.lowest, dtype)
    for kind in ("add", "sub"):
        value = builder.pure(Binary(kind, x, lowest), dtype)
        assert evaluate(value, {x: 3}) == reference_binary(kind, 3, dtype.lowest, dtype)


SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.1, 1e-40, 5e-324, 3e38, -3e38, 1.7e308, float("inf"), float("-inf"), float("nan")]


@examples(100, 2000)
@given(
    st.sampled_from([float32, float64]),
    st.sampled_from(["add", "sub", "mul", "min", "max"]),
    *[st.one_of(st.sampled_from(SPECIAL), st.floats())] * 2,
)
@example(float64, "max", -0.0, 0.0)
@example(float64, "min", 0.0, -0.0)
def test_floats_that_are_folded_are_rounded_as_numpy_rounds(dtype: DType, kind: str, a: float, b: float) -> None:
    with np.errstate(all="ignore"):
        x, y = dtype.numpy.type(a), dtype.numpy.type(b)
        least, greatest = (-(-x + -y), x + y) if x == y == 0 else (np.fmin(x, y), np.fmax(x, y))
        expected = {"add": x + y, "sub": x - y, "mul": x * y, "min": least, "max": greatest}[kind]
    builder = Builder(Block(), lambda: None)
    found = builder.pure(Binary(kind, constant(float(x), dtype), constant(float(y), dtype)), dtype).definition
    if isinstance(found, Constant):
        assert dtype.numpy.type(found.value).tobytes() == expected.tobytes()
    else:
        assert not np.isfinite([x, y, expected]).all() or abs(expected) > 1e38  # left to the device
