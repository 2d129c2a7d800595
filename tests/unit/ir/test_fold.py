"""One example of each simplification, as text: what is built and what comes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.dtypes import DType, bool_, float32, int8, int32, int64, uint32
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Value, VectorType
from tilewright.ir.facts import Facts
from tilewright.ir.ops import Binary, Bitcast, Cast, Compare, Constant, Extract, Pack, Select, Unary, constant

BUILD = Builder(Block())


def b(kind: str, lhs: Value | float, rhs: Value | float) -> Value:
    type = lhs.type if isinstance(lhs, Value) else rhs.type  # type: ignore[union-attr]
    left, right = (v if isinstance(v, Value) else constant(v, type) for v in (lhs, rhs))
    return BUILD.pure(Binary(kind, left, right), type)


def u(kind: str, x: Value) -> Value:
    return BUILD.pure(Unary(kind, x), x.type)


def cast(x: Value, type: DType) -> Value:
    return BUILD.pure(Cast(x), type)


def compare(kind: str, lhs: Value, rhs: Value) -> Value:
    return BUILD.pure(Compare(kind, lhs, rhs), bool_)


def select(condition: Value, on_true: Value, on_false: Value) -> Value:
    return BUILD.pure(Select(condition, on_true, on_false), on_true.type)


def text(value: Value) -> str:
    op = value.definition
    match op:
        case Constant():
            return str(op.value)
        case Binary() | Compare():
            return f"({text(op.lhs)} {op.kind} {text(op.rhs)})"
        case Unary():
            return f"{op.kind}({text(op.x)})"
        case Cast():
            return f"{value.type}({text(op.x)})"
        case _:
            return str(value.name)


x, y = Value(int32, "x"), Value(int32, "y")
t = Value(int32, "t", Facts(0, 7))  # less than 8
m = Value(int32, "m", Facts(0, 1024, 8))  # a multiple of 8
s = Value(int32, "s", Facts(-7, 7))
w = Value(uint32, "w")
p, q = Value(bool_, "p"), Value(bool_, "q")
f = Value(float32, "f")
false, true = constant(False, bool_), constant(True, bool_)
one, zero = constant(1.0, float32), constant(0.0, float32)

CASES: list[tuple[Callable[[], Value], str]] = [
    (lambda: b("add", 2, constant(3, int32)), "5"),
    (lambda: b("div", 1, constant(0, int32)), "(1 div 0)"),
    (lambda: b("add", 1, x), "(x add 1)"),
    (lambda: b("add", x, 0), "x"),
    (lambda: b("add", b("add", x, 3), 4), "(x add 7)"),
    (lambda: b("sub", b("add", x, 3), 4), "(x sub 1)"),
    (lambda: b("add", b("sub", x, 3), 3), "x"),
    (lambda: b("add", x, -3), "(x sub 3)"),
    (lambda: b("sub", b("sub", w, 3), 4), "(w sub 7)"),
    (lambda: b("sub", x, x), "0"),
    (lambda: b("xor", x, x), "0"),
    (lambda: b("mul", x, 0), "0"),
    (lambda: b("mul", b("mul", x, 3), 4), "(x mul 12)"),
    (lambda: b("and", x, -1), "x"),
    (lambda: b("or", x, -1), "-1"),
    (lambda: b("and", w, 2**32 - 1), "w"),
    (lambda: b("and", p, true), "p"),
    (lambda: b("and", p, p), "p"),
    (lambda: b("or", p, true), "True"),
    (lambda: b("xor", p, true), "(p xor True)"),
    (lambda: b("div", t, 8), "0"),
    (lambda: b("div", s, 8), "0"),
    (lambda: b("rem", t, 8), "t"),
    (lambda: b("rem", s, 8), "s"),
    (lambda: b("rem", s, 7), "(s rem 7)"),
    (lambda: b("rem", m, 4), "0"),
    (lambda: b("rem", m, 3), "(m rem 3)"),
    (lambda: b("div", b("mul", t, 32), 8), "(t mul 4)"),
    (lambda: b("div", b("mul", x, 32), 8), "((x mul 32) div 8)"),  # may overflow
    (lambda: b("div", b("div", x, 3), 4), "(x div 12)"),
    (lambda: b("rem", b("rem", x, 12), 4), "(x rem 4)"),
    (lambda: b("rem", b("rem", x, 4), 12), "(x rem 4)"),
    (lambda: b("div", b("add", m, t), 8), "(m div 8)"),
    (lambda: b("rem", b("add", t, m), 8), "t"),
    (lambda: b("rem", b("add", m, t), 4), "(t rem 4)"),
    (lambda: b("min", t, 7), "t"),
    (lambda: b("max", t, 8), "8"),
    (lambda: b("min", x, x), "x"),
    (lambda: b("min", s, m), "(s min m)"),
    (lambda: b("mul", f, one), "f"),
    (lambda: b("mul", one, f), "f"),
    (lambda: b("div", f, one), "f"),
    (lambda: b("add", f, zero), "(f add 0.0)"),  # -0.0 + 0.0 is 0.0
    (lambda: b("mul", f, zero), "(f mul 0.0)"),  # NaN * 0.0 is NaN
    (lambda: u("neg", u("neg", f)), "f"),
    (lambda: u("neg", one), "-1.0"),
    (lambda: u("not", u("not", p)), "p"),
    (lambda: u("not", compare("lt", x, y)), "(x ge y)"),
    (lambda: u("not", compare("lt", f, one)), "not((f lt 1.0))"),  # NaN
    (lambda: compare("lt", t, constant(8, int32)), "True"),
    (lambda: compare("eq", t, constant(8, int32)), "False"),
    (lambda: compare("le", x, x), "True"),
    (lambda: compare("eq", f, f), "(f eq f)"),  # NaN
    (lambda: select(true, x, y), "x"),
    (lambda: select(p, x, x), "x"),
    (lambda: select(p, true, false), "p"),
    (lambda: cast(x, int32), "x"),
    (lambda: cast(cast(x, int64), int32), "x"),
    (lambda: cast(cast(x, int8), int32), "int32(int8(x))"),
    (lambda: cast(cast(p, int32), bool_), "p"),
    (lambda: cast(constant(300, int32), int8), "44"),
    (lambda: cast(constant(3, int32), float32), "3.0"),
    (lambda: cast(constant(2**24 + 1, int32), float32), "float32(16777217)"),  # rounds
    (lambda: cast(f, int32), "int32(f)"),
]


@pytest.mark.parametrize(("build", "expected"), CASES, ids=[f"{n}: {e}" for n, (_, e) in enumerate(CASES)])
def test_simplify(build: Callable[[], Value], expected: str) -> None:
    assert text(build()) == expected


def test_lanes_of_a_packed_vector_are_its_elements() -> None:
    packed = BUILD.pure(Pack((x, y)), VectorType(int32, 2))
    assert BUILD.pure(Extract(packed, 1), int32) is y
    assert BUILD.pure(Bitcast(x), int32) is x


def test_a_value_with_one_possibility_left_needs_no_op() -> None:
    block = Block()
    even = Value(int32, facts=Facts(0, 7, 8))  # only 0 is left, but the range does not say so
    assert text(Builder(block).pure(Binary("min", constant(0, int32), t), int32)) == "0"
    assert text(Builder(block).pure(Select(p, constant(4, int32), constant(4, int32)), int32)) == "4"
    assert Builder(block).pure(Binary("add", even, y), int32).definition in block.ops
    assert len(block.ops) == 1
