"""Loops that never end are findings, and loops that are only long are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw


@tw.kernel
def nothing(o, n):
    while n > 0:
        pass
    o[tw.thread_idx.x] = 1


@tw.kernel
def goes_round(o, n):
    k = n
    while k != 0:
        k = ((k * 3 + 1) & 2047) | 1
    o[tw.thread_idx.x] = k


@tw.kernel
def forgets_to_count(o, n):
    i = 0
    while i < n:
        o[tw.thread_idx.x] = i
    o[tw.thread_idx.x] = 1


@tw.kernel
def in_registers(o, n):
    r = tw.registers(tw.int32, 2)
    r[0], r[1] = n, 0
    while r[0] > 0:
        r[1] = r[1] ^ 1
    o[tw.thread_idx.x] = r[1]


@tw.kernel
def meets_at_a_barrier(o, n):
    while n > 0:
        tw.sync_threads()
    o[tw.thread_idx.x] = 1


@tw.kernel
def inner(o, n):
    for _ in range(3):
        k = n
        while k > 1:
            k = 6 - k
        o[tw.thread_idx.x] = k


@pytest.mark.parametrize(
    "kernel", [nothing, goes_round, forgets_to_count, in_registers, meets_at_a_barrier, inner], ids=lambda k: k.__name__
)
def test_a_loop_that_never_ends_is_a_finding(kernel: Any) -> None:
    with pytest.raises(tw.CheckError, match="endless loop") as caught:
        kernel[1, 64](np.zeros(64, np.int32), 3)
    assert "while " in str(caught.value)


def test_only_the_threads_that_stay_are_reported() -> None:
    @tw.kernel
    def some(o):
        k = tw.thread_idx.x
        while k % 8 != 0:
            k = (k + 2) % 64
        o[tw.thread_idx.x] = k

    with tw.simulate(raise_errors=False) as run:
        some[1, 32](np.zeros(32, np.int32))
    (found,) = [f for f in run.findings if f.kind == "endless-loop"]
    assert found.count == 16  # the odd ones


@pytest.mark.parametrize("steps", [1023, 1024, 1025, 4096, 5000])
@pytest.mark.spread(2)
def test_a_long_loop_is_none(steps: int) -> None:
    @tw.kernel
    def long(o, n):
        r = tw.registers(tw.int32, 1)
        r[0] = 0
        while r[0] < n:  # only the register changes
            r[0] = r[0] + 1
        words, k = tw.registers(tw.float32, 1), tw.int64(0)
        bits = words.recast(tw.int32)
        bits[0] = 0
        while bits[0] < n:  # the same bytes in another type
            bits[0] = bits[0] + 1
        while k < n + tw.thread_idx.x:
            k += 1
        o[tw.thread_idx.x] = r[0] + bits[0] + k.to(tw.int32)

    o = np.zeros(32, np.int32)
    long[1, 32](o, steps)
    assert (o == 3 * steps + np.arange(32)).all()


def test_a_long_loop_with_barriers_is_none() -> None:
    @tw.kernel
    def long(o, n):
        k = n
        while k > 0:
            tw.sync_threads()
            k -= 1
        o[tw.thread_idx.x] = k

    o = np.ones(32, np.int32)
    long[1, 32](o, 2500)
    assert not o.any()


def test_lanes_that_wait_for_a_lane_that_counts_are_none() -> None:
    @tw.kernel
    def counts(o, n):
        k, is_over = 0, 0
        while is_over == 0:
            if tw.thread_idx.x == 5:
                k += 1
            is_over = tw.shuffle(tw.where(k < n, 0, 1), 5)
        o[tw.thread_idx.x] = k

    o = np.ones(32, np.int32)
    counts[1, 32](o, 3000)
    assert o[5] == o.sum() == 3000


def test_tests_of_a_barrier_that_is_late_are_none() -> None:
    @tw.kernel
    def late(o, n):
        ready = tw.mbarrier(1)
        tw.sync_threads()
        if tw.warp_id() == 0:
            k = n
            while k > 0:
                k -= 1
            if tw.thread_idx.x == 0:
                ready.arrive()
        else:
            while not ready.test(0):
                pass
        o[tw.thread_idx.x] = 1

    o = np.zeros(64, np.int32)
    late[1, 64](o, 3000)
    assert o.all()
