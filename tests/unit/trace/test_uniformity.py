"""Barriers that only some threads may reach are refused while tracing; nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.language import run, zeros

import tilewright as tw

SYNC = tw.sync_threads


def refused(kernel, *args, block=64):
    with pytest.raises(tw.LanguageError, match="tw.sync_threads is in a") as caught:
        kernel.lower(*args, block=block)
    return str(caught.value)


def accepted(kernel, *args, block=64):
    kernel.lower(*args, block=block)


@tw.function
def barrier_if(condition):
    if condition:
        tw.sync_threads()


@tw.kernel
def under(out, condition: tw.constexpr, n):
    barrier_if(condition(out, n))


OUT = tw.spec("int32", 1)

DIVERGENT = [
    lambda out, n: tw.thread_idx.x < 32,
    lambda out, n: tw.thread_idx.x < n,
    lambda out, n: tw.warp_id() == 0,
    lambda out, n: tw.lane_id() + n > 3,
    lambda out, n: tw.thread_idx.x * tw.block_idx.x == 0,
    lambda out, n: tw.where(n > 0, tw.thread_idx.x, 1) == 0,
    lambda out, n: (n > 0) & (tw.thread_idx.x > 1),
]
UNIFORM = [
    lambda out, n: n > 0,
    lambda out, n: tw.block_idx.x == 0,
    lambda out, n: tw.block_dim.x * tw.grid_dim.x < out.size,
    lambda out, n: tw.thread_idx.x >= 0,
    lambda out, n: tw.thread_idx.x < 64,
    lambda out, n: tw.thread_idx.x // 64 == 0,
    lambda out, n: tw.thread_idx.y == 0,
]
UNKNOWN = [
    lambda out, n: out[n] > 0,
    lambda out, n: out[tw.thread_idx.x] > 0,
    lambda out, n: tw.vote_any(tw.thread_idx.x == 0),
    lambda out, n: tw.shuffle(tw.thread_idx.x, 0) == 0,
    lambda out, n: tw.atomic_add(out, 0, 1) == 3,
]


@pytest.mark.parametrize("condition", DIVERGENT)
def test_condition_on_the_thread_is_refused(condition):
    refused(under, OUT, condition, 3)


@pytest.mark.parametrize("condition", UNIFORM + UNKNOWN)
def test_other_conditions_pass(condition):
    accepted(under, OUT, condition, 3)


def test_other_side_of_a_branch_and_nested_branches():
    @tw.kernel
    def other(out, n):
        if tw.thread_idx.x > n:
            out[0] = 1
        else:
            if n > 3:
                tw.sync_threads()

    text = refused(other, OUT, 3)
    assert "depends on tw.thread_idx" in text
    assert "if tw.thread_idx.x > n:" in text
    assert "tw.sync_threads()\n" in text


def test_what_follows_an_early_return():
    @tw.kernel
    def returned(out, n):
        i = tw.thread_idx.x
        if i >= n:
            return
        tw.sync_threads()
        out[i] = 1

    assert "early return" in refused(returned, OUT, 3)


def test_loops_with_bounds_of_the_thread():
    @tw.kernel
    def strided(out, n, start: tw.constexpr, step: tw.constexpr):
        for k in range(start(tw.thread_idx.x), n, step):
            tw.sync_threads()
            out[k] = 1

    refused(strided, OUT, 100, lambda i: i, 64)
    accepted(strided, OUT, 100, lambda i: 0, 64)


def test_loop_whose_number_of_iterations_is_one():
    @tw.kernel
    def strided(out, n: tw.constexpr):
        for k in range(tw.thread_idx.x, n, 64):
            tw.sync_threads()
            out[k] = 1

    accepted(strided, OUT, 256)
    refused(strided, OUT, 250)


def test_loops_that_the_thread_ends():
    @tw.kernel
    def until(out, n):
        k = 0
        while k < tw.thread_idx.x:
            tw.sync_threads()
            k += 1
        out[0] = k

    @tw.kernel
    def broken(out, n):
        for k in range(n):
            if k > tw.thread_idx.x:
                break
            tw.sync_threads()
        out[0] = 1

    @tw.kernel
    def fine(out, n):
        for k in range(n):
            if k > 7:
                break
            tw.sync_threads()
        out[tw.thread_idx.x] = n

    refused(until, OUT, 3)
    refused(broken, OUT, 3)
    accepted(fine, OUT, 3)


def test_values_carried_over_iterations():
    @tw.kernel
    def carried(out, n, first: tw.constexpr):
        a, b = 0, 0
        for k in range(n):
            if a > 3:
                tw.sync_threads()
            a, b = b, first(tw.thread_idx.x) + k
        out[0] = a

    refused(carried, OUT, 9, lambda i: i)
    accepted(carried, OUT, 9, lambda i: 1)


def test_values_chosen_by_the_thread():
    @tw.kernel
    def chosen(out, n):
        limit = 1
        if tw.thread_idx.x > 3:
            limit = 2
        if limit > n:
            tw.sync_threads()
        out[0] = 1

    @tw.kernel
    def counted(out, n):
        iterations = 0
        for _ in range(tw.thread_idx.x):
            iterations += 1
        if iterations > n:
            tw.sync_threads()
        out[0] = 1

    refused(chosen, OUT, 3)
    refused(counted, OUT, 3)


def test_barriers_of_a_warp_are_left_to_the_simulator():
    @tw.kernel
    def warp(out, n):
        if tw.warp_id() == 0:
            tw.sync_warp()
        out[0] = n

    accepted(warp, OUT, 3)


def test_what_memory_decides_is_left_to_the_simulator():
    @tw.kernel
    def loaded(out, x):
        i = tw.thread_idx.x
        if x[i] > 0:
            tw.sync_threads()
        out[i] = 1

    assert run(loaded, zeros(4), np.ones(4, np.int32), block=4).tolist() == [1] * 4
    with pytest.raises(tw.CheckError, match="barrier of the block is reached by 2 of its 4 threads"):
        run(loaded, zeros(4), np.array([1, 0, 1, 0], np.int32), block=4)
