"""Races of threads that meet at named barriers and mbarriers: each part of a handshake left out is found."""

from __future__ import annotations

import numpy as np
import pytest
from tests.checkers.programs import RACES

import tilewright as tw

# Who runs ahead of a handshake may leave others to wait for a phase that is long over, before anything races.
ERRORS = {*RACES, "deadlock"}


def kinds(kernel: tw.Kernel, grid: int, block: int, *arguments: object) -> set[str]:
    static = [tw.static(a) if isinstance(a, np.ndarray) else a for a in arguments]
    with tw.simulate(raise_errors=False) as run:
        kernel[grid, block](*static)
    return {f.kind for f in run.findings if f.kind in ERRORS}


@tw.kernel
def by_number(out, x, full: tw.constexpr, empty: tw.constexpr):
    """The first warp hands the second one columns through one tile, by two named barriers."""
    tile = tw.shared(tw.int32, 32)
    filled, emptied = tw.named_barrier(1, 64), tw.named_barrier(2, 64)
    lane = tw.lane_id()
    if tw.warp_id() == 0:
        for k in range(3):
            tile[lane] = x[lane, k]
            if full:
                filled.arrive()
            if empty:
                emptied.sync()
    else:
        for k in range(3):
            if full:
                filled.sync()
            out[lane, k] = tile[31 - lane]
            if empty:
                emptied.arrive()


@pytest.mark.parametrize(
    ("full", "empty", "found"), [(True, True, False), (False, True, True), (True, False, True), (False, False, True)]
)
def test_named_barriers(full: bool, empty: bool, found: bool) -> None:
    x = np.arange(96, dtype=np.int32).reshape(32, 3)
    assert bool(kinds(by_number, 1, 64, np.zeros_like(x), x, full, empty)) == found


@tw.kernel
def ring(out, x, copies: tw.constexpr, missing: tw.constexpr):
    """The last warp hands tiles to two others through two stages; `missing` is what is left out."""
    tile = tw.shared(tw.int32, (32, 2))
    full, empty = tw.mbarrier(32, stages=2), tw.mbarrier(16 if missing == "half the lanes" else 2, stages=2)
    tw.sync_threads()
    lane, warp = tw.lane_id(), tw.warp_id()
    if warp == 2:
        for k in range(5):
            stage = k % 2
            if missing != "wait for empty":
                empty[stage].wait((k // 2 + 1) % 2)
            if copies:
                one = tw.Layout(32)
                tw.copy(tw.local_partition(x[:, k], one, lane), tw.local_partition(tile[:, stage], one, lane))
                if missing == "copies":
                    full[stage].arrive()
                else:
                    full[stage].cp_async_arrive()
            else:
                tile[lane, stage] = x[lane, k]
                full[stage].arrive()
    else:
        for k in range(5):
            stage = k % 2
            if missing != "wait for full":
                full[stage].wait(k // 2 % 2)
            out[lane, warp, k] = tile[31 - lane, stage]
            if missing != "sync_warp":
                tw.sync_warp()
            if missing == "half the lanes":
                if lane < 8:
                    empty[stage].arrive()
            elif tw.elect_one():
                empty[stage].arrive()


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    ("missing", "found"),
    [("nothing", False), ("half the lanes", False), ("wait for empty", True), ("wait for full", True), ("sync_warp", True)],
)  # fmt: skip
@pytest.mark.spread(3)
def test_ring(missing: str, found: bool, copies: bool) -> None:
    x = np.arange(160, dtype=np.int32).reshape(32, 5)
    assert bool(kinds(ring, 1, 96, np.zeros((32, 2, 5), np.int32), x, copies, missing)) == found


def test_an_arrival_that_does_not_follow_the_copies() -> None:
    x = np.arange(160, dtype=np.int32).reshape(32, 5)
    assert "missing-wait" in kinds(ring, 1, 96, np.zeros((32, 2, 5), np.int32), x, True, "copies")


@tw.kernel
def own_copy(out, x, waits: tw.constexpr):
    """Threads let their copies arrive; one warp waits, and the other only if it `waits`."""
    tile = tw.shared(tw.int32, 64)
    full = tw.mbarrier(64)
    tw.sync_threads()
    i = tw.thread_idx.x
    tw.copy(tw.local_tile(x, (1,), (i,)), tw.local_tile(tile, (1,), (i,)))
    full.cp_async_arrive()
    if tw.warp_id() == 0:
        full.wait(0)
        out[i] = tile[63 - i]
    else:
        if waits:
            full.wait(0)
        out[i] = tile[i]


@pytest.mark.parametrize("waits", [False, True])
def test_a_copy_of_ones_own_is_there_after_a_wait_only(waits: bool) -> None:
    assert bool(kinds(own_copy, 1, 64, np.zeros(64, np.int32), np.ones(64, np.int32), waits)) == (not waits)


@tw.kernel
def without_sync(out):
    """An mbarrier is initialised by one thread, and used by all."""
    barrier = tw.mbarrier(64)
    barrier.arrive()
    barrier.wait(0)
    out[tw.thread_idx.x] = 1


def test_the_initialisation_has_to_be_seen() -> None:
    assert kinds(without_sync, 1, 64, np.zeros(64, np.int32)) == {"race"}


def test_blocks_that_do_not_go_in_step() -> None:
    """The number of rounds differs by block, and so do phases."""

    @tw.kernel
    def uneven(out, rounds):
        tile = tw.shared(tw.int32, 32)
        full, empty = tw.mbarrier(32), tw.mbarrier(32)
        tw.sync_threads()
        lane, n = tw.lane_id(), rounds[tw.block_idx.x]
        if tw.warp_id() == 0:
            for k in range(n):
                empty.wait((k + 1) % 2)
                tile[lane] = k
                full.arrive()
        else:
            for k in range(n):
                full.wait(k % 2)
                if tile[31 - lane] == k:
                    out[lane, tw.block_idx.x] = k
                empty.arrive()

    rounds = np.array([1, 4, 2], np.int32)
    assert kinds(uneven, 3, 64, np.zeros((32, 3), np.int32), rounds) == set()
