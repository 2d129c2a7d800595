"""Each rule for facts, against every pair of values that the operands' facts allow."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.dtypes import bool_, int8, int32, uint8
from tilewright.ir import evaluate
from tilewright.ir.core import Value, VectorType
from tilewright.ir.evaluate import infer, special_facts
from tilewright.ir.facts import Facts, exactly, unknown
from tilewright.ir.ops import Binary, Cast, Compare, Select, Special, Unary, constant

BINARY = ["add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "shl", "shr"]
TYPES = st.sampled_from([int8, uint8, int32])


@st.composite
def facts(draw: st.DrawFn, lowest: int, highest: int) -> Facts:
    """Facts that leave at least one value."""
    divisor = draw(st.sampled_from([1, 1, 2, 3, 4, 8, 16]))
    low = draw(st.integers(max(lowest, -130), min(highest, 130)))
    high = min(low + draw(st.integers(0, 20)), highest)
    if not values(Facts(low, high, divisor)):
        return Facts(low, high)
    return Facts(low, high, divisor)


def values(known: Facts) -> list[int]:
    return [x for x in range(known.low, known.high + 1) if (x % known.divisor == 0 if known.divisor else x == 0)]


def check(results: Iterable[int | None], known: Facts | None) -> None:
    assert known is not None
    for x in results:
        if x is not None:
            assert known.low <= x <= known.high, (x, known)
            assert x % known.divisor == 0 if known.divisor else x == 0, (x, known)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_facts_of_binary_ops_hold_for_all_values(data: st.DataObject) -> None:
    dtype, kind = data.draw(TYPES), data.draw(st.sampled_from(BINARY))
    a = data.draw(facts(dtype.lowest, dtype.highest))
    b = data.draw(facts(0, dtype.bits) if kind in ("shl", "shr") else facts(dtype.lowest, dtype.highest))
    known = infer(Binary(kind, Value(dtype, facts=a), Value(dtype, facts=b)), dtype)
    check((evaluate.binary(kind, x, y, dtype) for x in values(a) for y in values(b)), known)


@settings(max_examples=200, deadline=None)
@given(TYPES, st.sampled_from(["neg", "abs", "bit_not"]), st.data())
def test_facts_of_unary_ops_hold_for_all_values(dtype, kind, data) -> None:
    a = data.draw(facts(dtype.lowest, dtype.highest))
    known = infer(Unary(kind, Value(dtype, facts=a)), dtype)
    check((evaluate.unary(kind, x, dtype) for x in values(a)), known)


@given(TYPES, st.sampled_from([int8, uint8, bool_]), st.data())
def test_facts_of_conversions_hold_for_all_values(source, target, data) -> None:
    a = data.draw(facts(source.lowest, source.highest))
    check((evaluate.reduce_to(x, target) for x in values(a)), infer(Cast(Value(source, facts=a)), target))


@given(facts(-100, 100), facts(-100, 100))
def test_join_holds_for_both_and_meet_for_what_both_allow(a: Facts, b: Facts) -> None:
    check(values(a) + values(b), a.join(b))
    check(set(values(a)) & set(values(b)), a.meet(b))


def test_meet_of_contradictory_facts_keeps_the_first() -> None:
    assert Facts(0, 3).meet(Facts(5, 9)) == Facts(0, 3)


def test_facts_of_other_ops() -> None:
    x, y = Value(int32, facts=Facts(0, 8, 8)), Value(int32, facts=Facts(-4, 4, 4))
    condition = Value(bool_)
    assert infer(Select(condition, x, y), int32) == Facts(-4, 8, 4)
    assert infer(Compare("lt", x, y), bool_) == Facts(0, 1)
    assert infer(Unary("not", constant(True, bool_)), bool_) == Facts(0, 0)
    assert infer(Unary("popcount", x), int32) == Facts(0, 64)
    assert infer(Unary("isnan", Value(int32)), bool_) == unknown(bool_)
    assert infer(constant(12, int32).definition, int32) == exactly(12)
    assert infer(Cast(x), VectorType(int32, 2)) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("thread_idx.x", Facts(0, 31)),
        ("thread_idx.y", Facts(0, 0, 0)),
        ("block_dim.x", Facts(32, 32, 32)),
        ("block_idx.y", Facts(0, 65534)),
        ("grid_dim.z", Facts(1, 65535)),
    ],
)
def test_special_registers_of_a_known_block(name: str, expected: Facts) -> None:
    assert special_facts(name, (32, 1, 1)) == expected


def test_special_registers_of_an_unknown_block() -> None:
    assert infer(Special("thread_idx.z"), int32) == Facts(0, 63)
    assert infer(Special("block_dim.x"), int32) == Facts(1, 1024)


@given(
    facts(-128, 127), st.sampled_from(sorted(evaluate.COMPARE)), st.integers(-130, 130), st.integers(-130, 130),
    st.sampled_from(["add", "sub"]), st.booleans(),
)  # fmt: skip
def test_the_sides_of_a_select_are_bounded_by_its_condition(a, kind, limit, n, operation, first):
    limit, n = (max(-128, min(127, x)) for x in (limit, n))
    x, other = Value(int8, facts=a), constant(0, int8)
    test, moved = (Value(t) for t in (bool_, int8))
    test.definition = Compare(kind, x, constant(limit, int8))
    moved.definition = Binary(operation, x, constant(n, int8))
    moved.facts = infer(moved.definition, int8)
    known = infer(Select(test, moved, other) if first else Select(test, other, moved), int8)
    chosen = (
        evaluate.binary(operation, value, n, int8) if evaluate.COMPARE[kind](value, limit) == first else 0
        for value in values(a)
    )  # fmt: skip
    check(chosen, known)


def test_the_next_stage_of_a_ring_is_one_of_its_stages():
    x = Value(int32, facts=Facts(0, 3))
    test, following = (Value(t) for t in (bool_, int32))
    test.definition = Compare("eq", x, constant(3, int32))
    following.definition = Binary("add", x, constant(1, int32))
    following.facts = infer(following.definition, int32)
    assert infer(Select(test, constant(0, int32), following), int32) == Facts(0, 3)
