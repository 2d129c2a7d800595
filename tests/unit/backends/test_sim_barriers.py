"""Named barriers and mbarriers on the simulator: threads that wait for one another run as agents."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel
def ring(out, x, n: tw.constexpr, stages: tw.constexpr, consumers: tw.constexpr, first: tw.constexpr):
    """One warp hands columns of x to others through a ring of stages; `first` says whether its branch comes first."""
    tile = tw.shared(tw.int32, (32, stages))
    full = tw.mbarrier(32, stages=stages)
    empty = tw.mbarrier(consumers, stages=stages)
    tw.sync_threads()
    warp = tw.warp_id()
    if first:
        if warp == 0:
            fill(tile, full, empty, x, n, stages)
        else:
            use(tile, full, empty, out, n, stages, warp - 1)
    else:
        if warp < consumers:
            use(tile, full, empty, out, n, stages, warp)
        else:
            fill(tile, full, empty, x, n, stages)


@tw.function
def fill(tile, full, empty, x, n, stages):
    lane, block = tw.lane_id(), tw.block_idx.x
    for k in range(n):
        stage = k % stages
        empty[stage].wait((k // stages + 1) % 2)
        tile[lane, stage] = x[lane, k, block]
        full[stage].arrive()


@tw.function
def use(tile, full, empty, out, n, stages, consumer):
    lane, total = tw.lane_id(), 0
    for k in range(n):
        stage = k % stages
        full[stage].wait(k // stages % 2)
        total = total * 3 + tile[31 - lane, stage]
        tw.sync_warp()
        if tw.elect_one():
            empty[stage].arrive()
    out[lane, consumer, tw.block_idx.x] = total


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(("n", "stages", "consumers"), [(1, 1, 1), (7, 1, 2), (7, 3, 3), (6, 2, 1), (2, 4, 5)])
@pytest.mark.spread(3)
def test_ring(n: int, stages: int, consumers: int, first: bool) -> None:
    x = np.random.default_rng(n).integers(0, 9, (32, n, 3)).astype(np.int32)
    out = np.full((32, consumers, 3), -1, np.int32)
    ring[3, 32 * (consumers + 1)](out, x, n, stages, consumers, first)
    expected = np.zeros((32, 3), np.int32)
    for k in range(n):
        expected = expected * 3 + x[::-1, k]
    assert (out == expected[:, None]).all()


@tw.kernel
def take_turns(log, turns: tw.constexpr, warps: tw.constexpr):
    """Warps run the same code, one after another: each waits for the one before, round and round."""
    token = tw.mbarrier(1, stages=warps)
    position = tw.shared(tw.int32, 1)
    if tw.thread_idx.x == 0:
        position[0] = 0
    tw.sync_threads()
    warp = tw.warp_id()
    if warp == warps - 1 and tw.elect_one():
        token[0].arrive()
    for turn in range(turns):
        token[warp].wait(turn % 2)
        if tw.elect_one():
            log[position[0]] = 100 * warp + turn
            position[0] += 1
            token[(warp + 1) % warps].arrive()


@pytest.mark.parametrize("warps", [2, 3, 5])
def test_warps_of_one_branch_take_turns(warps: int) -> None:
    log = np.full(4 * warps, -1, np.int32)
    take_turns[1, 32 * warps](log, 4, warps)
    assert log.tolist() == [100 * warp + turn for turn in range(4) for warp in range(warps)]


@tw.kernel
def chain(out):
    """Each warp waits at a barrier whose number depends on the warp."""
    warp = tw.warp_id()
    if warp > 0:
        tw.named_barrier(warp, 64).sync()
        if tw.elect_one():
            out[warp] = out[warp - 1] + warp
    if warp < 3:
        tw.named_barrier(warp + 1, 64).arrive()


def test_numbers_that_depend_on_the_warp() -> None:
    out = np.full(4, 10, np.int32)
    chain[1, 128](out)
    assert out.tolist() == [10, 11, 13, 16]


@tw.kernel
def halves(out, x, rounds: tw.constexpr):
    """Two halves of a block, with a barrier each, run loops of different length."""
    tile = tw.shared(tw.int32, 128)
    half = tw.thread_idx.x // 64
    i, mine = tw.thread_idx.x % 64, tw.named_barrier(1 + tw.thread_idx.x // 64, 64)
    for k in range(rounds * (half + 1)):
        tile[tw.thread_idx.x] = x[k] + i
        mine.sync()
        out[tw.thread_idx.x] += tile[half * 64 + 63 - i]
        mine.sync()
    tw.sync_threads()
    out[tw.thread_idx.x] += tile[127 - tw.thread_idx.x]


def test_loops_of_different_length_and_a_barrier_of_the_block_behind() -> None:
    x, out = np.arange(10, 20, dtype=np.int32), np.zeros(128, np.int32)
    halves[1, 128](out, x, 3)
    i = np.arange(64)
    sums = [sum(x[:n]) + n * (63 - i) for n in (3, 6)]
    last = [x[5] + 63 - i, x[2] + 63 - i]
    assert out.tolist() == np.concatenate([a + b for a, b in zip(sums, last, strict=True)]).tolist()


@tw.kernel
def lanes(out, counts):
    """Lanes of one warp wait as often as they like: single threads count as well as warps."""
    gate = tw.mbarrier(32)
    tw.sync_threads()
    lane = tw.lane_id()
    if tw.warp_id() == 0:
        for k in range(counts[lane]):
            out[lane] += 1
        gate.arrive()
    elif lane < 7:
        gate.wait(0)
        out[32 + lane] = out[31 - lane]
    tw.sync_warp()
    out[64 + tw.thread_idx.x] = tw.shuffle(tw.thread_idx.x, 5)


def test_single_threads_wait_and_their_warp_meets_again() -> None:
    counts = np.arange(32, dtype=np.int32) * 7 % 11
    out = np.zeros(128, np.int32)
    lanes[1, 64](out, counts)
    assert out[:32].tolist() == counts.tolist()
    assert out[32:39].tolist() == counts[:-8:-1].tolist()
    assert out[64:].tolist() == [5] * 32 + [37] * 32


@tw.kernel
def by_block(out, work):
    """Blocks differ in who arrives and how often."""
    done = tw.mbarrier(1)
    tw.sync_threads()
    block = tw.block_idx.x
    if tw.warp_id() == 0:
        for k in range(work[block]):
            if tw.elect_one():
                done.arrive()
            done.wait(k % 2)
        if tw.elect_one():
            done.arrive()
    else:
        done.wait(work[block] % 2)
        out[block, tw.lane_id()] = work[block]


def test_blocks_differ() -> None:
    # The consumer's parity tells phases two apart from each other, so the producer goes on for 0 and 1 rounds only.
    work = np.array([0, 1, 1, 0, 0, 1], np.int32)
    out = np.full((6, 32), -1, np.int32)
    by_block[6, 64](out, work)
    assert (out == work[:, None]).all()


@tw.kernel
def polled(out, bound: tw.constexpr):
    ready = tw.mbarrier(32)
    tw.sync_threads()
    if tw.warp_id() == 0:
        tries = 0
        for k in range(bound):
            if ready.test(0):
                break
            tries += 1
        out[tw.lane_id()] = tries
    else:
        out[32 + tw.lane_id()] = 1
        ready.arrive()


def test_tests_do_not_keep_others_from_running() -> None:
    out = np.full(64, -1, np.int32)
    polled[1, 64](out, 1000)
    assert (out[32:] == 1).all()
    assert len(set(out[:32].tolist())) == 1
    assert 0 <= out[0] < 10


@tw.kernel
def copied(out, x, wait: tw.constexpr, arrive: tw.constexpr):
    """A warp reads what another's asynchronous copies bring."""
    tile = tw.shared(tw.float32, 128)
    there = tw.mbarrier(32)
    tile[tw.thread_idx.x] = -1.0
    tile[tw.thread_idx.x + 64] = -1.0
    tw.sync_threads()
    lane = tw.lane_id()
    if tw.warp_id() == 0:
        mine = tw.local_partition(tile, tw.Layout(32), lane)
        tw.copy(tw.local_partition(x, tw.Layout(32), lane), mine)
        if arrive:
            there.cp_async_arrive()
        else:
            there.arrive()
    else:
        if wait:
            there.wait(0)
        out[lane] = tile[127 - lane]


def test_copies_land_for_those_who_wait_for_their_arrival() -> None:
    x, out = np.arange(128, dtype=np.float32), np.zeros(32, np.float32)
    copied[1, 64](out, tw.static(x), True, True)
    assert out.tolist() == x[127:95:-1].tolist()


@pytest.mark.parametrize(("wait", "arrive"), [(False, True), (True, False)])
def test_copies_do_not_land_without_the_wait_or_the_arrival(wait: bool, arrive: bool) -> None:
    x, out = np.arange(128, dtype=np.float32), np.zeros(32, np.float32)
    with tw.simulate(check=False):
        copied[1, 64](out, tw.static(x), wait, arrive)
    assert (out == -1).all()


@tw.kernel
def many_arrivals(out):
    total = tw.mbarrier(100)
    tw.sync_threads()
    if tw.warp_id() == 0:
        if tw.lane_id() < 2:
            total.arrive(50)
    else:
        total.wait(0)
        out[tw.lane_id()] = 1


def test_a_thread_arrives_many_times_at_once() -> None:
    out = np.zeros(32, np.int32)
    many_arrivals[1, 64](out)
    assert out.all()


@tw.kernel
def own_registers(out, x):
    """Warps that are in different turns of a loop keep registers of their own."""
    go = tw.mbarrier(1)
    tw.sync_threads()
    warp = tw.warp_id()
    for k in range(2):
        held = tw.registers(tw.int32, 4)
        for j in tw.range(4, unroll=True):
            held[j] = x[j] + 10 * k + 100 * warp
        if warp == 0 and k == 1:
            if tw.elect_one():
                go.arrive()
        elif warp == 1 and k == 0:
            go.wait(0)
        for j in tw.range(4, unroll=True):
            out[j, k, tw.thread_idx.x] = held[j]


def test_registers_of_threads_in_different_turns() -> None:
    x, out = np.arange(4, dtype=np.int32), np.zeros((4, 2, 64), np.int32)
    own_registers[1, 64](out, x)
    warp = np.arange(64) // 32
    assert (out == x[:, None, None] + 10 * np.arange(2)[None, :, None] + 100 * warp).all()


@tw.kernel
def elected(out, above: tw.constexpr):
    if tw.warp_id() >= above:
        if tw.elect_one():
            out[tw.warp_id()] += 1


@pytest.mark.parametrize("threads", [32, 96, 80])
def test_one_thread_of_each_warp_is_elected(threads: int) -> None:
    out = np.zeros((threads + 31) // 32, np.int32)
    elected[1, threads](out, 0)
    assert out.tolist() == [1] * len(out)
    elected[1, threads](out, 1)
    assert out.tolist() == [1] + [2] * (len(out) - 1)


@tw.kernel
def carried(out, n):
    """The barrier of a stage is kept in variables that loops and branches carry."""
    token = tw.mbarrier(32, stages=3)
    tw.sync_threads()
    mine, other = token[0], token[1]
    for k in range(n):
        if tw.warp_id() == k % 2:
            mine.arrive()
        else:
            mine.wait(k // 3 % 2)
            out[tw.lane_id(), k] = tw.warp_id()
        if k % 3 == 2:
            mine = token[0]
        else:
            mine = other
        other = token[(k + 2) % 3]


def test_barriers_in_variables() -> None:
    out = np.full((32, 8), -1, np.int32)
    carried[1, 64](out, 8)
    assert (out == np.arange(1, 9) % 2).all()


@pytest.mark.parametrize(("schedules", "is_found"), [(0, False), (10, True)])
def test_groups_that_share_a_named_barrier_by_chance_are_found_in_other_orders(schedules: int, is_found: bool) -> None:
    """The second group waits for the first phase of the other one, but not for its second: both may mix there."""

    @tw.kernel
    def kernel(out):
        tile, group, i = tw.shared(tw.int32, (2, 64)), tw.warp_id() // 2, tw.thread_idx.x % 64
        told, meet = tw.mbarrier(2), tw.named_barrier(1, 64)
        tw.sync_threads()
        if group == 0:
            meet.sync()
            if tw.lane_id() == 0:
                told.arrive()
            meet.sync()
        else:
            told.wait(0)
            tile[1, i] = i
            meet.sync()
            out[i] = tile[1, 63 - i]

    with tw.simulate(raise_errors=False, schedules=schedules) as run:
        kernel[1, 128](np.zeros(64, np.int32))
    assert bool(run.findings) is is_found
