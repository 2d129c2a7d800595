"""Ranges near the ends of their type, steps whose sign is known, and what the simulator finds of the others."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from tests.helpers.language import compiles, run, zeros

import tilewright as tw

ENDS = (2**31 - 1, -(2**31), 0, 2**31 - 9, 2**31 + 5, 2**63 - 1, -(2**63), 2**63 - 6, 100)
STEPS = (1, -1, 3, -4, 7, 2**30, -(2**30), 2**31 - 1, 2**62)


@tw.kernel
def numbers(o, count, start: tw.constexpr, stop: tw.constexpr, step: tw.constexpr):
    n = 0
    for i in range(start, stop, step):
        o[n] = i
        n += 1
    count[0] = n


def test_ranges_of_constants_near_the_ends() -> None:
    rng = random.Random(0)
    tried = 0
    while tried < 60:
        start, stop = (max(min(rng.choice(ENDS) + rng.randint(-9, 9), 2**63 - 1), -(2**63)) for _ in range(2))
        span = range(start, stop, rng.choice(STEPS))
        if not 0 < (stop - start) // span.step < 30:
            continue
        out, count = zeros(32, np.int64), zeros(1)
        numbers[1, 1](out, count, start, stop, span.step)
        assert out[: count[0]].tolist() == list(span), span
        tried += 1


def test_the_printed_loop_counts_in_64_bits_where_32_do_not_hold_it() -> None:
    specs = tw.spec("int64", (8,)), tw.spec("int32", (1,))
    assert "for (long long i = 2147483640; i < 2147483647; i += 4)" in numbers.source(*specs, 2147483640, 2147483647, 4)
    assert "for (int i = 2147483633; i < 2147483647; i += 7)" in numbers.source(*specs, 2147483633, 2147483647, 7)
    assert "for (int i = 2147483640; i > " in numbers.source(*specs, 2147483640, -(2**31), -1)
    compiles(numbers, *specs, 2**63 - 9, 2**63 - 1, 5)
    assert "i < 2; i += 1" in numbers.source(*specs, 2**63 - 9, 2**63 - 1, 5)


@tw.kernel
def dynamic(o, start, stop, step):
    for i in range(start, stop, step):
        o[tw.thread_idx.x] += 1


@tw.kernel
def from_each_thread(o, stop, step):
    for i in range(stop - 40 + tw.thread_idx.x, stop, step):
        o[tw.thread_idx.x] += 1


@tw.kernel
def with_barriers(o, start, stop, step):
    shared = tw.shared(tw.int32, 32)
    for i in range(start, stop, step):
        shared[tw.thread_idx.x] = i
        tw.sync_threads()
        o[tw.thread_idx.x] += shared[31 - tw.thread_idx.x]
        tw.sync_threads()


@tw.kernel
def mbarriers(o, start, stop, step):
    bar = tw.named_barrier(1, 32)
    for i in range(start, stop, step):
        bar.sync()
        o[tw.thread_idx.x] += 1


TOP = 2**31 - 1


@pytest.mark.parametrize("kernel", [dynamic, with_barriers, mbarriers])
@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ((TOP - 7, TOP, 4), "integer overflow: behind its last iteration"),
        ((-TOP, -TOP - 1, -4), "integer overflow: behind its last iteration"),
        ((0, 10, 0), "the step of this range is 0"),
        ((TOP - 7, TOP, 7), ""),
        ((TOP, TOP, 4), ""),
        ((TOP, 0, 2**30), ""),
        ((3, 30, 4), ""),
    ],
)
def test_an_index_that_steps_out_of_its_type_is_found(
    kernel: tw.Kernel, bounds: tuple[int, int, int], words: str
) -> None:
    out, args = zeros(32), [np.int32(n) for n in bounds]
    with tw.simulate(raise_errors=False) as done:
        kernel[1, 32](out, *args)
    assert [words in f.message for f in done.findings] == ([True] if words else [])
    if kernel is dynamic:
        assert out.tolist() == [len(range(*bounds)) if bounds[2] else 0] * 32


def test_each_thread_is_looked_at() -> None:
    with tw.simulate(raise_errors=False) as done:
        from_each_thread[1, 32](zeros(32), np.int32(TOP), np.int32(40))
    (found,) = done.findings
    assert found.kind == "integer-overflow" and (found.thread, found.count) == ((1, 0, 0), 31)
    with tw.simulate(raise_errors=False) as done:
        from_each_thread[1, 32](zeros(32, np.int64), np.int64(2**63 - 1 - 2**12), np.int64(2**13))
    assert [f.kind for f in done.findings] == ["integer-overflow"]


def test_grid_stride_loops_test_one_direction() -> None:
    @tw.kernel
    def strided(o):
        for i in range(tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x, o.size, tw.grid_dim.x * tw.block_dim.x):
            o[i] = i
        for i in range(o.size - 1 - tw.thread_idx.x, -1, -tw.block_dim.x * 2):
            o[i] += 1

    for block in (None, 64):
        text = compiles(strided, tw.spec("int32", (1000,)), block=block)
        assert "?" not in text and text.count("for (int i = ") == 2

    @tw.kernel
    def one_way(o):
        for i in range(tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x, o.size, tw.grid_dim.x * tw.block_dim.x):
            o[i] = i

    assert run(one_way, zeros(1000), grid=3, block=64).tolist() == list(range(1000))

    @tw.kernel
    def unknown(o, step):
        for i in range(0, o.size, step):
            o[i] = i

    assert "step > 0 ? i < " in compiles(unknown, tw.spec("int32", (1000,)), np.int32(3))


def test_bounds_that_are_no_integers() -> None:
    @tw.kernel
    def of_python(o):
        for i in range(o.size / 2):
            o[i] = i

    @tw.kernel
    def of_constants(o):
        for i in range(4 / 2):
            o[i] = i

    with pytest.raises(tw.LanguageError, match=r"a bound of a range is float32(.|\n)*int\(x\)"):
        run(of_python, zeros(4))
    with pytest.raises(tw.LanguageError, match=r"a bound of a range is float 2.0(.|\n)*divide integers by //"):
        run(of_constants, zeros(4))


def test_membership_in_ranges_of_any_span() -> None:
    @tw.kernel
    def inside(o, x):
        i = tw.thread_idx.x
        o[0, i] = x[i] in range(-2000000001, 2000000000, 3)
        o[1, i] = x[i] in range(2**31 - 1, -(2**31), -7)

    x = np.array([*itertools.accumulate([-(2**31)] + [134217727] * 31)], np.int32)
    out = zeros((2, 32))
    inside[1, 32](out, x)
    assert out[0].tolist() == [n in range(-2000000001, 2000000000, 3) for n in x.tolist()]
    assert out[1].tolist() == [n in range(2**31 - 1, -(2**31), -7) for n in x.tolist()]
