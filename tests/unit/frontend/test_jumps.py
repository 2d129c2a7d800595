"""break, continue and early return, in loops of the device and in loops that are unrolled while tracing."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.language import compiles, run, zeros

import tilewright as tw

LOOPS = [tw.range, tw.static_range]


@pytest.mark.parametrize("loop", LOOPS)
def test_break_on_a_python_value(loop):
    @tw.kernel
    def python_break(out, last: tw.constexpr):
        n = 0
        for _ in loop(8):
            if last == 0:
                break
            n += 1
        out[0] = n

    assert run(python_break, zeros(1), 0).tolist() == [0]
    assert run(python_break, zeros(1), 1).tolist() == [8]


def test_static_break_at_a_turn():
    @tw.kernel
    def static_break(out):
        for i in tw.static_range(8):
            if i == 3:
                break
            out[i] = 1

    assert run(static_break, zeros(8)).tolist() == [1, 1, 1, 0, 0, 0, 0, 0]


@tw.kernel
def scan(out, x, n):
    """Sum what is not negative, up to the first zero."""
    total = 0
    for i in range(n):
        if x[i] == 0:
            break
        if x[i] < 0:
            continue
        total += x[i]
    out[0] = total


@pytest.mark.parametrize("values", [[1, -2, 3, 0, 5], [0, 1], [1, 2, 3], [-1, -2], [4, 0]])
def test_break_and_continue_on_device_values(values):
    expected = 0
    for v in values:
        if v == 0:
            break
        expected += max(v, 0)
    assert run(scan, zeros(1), np.array(values, np.int32), len(values)).tolist() == [expected]


def test_break_compiles():
    assert "while (" in compiles(scan, tw.spec("int32", 1), tw.spec("int32", 1), 5)


def test_break_leaves_the_inner_loop_only():
    @tw.kernel
    def inner(out, n):
        count = 0
        for i in range(n):
            for j in range(n):
                if j > i:
                    break
                count += 1
        out[0] = count

    assert run(inner, zeros(1), 5).tolist() == [15]


def test_a_loop_that_surely_runs_gives_first_values_before_its_break():
    """What is assigned before the first way out is there, the variable of the loop too."""

    @tw.function
    def first_above(x, least):
        for i in range(6):
            found = x[i]
            if found > least:
                return 10 * found
        return found

    @tw.kernel
    def find(out, x, least):
        for i in range(6):
            a = x[i]
            if a > least:
                break
        place = 0
        while True:
            b = x[place]
            place += 1
            if b > least or place == 6:
                break
        out[0] = a
        out[1] = i
        out[2] = b
        out[3] = first_above(x, least)

    x = np.array([3, 1, 4, 1, 5, 9], np.int32)
    for least in (0, 3, 4, 8, 9):
        i = next((i for i, v in enumerate(x) if v > least), 5)
        assert run(find, zeros(4), x, least).tolist() == [x[i], i, x[i], (10 if x[i] > least else 1) * x[i]]
    compiles(find, zeros(4), x, 3)


def test_a_condition_of_while_may_assign():
    @tw.function
    def first_at_most(x, least):
        n = 0
        while (v := x[n]) > least:
            if v == 9:
                return -n
            n += 1
        return v

    @tw.kernel
    def count(out, x, most: tw.constexpr):
        i, total, steps = 0, 0, 0
        while (v := x[i]) > 0 and i < 4:
            i += 1
            if v == 3:
                continue
            total += v
        out[0], out[1], out[2], out[3] = total, v, i, first_at_most(x, 1)
        while (steps := steps + 1) < most:  # known while tracing
            pass
        out[4] = steps

    for values, expected in (
        ([5, 2, 3, -1, 7], [7, -1, 3, -1, 8]), ([1, 2, 4, 8, 16], [15, 16, 4, 1, 8]), ([0, 1, 1, 1, 1], [0, 0, 0, 0, 8]),
        ([2, 9, 0, 5, 5], [11, 0, 2, -1, 8]),
    ):  # fmt: skip
        assert run(count, zeros(5), np.array(values, np.int32), 8).tolist() == expected
    compiles(count, zeros(5), np.zeros(5, np.int32), 8)


def test_what_comes_behind_a_break_may_have_no_value():
    @tw.kernel
    def behind(out, x):
        for i in range(6):
            if x[i] > 3:
                break
            last = x[i]
        out[0] = last

    with pytest.raises(tw.LanguageError, match="an iteration of the loop may leave it without one"):
        run(behind, zeros(1), np.zeros(6, np.int32))


def test_downward_range_with_break():
    @tw.kernel
    def downward(out, n):
        for i in range(n, -1, -1):
            if i == 2:
                break
            out[i] = i

    assert run(downward, zeros(6), 5).tolist() == [0, 0, 0, 3, 4, 5]


def test_continue_in_a_while_loop():
    @tw.kernel
    def odd(out, n):
        i = 0
        while i < n:
            i += 1
            if i % 2 == 0:
                continue
            out[i - 1] = i

    assert run(odd, zeros(5), 5).tolist() == [1, 0, 3, 0, 5]


def test_early_return_of_a_kernel():
    @tw.kernel
    def guarded(out, n):
        i = tw.thread_idx.x
        if i >= n:
            return
        if i == 1:
            return
        out[i] = i + 10

    assert run(guarded, zeros(5), 3, block=5).tolist() == [10, 0, 12, 0, 0]


def test_return_inside_a_device_loop_of_a_kernel():
    @tw.kernel
    def stop(out, x, n):
        for i in range(n):
            for j in range(n):
                if x[i] + j == 4:
                    out[1] = 10 * i + j
                    return
            out[0] += 1
        out[2] = 1

    x = np.array([0, 1, 3, 9], np.int32)
    assert run(stop, zeros(3), x, 4).tolist() == [1, 13, 0]
    assert run(stop, zeros(3), x, 1).tolist() == [1, 0, 1]
    compiles(stop, tw.spec("int32", 1), tw.spec("int32", 1), 4)


@tw.function
def sign(x):
    if x > 0:
        return 1
    elif x < 0:
        return -1
    return 0


@tw.function
def find(x, value):
    """Return where a value stands, and how often it stood before the end."""
    for i in range(x.size):
        if x[i] == value:
            return i, 1.0
    return -1, 0.5


@tw.function
def deep(x, limit):
    for i in range(x.size):
        total = 0
        while True:
            total += x[i]
            if total > limit:
                return total
            if total % 5 == 0:
                break
    return -limit


def test_functions_return_values_from_branches_and_loops():
    @tw.kernel
    def signs(out, x):
        i = tw.thread_idx.x
        out[i] = sign(x[i])

    @tw.kernel
    def places(out, x):
        i = tw.thread_idx.x
        place, weight = find(x, i)
        out[i] = place + 10 * weight

    x = np.array([3, 0, -7, 1], np.int32)
    assert run(signs, zeros(4), x, block=4).tolist() == [1, 0, -1, 1]
    assert run(places, zeros(4, np.float32), x, block=4).tolist() == [11, 13, 4, 10]


def test_return_from_a_loop_in_a_loop():
    @tw.kernel
    def nested(out, x, limit):
        out[0] = deep(x, limit)

    def python(x, limit):
        for v in x:
            total = 0
            while True:
                total += v
                if total > limit:
                    return total
                if total % 5 == 0:
                    break
        return -limit

    for x, limit in [([5, 10, 3], 11), ([5, 10, 15], 20), ([4], 100)]:
        assert run(nested, zeros(1), np.array(x, np.int32), limit).tolist() == [python(x, limit)]


def test_python_values_decide_returns_while_tracing():
    @tw.function
    def choose(kind, x):
        for name in ("double", "halve"):
            if name == kind:
                if kind == "double":
                    return 2 * x
                return x / 2
        return None

    @tw.kernel
    def chosen(out, kind: tw.constexpr):
        result = choose(kind, 3.0 + out[0])
        if result is None:
            out[0] = -1
        else:
            out[0] = result

    for kind, expected in [("double", 6), ("halve", 1.5), ("other", -1)]:
        assert run(chosen, zeros(1, np.float32), kind).tolist() == [expected]


def test_branches_that_both_return():
    @tw.function
    def both(x):
        if x > 2:
            y = x * 2
            return y
        else:
            y = x + 100
            return y

    @tw.kernel
    def kernel(out):
        out[tw.thread_idx.x] = both(tw.thread_idx.x)

    assert run(kernel, zeros(5), block=5).tolist() == [100, 101, 102, 6, 8]


def test_jump_in_a_branch_inside_a_branch():
    """What follows such a branch stands once in the rewritten function, and runs once."""

    @tw.kernel
    def inner(out, p, limit):
        a, iterations = p, 0
        while True:
            iterations += 1
            if iterations > limit:
                if a != 5:
                    break
            a -= (a + a) & 63
        out[0], out[1] = a, iterations

    def python(p, limit):
        a, iterations = p, 0
        while True:
            iterations += 1
            if iterations > limit and a != 5:
                return [a, iterations]
            a -= (a + a) & 63

    for p, limit in [(2, 2), (7, 0), (-3, 5)]:
        assert run(inner, zeros(2), p, limit).tolist() == python(p, limit)


def test_many_branches_that_may_jump_stay_short():
    @tw.kernel
    def sieve(out, n):
        for i in range(n):
            if i % 2 == 0:
                if i > 2:
                    continue
            if i % 3 == 0:
                if i > 3:
                    continue
            if i % 5 == 0:
                if i > 5:
                    continue
            if i % 7 == 0:
                if i > 7:
                    continue
            if i < 2:
                if i == 1:
                    continue
                continue
            out[i] = 1

    def prime(n):
        return n > 1 and all(n % k for k in range(2, n))

    assert run(sieve, zeros(60), 60).tolist() == [int(prime(n)) for n in range(60)]
    text = sieve.source(tw.spec("int32", 1), 60)
    assert sum("out[i] = 1;" in line and "//" not in line for line in text.splitlines()) == 1


def test_jumps_under_python_conditions_leave_no_trace():
    @tw.kernel
    def chosen(out, early: tw.constexpr):
        if early:
            if tw.thread_idx.x >= 0:
                return
        out[0] = 1

    assert run(chosen, zeros(1), False).tolist() == [1]
    assert run(chosen, zeros(1), True).tolist() == [0]
    assert "if (" not in chosen.source(tw.spec("int32", 1), False)
