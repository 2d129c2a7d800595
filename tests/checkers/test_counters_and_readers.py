"""What blocks learn of each other beyond releases: by looking at a counter, by every reader, and behind proxy fences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

LOAD = tw.atoms.SM90_TMA_LOAD
READERS = 5


def kinds(launch: Callable[[], object]) -> set[str]:
    with tw.simulate(raise_errors=False) as run:
        launch()
    return {f.kind for f in run.findings}


def zeros(*shape: int, dtype: Any = np.int32) -> np.ndarray:
    return np.zeros(shape, dtype)


# --- counters ----------------------------------------------------------------------------------------------
#
# A read that observes an update is after it in PTX's causality order, whatever it is for other memory: the block that
# counts last, as in the sample threadFenceReduction of CUDA, resets the counter by an ordinary store.


@tw.kernel
def last_block(out, count, way: tw.constexpr, fences: tw.constexpr = False):
    """Let the block that counts last use the counter without atomic operations."""
    thread, is_last = tw.thread_idx.x, tw.shared(tw.int32, 1)
    if thread == 0:
        if fences:
            tw.threadfence()
        before = tw.atomic_add(count, 0, 1)
        if way == "not the last":
            is_last[0] = before == 1
        elif way == "the number of the block":
            is_last[0] = tw.block_idx.x == tw.grid_dim.x - 1
        else:
            is_last[0] = before == tw.grid_dim.x - 1
    if way != "no barrier":
        tw.sync_threads()
    if thread == (40 if way in ("another thread", "no barrier") else 0) and is_last[0] != 0:
        if way == "reads":
            out[0] = count[0]
        count[0] = 0


@tw.kernel
def last_thread(out, way: tw.constexpr):
    """Let the thread that counts last use a counter in shared memory."""
    count = tw.shared(tw.int32, 1)
    if tw.thread_idx.x == 0:
        count[0] = 0
    tw.sync_threads()
    if tw.atomic_add(count, 0, 1) == (62 if way == "the last but one" else 63):
        out[0] = count[0]
        count[0] = 0


@tw.kernel
def relaxed_flag(out, flag, data, way: tw.constexpr):
    """Let who waits for a flag lower it."""
    if tw.block_idx.x == 0:
        data[0] = 7
        if way != "no fence":
            tw.threadfence()
        tw.store(flag, 0, 1)
    else:
        if way != "no wait":
            while tw.load(flag, 0) == 0:
                pass
        tw.threadfence()
        out[0] = data[0]
        flag[0] = 0


@pytest.mark.parametrize("fences", [False, True])
@pytest.mark.parametrize("way", ["resets", "reads", "another thread"])
def test_the_block_that_counts_last_may_use_the_counter(way: str, fences: bool) -> None:
    for blocks in (1, 2, 4, 7):
        out, count = zeros(1), zeros(1)
        assert kinds(lambda: last_block[blocks, 64](out, count, way, fences)) == set()  # called at once
        assert (count[0], out[0]) == (0, blocks if way == "reads" else 0)


@pytest.mark.parametrize("fences", [False, True])
@pytest.mark.parametrize("way", ["not the last", "the number of the block", "no barrier"])
def test_other_blocks_and_other_threads_may_not(way: str, fences: bool) -> None:
    for blocks in (4, 7):
        assert "race" in kinds(lambda: last_block[blocks, 64](zeros(1), zeros(1), way, fences))


@pytest.mark.parametrize(("way", "races"), [("the last", False), ("the last but one", True)])
def test_a_counter_in_shared_memory(way: str, races: bool) -> None:
    assert ("race" in kinds(lambda: last_thread[1, 64](zeros(1), way))) == races


@pytest.mark.parametrize(("way", "found"), [("waits", set()), ("no fence", {"race"})])
def test_who_waits_for_a_flag_may_lower_it(way: str, found: set[str]) -> None:
    assert kinds(lambda: relaxed_flag[2, 1](zeros(1), zeros(1), zeros(1), way)) == found


def test_who_has_not_seen_the_flag_may_not() -> None:
    assert {"race", "overlapping-writes"} <= kinds(lambda: relaxed_flag[2, 1](zeros(1), zeros(1), zeros(1), "no wait"))


# --- readers -----------------------------------------------------------------------------------------------


@tw.kernel
def overwritten(out, x, count, way: tw.constexpr, silent: tw.constexpr):
    """Read or update what the last block overwrites when all other blocks have told it; `silent` does not tell."""
    block, thread = tw.block_idx.x, tw.thread_idx.x
    smem, full = tw.shared(tw.int32, tw.row_major((1, 32))), tw.mbarrier(1)
    tw.sync_threads()
    if block < READERS:
        if way == "load":
            out[block, thread] = x[0, thread]
        elif way == "strong load":
            out[block, thread] = tw.load(x, (0, thread))
        elif way == "update":
            tw.atomic_add(x, (0, thread), 1)
        else:
            if thread == 0:
                full.arrive_expect_tx(32 * 4)
                tw.copy(LOAD, tw.local_tile(x, (1, 32), (0, 0), guard=True), smem, barrier=full)
            full.wait(0)
            out[block, thread] = smem[0, thread]
        tw.sync_threads()
        if thread == 0 and block != silent:
            tw.atomic_add(count, 0, 1, sem="release")
    else:
        if thread == 0:
            while tw.load(count, 0, sem="acquire") < READERS - (silent >= 0):
                pass
        tw.sync_threads()
        x[0, thread] = 9


@pytest.mark.parametrize("silent", range(-1, READERS))
@pytest.mark.parametrize("way", ["load", "strong load", "update", "bulk load"])
def test_every_reader_has_to_tell_that_it_is_done(way: str, silent: int) -> None:
    launch = overwritten[READERS + 1, 32]
    found = kinds(lambda: launch(zeros(READERS, 32), zeros(1, 32), zeros(1), way, silent))
    assert ("race" in found) == (silent >= 0), found


@tw.kernel
def look(out, peers, flags, rank):
    """Read what rank 0 has, and tell it."""
    out[0] = peers[0][0]
    tw.store(flags[0], rank, 1, sem="release", scope="sys")


@tw.kernel
def change(mine, told, rank, ranks, silent):
    """Overwrite it in rank 0 when all ranks have told, but one."""
    if rank == 0:
        for other in range(1, ranks):
            if other != silent:
                while tw.load(told, other, sem="acquire", scope="sys") == 0:
                    pass
        mine[0] = 1


@pytest.mark.parametrize("silent", range(5))
def test_every_rank_that_has_read_in_an_earlier_launch_has_to_tell(silent: int) -> None:
    def main(rank: Any) -> None:
        data, flags = rank.symmetric(1, tw.int32), rank.symmetric(rank.size, tw.int32)
        look[1, 1](zeros(1), data.peers, flags.peers, rank.rank)
        change[1, 1](data.local, flags.local, rank.rank, rank.size, silent)

    with tw.simulate(ranks=5, raise_errors=False) as run:
        run.run(main)
    assert [f.kind for f in run.findings] == (["race"] if silent else []), run.findings


# --- proxy fences between blocks ---------------------------------------------------------------------------


@tw.kernel
def handed_on(out, x, flag, way: tw.constexpr):
    """Write in one block what another one loads by TMA."""
    thread = tw.thread_idx.x
    smem, full = tw.shared(tw.int32, tw.row_major((1, 64))), tw.mbarrier(1)
    tw.sync_threads()
    if tw.block_idx.x == 0:
        if way == "before the write":
            tw.fence_proxy_async("global")
        x[0, thread] = 3
        if way in ("writers", "of shared memory"):
            tw.fence_proxy_async("global" if way == "writers" else "shared")
        tw.sync_threads()
        if thread == 0:
            if way == "releasing thread":
                tw.fence_proxy_async("global")
            tw.store(flag, 0, 1, sem="release")
            if way == "behind the release":
                tw.fence_proxy_async("global")
    else:
        if thread == 0:
            while tw.load(flag, 0, sem="acquire") == 0:
                pass
            if way == "acquiring thread":
                tw.fence_proxy_async("global")
        tw.sync_threads()
        if thread == 32:
            full.arrive_expect_tx(64 * 4)
            if way == "starting thread":
                tw.fence_proxy_async("global")
            tw.copy(LOAD, tw.local_tile(x, (1, 64), (0, 0), guard=True), smem, barrier=full)
        full.wait(0)
        out[thread] = smem[0, thread]


@pytest.mark.parametrize("way", ["writers", "releasing thread", "acquiring thread", "starting thread"])
def test_a_fence_on_the_way_to_another_block(way: str) -> None:
    out = zeros(64)
    assert kinds(lambda: handed_on[2, 64](out, zeros(1, 64), zeros(1), way)) == set()
    assert (out == 3).all()


@pytest.mark.parametrize("way", ["none", "before the write", "of shared memory", "behind the release"])
def test_no_fence_on_the_way_to_another_block(way: str) -> None:
    assert kinds(lambda: handed_on[2, 64](zeros(64), zeros(1, 64), zeros(1), way)) == {"missing-fence"}


@tw.kernel
def neighbours(out, x, fences: tw.constexpr):
    """Load by TMA what the next block has written before a barrier of the grid."""
    block, thread = tw.block_idx.x, tw.thread_idx.x
    smem, full = tw.shared(tw.int32, tw.row_major((1, 32))), tw.mbarrier(1)
    tw.sync_threads()
    for turn in range(2):
        x[block, thread] = turn
        if fences:
            tw.fence_proxy_async("global")
        tw.sync_grid()
        if thread == 0:
            full.arrive_expect_tx(32 * 4)
            tile = tw.local_tile(x, (1, 32), ((block + 1) % tw.grid_dim.x, 0), guard=True)
            tw.copy(LOAD, tile, smem, barrier=full)
        full.wait(turn)
        out[block, thread] = smem[0, thread]
        tw.sync_grid()


@pytest.mark.parametrize("fences", [True, False])
def test_a_barrier_of_the_grid_needs_fences_before_it(fences: bool) -> None:
    found = kinds(lambda: neighbours[3, 32](zeros(3, 32), zeros(3, 32), fences))
    assert found == (set() if fences else {"missing-fence"})
