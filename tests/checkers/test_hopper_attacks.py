"""Small Hopper kernels with one mistake each, and right ones that look suspicious: a table of both.

Each kernel takes `fault`, the name of its variant. What is wrong about it stands where it is said; all else is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

LOAD, STORE, MULTICAST = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE, tw.atoms.SM90_TMA_LOAD_MULTICAST
T = 32
BYTES = T * 4
TILES = 5


def ring(fault: str = "", stages: int = 2) -> tw.Kernel:
    """A producer and two consumers of a warp each, which read every tile."""
    counts = {"count of one": 1, "count of warps": 64, "all lanes, counted": 64}

    @tw.kernel
    def kernel(out, x):
        smem, i = tw.shared(tw.int32, tw.row_major((stages, T))), tw.lane_id()
        full, empty = tw.mbarrier(1, stages=stages), tw.mbarrier(counts.get(fault, 2), stages=stages)
        tw.sync_threads()
        if tw.warp_id() == 2:
            if tw.elect_one():
                for k in range(TILES):
                    stage, turn = k % stages, k // stages
                    if fault != "producer never waits":
                        empty[stage].wait(turn % 2 if fault == "producer a phase late" else (turn + 1) % 2)
                    tile, at = tw.local_tile(x, (1, T), (k, 0), guard=True), tw.local_tile(smem, (1, T), (stage, 0))
                    told = full[(k + 1) % stages] if fault == "bytes at another stage" else full[stage]
                    if fault == "copy before its bytes":
                        tw.copy(LOAD, tile, at, barrier=told)
                        full[stage].arrive_expect_tx(BYTES)
                    else:
                        if fault == "two arrivals":
                            full[stage].arrive_expect_tx(BYTES)
                        full[stage].arrive_expect_tx(BYTES // 2 if fault == "half of the bytes" else BYTES)
                        tw.copy(LOAD, tile, at, barrier=told)
                        if fault == "copied twice":
                            tw.copy(LOAD, tile, at, barrier=told)
        else:
            for k in range(TILES):
                stage, turn = k % stages, k // stages
                if fault == "two barriers swapped":
                    empty[stage].wait(turn % 2)
                elif fault == "a phase early":
                    full[stage].wait((turn + 1) % 2)
                elif fault == "parity never changes":
                    full[stage].wait(0)
                elif fault == "polls":
                    while not full[stage].test(turn % 2):
                        pass
                elif fault == "waits for another stage":
                    full[(k + 1) % stages].wait((k + 1) // stages % 2)
                elif fault == "one consumer waits":
                    if tw.warp_id() == 0:
                        full[stage].wait(turn % 2)
                else:
                    full[stage].wait(turn % 2)
                    if fault == "waits twice":
                        full[stage].wait(turn % 2)
                if fault == "handed back first":
                    if tw.elect_one():
                        empty[stage].arrive()
                read = (stage + 1) % stages if fault == "reads another stage" else stage
                out[tw.warp_id(), k, i] = smem[read, i]
                if fault not in ("no barrier of the warp", "handed back first"):
                    tw.sync_warp()
                if fault in ("all lanes arrive", "all lanes, counted"):
                    empty[stage].arrive()
                elif fault == "two barriers swapped":
                    if tw.elect_one():
                        full[stage].arrive()
                elif fault == "one consumer keeps it":
                    if tw.warp_id() == 0 and tw.elect_one():
                        empty[stage].arrive()
                elif fault != "handed back first":
                    if tw.elect_one():
                        empty[stage].arrive()

    return kernel


def run_ring(fault: str, **options: int) -> Callable[[], None]:
    def run() -> None:
        x, out = np.arange(TILES * T, dtype=np.int32).reshape(TILES, T), np.zeros((2, TILES, T), np.int32)
        ring(fault, **options)[1, 3 * T](out, x)

    return run


def stores(fault: str = "") -> Callable[[], None]:
    """Two warps write halves of a tile, again and again in two buffers, and a thread stores them."""

    @tw.kernel
    def kernel(out):
        smem, i = tw.shared(tw.int32, tw.row_major((2, 2 * T))), tw.thread_idx.x
        for k in range(TILES):
            at = 0 if fault in ("one buffer", "one buffer, waited for") else k % 2
            if tw.warp_id() == 0:
                smem[at, i] = k
                if fault != "no fence in one role":
                    tw.fence_proxy_async()
            else:
                smem[at, i] = -k
                if fault != "no fence":
                    tw.fence_proxy_async()
            if fault != "no barrier":
                tw.sync_threads()
            if fault == "fence behind the barrier":
                tw.fence_proxy_async()
            if i == 0:
                tw.copy(STORE, smem[at : at + 1, :], tw.local_tile(out, (1, 2 * T), (k, 0), guard=True))
                if fault != "not committed":
                    tw.tma_store_commit()
                if fault == "one buffer, waited for":
                    tw.tma_store_wait(0)
                elif fault == "another thread waits":
                    pass
                elif fault != "a group too many":
                    tw.tma_store_wait(1)
                else:
                    tw.tma_store_wait(2)
            if fault == "another thread waits":
                if i == 32:
                    tw.tma_store_wait(0)
            tw.sync_threads()
        if i == 0 and fault not in ("no wait at the end", "not committed"):
            tw.tma_store_wait(0)

    fence_late = fault == "fence behind the barrier"

    @tw.kernel
    def late(out):
        smem, i = tw.shared(tw.int32, tw.row_major((1, T))), tw.thread_idx.x
        smem[0, i] = i
        tw.sync_threads()
        tw.fence_proxy_async()  # of thread 0 for its own element, of no other thread's in time
        if i == 0:
            tw.copy(STORE, smem, tw.local_tile(out, (1, T), (0, 0), guard=True))
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    def run() -> None:
        if fence_late:
            late[1, T](np.zeros((1, T), np.int32))
        else:
            kernel[1, 2 * T](np.zeros((TILES, 2 * T), np.int32))

    return run


ATOM = tw.atoms.SM90_64x8x16_F32F16F16_SS
SMEM_A = tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (64, 16, 2))
SMEM_B = tw.tile_to_shape(tw.atoms.GMMA_K_SW32(tw.float16), (8, 16, 2))


def products(fault: str = "") -> Callable[[], None]:
    """A warp brings tiles by TMA, a warpgroup multiplies them, a product behind."""
    mma, steps = tw.make_tiled_mma(ATOM), 4

    @tw.kernel
    def kernel(D, A, B):
        sA, sB = tw.shared(A.dtype, SMEM_A), tw.shared(B.dtype, SMEM_B)
        full, empty = tw.mbarrier(1, stages=2), tw.mbarrier(1, stages=2)
        tw.sync_threads()
        if tw.warpgroup_id() == 1:
            if tw.thread_idx.x == 128:
                for k in range(steps):
                    stage = k % 2
                    empty[stage].wait((k // 2 + 1) % 2)
                    full[stage].arrive_expect_tx(2 * 16 * (64 + 8))
                    tw.copy(LOAD, tw.local_tile(A, (64, 16), (0, k), guard=True), sA[:, :, stage], barrier=full[stage])
                    tw.copy(LOAD, tw.local_tile(B, (8, 16), (0, k), guard=True), sB[:, :, stage], barrier=full[stage])
        else:
            thread = mma.get_slice(tw.thread_idx.x)
            tA, tB = thread.partition_A(sA), thread.partition_B(sB)
            tD = thread.partition_C(D)
            acc = thread.make_fragment_C(tD)
            if fault == "cleared behind the fence":
                tw.wgmma_fence()
                tw.clear(acc)
            for k in range(steps):
                stage = k % 2
                if fault != "tile not waited for":
                    full[stage].wait(k // 2 % 2)
                if fault not in ("no fence", "cleared behind the fence"):
                    tw.wgmma_fence()
                tw.gemm(mma, tA[:, :, :, stage], tB[:, :, :, stage], acc,
                        accumulate=True if fault == "cleared behind the fence" else k > 0)  # fmt: skip
                if fault != "not committed":
                    tw.wgmma_commit()
                if fault == "handed back too early":
                    tw.wgmma_wait(1)
                    if tw.thread_idx.x == 0:
                        empty[stage].arrive()  # of which a product is under way
                elif fault == "waits for all":
                    tw.wgmma_wait(0)
                    if tw.thread_idx.x == 0:
                        empty[stage].arrive()
                else:
                    tw.wgmma_wait(1)
                    if k > 0 and tw.thread_idx.x == 0:
                        empty[(k - 1) % 2].arrive()
                if fault == "sums touched":
                    for n in tw.static_range(4):
                        acc[n] = acc[n] * 2.0
            if fault not in ("no wait at the end", "waits for all"):
                tw.wgmma_wait(0)
            tw.copy(acc, tD)

    def run() -> None:
        a, b = np.ones((64, 16 * steps), np.float16), np.ones((8, 16 * steps), np.float16)
        kernel[1, 256](tw.static(np.zeros((64, 8), np.float32)), a, b)

    return run


def cluster(fault: str = "") -> Callable[[], None]:
    """Each of two blocks brings half of a tile to both; a warp reads, another one copies."""

    @tw.kernel(cluster=2)
    def kernel(out, x):
        smem, i = tw.shared(tw.int32, tw.row_major((4, T))), tw.lane_id()
        full = tw.mbarrier(1, stages=2)
        empty = tw.mbarrier(1 if fault in ("own block only, counted", "the same block twice, counted") else 2, stages=2)
        if fault == "relaxed beginning":
            tw.cluster_arrive(relaxed=True)
            tw.cluster_wait()
            tw.sync_threads()
        elif fault == "begins by itself":
            tw.sync_threads()
        else:
            tw.cluster_sync()
        rank = tw.block_rank_in_cluster()
        if tw.warp_id() == 1:
            if tw.elect_one():
                for k in range(4):
                    stage = k % 2
                    empty[stage].wait((k // 2 + 1) % 2)
                    full[stage].arrive_expect_tx(BYTES if fault == "bytes that it sends" else 2 * BYTES)
                    row = tw.local_tile(x, (1, T), (2 * k + rank, 0), guard=True)
                    place = 2 * stage + (0 if fault == "both to one place" else rank)
                    mask = 0b01 if fault == "a rank missing" else 0b11
                    tw.copy(MULTICAST, row, tw.local_tile(smem, (1, T), (place, 0)), barrier=full[stage], mask=mask)
        else:
            for k in range(4):
                stage = k % 2
                full[stage].wait(k // 2 % 2)
                for r in tw.static_range(2):
                    out[tw.block_idx.x, 2 * k + r, i] = smem[2 * stage + r, i]
                tw.sync_warp()
                if fault == "own block only, counted":
                    if i == 0:
                        empty[stage].arrive()
                elif fault == "own block only":
                    if i == 0:
                        empty[stage].arrive()
                elif fault == "the same block twice":
                    if i < 2:
                        empty[stage].at_rank(rank).arrive()
                elif i < 2:
                    empty[stage].at_rank(i).arrive(relaxed=fault == "relaxed arrivals of readers")
        if fault != "leaves early":
            tw.cluster_sync()

    def run() -> None:
        x, out = np.arange(8 * T, dtype=np.int32).reshape(8, T), np.zeros((2, 8, T), np.int32)
        kernel[2, 2 * T](out, x)

    return run


def dependent(fault: str = "") -> Callable[[], None]:
    """A launch that may begin before the one that writes what its two roles read has ended."""

    @tw.kernel
    def write(y):
        y[tw.thread_idx.x] = 1

    @tw.kernel
    def read(out, y):
        i = tw.thread_idx.x
        if fault == "one thread, then a barrier":
            if i == 0:
                tw.grid_dependency_wait()
            tw.sync_threads()
            out[i] = y[i]
        elif tw.warp_id() == 0:
            tw.grid_dependency_wait()
            out[i] = y[i]
        else:
            if fault != "one role only":
                tw.grid_dependency_wait()
            out[i] = y[i]

    def run() -> None:
        y, out = np.zeros(2 * T, np.int32), np.zeros(2 * T, np.int32)
        write[1, 2 * T](y)
        read.configure(dependent_launch=True)[1, 2 * T](out, y)

    return run


def registers(consumers: int) -> Callable[[], None]:
    @tw.kernel
    def kernel(out):
        if tw.warpgroup_id() == 0:
            tw.set_registers(40)
        else:
            tw.set_registers(consumers)
        out[tw.thread_idx.x] = 1

    return lambda: kernel[1, 384](np.zeros(384, np.int32))


def through(fault: str = "") -> Callable[[], None]:
    """A tile comes by TMA, threads change it in two roles, and it leaves by TMA; then it is read from global memory."""

    @tw.kernel
    def kernel(out, x, back):
        smem, i = tw.shared(tw.int32, tw.row_major((1, 2 * T))), tw.thread_idx.x
        full, meet = tw.mbarrier(1), tw.named_barrier(1, 32 if fault == "count wrong by a warp" else 64)
        if fault == "written before it is read by TMA":
            if i < 64:
                x[0, i] = i
            tw.sync_threads()
        elif fault == "written before it is read by TMA, with a fence":
            if i < 64:
                x[0, i] = i
            tw.fence_proxy_async("global")
            tw.sync_threads()
        elif fault in ("filled before it is loaded", "filled before it is loaded, with a fence"):
            if i < 64:
                smem[0, i] = i
            if "with" in fault:
                tw.fence_proxy_async()
            tw.sync_threads()
        else:
            tw.sync_threads()
        if tw.warp_id() == 2 if fault == "a whole warp starts it" else i == 64:
            full.arrive_expect_tx(2 * BYTES)
            tw.copy(LOAD, tw.local_tile(x, (1, 2 * T), (0, 0), guard=True), smem, barrier=full)
        elif i < 64:
            full.wait(0)
            if tw.warp_id() == 0:
                smem[0, i] = smem[0, i] + 1
                tw.fence_proxy_async()
            else:
                smem[0, i] = smem[0, i] + 2
                if fault != "a role without its fence":
                    tw.fence_proxy_async()
            if fault != "no named barrier":
                meet.sync()
            if i == 0:
                tw.copy(STORE, smem, tw.local_tile(out, (1, 2 * T), (0, 0), guard=True))
                tw.tma_store_commit()
                if fault == "read before it is written":
                    tw.tma_store_wait(0)
                else:
                    tw.tma_store_wait(0, read=False)
            if fault != "read by another role":
                meet.sync()
            back[0, i] = out[0, 63 - i]

    def run() -> None:
        kernel[1, 3 * T](*(np.zeros((1, 2 * T), np.int32) for _ in range(3)))

    return run


def found(run: Callable[[], None]) -> list[Any]:
    with tw.simulate(raise_errors=False) as simulated:
        run()
    return list(simulated.findings)


# What runs, the kinds of which one at least has to be found, and a pair of texts: a finding of that kind names the line
# that has the first and, as the other side, the line that has the second ("" where there is one side only).
WRONG: dict[str, tuple[Callable[[], None], str, tuple[str, str]]] = {
    "the producer never waits": (run_ring("producer never waits"), "missing-wait", ("tw.copy(LOAD", "tw.copy(LOAD")),
    "the producer is a phase late": (run_ring("producer a phase late"), "deadlock", ("empty[stage].wait", "")),
    "bytes arrive at another stage": (run_ring("bytes at another stage"), "missing-wait", ("smem[read", "tw.copy(LOAD")),
    "the producer arrives twice": (run_ring("two arrivals"), "barrier-divergence", ("full[stage].arrive_expect_tx", "")),
    "half of the bytes": (run_ring("half of the bytes"), "deadlock", ("full[stage].wait", "arrive_expect_tx")),
    "a tile is copied twice": (run_ring("copied twice"), "missing-wait", ("tw.copy(LOAD", "tw.copy(LOAD")),
    "two barriers swapped": (run_ring("two barriers swapped"), "deadlock", ("empty[stage].wait", "")),
    "consumers are a phase early": (run_ring("a phase early"), "missing-wait", ("smem[read", "tw.copy(LOAD")),
    "the parity never changes": (run_ring("parity never changes"), "missing-wait", ("smem[read", "tw.copy(LOAD")),
    "consumers wait for another stage": (run_ring("waits for another stage"), "missing-wait", ("smem[read", "tw.copy(LOAD")),
    "one of two consumers waits": (run_ring("one consumer waits"), "race", ("smem[read", "tw.copy(LOAD")),
    "the same with one stage": (run_ring("one consumer waits", stages=1), "race", ("smem[read", "tw.copy(LOAD")),
    "a stage is handed back before it is read": (run_ring("handed back first"), "race", ("tw.copy(LOAD", "smem[read")),
    "the same with three stages": (run_ring("handed back first", stages=3), "race", ("tw.copy(LOAD", "smem[read")),
    "another stage is read": (run_ring("reads another stage"), "missing-wait", ("smem[read", "tw.copy(LOAD")),
    "a lane hands back for lanes that read": (run_ring("no barrier of the warp"), "race", ("tw.copy(LOAD", "smem[read")),
    "all lanes arrive where one is counted": (run_ring("all lanes arrive"), "barrier-divergence", ("empty[stage].arrive", "")),
    "one of two consumers hands back": (run_ring("one consumer keeps it"), "deadlock", ("empty[stage].wait", "")),
    "one of two consumers is counted": (run_ring("count of one"), "barrier-divergence", ("empty[stage].arrive", "")),
    "lanes are counted, and one arrives": (run_ring("count of warps"), "deadlock", ("empty[stage].wait", "")),
    "one role of two has no fence": (stores("no fence in one role"), "missing-fence", ("tw.copy(STORE", "smem[at, i] = k")),
    "the other role has no fence": (stores("no fence"), "missing-fence", ("tw.copy(STORE", "smem[at, i] = -k")),
    "nobody tells who stores": (stores("no barrier"), "race", ("tw.copy(STORE", "smem[at, i]")),
    "the fence stands behind the barrier": (stores("fence behind the barrier"), "missing-fence", ("tw.copy(STORE", "smem[0, i] = i")),
    "a store is in no group": (stores("not committed"), "race", ("smem[at, i]", "tw.copy(STORE")),
    "the source is overwritten an iteration later": (stores("one buffer"), "race", ("smem[at, i]", "tw.copy(STORE")),
    "two groups are left under way for two buffers": (stores("a group too many"), "race", ("smem[at, i]", "tw.copy(STORE")),
    "another thread waits for the store": (stores("another thread waits"), "race", ("smem[at, i]", "tw.copy(STORE")),
    "the block ends before its store has read": (stores("no wait at the end"), "missing-wait", ("tw.copy(STORE", "")),
    "a product does not wait for its tiles": (products("tile not waited for"), "missing-wait", ("tw.gemm", "tw.copy(LOAD")),
    "no fence before the first product": (products("no fence"), "missing-fence", ("tw.gemm", "")),
    "registers are written behind the fence": (products("cleared behind the fence"), "missing-fence", ("tw.gemm", "")),
    "products are in no group": (products("not committed"), "race", ("tw.copy(LOAD", "tw.gemm")),
    "the stage of a product under way is handed back": (products("handed back too early"), "race", ("tw.copy(LOAD", "tw.gemm")),
    "sums of a product under way": (products("sums touched"), "missing-wait", ("acc[n]", "tw.gemm")),
    "sums are stored before the last product": (products("no wait at the end"), "missing-wait", ("tw.copy(acc", "tw.gemm")),
    "blocks begin by themselves": (cluster("begins by itself"), "absent-block", ("", "")),
    "each block announces what it sends": (cluster("bytes that it sends"), "deadlock", ("full[stage].wait", "arrive_expect_tx")),
    "both blocks bring the same half": (cluster("both to one place"), "race", ("tw.copy(MULTICAST", "tw.copy(MULTICAST")),
    "the mask misses a rank": (cluster("a rank missing"), "deadlock", ("full[stage].wait", "arrive_expect_tx")),
    "a stage is handed back to the own block": (cluster("own block only, counted"), "race", ("tw.copy(MULTICAST", "smem[2 * stage")),
    "both blocks are counted, one arrives": (cluster("own block only"), "deadlock", ("empty[stage].wait", "")),
    "a block arrives twice at itself": (cluster("the same block twice"), "race", ("tw.copy(MULTICAST", "smem[2 * stage")),
    "readers arrive relaxed": (cluster("relaxed arrivals of readers"), "race", ("tw.copy(MULTICAST", "smem[2 * stage")),
    "a block leaves early": (cluster("leaves early"), "absent-block", ("at_rank(i).arrive", "")),
    "one role does not wait for the launch before": (dependent("one role only"), "missing-wait", ("out[i] = y[i]", "y[tw.thread_idx.x] = 1")),
    "more registers than the block has": (registers(240), "too-many-registers", ("tw.set_registers(consumers)", "")),
    "global memory is written without a fence": (through("written before it is read by TMA"), "missing-fence", ("tw.copy(LOAD", "x[0, i] = i")),
    "shared memory is filled before its load": (through("filled before it is loaded"), "missing-fence", ("tw.copy(LOAD", "smem[0, i] = i")),
    "a whole warp starts a load": (through("a whole warp starts it"), "barrier-divergence", ("arrive_expect_tx", "")),
    "one of two roles has no fence after a load": (through("a role without its fence"), "missing-fence", ("tw.copy(STORE", "+ 2")),
    "roles do not meet before the store": (through("no named barrier"), "race", ("tw.copy(STORE", "smem[0, i] = smem[0, i]")),
    "a barrier counts a warp too few": (through("count wrong by a warp"), "barrier-divergence", ("meet.sync", "")),
    "what is stored is read before it is written": (through("read before it is written"), "missing-wait", ("back[0, i]", "tw.copy(STORE")),
    "another role reads what one has stored": (through("read by another role"), "race", ("back[0, i]", "tw.copy(STORE")),
}  # fmt: skip

RIGHT: dict[str, Callable[[], None]] = {
    "a ring": run_ring(""),
    "a ring of one stage": run_ring("", stages=1),
    "a ring of more stages than it needs": run_ring("", stages=8),
    "consumers poll": run_ring("polls"),
    "consumers wait twice for a phase": run_ring("waits twice"),
    "a copy starts before its bytes are announced": run_ring("copy before its bytes"),
    "all lanes arrive, and are counted": run_ring("all lanes, counted"),
    "two buffers, one store under way": stores(),
    "one buffer, each store waited for": stores("one buffer, waited for"),
    "a product behind": products(),
    "each product waited for": products("waits for all"),
    "a cluster": cluster(),
    "a cluster that begins by a relaxed arrival": cluster("relaxed beginning"),
    "one thread waits for the launch before": dependent("one thread, then a barrier"),
    "both roles wait for the launch before": dependent(),
    "all registers of the block": registers(232),
    "a tile changed in two roles": through(),
    "global memory written before its load": through("written before it is read by TMA, with a fence"),
    "shared memory filled before its load": through("filled before it is loaded, with a fence"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found_with_its_lines(name: str) -> None:
    run, kind, (line, other) = WRONG[name]
    findings = [f for f in found(run) if f.kind == kind]
    sides = [(f.location.text if f.location else "", f.other.text if f.other else "") for f in findings]
    assert any(line in one and other in two and bool(other) <= bool(two) for one, two in sides), sides


def test_where_roles_race_the_help_names_barriers_that_they_can_meet_at() -> None:
    """`tw.sync_threads()` is refused in the branch of a role."""
    messages = [finding.message for finding in found(through("no named barrier")) if finding.kind == "race"]
    assert any("tw.sync_threads(), or an mbarrier or named barrier between" in text for text in messages), messages


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_silent(name: str) -> None:
    assert [str(finding) for finding in found(RIGHT[name])] == []
