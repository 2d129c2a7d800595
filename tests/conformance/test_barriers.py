"""Named barriers, mbarriers and elections: warps that wait for one another.

A wrong wait on a GPU never ends. So every kernel that waits at an mbarrier runs with bounded tests first, and with
waits only after none of these has run out. What meets at named barriers is so simple that it cannot hang unless the
instruction itself is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend

import tilewright as tw

TESTS = 1 << 20  # some tenths of a second on a GPU; the simulator's end after a few


@tw.function
def wait(barrier, parity, bounded, late):
    """Wait for a phase; where the wait is bounded count in `late` who gives up."""
    if bounded:
        over = False
        for _ in range(TESTS):
            over = barrier.test(parity)
            if over:
                break
        if not over:
            tw.atomic_add(late, 0, 1)
    else:
        barrier.wait(parity)


def run(backend: Backend, kernel: Any, grid: int, block: int, out: Array, *args: Any) -> Array:
    """Run a kernel with bounded and then with unbounded waits; both give the same."""
    given = [tw.static(backend.put(a)) if isinstance(a, np.ndarray) else a for a in args]
    results = []
    for bounded in (True, False):
        result, late = backend.put(out), backend.zeros(1, tw.int32)
        kernel[grid, block](result, late, *given, bounded)
        assert backend.get(late)[0] == 0
        results.append(backend.get(result))
    assert (results[0] == results[1]).all()
    return results[1]


@tw.kernel
def ring(out, late, x, stages: tw.constexpr, consumers: tw.constexpr, copies: tw.constexpr, bounded: tw.constexpr):
    """The last warp hands columns of x to the others through a ring of stages."""
    tile = tw.shared(tw.int32, (32, stages))
    full = tw.mbarrier(32, stages=stages)
    empty = tw.mbarrier(consumers, stages=stages)
    tw.sync_threads()
    lane, warp, block = tw.lane_id(), tw.warp_id(), tw.block_idx.x
    n = x.shape[1]
    if warp == consumers:
        for k in range(n):
            stage = k % stages
            wait(empty[stage], (k // stages + 1) % 2, bounded, late)
            if copies:
                one = tw.Layout(32)
                tw.copy(tw.local_partition(x[:, k, block], one, lane), tw.local_partition(tile[:, stage], one, lane))
                full[stage].cp_async_arrive()
            else:
                tile[lane, stage] = x[lane, k, block]
                full[stage].arrive()
    else:
        total = 0
        for k in range(n):
            stage = k % stages
            wait(full[stage], k // stages % 2, bounded, late)
            total = total * 3 + tile[31 - lane, stage]
            tw.sync_warp()
            if tw.elect_one():
                empty[stage].arrive()
        out[lane, warp, block] = total


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(("n", "stages", "consumers"), [(1, 1, 1), (9, 1, 2), (10, 3, 3), (7, 4, 1)])
@pytest.mark.spread(4)
def test_ring(backend: Backend, n: int, stages: int, consumers: int, copies: bool) -> None:
    x = np.random.default_rng(n).integers(0, 9, (32, n, 5)).astype(np.int32)
    start = np.full((32, consumers, 5), -1, np.int32)
    out = run(backend, ring, 5, 32 * (consumers + 1), start, x, stages, consumers, copies)
    expected = np.zeros((32, 5), np.int32)
    for k in range(n):
        expected = expected * 3 + x[::-1, k]
    assert (out == expected[:, None]).all()


@tw.kernel
def take_turns(log, late, warps: tw.constexpr, bounded: tw.constexpr):
    """Warps run the same code, one after another, round and round."""
    token = tw.mbarrier(1, stages=warps)
    position = tw.shared(tw.int32, 1)
    if tw.thread_idx.x == 0:
        position[0] = 0
    tw.sync_threads()
    warp = tw.warp_id()
    if warp == warps - 1:
        if tw.elect_one():
            token[0].arrive()
    for turn in range(4):
        wait(token[warp], turn % 2, bounded, late)
        if tw.elect_one():
            log[position[0]] = 100 * warp + turn
            position[0] += 1
            token[(warp + 1) % warps].arrive()
        tw.sync_warp()


@pytest.mark.parametrize("warps", [2, 5])
def test_turns(backend: Backend, warps: int) -> None:
    log = run(backend, take_turns, 1, 32 * warps, np.full(4 * warps, -1, np.int32), warps)
    assert log.tolist() == [100 * warp + turn for turn in range(4) for warp in range(warps)]


@tw.kernel
def counts(out, late, many: tw.constexpr, bounded: tw.constexpr):
    """Two threads of the first warp arrive `many` times at once, the 32 of the second one each."""
    total = tw.mbarrier(2 * many + 32)
    tw.sync_threads()
    if tw.warp_id() == 0:
        out[tw.lane_id()] = 7
        tw.sync_warp()
        if tw.lane_id() < 2:
            total.arrive(many)
    elif tw.warp_id() == 1:
        out[32 + tw.lane_id()] = 5
        total.arrive()
    else:
        wait(total, 0, bounded, late)
        out[64 + tw.lane_id()] = out[tw.lane_id()] + out[63 - tw.lane_id()]


@pytest.mark.parametrize("many", [1, 2, 50])
def test_several_arrivals_at_once(backend: Backend, many: int) -> None:
    out = run(backend, counts, 1, 96, np.zeros(96, np.int32), many)
    assert out.tolist() == [7] * 32 + [5] * 32 + [12] * 32


@tw.kernel
def chain(out):
    """Each warp waits at a barrier whose number depends on the warp."""
    warp = tw.warp_id()
    if warp > 0:
        tw.named_barrier(warp, 64).sync()
    value = 1
    if warp > 0:
        value = out[32 * warp - 1 - tw.lane_id()] * 2
    out[tw.thread_idx.x] = value + tw.lane_id()
    if warp < 15:
        tw.named_barrier(warp + 1, 64).arrive()


def test_named_barriers_in_a_chain(backend: Backend) -> None:
    out = backend.zeros(512, tw.int32)
    chain[1, 512](out)
    lane, value, expected = np.arange(32), np.ones(32, np.int64), []
    for warp in range(16):
        value = (expected[-1][::-1] * 2 if warp else value) + lane
        expected.append(value)
    assert (backend.get(out).reshape(16, 32) == np.stack(expected)).all()


@tw.kernel
def halves(out, x, rounds: tw.constexpr):
    """Two halves of a block, with a barrier each, run loops of different length."""
    tile = tw.shared(tw.int32, 128)
    half = tw.thread_idx.x // 64
    i, mine = tw.thread_idx.x % 64, tw.named_barrier(half + 1, 64)
    total = 0
    for k in range(rounds * (half + 1)):
        tile[tw.thread_idx.x] = x[k] + i
        mine.sync()
        total += tile[half * 64 + 63 - i]
        mine.sync()
    tw.sync_threads()
    out[tw.thread_idx.x] = total + tile[127 - tw.thread_idx.x]


def test_a_barrier_for_each_half(backend: Backend) -> None:
    x, out = np.arange(10, 20, dtype=np.int32), backend.zeros(128, tw.int32)
    halves[1, 128](out, backend.put(x), 3)
    i = np.arange(64)
    sums = [sum(x[:n]) + n * (63 - i) for n in (3, 6)]
    last = [x[5] + 63 - i, x[2] + 63 - i]
    assert backend.get(out).tolist() == np.concatenate([a + b for a, b in zip(sums, last, strict=True)]).tolist()


@tw.kernel
def elected(out):
    if tw.warp_id() > 0:
        for _ in range(3):
            if tw.elect_one():
                out[tw.thread_idx.x] += 1


def test_one_thread_of_each_warp_is_elected_the_same_each_time(backend: Backend) -> None:
    out = backend.zeros(128, tw.int32)
    elected[1, 128](out)
    warps = backend.get(out).reshape(4, 32)
    assert warps.sum(axis=1).tolist() == [0, 3, 3, 3]
    assert warps.max(axis=1).tolist() == [0, 3, 3, 3]
