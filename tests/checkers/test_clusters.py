"""Clusters under the checkers: each synchronisation is missed where it was needed, and nothing is found where none is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.test_hopper_examples import findings, without

import tilewright as tw
from tilewright.backends import sim
from tilewright.backends.sim import machine
from tilewright.instructions.barrier import Barrier
from tilewright.instructions.cluster import ClusterArrive, ClusterWait
from tilewright.instructions.mbarrier import MbarrierArrive, MbarrierExpect, MbarrierWait

LOAD, MULTICAST = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_LOAD_MULTICAST
THREADS = 32


@tw.kernel(cluster=2)
def read_other(out, x):
    """Read what the other block has written: both have to be there before and after."""
    mine, i = tw.shared(tw.int32, THREADS), tw.thread_idx.x
    mine[i] = x[THREADS * tw.block_idx.x + i]
    tw.cluster_sync()
    out[THREADS * tw.block_idx.x + i] = mine.at_rank(1 - tw.block_rank_in_cluster())[i]
    tw.cluster_sync()


@tw.kernel(cluster=2)
def write_other(out, x):
    """Write to the other block and arrive at its mbarrier: that it waits is enough to leave."""
    mine, full, i = tw.shared(tw.int32, THREADS), tw.mbarrier(THREADS), tw.thread_idx.x
    tw.cluster_sync()
    other = 1 - tw.block_rank_in_cluster()
    mine.at_rank(other)[i] = x[THREADS * tw.block_idx.x + i]
    full.at_rank(other).arrive()
    full.wait(0)
    out[THREADS * tw.block_idx.x + i] = mine[i]


@tw.kernel(cluster=2)
def exchange_halves(out, x):
    """Bring half of a tile to both blocks, twice to the same place."""
    tile = tw.shared(tw.int32, tw.row_major((2, THREADS)))
    full, empty = tw.mbarrier(1), tw.mbarrier(2)
    tw.cluster_sync()
    rank, i = tw.block_rank_in_cluster(), tw.thread_idx.x
    for turn in range(2):
        if i == 0:
            empty.wait(turn ^ 1)
            full.arrive_expect_tx(2 * THREADS * 4)
            row = tw.local_tile(tw.guarded(x), (1, THREADS), (2 * turn + rank, 0))
            tw.copy(MULTICAST, row, tw.local_tile(tile, (1, THREADS), (rank, 0)), barrier=full, mask=0b11)
        full.wait(turn)
        for r in range(2):
            out[4 * tw.block_idx.x + 2 * turn + r, i] = tile[r, i]
        tw.sync_warp()
        if i < 2:
            empty.at_rank(i).arrive()
    tw.cluster_sync()


@tw.kernel(cluster=2)
def ring(out, x, relaxed: tw.constexpr = None):
    """Let a warp of each block bring rows to both, and another one read them, in a ring."""
    rows, i = tw.shared(tw.int32, tw.row_major((4, THREADS))), tw.thread_idx.x
    pipe = tw.pipeline(2, consumers=1, bytes=2 * THREADS * 4, blocks=2)
    tw.cluster_sync()
    rank = tw.block_rank_in_cluster()
    if tw.warp_id() == 0:
        if i == 0:
            state = pipe.producer()
            for k in range(4):
                with state.fill() as (stage, full):
                    row = tw.local_tile(tw.guarded(x), (1, THREADS), (2 * k + rank, 0))
                    mine = tw.local_tile(rows, (1, THREADS), (2 * stage + rank, 0))
                    tw.copy(MULTICAST, row, mine, barrier=full, mask=0b11)
    else:
        state = pipe.consumer(relaxed=relaxed)
        for k in range(4):
            with state.read() as stage:
                for r in range(2):
                    out[tw.block_idx.x, 2 * k + r, i - 32] = rows[2 * stage + r, i - 32]
    tw.cluster_sync()


def rows(n: int) -> np.ndarray:
    return np.arange(n * THREADS, dtype=np.int32).reshape(n, THREADS)


def swapped(kernel: tw.Kernel) -> None:
    x, out = rows(4).ravel(), np.zeros(4 * THREADS, np.int32)
    kernel[4, THREADS](out, x)
    assert (out.reshape(2, 2, THREADS)[:, ::-1].ravel() == x).all() or out.sum() == 0


def in_a_ring() -> None:
    x, out = rows(8), np.zeros((4, 8, THREADS), np.int32)
    ring[4, 2 * THREADS](out, x)
    assert (out == x).all() or out.sum() == 0


def halves() -> None:
    x, out = rows(4), np.zeros((16, THREADS), np.int32)
    exchange_halves[4, THREADS](out, x)
    assert (out.reshape(4, 4, THREADS) == x).all() or out.sum() == 0


RUNS: dict[str, tuple[Callable[[], None], int]] = {
    "read_other": (lambda: swapped(read_other), 4),
    "write_other": (lambda: swapped(write_other), 4),
    "exchange_halves": (halves, 9),
    "ring": (in_a_ring, 9),
}
SYNCHRONISATIONS = (Barrier, ClusterArrive, ClusterWait, MbarrierArrive, MbarrierExpect, MbarrierWait)


@pytest.mark.parametrize("name", RUNS)
def test_each_synchronisation_is_needed_and_missed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, count = RUNS[name]
    run()
    launches: list[tuple[tuple[Any, ...], Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr(sim, "execute", lambda *given, **more: launches.append((given, more)))
        run()
    ((launched, more),) = launches
    assert findings(launched, more) == []
    kernel = launched[0]
    blocks = [kernel.body, *(b for op in kernel.body.walk() for b in op.blocks)]
    places = [(b, op) for b in blocks for op in b.ops if isinstance(op, SYNCHRONISATIONS)]
    assert len(places) == count
    for block, op in places:
        with without(block, op):
            assert findings(launched, more), (type(op).__name__, op.location)


def kinds(kernel: tw.Kernel, *args: Any, grid: Any = 2, block: int = THREADS) -> set[str]:
    with tw.simulate(raise_errors=False) as run:
        kernel[grid, block](*args)
    return {finding.kind for finding in run.findings}


def message(kernel: tw.Kernel, *args: Any, grid: Any = 2) -> str:
    with pytest.raises(tw.CheckError) as caught:
        kernel[grid, THREADS](*args)
    return str(caught.value)


def test_a_ring_whose_threads_read_is_not_handed_back_relaxed() -> None:
    """Reads by wgmma are waited for; those of threads have to be told of."""
    for relaxed, found in ((None, set()), (False, set()), (True, {"race"})):
        out = np.zeros((4, 8, THREADS), np.int32)
        assert kinds(ring, out, rows(8), relaxed, grid=4, block=2 * THREADS) == found, relaxed


def test_a_relaxed_arrival_hands_nothing_on_that_the_thread_did() -> None:
    def make(relaxed: bool) -> tw.Kernel:
        @tw.kernel(cluster=2)
        def tell(out, x):
            mine, full, i = tw.shared(tw.int32, THREADS), tw.mbarrier(THREADS), tw.thread_idx.x
            tw.cluster_sync()
            mine.at_rank(1 - tw.block_rank_in_cluster())[i] = x[i]
            full.at_rank(1 - tw.block_rank_in_cluster()).arrive(relaxed=relaxed)
            full.wait(0)
            out[tw.block_idx.x, i] = mine[i]
            tw.cluster_sync()

        return tell

    given = np.zeros((2, THREADS), np.int32), rows(1)[0]
    assert kinds(make(False), *given) == set()
    assert kinds(make(True), *given) == {"race"}


def test_memory_of_blocks_is_told_apart() -> None:
    """Each block of a cluster writes the same places of its own memory: no race, with and without meeting."""

    @tw.kernel(cluster=(2, 2))
    def own(out):
        mine, i = tw.shared(tw.int32, THREADS), tw.thread_idx.x
        mine[i] = tw.block_rank_in_cluster()
        tw.sync_warp()
        out[tw.block_idx.x, tw.block_idx.y, i] = mine[THREADS - 1 - i]

    out = np.full((4, 4, THREADS), -1, np.int32)
    assert kinds(own, out, grid=(4, 4)) == set()
    x, y = np.indices((4, 4))
    assert (out == (x % 2 + 2 * (y % 2))[..., None]).all()


@pytest.mark.parametrize("meets", [True, False])
def test_a_barrier_of_the_block_orders_no_other_block(meets: bool) -> None:
    @tw.kernel(cluster=2)
    def read(out, x):
        mine, i = tw.shared(tw.int32, 64), tw.thread_idx.x
        tw.cluster_sync()
        mine[i] = x[i]
        if meets:
            tw.cluster_sync()
        else:
            tw.sync_threads()
        out[tw.block_idx.x, i] = mine.at_rank(1 - tw.block_rank_in_cluster())[63 - i]
        tw.cluster_sync()

    given = np.zeros((2, 64), np.int32), np.arange(64, dtype=np.int32)
    assert kinds(read, *given, block=64) == (set() if meets else {"race"})


def test_bytes_that_a_block_does_not_expect() -> None:
    @tw.kernel(cluster=2)
    def half(out, x):
        tile, full = tw.shared(tw.int32, tw.row_major((2, THREADS))), tw.mbarrier(1)
        tw.cluster_sync()
        rank = tw.block_rank_in_cluster()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(THREADS * 4)  # what it sends, not what it gets
            row = tw.local_tile(tw.guarded(x), (1, THREADS), (rank, 0))
            tw.copy(MULTICAST, row, tw.local_tile(tile, (1, THREADS), (rank, 0)), barrier=full, mask=3)
        full.wait(0)
        out[tw.block_idx.x, tw.thread_idx.x] = tile[0, tw.thread_idx.x]
        tw.cluster_sync()

    text = message(half, np.zeros((2, THREADS), np.int32), rows(2))
    assert "deadlock" in text and f"{THREADS * 4} bytes have come that were not announced" in text
    assert text.count("full.wait(0)") >= 2 and "block (0, 0, 0):" in text and "block (1, 0, 0):" in text


def test_a_block_that_gets_no_bytes_and_waits_for_some() -> None:
    @tw.kernel(cluster=2)
    def one(out, x):
        tile, full = tw.shared(tw.int32, tw.row_major((1, THREADS))), tw.mbarrier(1)
        tw.cluster_sync()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(THREADS * 4)
            if tw.block_rank_in_cluster() == 0:
                tw.copy(MULTICAST, tw.local_tile(tw.guarded(x), (1, THREADS), (0, 0)), tile, barrier=full, mask=0b01)
        full.wait(0)
        out[tw.block_idx.x, tw.thread_idx.x] = tile[0, tw.thread_idx.x]
        tw.cluster_sync()

    text = message(one, np.zeros((2, THREADS), np.int32), rows(1))
    assert "all threads of the cluster: 32 threads of its block 1 have not arrived" in text
    assert f"{THREADS * 4} bytes that were announced have not come" in text


def test_who_has_left_is_not_waited_for() -> None:
    @tw.kernel(cluster=2)
    def early(out):
        if tw.block_rank_in_cluster() == 0:
            tw.cluster_sync()
            tw.cluster_sync()
            out[tw.block_idx.x, tw.thread_idx.x] = 1

    out = np.zeros((4, THREADS), np.int32)
    assert kinds(early, out, grid=4) == set()
    assert out.sum() == 2 * THREADS


@pytest.mark.parametrize(
    ("twice", "text"),
    [(True, "arrives at the barrier of a cluster again before it has waited"), (False, "waits at the barrier of a cluster without")],
)  # fmt: skip
def test_arrivals_and_waits_take_turns(twice: bool, text: str) -> None:
    @tw.kernel(cluster=2)
    def wrong(out):
        if twice:
            tw.cluster_arrive()
            tw.cluster_arrive()
        tw.cluster_wait()
        out[tw.block_idx.x, tw.thread_idx.x] = 1

    assert text in message(wrong, np.zeros((2, THREADS), np.int32))


@pytest.mark.parametrize("what", ["memory", "mbarrier", "multicast"])
def test_blocks_that_a_cluster_does_not_have(what: str) -> None:
    @tw.kernel(cluster=2)
    def beyond(out, x, rank):
        tile, full = tw.shared(tw.int32, tw.row_major((1, THREADS))), tw.mbarrier(THREADS)
        tile[0, tw.thread_idx.x] = 0
        tw.cluster_sync()
        if what == "memory":
            out[tw.block_idx.x, tw.thread_idx.x] = tile.at_rank(rank)[0, tw.thread_idx.x]
        elif what == "mbarrier":
            full.at_rank(rank).arrive()
        elif tw.thread_idx.x == 0:
            tw.fence_proxy_async()
            row = tw.local_tile(tw.guarded(x), (1, THREADS), (0, 0))
            tw.copy(MULTICAST, row, tile, barrier=full, mask=1 << rank)
        tw.cluster_sync()

    found = message(beyond, np.zeros((2, THREADS), np.int32), rows(1), 2)
    assert "of a cluster of 2" in found and "out of bounds" in found.lower() + "out of bounds" * (what == "multicast")


def test_the_last_clusters_may_be_fewer_than_those_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which blocks some of the threads reached is forgotten when another number of blocks runs."""

    @tw.kernel(cluster=2)
    def some_read_other(out, x):
        mine, i, block = tw.shared(tw.int32, THREADS), tw.thread_idx.x, tw.block_idx.x
        mine[i] = x[block, i]
        tw.cluster_sync()
        if (i < 5) & (tw.block_rank_in_cluster() == 0):
            out[block, i] = mine.at_rank(1)[i]
        tw.cluster_sync()

    monkeypatch.setattr(machine, "CHUNK_THREADS", 4 * THREADS)
    x, out = rows(6), np.zeros((6, THREADS), np.int32)
    some_read_other[6, THREADS](out, x)
    expected = np.zeros_like(out)
    expected[::2, :5] = x[1::2, :5]
    np.testing.assert_array_equal(out, expected)


def test_the_simulator_asks_for_whole_warps() -> None:
    out = np.zeros(96, np.int32)
    with pytest.raises(tw.ArgumentError, match="clusters of blocks of whole warps"):
        read_other[2, 24](out, out.copy())


def unsynchronised(out, x):
    tile, i = tw.shared(tw.int32, 64), tw.thread_idx.x
    tile[i] = x[64 * tw.block_idx.x + i]
    out[64 * tw.block_idx.x + i] = tile[63 - i]


def synchronised(out, x):
    tile, i = tw.shared(tw.int32, 64), tw.thread_idx.x
    tile[i] = x[64 * tw.block_idx.x + i]
    tw.sync_threads()
    out[64 * tw.block_idx.x + i] = tile[63 - i]


def not_waited_for(out, x):
    tile, i = tw.shared(tw.int32, 64), tw.thread_idx.x
    tw.copy(tw.atoms.CpAsync(32), x[tw.block_idx.x * 64 + i :][0:1], tile[i:][0:1])
    tw.sync_threads()
    out[64 * tw.block_idx.x + i] = tile[i]


def handed_over(out, x):
    tile, i = tw.shared(tw.int32, 64), tw.thread_idx.x
    full, empty = tw.mbarrier(32), tw.mbarrier(32)
    tw.sync_threads()
    for turn in range(3):
        if tw.warp_id() == 0:
            empty.wait(turn % 2 ^ 1)
            tile[i] = x[64 * tw.block_idx.x + i] + turn
            full.arrive()
        else:
            full.wait(turn % 2)
            out[64 * tw.block_idx.x + 32 * (turn % 2) + i % 32] = tile[i - 32]
            if turn < 2 or tw.block_idx.x > 1:
                empty.arrive()


def overlapping(out, x):
    out[tw.thread_idx.x] = x[64 * tw.block_idx.x + tw.thread_idx.x]


@pytest.mark.parametrize("function", [unsynchronised, synchronised, not_waited_for, handed_over, overlapping])
def test_clusters_change_nothing_for_kernels_that_make_no_use_of_them(function: Any) -> None:
    """The same findings, as often, by the same threads, and the same results."""

    def run(cluster: Any) -> tuple[Any, ...]:
        out, x = np.zeros(4 * 64, np.int32), np.arange(4 * 64, dtype=np.int32)
        with tw.simulate(raise_errors=False) as found:
            tw.kernel(function).configure(cluster=cluster)[4, 64](out, x)
        told = [(f.kind, f.line, f.other and f.other.line, f.count, f.thread) for f in found.findings]
        return told, out.tolist()

    assert run(2) == run(4) == run(1)


@pytest.mark.parametrize(
    ("scope", "cluster", "found"),
    [("cta", 2, {"race"}), ("cluster", 2, set()), ("cluster", 1, {"race"}), ("gpu", 2, set()), ("gpu", 1, set())],
)
def test_scopes_reach_blocks_clusters_and_the_grid(scope: str, cluster: int, found: set[str]) -> None:
    @tw.kernel
    def hand_over(out, data, flag):
        if tw.block_idx.x == 0:
            if tw.thread_idx.x == 0:
                data[0] = 7
                tw.store(flag, 0, 1, sem="release", scope=scope)
        else:
            if tw.thread_idx.x == 0:
                while tw.load(flag, 0, sem="acquire", scope=scope) == 0:
                    pass
                out[0] = data[0]

    out, data, flag = (np.zeros(1, np.int32) for _ in range(3))
    assert kinds(hand_over.configure(cluster=cluster), out, data, flag) == found
    assert out[0] == 7


def sending(missing: str = "", rank: Any = None, bytes: int = THREADS * 4) -> tw.Kernel:
    """Return a kernel whose blocks send each other what they have written; `missing` says what it lacks."""

    @tw.kernel(cluster=2)
    def send(out, x):
        mine, theirs, full = tw.shared(tw.int32, THREADS), tw.shared(tw.int32, THREADS), tw.mbarrier(1)
        other, i = 1 - tw.block_rank_in_cluster(), tw.thread_idx.x
        mine[i] = x[tw.block_idx.x, i]
        if missing != "fence":
            tw.fence_proxy_async()
        if missing != "begin":
            tw.cluster_sync()
        else:
            tw.sync_threads()
        if i == 0:
            full.arrive_expect_tx(bytes)
            at = other if rank is None else rank
            tw.copy(tw.atoms.SM90_BULK_COPY_S2S, mine, theirs.at_rank(other), barrier=full.at_rank(at))
        if missing != "wait":
            full.wait(0)
        out[tw.block_idx.x, i] = theirs[i]
        if missing == "order":
            mine[i] = 7  # this block has got its bytes; that does not say that its own have been read
        if missing != "end":
            tw.cluster_sync()
        if not missing:
            mine[i] = 7

    return send


@pytest.mark.parametrize(
    ("missing", "found"),
    [
        ("", set()),
        ("fence", {"missing-fence"}),
        ("begin", {"absent-block", "race"}),
        ("wait", {"missing-wait"}),
        ("order", {"race"}),
        ("end", {"absent-block"}),
    ],
)
def test_copies_to_another_block(missing: str, found: set[str]) -> None:
    x, out = rows(4), np.zeros((4, THREADS), np.int32)
    assert kinds(sending(missing), out, x, grid=4) == found
    if missing != "wait":
        assert (out.reshape(2, 2, THREADS)[:, ::-1] == x.reshape(2, 2, THREADS)).all()


def test_bytes_between_blocks_that_differ_or_go_elsewhere() -> None:
    given = np.zeros((2, THREADS), np.int32), rows(2)
    for bytes, text in ((64, "64 bytes have come that were not announced"), (256, "128 bytes that were announced")):
        found = message(sending(bytes=bytes), *given)
        assert "deadlock" in found and text in found
    found = message(sending(rank=0), *given)
    assert "bytes go to block 1 of the cluster, and the mbarrier of block 0 is told of them" in found


def beginning(relaxed: bool, reads: str) -> tw.Kernel:
    """Return a kernel whose blocks meet once, by an arrival that may be relaxed, and then reach each other."""

    @tw.kernel(cluster=2)
    def begin(out, x):
        mine, full, i = tw.shared(tw.int32, THREADS), tw.mbarrier(THREADS), tw.thread_idx.x
        other = 1 - tw.block_rank_in_cluster()
        if reads == "memory":
            mine[i] = x[0, i]
        tw.cluster_arrive(relaxed=relaxed)
        tw.cluster_wait()
        if reads == "memory":
            out[tw.block_idx.x, i] = mine.at_rank(other)[i]
        elif reads == "global":
            out[tw.block_idx.x, i] = i
            tw.cluster_arrive(relaxed=relaxed)
            tw.cluster_wait()
            out[tw.block_idx.x, i] += out[tw.block_idx.x ^ 1, i]
        else:
            mine.at_rank(other)[i] = x[0, i]
            full.at_rank(other).arrive()
            full.wait(0)
            out[tw.block_idx.x, i] = mine[i]
        tw.cluster_sync()

    return begin


@pytest.mark.parametrize(
    ("reads", "found"), [("memory", {"race"}), ("mbarrier", set()), ("global", {"race"})]
)  # fmt: skip
def test_a_relaxed_arrival_at_the_barrier_of_a_cluster_orders_no_memory(reads: str, found: set[str]) -> None:
    """That a block has begun, and has made its mbarriers, is known behind it: nothing else."""
    given = np.zeros((2, THREADS), np.int32), rows(1)
    assert kinds(beginning(True, reads), *given) == found
    if reads != "global":  # both blocks write and read, whatever is ordered
        assert kinds(beginning(False, reads), *given) == set()


def test_a_relaxed_arrival_does_not_end_what_was_done_in_another_block() -> None:
    def make(relaxed: bool) -> tw.Kernel:
        @tw.kernel(cluster=2)
        def write(out, x):
            mine, i = tw.shared(tw.int32, THREADS), tw.thread_idx.x
            mine[i] = 0
            tw.cluster_sync()
            out[tw.block_idx.x, i] = tw.atomic_add(mine.at_rank(1 - tw.block_rank_in_cluster()), i, x[0, i])
            tw.cluster_arrive(relaxed=relaxed)
            tw.cluster_wait()

        return write

    given = np.zeros((2, THREADS), np.int32), rows(1)
    assert kinds(make(True), *given) == {"absent-block"} and kinds(make(False), *given) == set()


@pytest.mark.parametrize("drains", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_producer_waits_for_what_other_blocks_release(steps: int, drains: bool) -> None:
    """Their arrivals are relaxed, and tell nothing of their threads; but who waits for the phase has them all."""

    @tw.kernel(cluster=2)
    def pass_on(out, x):
        tiles = tw.shared(tw.int32, (THREADS, 2))
        ring, lane = tw.pipeline(stages=2, consumers=1, bytes=4 * THREADS, blocks=2), tw.thread_idx.x % THREADS
        tw.cluster_sync()
        if tw.warp_id() == 0:
            if tw.elect_one():
                state = ring.producer()
                for i in range(steps):
                    with state.fill() as (stage, full):
                        row = tw.local_tile(x[i, :], (THREADS,), (0,))
                        tw.copy(tw.atoms.SM90_BULK_COPY_G2S, row, tiles[:, stage], barrier=full)
                if drains:
                    state.drain()
        else:
            state, total = ring.consumer(relaxed=True), tw.int32(0)
            for _ in range(steps):
                with state.read() as stage:
                    total += tiles[lane, stage]
            out[tw.block_rank_in_cluster(), lane] = total

    x, out = rows(steps), np.zeros((2, THREADS), np.int32)
    # Threads that read may not hand stages back so, which is found where these are filled again.
    assert kinds(pass_on, out, x, block=2 * THREADS) - {"race"} == (set() if drains else {"absent-block"})
    assert (out == x.sum(axis=0)).all()


def test_mbarriers_that_a_warp_has_not_met_are_unknown_to_it() -> None:
    """The fence of an initialisation says nothing to the threads of the block that have not met."""

    @tw.kernel(cluster=2)
    def early(out):
        full = tw.mbarrier(1)
        if tw.warp_id() == 1:
            full.wait(1)
            out[tw.block_idx.x] = 1
        tw.cluster_sync()

    assert kinds(early, np.zeros(2, np.int32), block=64) & {"race", "uninitialised-mbarrier"}


@pytest.mark.parametrize(
    ("then", "found"),
    [("told", set()), ("told relaxed", set()), ("sent back", set()), ("sent again", {"race"}), ("told late", {"race"})],
)
@pytest.mark.spread(2)
def test_who_knows_that_a_copy_to_another_block_has_read(then: str, found: set[str]) -> None:
    """The block that has waited for the bytes, and whom it tells: these may write to where they came from."""

    @tw.kernel(cluster=2)
    def send(out):
        mine, theirs, i = tw.shared(tw.int32, THREADS), tw.shared(tw.int32, THREADS), tw.thread_idx.x
        full, got = tw.mbarrier(1), tw.mbarrier(THREADS)
        other = 1 - tw.block_rank_in_cluster()
        mine[i] = i
        tw.fence_proxy_async()
        tw.cluster_sync()
        if then == "told late":
            got.at_rank(other).arrive()
        if i == 0:
            full.arrive_expect_tx(THREADS * 4)
            tw.copy(tw.atoms.SM90_BULK_COPY_S2S, mine, theirs.at_rank(other), barrier=full.at_rank(other))
        full.wait(0)
        out[tw.block_idx.x, i] = theirs[i]
        if then.startswith("told"):
            if then != "told late":
                got.at_rank(other).arrive(relaxed=then == "told relaxed")
            got.wait(0)
            mine[i] = 5
        elif i == 0:  # both overwrite what the first copy has reached in the other block
            full.arrive_expect_tx(THREADS * 4)
            source, target = (theirs, mine) if then == "sent back" else (mine, theirs)
            tw.copy(tw.atoms.SM90_BULK_COPY_S2S, source, target.at_rank(other), barrier=full.at_rank(other))
        if not then.startswith("told"):
            full.wait(1)
        tw.cluster_sync()

    assert kinds(send, np.zeros((2, THREADS), np.int32)) == found
