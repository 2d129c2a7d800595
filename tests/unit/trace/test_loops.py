"""Loops: over ranges of the device, unrolled while tracing, and while; with what they carry from one iteration to the next."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tests.helpers.language import compiles, lowered, run, zeros

import tilewright as tw
from tilewright.ir import ops


@tw.kernel
def visit(out, start, stop, step: tw.constexpr):
    n = 0
    for i in range(start, stop, step):
        out[n] = i
        n += 1


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(0, 7, 1), (2, 9, 3), (0, 0, 1), (5, 2, 1), (7, -1, -1), (9, 0, -4), (-5, 6, 2), (3, 4, 100), (0, 10, 5)],
)
def test_range_visits_what_python_visits(start, stop, step):
    expected = list(range(start, stop, step))
    out = np.full(len(expected) + 1, -99, np.int32)
    run(visit, out, start, stop, step)
    assert out[:-1].tolist() == expected
    assert out[-1] == -99


def test_range_of_int64():
    out = zeros(3, np.int64)
    run(visit, out, 2**40, 2**40 + 3, 1)
    assert out.tolist() == [2**40, 2**40 + 1, 2**40 + 2]


def test_dynamic_step_of_either_sign():
    @tw.kernel
    def steps(out, start, stop, step):
        n = 0
        for i in range(start, stop, step):
            out[n] = i
            n += 1

    for arguments in [(0, 9, 2), (9, 0, -3)]:
        expected = list(range(*arguments))
        assert run(steps, zeros(len(expected)), *arguments).tolist() == expected


def test_bounds_of_mixed_types_take_the_wider():
    @tw.kernel
    def mixed(out, n):
        for i in range(n, n + tw.int64(2)):
            out[i] = i + tw.int64(2**33)

    assert run(mixed, zeros(3, np.int64), 1).tolist() == [0, 2**33 + 1, 2**33 + 2]


def test_nested_loops_carry_through_both():
    @tw.kernel
    def triangle(out, n):
        total = 0
        for i in range(n):
            row = 0
            for j in range(i + 1):
                row += i * j
            total += row
            out[i] = total

    expected = np.cumsum([sum(i * j for j in range(i + 1)) for i in range(6)])
    assert run(triangle, zeros(6), 6).tolist() == expected.tolist()
    assert "for (" in compiles(triangle, tw.spec("int32", 1), 6)


def test_static_range_unrolls_while_tracing():
    @tw.kernel
    def unrolled(out):
        parts = []
        for i in tw.static_range(1, 8, 2):
            assert isinstance(i, int)
            parts.append(i)
        for n, part in enumerate(parts):
            out[n] = part

    assert run(unrolled, zeros(4)).tolist() == [1, 3, 5, 7]
    assert not any(isinstance(op, ops.For) for op in lowered(unrolled, tw.spec("int32", 1)))


def test_loops_over_python_containers_unroll():
    @tw.kernel
    def containers(out, factors: tw.constexpr):
        for n, (a, b) in enumerate(zip(factors, reversed(factors), strict=True)):
            out[n] = a * 10 + b

    assert run(containers, zeros(3), (1, 2, 3)).tolist() == [13, 22, 31]


@pytest.mark.parametrize(("unroll", "expected"), [(None, None), (True, 0), (4, 4), (False, 1), (1, 1)])
def test_range_hands_on_the_unroll_hint(unroll, expected):
    @tw.kernel
    def hinted(out, n, hint: tw.constexpr):
        for i in tw.range(n, unroll=hint):
            out[i] = i

    loops = [op for op in lowered(hinted, tw.spec("int32", 1), 9, unroll) if isinstance(op, ops.For)]
    assert [loop.unroll for loop in loops] == [expected]
    assert run(hinted, zeros(9), 9, unroll).tolist() == list(range(9))
    assert ("#pragma unroll" in hinted.source(tw.spec("int32", 1), 9, unroll)) == (expected is not None)


def test_while_on_a_device_value():
    @tw.kernel
    def collatz(out):
        x = tw.thread_idx.x + 1
        iterations = 0
        while x != 1:
            if x % 2 == 0:
                x = x // 2
            else:
                x = 3 * x + 1
            iterations += 1
        out[tw.thread_idx.x] = iterations

    def iterations(x):
        n = 0
        while x != 1:
            x, n = (x // 2 if x % 2 == 0 else 3 * x + 1), n + 1
        return n

    assert run(collatz, zeros(30), block=30).tolist() == [iterations(x + 1) for x in range(30)]
    assert "while (" in compiles(collatz, tw.spec("int32", 1), block=30)


def test_while_on_a_python_value_runs_while_tracing():
    @tw.kernel
    def halve(out, n: tw.constexpr):
        at = 0
        while n > 1 and at < 10:
            out[at] = n
            n //= 2
            at += 1

    assert run(halve, zeros(4), 16).tolist() == [16, 8, 4, 2]
    assert not any(isinstance(op, (ops.For, ops.While)) for op in lowered(halve, tw.spec("int32", 1), 16))


def test_while_true_with_a_device_break_is_one_loop():
    @tw.kernel
    def first(out, x):
        n = 0
        while True:
            if x[n] >= tw.thread_idx.x:
                break
            n += 1
        out[tw.thread_idx.x] = n

    x = np.array([0, 0, 2, 2, 5], np.int32)
    assert run(first, zeros(6), x, block=6).tolist() == [0, 2, 2, 4, 4, 4]
    kernel_ops = lowered(first, tw.spec("int32", 1), tw.spec("int32", 1), block=6)
    assert sum(isinstance(op, ops.While) for op in kernel_ops) == 1
    assert sum(isinstance(op, ops.Load) and op.buffer.name == "x" for op in kernel_ops) == 1


def test_condition_that_becomes_a_device_value_later():
    @tw.kernel
    def later(out, n):
        i = 0
        while i < 2 or (i < n and out[0] == 0):
            i += 1
        out[1] = i

    assert run(later, zeros(2), 5).tolist() == [0, 5]


# --- carried variables ---------------------------------------------------------------------------------


def test_python_numbers_take_the_type_of_the_loop():
    @tw.kernel
    def sums(out, x):
        total = 0
        scale = 1
        for i in range(x.size):
            total += x[i]
            scale = scale * 2
        out[0] = total
        out[1] = scale

    for dtype in (np.float32, np.float64, np.float16, np.int64):
        x = np.arange(1, 6).astype(dtype)
        assert run(sums, zeros(2, dtype), x).tolist() == [15, 32]


def test_python_numbers_take_the_type_of_what_they_are_swapped_with():
    @tw.kernel
    def swaps(out, x, n):
        a, b, pair = x[0], 9, [x[0], 4]
        for i in range(n):
            a, b = b, a
            if i > 1:
                pair.reverse()
        out[0], out[1], out[2], out[3] = a, b, *pair

    for dtype in (np.float32, np.float64, np.int64, np.int32):
        assert run(swaps, zeros(4, dtype), np.full(1, 7, dtype), 3).tolist() == [9, 7, 4, 7]


def test_a_python_float_that_the_loop_makes_infinite_is_refused():
    @tw.kernel
    def before(out, n):
        m = -1e300
        for _ in range(n):
            m = 1.5
        out[0] = m

    @tw.kernel
    def inside(out, n):
        held = [0.5]
        while n > 0:
            held[0] = 1e300
            n -= 1
        out[0] = held[0]

    @tw.kernel
    def nested(out, x, n):
        m = -1e300
        for _ in range(n):
            for _ in range(n):
                m = tw.maximum(m, x[0])
        out[0] = m

    for kernel in before, inside:
        with pytest.raises(tw.LanguageError, match=r"1e\+300 does not fit into float32"):
            run(kernel, zeros(1, np.float64), 2)
    with pytest.raises(tw.LanguageError, match=r"-1e\+300 does not fit into float32"):
        run(nested, zeros(1, np.float64), np.zeros(1, np.float32), 2)
    assert run(nested, zeros(1, np.float64), np.full(1, -1e301), 2).tolist() == [-1e300]


def test_bool_and_tuple_and_dict_are_carried():
    @tw.kernel
    def several(out, n):
        found = False
        pair = (0, 1)
        named = {"low": 100, "high": (0, 0.0)}
        for i in range(n):
            found = found | (i == 3)
            pair = (pair[1], pair[0] + pair[1])
            named = {"low": min(named["low"], i), "high": (i, i * 0.5)}
        out[0] = found.to(tw.int32)
        out[1], out[2] = pair
        out[3] = named["low"]
        out[4] = tw.int32(2 * named["high"][1])

    assert run(several, zeros(5), 7).tolist() == [1, 13, 21, 0, 6]
    assert run(several, zeros(5), 2).tolist() == [0, 1, 2, 0, 1]


def test_swap_of_carried_variables():
    @tw.kernel
    def fibonacci(out, n):
        a, b = 0, 1
        for i in range(n):
            out[i] = a
            a, b = b, a + b

    assert run(fibonacci, zeros(10), 10).tolist() == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34]


def test_variable_that_is_dead_after_the_loop_may_change_its_type():
    @tw.kernel
    def dead(out, x):
        v = 1.5
        out[0] = v
        for i in range(2):
            v = i
            out[1 + i] = v
        for i in range(2):
            v = x[i] > 0
            out[3 + i] = v.to(tw.float32)

    assert run(dead, zeros(5, np.float32), np.array([1, -1], np.float32)).tolist() == [1.5, 0, 1, 1, 0]


def test_index_after_an_unrolled_loop():
    @tw.kernel
    def after(out):
        for i in tw.static_range(4):
            pass
        out[0] = i

    assert run(after, zeros(1)).tolist() == [3]


def test_list_comprehension_makes_registers_of_a_thread():
    @tw.kernel
    def comprehension(out):
        squares = [i * i + tw.thread_idx.x for i in range(4)]
        for i in tw.static_range(len(squares)):
            out[i, tw.thread_idx.x] = squares[i]

    out = np.zeros((4, 8), np.int32)
    run(comprehension, out, block=8)
    assert np.array_equal(out, np.arange(4)[:, None] ** 2 + np.arange(8))


def test_carried_counters_do_not_trace_for_ever():
    iteration = functools.lru_cache(maxsize=0)(int)  # counts its calls, where nothing looks

    @tw.kernel
    def nest(out, n):
        total = 0
        for i in range(n):
            for j in range(n):
                for k in range(n):
                    iteration()
                    total += i * j + k
        out[0] = total

    expected = sum(i * j + k for i in range(3) for j in range(3) for k in range(3))
    assert run(nest, zeros(1), 3).tolist() == [expected]
    assert 0 < iteration.cache_info().misses <= 64


def test_ping_pong_stage_keeps_its_range():
    @tw.kernel
    def stages(out, n):
        stage = 0
        for i in range(n):
            out[i] = stage % 2
            stage = 1 - stage

    assert run(stages, zeros(5), 5).tolist() == [0, 1, 0, 1, 0]
    # stage is 0 or 1, which the remainder does not change
    code = [line for line in stages.source(tw.spec("int32", 1), 5).splitlines() if not line.strip().startswith("//")]
    assert not any("%" in line for line in code)


def test_membership_of_a_device_value():
    @tw.kernel
    def members(out):
        i = tw.thread_idx.x
        out[i] = 1 if i in (2, 3, 5) else 0
        if i in range(6, 12, 3) and i not in [9]:
            out[i] = 2

    assert run(members, zeros(12), block=12).tolist() == [0, 0, 1, 1, 0, 1, 2, 0, 0, 0, 0, 0]
