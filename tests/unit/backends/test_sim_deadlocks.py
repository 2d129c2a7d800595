"""What is wrong at barriers that part of a block meets at, as the simulator reports it: kind, line and who."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw


def findings(kernel: Any, *args: Any, grid: int = 1, block: int = 64, check: bool = True) -> list[tuple[str, str]]:
    """Return kind and source line of all findings."""
    with tw.simulate(raise_errors=False, check=check) as run:
        kernel[grid, block](*args)
    return [(f.kind, f.location.text.strip() if f.location else "") for f in run.findings]


def message(kernel: Any, *args: Any, grid: int = 1, block: int = 64) -> str:
    with tw.simulate(raise_errors=False) as run:
        kernel[grid, block](*args)
    return run.findings[0].message


def ints(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


@tw.kernel
def missing_arrival(out):
    full = tw.mbarrier(33 + out[0], stages=2)
    tw.sync_threads()
    if tw.warp_id() == 0:
        full[1].arrive()
        tw.named_barrier(2, 64).sync()  # the producer
    else:
        full[1].wait(0)
        tw.named_barrier(2, 64).sync()
    if tw.thread_idx.x == 0:
        out[0] = 1


def test_a_deadlock_says_who_waits_for_what_since_which_line() -> None:
    out = ints(1)
    assert findings(missing_arrival, out) == [("deadlock", "tw.named_barrier(2, 64).sync()  # the producer")]
    assert out[0] == 0
    text = message(missing_arrival, out, grid=3)
    assert "warp 0 waits for named barrier 2, phase 0: 32 of 64 threads have arrived" in text
    assert "warp 1 waits for mbarrier full[1], phase 0 (parity 0): 32 of 33 arrivals have come" in text
    assert "since test_sim_deadlocks.py:" in text
    assert "      full[1].wait(0)\n" in text
    assert "so do threads of 2 more blocks" in text


def test_a_deadlock_ends_the_run_without_checks_too() -> None:
    with tw.simulate(check=False), pytest.raises(tw.CheckError, match="deadlock"):
        missing_arrival[1, 64](ints(1))


@tw.kernel
def some_blocks(out, x):
    ready = tw.mbarrier(1)
    tw.sync_threads()
    if tw.warp_id() == 0:
        if x[tw.block_idx.x] > 0 and tw.elect_one():
            ready.arrive()
    else:
        ready.wait(0)
        if tw.elect_one():
            out[tw.block_idx.x] = 1
    tw.sync_threads()


def test_other_blocks_go_on() -> None:
    x, out = np.array([1, 1, 0, 1], np.int32), ints(4)
    with tw.simulate(raise_errors=False) as run:
        some_blocks[4, 64](out, x)
    assert out.tolist() == x.tolist()
    (finding,) = run.findings
    assert finding.kind == "deadlock"
    assert finding.block == (2, 0, 0)
    assert finding.count == 64
    assert "warp 0 waits for all threads of the block: 32 of 64 have arrived" in finding.message


@tw.kernel
def wrong_parity(out, first: tw.constexpr):
    ready = tw.mbarrier(1)
    tw.sync_threads()
    if tw.warp_id() == 0:
        if tw.elect_one():
            ready.arrive()
    else:
        ready.wait(0)
        ready.wait(first)


def test_the_phase_after_the_last() -> None:
    assert findings(wrong_parity, ints(1), 0) == []
    assert findings(wrong_parity, ints(1), 1) == [("deadlock", "ready.wait(first)")]
    text = message(wrong_parity, ints(1), 1)
    assert "phase 1 (parity 1): 0 of 1 arrivals" in text
    assert "the other 32 threads of the block have run to their end" in text


@tw.kernel
def all_arrive(out):
    full = tw.mbarrier(1)
    tw.sync_threads()
    full.arrive()


@tw.kernel
def one_arrives(out):
    full = tw.mbarrier(1)
    tw.sync_threads()
    if tw.warp_id() == 1 and tw.elect_one():
        full.arrive()
    full.wait(0)


def test_more_arrivals_than_a_phase_takes() -> None:
    assert findings(all_arrive, ints(1)) == [("barrier-divergence", "full.arrive()")]
    assert "64 arrivals come to full at once, whose phase 0 waits for 1 more of 1" in message(all_arrive, ints(1))
    assert findings(one_arrives, ints(1)) == []


@tw.kernel
def two_counts(out, threads: tw.constexpr):
    if tw.warp_id() == 0:
        tw.named_barrier(1, 64).arrive()
    else:
        tw.named_barrier(1, threads).sync()


def test_one_barrier_with_two_counts() -> None:
    found = findings(two_counts, ints(1), 32)
    assert found[0] == ("barrier-divergence", "tw.named_barrier(1, threads).sync()")
    assert "32 of 64 threads have arrived" in message(two_counts, ints(1), 32)
    assert findings(two_counts, ints(1), 64) == []


@tw.kernel
def one_count_after_another(out):
    tw.named_barrier(1, 64).sync()
    if tw.warp_id() == 0:
        tw.named_barrier(1, 32).sync()


def test_a_phase_may_have_another_count_than_the_last() -> None:
    assert findings(one_count_after_another, ints(1)) == []


@tw.kernel
def too_many(out, threads: tw.constexpr):
    tw.named_barrier(1, threads).sync()


def test_more_warps_than_a_barrier_takes() -> None:
    assert findings(too_many, ints(1), 32) == [("barrier-divergence", "tw.named_barrier(1, threads).sync()")]
    assert findings(too_many, ints(1), 64) == []


@tw.kernel
def numbers(out, x):
    tw.named_barrier(x[tw.thread_idx.x], 64).sync()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([0] * 64, "named barrier 0 does not exist"),
        ([16] * 64, "named barrier 16 does not exist"),
        ([1] * 5 + [2] + [1] * 58, "threads of warp 0 name different barriers: 1 and 2"),
    ],
)
def test_numbers_that_only_the_device_knows(given: list[int], text: str) -> None:
    x = np.array(given, np.int32)
    assert ("barrier-divergence", "tw.named_barrier(x[tw.thread_idx.x], 64).sync()") in findings(numbers, ints(1), x)
    assert text in message(numbers, ints(1), x)
    assert findings(numbers, ints(1), np.full(64, 15, np.int32)) == []


@tw.kernel
def part_of_a_warp(out, x):
    if x[tw.thread_idx.x] > 0:
        tw.named_barrier(3, 64).sync()


def test_part_of_a_warp() -> None:
    x = np.ones(64, np.int32)
    assert findings(part_of_a_warp, ints(1), x) == []
    x[40] = 0
    assert findings(part_of_a_warp, ints(1), x) == [("barrier-divergence", "tw.named_barrier(3, 64).sync()")]
    assert "part of warp 1 only" in message(part_of_a_warp, ints(1), x)


@tw.kernel
def made_by_nobody(out):
    if tw.warp_id() == 1:
        ready = tw.mbarrier(32)
        ready.arrive()


def test_use_before_initialisation() -> None:
    assert findings(made_by_nobody, ints(1)) == [("uninitialised-mbarrier", "ready.arrive()")]


@tw.kernel
def made_again(out, n):
    for k in range(n):
        ready = tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            ready.arrive()
        ready.wait(0)


def test_initialisation_again() -> None:
    assert findings(made_again, ints(1), 1) == []
    assert ("reinitialised-mbarrier", "ready = tw.mbarrier(1)") in findings(made_again, ints(1), 2)


@tw.kernel
def parities(out, parity):
    ready = tw.mbarrier(32)
    tw.sync_threads()
    if tw.warp_id() == 0:
        ready.wait(parity)
    else:
        ready.arrive()


def test_parities() -> None:
    assert findings(parities, ints(1), 0) == findings(parities, ints(1), 1) == []
    for wrong in (2, -1):
        assert findings(parities, ints(1), wrong) == [("mbarrier-parity", "ready.wait(parity)")]


@tw.kernel
def stages(out, stage):
    ready = tw.mbarrier(64, stages=3)
    tw.sync_threads()
    ready[stage].arrive()


def test_stages_that_are_not_there() -> None:
    assert findings(stages, ints(1), 2) == []
    for wrong in (3, -1):
        assert findings(stages, ints(1), wrong) == [("out-of-bounds", "ready[stage].arrive()")]
        with tw.simulate(check=False), pytest.raises(tw.CheckError, match="out of bounds"):
            stages[1, 64](ints(1), wrong)


@tw.kernel
def polls(out):
    ready = tw.mbarrier(1)
    tw.sync_threads()
    while not ready.test(0):
        pass


def test_tests_for_ever() -> None:
    assert findings(polls, ints(1)) == [("deadlock", "while not ready.test(0):")]


@tw.kernel
def divergent(out, x):
    ready = tw.mbarrier(32)
    tw.sync_threads()
    if tw.warp_id() == 0:
        ready.arrive()
    else:
        ready.wait(0)
    if x[tw.warp_id()] > 0:
        tw.sync_threads()


def test_a_barrier_of_the_block_that_some_warps_miss() -> None:
    assert findings(divergent, ints(1), np.array([1, 1], np.int32)) == []
    found = findings(divergent, ints(1), np.array([1, 0], np.int32))
    assert found == [("deadlock", "tw.sync_threads()")]
