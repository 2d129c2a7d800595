"""Control flow that is emitted by calls: branches, loops and nests, with and without values."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.language import lowered, run, zeros

import tilewright as tw
from tilewright.errors import LanguageError
from tilewright.ir import ops
from tilewright.trace.control import branch, loop, nest

VECTOR = tw.spec("int32", 1)


def test_a_branch_has_two_sides_of_which_one_may_be_missing():
    @tw.kernel
    def sides(out, low):
        i = tw.thread_idx.x
        branch(i < 2, lambda: out.__setitem__(i, 10), lambda: out.__setitem__(i, 20))
        branch(i == low, lambda: out.__setitem__(i, 30))

    assert run(sides, zeros(4), np.int32(1), block=4).tolist() == [10, 30, 20, 20]


@pytest.mark.parametrize(("condition", "value"), [(True, 1), (False, 2), (3, 1), (0, 2)])
def test_what_python_knows_chooses_while_tracing(condition, value):
    @tw.kernel
    def chosen(out):
        out[0] = branch(condition, lambda: [1], lambda: [2])[0]

    assert run(chosen, zeros(1)).tolist() == [value]
    assert not any(isinstance(op, ops.If) for op in lowered(chosen, VECTOR))


def test_a_number_of_the_device_is_a_condition_where_it_is_not_zero():
    @tw.kernel
    def chosen(out):
        i = tw.thread_idx.x
        out[i] = branch(i % 3, lambda: [i], lambda: [-1])[0]

    assert run(chosen, zeros(6), block=6).tolist() == [-1, 1, 2, -1, 4, 5]
    branches = [op for op in lowered(chosen, VECTOR, block=6) if isinstance(op, ops.If)]
    assert [op.condition.type for op in branches] == [tw.bool_]


@pytest.mark.parametrize(("returned", "text"), [([1.0], "float32"), ([1, 2], "int32, int32"), (None, "nothing")])
def test_sides_return_equally_many_numbers_of_the_same_types(returned, text):
    @tw.kernel
    def differ(out):
        out[0] = branch(tw.thread_idx.x < 2, lambda: [1], lambda: returned)[0]

    with pytest.raises(LanguageError, match=f"the sides of a branch return int32 and {text}"):
        run(differ, zeros(1), block=4)


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 5, 1), (3, 20, 4), (9, 0, -2), (4, 4, 1), (0, 1, 1)])
def test_a_loop_carries_what_its_body_returns(start, stop, step):
    @tw.kernel
    def sums(out, start, stop):
        def add(i, total, product):
            return total + i, product * 2

        out[0], out[1] = loop(start, stop, step, add, (tw.int32(0), tw.int32(1)))

    counted = range(start, stop, step)
    expected = [sum(counted), 2 ** len(counted)]
    assert run(sums, zeros(2), np.int32(start), np.int32(stop)).tolist() == expected


def test_of_carried_integers_only_the_type_is_assumed():
    """A carried 0 says nothing of what is divided by later: 0 would divide everything."""

    @tw.kernel
    def counts(out):
        def body(i, n):
            out[i] = n % 4
            return (n + 3,)

        loop(0, 6, 1, body, [tw.int32(0)])

    assert run(counts, zeros(6)).tolist() == [3 * n % 4 for n in range(6)]


def test_a_body_keeps_the_types_that_it_is_given():
    @tw.kernel
    def changes(out):
        loop(0, 4, 1, lambda i, x: [x + 0.5], [tw.int32(0)])

    with pytest.raises(LanguageError, match="a loop carries int32 and float32"):
        run(changes, zeros(1))


def test_a_loop_refuses_what_range_refuses():
    def with_bounds(*bounds):
        @tw.kernel
        def kernel(out):
            loop(*bounds, lambda i: out.__setitem__(0, i))

        return kernel

    with pytest.raises(LanguageError, match="the step of a range is 0"):
        run(with_bounds(0, 4, 0), zeros(1))
    with pytest.raises(LanguageError, match="it must be an integer"):
        run(with_bounds(0, 4.5, 1), zeros(1))


def test_bounds_of_another_type_are_converted_before_the_loop():
    """The index has the widest type of the three."""

    @tw.kernel
    def wide(out, stop):
        out[tw.thread_idx.x] = loop(tw.thread_idx.x, stop, 1, lambda i, n: [n + 1], [tw.int32(0)])[0]

    kinds = [type(op) for op in lowered(wide, VECTOR, np.int64(4), block=4)]
    assert kinds.count(ops.Cast) == 1 and ops.Cast not in kinds[kinds.index(ops.For) :], kinds
    assert run(wide, zeros(5), np.int64(4), block=5).tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize("extents", [(2, 3, 4), (1, 3, 1), (5,), (), (2, 0, 3), (1, 1)])
def test_a_nest_runs_through_a_box_the_last_extent_fastest(extents):
    @tw.kernel
    def places(out, extents: tw.constexpr):
        tw.clear(out)

        def count(*indices):
            place = 0
            for index, extent in zip(indices, extents, strict=True):
                place = place * extent + index
            out[place] += 1

        nest(extents, count, unroll=True, names="abc"[: len(extents)])

    size = int(np.prod(extents))
    assert run(places, zeros(max(size, 1)), extents).tolist() == [1] * size + [0] * (not size)


def test_an_extent_of_one_needs_no_loop():
    indices = []

    @tw.kernel
    def places(out):
        def note(i, j, k):
            indices.append((i, j, k))
            out[j] = i + k

        nest((1, 4, 1), note, names=("i", "j", "k"))

    body = lowered(places, VECTOR)
    assert [op.body.arguments[0].name for op in body if isinstance(op, ops.For)] == ["j"]
    assert indices and all(type(i) is int and type(k) is int for i, _, k in indices)


def test_extents_may_be_those_of_the_launch():
    @tw.kernel
    def table(out, m, n):
        nest((m, n), lambda i, j: out.__setitem__(i * n + j, 10 * i + j))

    assert run(table, zeros(6), np.int32(2), np.int32(3)).tolist() == [0, 1, 2, 10, 11, 12]


def test_control_flow_is_emitted_in_one_place():
    """No other file of the language, of the instructions or of the scheduling layer makes a branch, a loop or the end of a block."""
    package = Path(tw.__file__).parent
    found = set()
    rooms = ("trace", "frontend", "instructions", "language", "schedule")
    for path in (path for room in rooms for path in (package / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called.removeprefix("ops.") in ("If", "For", "While", "Yield"):
                found.add(path.relative_to(package).as_posix())
    assert found == {"trace/control.py"}
