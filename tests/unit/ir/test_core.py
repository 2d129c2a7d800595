from __future__ import annotations

import pytest
from tests.helpers.sketch import Sketch, lines

from tilewright.dtypes import bool_, float32, int8, int32
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, Requirement, Value, VectorType
from tilewright.ir.evaluate import evaluate
from tilewright.ir.ops import Binary, Compare, For, If, Print, Select, constant
from tilewright.ir.printer import to_text
from tilewright.source import SourceLocation


def test_operands_blocks_and_attributes_follow_from_the_fields() -> None:
    a, b, c = (constant(n, int32) for n in range(3))
    body = Block()
    loop = For(a, b, c, (a, b), body, unroll=4)
    assert loop.operands == (a, b, c, a, b)
    assert loop.blocks == (body,)
    assert loop.attributes == {"unroll": 4}
    assert Print(("x", ""), (a,)).operands == (a,)


def test_substitution_replaces_operands_and_leaves_blocks() -> None:
    x, y, z = (Value(int32) for _ in range(3))
    loop = For(x, y, z, (x, y), Block())
    loop.substitute({x: z, z: y})
    assert loop.operands == (z, y, y, z, y)
    loop.substitute({})
    assert loop.operands == (z, y, y, z, y)


def test_walking_goes_outwards_in() -> None:
    s = Sketch()
    with s.branch(s.scalar("c", bool_)):
        s.store(s.out, 0, 1)
    s.barrier()
    names = [type(op).__name__ for op in s.kernel().body.walk()]
    assert names == ["If", "Store", "Yield", "Yield", "Barrier"]


def test_buffers_in_order_of_first_use() -> None:
    s = Sketch()
    a, b = s.shared("a", 4), s.shared("b", 4)
    s.store(b, 0, 1)
    assert s.kernel().buffers() == [s.out, s.fout, a, b]


def test_constants_fit_their_type() -> None:
    assert constant(1, bool_).definition.value is True  # type: ignore[union-attr]
    with pytest.raises(AssertionError):
        constant(128, int8)


def test_the_builder_asks_for_the_place_once_an_op() -> None:
    places = iter(SourceLocation("f.py", n, "f") for n in range(10))
    builder = Builder(Block(), lambda: next(places))
    x = builder.emit(Binary("add", Value(int32), Value(int32)), int32)[0]
    known = SourceLocation("g.py", 7, "g")
    builder.pure(Binary("mul", x, x, location=known), int32)
    builder.pure(Binary("sub", Value(int32), x), int32)
    assert [str(op.location) for op in builder.block.ops] == ["f.py:0", "g.py:7", "f.py:1"]


def test_text_of_a_kernel() -> None:
    s = Sketch(block=(32, 1, 1))
    n = s.scalar("n")
    with s.loop(0, n, init=[n], unroll=0) as loop:
        loop.yields = (s.binary("add", loop.carried[0], loop.index),)
    s.store(s.out, 0, loop.results[0])
    kernel = s.kernel()
    kernel.requirements = (Requirement(constant(True, bool_), "n is small", "", None),)
    assert to_text(kernel).splitlines() == [
        "kernel sketch(out: int32*, fout: float32*, %0.n: int32) block=(32, 1, 1) {",
        "  require n is small",
        "  %1: int32 = for unroll=0 0 %0.n 1 %0.n",
        "    (%2.i: int32, %3: int32) {",
        "      %4: int32 = binary kind=add %3 %2.i",
        "      yield %4",
        "    }",
        "  store buffer=out 0 %1",
        "}",
    ]
    assert lines(kernel)[0] == "require n is small"


def test_evaluation_on_the_host() -> None:
    n, other = Value(int32, "n"), Value(int32, "other")
    builder = Builder(Block())
    x = n
    for _ in range(64):  # 2**64 paths, each value computed once
        x = builder.emit(Binary("xor", x, x), int32)[0]
        x = builder.emit(Binary("add", x, n), int32)[0]
    assert evaluate(x, {n: 5}) == 5
    condition = builder.emit(Compare("lt", n, constant(8, int32)), bool_)[0]
    lazy = builder.emit(Select(condition, n, other), int32)[0]
    assert evaluate(lazy, {n: 5}) == 5
    with pytest.raises(KeyError):
        evaluate(lazy, {n: 9})
    quotient = builder.emit(Binary("div", constant(1, int32), n), int32)[0]
    with pytest.raises(KeyError):
        evaluate(quotient, {n: 0})
    with pytest.raises(KeyError):
        evaluate(Value(float32), {})


def test_vector_types_have_a_size_and_a_name() -> None:
    vector = VectorType(float32, 4)
    assert (vector.bytes, str(vector)) == (16, "float32x4")
    assert Value(vector).dtype is float32
    assert isinstance(If(Value(bool_), Block(), Block()).blocks, tuple)
