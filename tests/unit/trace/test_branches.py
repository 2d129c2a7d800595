"""if, conditional expressions, and/or/not, chained comparisons; decided while tracing or on the device."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.language import compiles, lowered, run, zeros

import tilewright as tw
from tilewright.ir import ops


def test_if_elif_else():
    @tw.kernel
    def classes(out):
        i = tw.thread_idx.x
        if i < 2:
            c = 10
        elif i < 4:
            c = 20
            if i == 3:
                c += 5
        elif i == 4:
            c = 30
        else:
            c = 0
        out[i] = c

    assert run(classes, zeros(6), block=6).tolist() == [10, 10, 20, 25, 30, 0]
    compiles(classes, tw.spec("int32", 1), block=6)


def test_python_condition_is_decided_while_tracing():
    @tw.kernel
    def chosen(out, kind: tw.constexpr):
        if kind == "float":
            value = 1.5
        else:
            value = tw.int32(7)
        out[0] = value

    assert run(chosen, zeros(1, np.float32), "float").tolist() == [1.5]
    assert run(chosen, zeros(1, np.float32), "int").tolist() == [7]
    assert not any(isinstance(op, ops.If) for op in lowered(chosen, tw.spec("float32", 1), "int"))


def test_sides_merge_to_one_type():
    @tw.kernel
    def merged(out, x):
        i = tw.thread_idx.x
        if i % 2 == 0:
            v = 1
            w = (x[i], 0)
        else:
            v = x[i]
            w = (2.0, i)
        out[i] = v * 10 + w[0] + w[1]

    x = np.array([0.5, 1.5, 2.5, 3.5], np.float32)
    assert run(merged, zeros(4, np.float32), x, block=4).tolist() == [10.5, 18, 12.5, 40]


def test_variable_used_inside_a_branch_only_may_change_its_type_there():
    @tw.kernel
    def local(out):
        x = 1
        if tw.thread_idx.x > 0:
            x = x + 0.5
            out[tw.thread_idx.x] = x

    assert run(local, zeros(2, np.float32), block=2).tolist() == [0, 1.5]


def test_branch_that_leaves_a_variable_alone():
    @tw.kernel
    def alone(out):
        i = tw.thread_idx.x
        x = i * 2
        y = 5
        if i == 1:
            x = 100
        if i == 2:
            y = y + 1
        out[i] = x + y

    assert run(alone, zeros(3), block=3).tolist() == [5, 105, 10]


def test_conditional_expression_of_pure_sides_is_a_selection():
    @tw.kernel
    def selection(out):
        i = tw.thread_idx.x
        out[i] = i * 2 if i > 1 else 0.5

    assert run(selection, zeros(3, np.float32), block=3).tolist() == [0.5, 0.5, 4]
    kinds = [type(op) for op in lowered(selection, tw.spec("float32", 1), block=3)]
    assert ops.Select in kinds
    assert ops.If not in kinds


def test_conditional_expression_reads_on_its_side_only():
    @tw.kernel
    def guarded(out, x):
        i = tw.thread_idx.x
        out[i] = x[i] if i < x.size else -1.0

    x = np.array([1, 2], np.float32)
    assert run(guarded, zeros(4, np.float32), x, block=4).tolist() == [1, 2, -1, -1]
    compiles(guarded, tw.spec("float32", 1), tw.spec("float32", 1), block=4)


def test_conditional_expression_of_tuples_and_of_python_values():
    @tw.kernel
    def tuples(out, flag: tw.constexpr):
        i = tw.thread_idx.x
        a, b = (i, 1) if i > 1 else (0, i)
        name = "yes" if flag else "no"
        out[i] = a + 10 * b + (100 if name == "yes" else 0)

    assert run(tuples, zeros(3), True, block=3).tolist() == [100, 110, 112]
    assert run(tuples, zeros(3), False, block=3).tolist() == [0, 10, 12]


def test_and_or_do_not_read_what_is_decided():
    @tw.kernel
    def short(out, x):
        i = tw.thread_idx.x
        if i < x.size and x[i] > 1:
            out[i] = 1
        if i >= x.size or x[i] == 3:
            out[i] += 10

    x = np.array([1, 2, 3], np.int32)
    assert run(short, zeros(5), x, block=5).tolist() == [0, 1, 11, 10, 10]
    compiles(short, tw.spec("int32", 1), tw.spec("int32", 1), block=5)


def test_and_or_not_of_pure_values_are_operators():
    @tw.kernel
    def logic(out, a, b):
        x, y = a > 0, b > 0
        out[0] = (x and y).to(tw.int32)
        out[1] = (x or y).to(tw.int32)
        out[2] = (not x).to(tw.int32)
        out[3] = ((x and not y) or b == -2).to(tw.int32)

    for a, b in [(1, 1), (1, -1), (-1, 1), (-1, -2)]:
        x, y = a > 0, b > 0
        expected = [x and y, x or y, not x, (x and not y) or b == -2]
        assert run(logic, zeros(4), a, b).tolist() == expected
    kinds = [type(op) for op in lowered(logic, tw.spec("int32", 1), 1, 1)]
    assert ops.If not in kinds


def test_what_may_divide_by_zero_is_computed_on_its_side_only():
    """Else a compiler takes the divisor for not 0, and with it the condition that guards the division."""

    @tw.kernel
    def guarded(out, x, d):
        e = d if d != 5 else 0
        if (e != 0 and x % e == 1) or (e != 0 and x % e == 3):
            out[0] = 1
        out[1] = x // e if e != 0 else 7
        out[2] = x // e + 1 if e != 0 else 9

    @tw.kernel
    def by_a_constant(out, x, d):
        out[0] = x // 3 if d > 0 and x % 3 == 1 else 7

    outside = guarded.lower(zeros(3), 13, 5).kernel.body.ops
    assert not [op for op in outside if isinstance(op, ops.Binary) and op.kind in ("div", "rem")]
    assert ops.If not in [type(op) for op in lowered(by_a_constant, zeros(3), 13, 5)]
    for d, expected in (5, [0, 7, 9]), (4, [1, 3, 4]):
        assert run(guarded, zeros(3), 13, d).tolist() == expected


def test_logic_of_python_values_stays_python():
    calls = []

    @tw.kernel
    def python(out, x: tw.constexpr):
        name = x or "default"
        value = x and len(x)
        calls.append((name, value, not x))
        out[0] = 1

    run(python, zeros(1), "")
    run(python, zeros(1), "abc")
    assert calls == [("default", "", True), ("abc", 3, False)]


def test_mixed_logic_of_python_and_device_values():
    @tw.kernel
    def mixed(out, flag: tw.constexpr):
        i = tw.thread_idx.x
        if flag and i > 0:
            out[i] = 1
        if i > 1 or flag:
            out[i] += 2
        if i > 1 and flag:
            out[i] += 4

    assert run(mixed, zeros(3), True, block=3).tolist() == [2, 3, 7]
    assert run(mixed, zeros(3), False, block=3).tolist() == [0, 0, 2]


def test_truth_of_numbers():
    @tw.kernel
    def numbers(out, x):
        i = tw.thread_idx.x
        if x[i]:
            out[i] = 1
        if not x[i] or i:
            out[i] += 2

    x = np.array([0.0, 0.5, -0.0, np.nan], np.float32)
    expected = [(1 if v else 0) + (2 if (not v or i) else 0) for i, v in enumerate(x)]
    assert run(numbers, zeros(4), x, block=4).tolist() == expected


def test_chained_comparison_computes_each_operand_once():
    @tw.kernel
    def chain(out, x):
        i = tw.thread_idx.x
        out[i] = (0 <= x[i] < 3 != i).to(tw.int32)

    x = np.array([0, 3, 2, 1, -1], np.int32)
    expected = [int(0 <= v < 3 != i) for i, v in enumerate(x.tolist())]
    assert run(chain, zeros(5), x, block=5).tolist() == expected
    loads = [op for op in lowered(chain, tw.spec("int32", 1), tw.spec("int32", 1), block=5) if isinstance(op, ops.Load)]
    assert len(loads) == 1


def test_chained_comparison_stops_early():
    @tw.kernel
    def stop(out, x, n):
        i = tw.thread_idx.x
        if -1 < i < n < x[i]:
            out[i] = 1

    assert run(stop, zeros(4), np.array([9, 1], np.int32), 2, block=4).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("flag", [True, False])
def test_tensors_merge_by_their_offsets(flag):
    @tw.kernel
    def halves(out, x, flag):
        if flag:
            part = x[0, :]
        else:
            part = x[1, :]
        out[tw.thread_idx.x] = part[tw.thread_idx.x]

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert run(halves, zeros(4, np.float32), x, flag, block=4).tolist() == x[0 if flag else 1].tolist()


def test_assert_in_a_kernel():
    @tw.kernel
    def asserted(out, n: tw.constexpr):
        assert n > 0, f"n is {n}"
        assert tw.thread_idx.x < n, "too many threads"
        out[tw.thread_idx.x] = n

    assert run(asserted, zeros(2), 2, block=2).tolist() == [2, 2]
    with pytest.raises(tw.CheckError, match="assertion failed: too many threads"):
        run(asserted, zeros(3), 2, block=3)
    with pytest.raises(AssertionError, match="n is 0"):
        run(asserted, zeros(3), 0, block=3)


def test_any_all_min_max():
    @tw.kernel
    def builtins_(out, x):
        i = tw.thread_idx.x
        values = [x[i], x[i] + 1, 3]
        out[0, i] = min(values)
        out[1, i] = max(*values)
        out[2, i] = any(v > 3 for v in values).to(tw.int32)
        out[3, i] = all([v > 0 for v in values]).to(tw.int32)
        out[4, i] = max(v * 2 for v in (1, 2)) + min(4, 2, key=lambda v: -v)
        out[5, i] = abs(x[i]) + int(x[i] * 0.5) + len(values) + sum(values) + int(float(x[i]))

    x = np.array([-4, 0, 2, 3, 9], np.int32)
    out = run(builtins_, np.zeros((6, 5), np.int32), x, block=5)
    for n, v in enumerate(x.tolist()):
        values = [v, v + 1, 3]
        expected = [min(values), max(values), any(w > 3 for w in values), all(w > 0 for w in values), 8]
        expected.append(abs(v) + int(v * 0.5) + 3 + sum(values) + v)
        assert out[:, n].tolist() == expected
