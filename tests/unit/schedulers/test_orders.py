"""Schedulers: every tile once, the same order in a kernel as on the host, and near tiles by numbers that follow each other."""

from __future__ import annotations

import random
from collections import Counter as Multiset
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from tests.unit.test_hopper_examples import findings, without

import tilewright as tw
from tilewright.backends import sim
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.mbarrier import MbarrierArrive, MbarrierWait
from tilewright.schedulers import Counter, Grouped, Groups, Hilbert, Linear, Scheduler, StreamK

NUMBERINGS: tuple[Scheduler, ...] = (Linear(), Grouped(1), Grouped(3), Grouped(8), Hilbert())


@pytest.mark.parametrize("scheduler", [*NUMBERINGS, Counter(Hilbert())], ids=repr)
def test_every_tile_once(scheduler: Scheduler) -> None:
    shuffled = random.Random(0)
    for _ in range(40):
        m, n, blocks = (shuffled.randint(1, 23) for _ in range(3))
        order = scheduler.order(m, n, blocks)
        assert len(order) == blocks
        assert sorted(tile for each in order for tile in each) == [
            (row, column) for row in range(m) for column in range(n)
        ]
        assert max(map(len, order)) - min(map(len, order)) <= 1


@pytest.mark.parametrize("scheduler", [StreamK(), StreamK(Grouped(2)), StreamK(whole_waves=False)], ids=repr)
def test_every_tile_of_k_once(scheduler: StreamK) -> None:
    shuffled = random.Random(1)
    for _ in range(60):
        m, n, blocks, k_tiles = (shuffled.randint(1, top) for top in (7, 7, 23, 9))
        order = scheduler.order(m, n, blocks, k_tiles)
        found = [(row, column, k) for each in order for row, column, ks in each for k in ks]
        assert sorted(found) == [(row, column, k) for row in range(m) for column in range(n) for k in range(k_tiles)]
        shares = [sum(len(ks) for _, _, ks in each) for each in order]
        assert max(shares) - min(shares) <= (k_tiles if scheduler.whole_waves and m * n >= blocks else 1)
        # What others wait for comes first, and what waits for others waits for blocks before it.
        owner = {(row, column): b for b, each in enumerate(order) for row, column, ks in each if k_tiles - 1 in ks}
        for block, each in enumerate(order):
            handed = [n for n, (row, column, ks) in enumerate(each) if owner[row, column] != block]
            assert handed in ([], [0])
            assert all(owner[row, column] >= block for row, column, _ in each)
            assert all(ks for _, _, ks in each)
            tiles = scheduler(m, n, k_tiles, block=block, blocks=blocks)
            begun = [part.number * k_tiles for part in tiles if part.first == 0 and part.number < tiles.shared]
            assert [tiles.block_at(place) for place in begun] == [block] * len(begun)


def test_tiles_of_whole_waves_are_not_shared() -> None:
    """Blocks share the last, uneven wave and one more: from 1 up to 2 tiles each. Where waves are even none is shared."""
    order = StreamK().order(10, 10, 30, 8)
    assert all(len(ks) == 8 for each in order for _, _, ks in each[-2:])
    assert {sum(len(ks) for _, _, ks in each) for each in order} == {26, 27}
    assert all(len(ks) == 8 for each in StreamK().order(6, 10, 30, 8) for _, _, ks in each)


def neighbours(scheduler: Scheduler, n: int, blocks: int = 132) -> list[int]:
    """Return how many rows and columns each `blocks` consecutive tiles of n x n lie in."""
    (order,) = scheduler.order(n, n, 1)
    windows = [order[first : first + blocks] for first in range(len(order) - blocks + 1)]
    return [len({row for row, _ in each}) + len({column for _, column in each}) for each in windows]


@pytest.mark.parametrize("n", [16, 24, 32, 40])
def test_a_hilbert_curve_keeps_tiles_together(n: int) -> None:
    hilbert, grouped, linear = (neighbours(each, n) for each in (Hilbert(), Grouped(8), Linear()))
    assert max(hilbert) <= max(grouped)
    if n > 16:  # 132 tiles are 8 whole rows there
        assert np.mean(hilbert) <= min(np.mean(grouped), np.mean(linear))


def test_a_hilbert_curve_goes_to_the_tile_beside() -> None:
    for m, n in ((4, 4), (16, 8), (12, 20), (2, 30), (1, 7), (6, 1)):
        (order,) = Hilbert().order(m, n, 1)
        assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in pairwise(order))
    for m, n in ((5, 4), (7, 13), (17, 9)):  # where an extent is odd, a step may be diagonal
        (order,) = Hilbert().order(m, n, 1)
        assert all(max(abs(a[0] - b[0]), abs(a[1] - b[1])) == 1 for a, b in pairwise(order))


@dataclass(frozen=True)
class Diagonals(Scheduler):
    """A user's own: diagonal by diagonal."""

    @tw.function
    def place(self, number: Any, m_tiles: Any, n_tiles: Any) -> tuple[Any, Any]:
        row = number % m_tiles
        return row, (number // m_tiles + row) % n_tiles


@tw.kernel
def list_tiles(places, m_tiles, n_tiles, scheduler: tw.constexpr):
    count = 0
    for row, column in scheduler(m_tiles, n_tiles):
        places[tw.block_idx.x, count, 0] = row
        places[tw.block_idx.x, count, 1] = column
        count += 1


@tw.kernel
def list_parts(places, m_tiles, n_tiles, k_tiles, scheduler: tw.constexpr):
    count = 0
    for part in scheduler(m_tiles, n_tiles, k_tiles):
        for number, value in enumerate((part.row, part.column, part.first, part.last)):
            places[tw.block_idx.x, count, number] = value
        count += 1


def listed(places: np.ndarray) -> list[list[tuple[int, ...]]]:
    return [[tuple(map(int, item)) for item in block if item[0] >= 0] for block in places]


@pytest.mark.parametrize("scheduler", [*NUMBERINGS[2:], Linear(), Diagonals()], ids=repr)
@pytest.mark.spread(2)
def test_a_kernel_goes_through_the_order(scheduler: Scheduler) -> None:
    for m, n, blocks in ((5, 7, 4), (1, 3, 5), (16, 16, 3)):
        places = np.full((blocks, 100, 2), -1, np.int32)
        list_tiles[blocks, 1](places, m, n, scheduler)
        assert listed(places) == scheduler.order(m, n, blocks)


@pytest.mark.parametrize("whole_waves", [True, False])
def test_a_kernel_goes_through_the_parts(whole_waves: bool) -> None:
    scheduler = StreamK(Grouped(2), whole_waves)
    for m, n, blocks, k_tiles in ((5, 7, 4, 3), (1, 2, 7, 9), (2, 2, 9, 2), (3, 4, 6, 2)):
        places = np.full((blocks, 40, 4), -1, np.int32)
        list_parts[blocks, 1](places, m, n, k_tiles, scheduler)
        order = scheduler.order(m, n, blocks, k_tiles)
        assert listed(places) == [[(row, column, ks.start, ks.stop) for row, column, ks in each] for each in order]


# --- by a counter ----------------------------------------------------------------------------------------


@tw.kernel
def count_by_block(times, counter, scheduler: tw.constexpr):
    for row, column in scheduler(times.shape[0], times.shape[1], counter):
        if tw.thread_idx.x == 0:
            times[row, column] += 1


@tw.kernel
def count_by_roles(times, counter, scheduler: tw.constexpr):
    tiles = scheduler(times.shape[1], times.shape[2], counter, consumers=2)
    tw.sync_threads()
    if tw.warp_id() == 0:
        if tw.thread_idx.x == 0:
            for row, column in tiles.producer():
                times[0, row, column] += 1
    else:
        for row, column in tiles.consumer():
            if tw.lane_id() == 0:
                times[tw.warp_id(), row, column] += 1


@pytest.mark.parametrize("scheduler", [Counter(), Counter(Hilbert()), Grouped(2)], ids=repr)
def test_by_a_counter_all_threads_see_the_same_tiles(scheduler: Scheduler) -> None:
    """Every tile once, by any number of blocks, and the counter is 0 again; a kernel takes other schedulers as well."""
    counter = np.zeros(1, np.int32)
    for m, n, blocks in ((5, 7, 4), (1, 3, 5), (2, 2, 1)):
        times = np.zeros((m, n), np.int32)
        count_by_block[blocks, 64](times, counter, scheduler)
        assert np.all(times == 1) and counter[0] == 0
        times = np.zeros((3, m, n), np.int32)
        count_by_roles[blocks, 96](times, counter, scheduler)
        assert np.all(times == 1) and counter[0] == 0


@pytest.mark.parametrize(("kernel", "count"), [(count_by_block, 2), (count_by_roles, 11)], ids=["block", "roles"])
def test_each_synchronisation_of_the_counter_is_needed(
    kernel: tw.Kernel, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the first wait for an empty slot, which passes at once."""
    launches: list[Any] = []
    times = np.zeros((7, 5) if kernel is count_by_block else (3, 7, 5), np.int32)
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        kernel[2, 96](times, np.zeros(1, np.int32), Counter())
    ((launched, more),) = launches
    assert findings(launched, more) == []
    blocks = [launched[0].body, *(b for op in launched[0].body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, (Barrier, MbarrierArrive, MbarrierWait))]
    assert len(places) == count
    spared = []
    for block, op in places:
        with without(block, op):
            spared += [] if findings(launched, more) else [op]
    waits = [op for _, op in places if isinstance(op, MbarrierWait) and op.buffer.name == "read"]
    assert spared == waits[:1]


@cache
def refused(case: str) -> str:
    @tw.kernel
    def without_counter(x):
        for _ in Counter()(1, 1):
            x[0] = 1

    @tw.kernel
    def without_role(x):
        for _ in Counter()(1, 1, x, consumers=1):
            x[0] = 1

    @tw.kernel
    def without_consumers(x):
        for _ in Counter()(1, 1, x).producer():
            x[0] = 1

    @tw.kernel
    def without_flags(x):
        acc, barrier = tw.registers(tw.float32, 4), tw.named_barrier(1, 32)
        tiles = StreamK()(1, 1, 1)
        for part in tiles:
            tiles.fix_up(part, acc, x, x, 0, tw.lane_id(), barrier)

    with pytest.raises(tw.LanguageError) as error:
        locals()[case][1, 32](np.zeros(1, np.int32))
    return str(error.value)


def test_refusals() -> None:
    assert "takes an array to count in" in refused("without_counter")
    assert "tiles.producer() in one thread" in refused("without_role")
    assert "consumers=" in refused("without_consumers")
    assert "partials of float32 with one mode, got x, global int32" in refused("without_flags")
    for wrong in (lambda: Grouped(0), lambda: Linear().order(0, 1, 1), lambda: StreamK().order(1, 1, 1, 0),
                  lambda: Linear()(1, 1, block=0)):  # fmt: skip
        with pytest.raises(tw.ArgumentError):
            wrong()
    assert Multiset(map(len, Linear().order(1, 1, 3))) == {1: 1, 0: 2}


def test_tiles_of_groups_once() -> None:
    shuffled = random.Random(2)
    for _ in range(60):
        tiles = [(shuffled.randint(0, 5), shuffled.randint(0, 4)) for _ in range(shuffled.randint(0, 6))]
        blocks = shuffled.randint(1, 9)
        order = Groups(Hilbert() if blocks % 2 else Linear()).order(tiles, blocks)
        found = [tile for each in order for tile in each]
        assert sorted(found) == [(g, r, c) for g, (m, n) in enumerate(tiles) for r in range(m) for c in range(n)]
        assert all([g for g, _, _ in each] == sorted(g for g, _, _ in each) for each in order)
        assert max(map(len, order)) - min(map(len, order)) <= 1


def test_a_kernel_takes_the_tiles_of_groups_that_the_host_lists() -> None:
    @tw.kernel
    def visit(visits, sizes, scheduler: tw.constexpr):
        def extents(g):
            return sizes[g, 0], sizes[g, 1]

        step = tw.int32(1)
        for group, row, column in scheduler(sizes.shape[0], extents):
            if tw.thread_idx.x == 0:
                visits[group, row, column] = tw.block_idx.x * 100 + step
            step += 1

    tiles = [(2, 3), (0, 4), (1, 1), (3, 2), (0, 0)]
    visits = np.zeros((5, 3, 3), np.int32)
    visit[4, 32](visits, np.array(tiles, np.int32), Groups())
    expected = np.zeros_like(visits)
    for block, each in enumerate(Groups().order(tiles, 4)):
        for step, place in enumerate(each, 1):
            expected[place] = block * 100 + step
    assert np.array_equal(visits, expected)
