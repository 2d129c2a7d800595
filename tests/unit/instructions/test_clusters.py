"""Clusters in PTX, and what is refused while tracing: with the line, and what to do."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright as tw

LOAD, MULTICAST = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_LOAD_MULTICAST
SPEC = tw.spec(tw.float32, (64, 64))


@tw.kernel(cluster=(2, 2))
def everything(out, x, relaxed: tw.constexpr):
    """Use each instruction of clusters once."""
    tile, full = tw.shared(tw.float32, tw.row_major((8, 32))), tw.mbarrier(1)
    empty = tw.mbarrier(32)
    tw.cluster_arrive(relaxed=relaxed)
    tw.cluster_wait()
    rank, i = tw.block_rank_in_cluster(), tw.thread_idx.x
    if i == 0:
        full.arrive_expect_tx(8 * 32 * 4)
        row = tw.local_tile(x, (2, 32), (rank, tw.cluster_idx.y), guard=True)
        tw.copy(MULTICAST, row, tw.local_tile(tile, (2, 32), (rank, 0)), barrier=full, mask=15)
    full.wait(0)
    tw.atomic_add(tile.at_rank(rank ^ 1), (0, i), 1.0)
    empty.at_rank(rank ^ 1).arrive(relaxed=relaxed)
    empty.wait(0)
    out[tw.block_idx_in_cluster.x, i] = tile[0, i]
    tw.cluster_sync()


@pytest.mark.parametrize("relaxed", [False, True])
def test_ptx(relaxed: bool) -> None:
    ptx = everything[(2, 2), 32].ptx(SPEC, SPEC, relaxed, arch="sm_90a")
    multicast = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
    for text in ("barrier.cluster.arrive.release;", "barrier.cluster.wait.acquire;", "%cluster_ctarank", "%clusterid.y",
                 "%cluster_ctaid.x", "mapa.u64", "mapa.shared::cluster.u32", "fence.mbarrier_init.release.cluster;",
                 multicast):  # fmt: skip
        assert text in ptx, text
    assert ("mbarrier.arrive.release.cluster.shared::cluster.b64 _," in ptx) is not relaxed
    assert ("mbarrier.arrive.shared::cluster.b64 _," in ptx) is relaxed
    assert ("barrier.cluster.arrive.relaxed;" in ptx) is relaxed
    assert everything[(2, 2), 32].resources(SPEC, SPEC, relaxed, arch="sm_90a").spills == 0
    # Who waits for arrivals of other blocks acquires from the cluster; bytes of bulk copies need no such wait.
    assert ptx.count("mbarrier.try_wait.parity.acquire.cluster.shared.b64") == (not relaxed)


def test_a_proxy_fence_reaches_as_far_as_the_kernel_writes() -> None:
    """What threads write to other blocks is in shared::cluster, of which shared::cta is this block's part."""

    @tw.kernel(cluster=2)
    def write(out, far: tw.constexpr):
        tile, i = tw.shared(tw.float32, tw.row_major((1, 32))), tw.thread_idx.x
        tw.cluster_sync()
        there = tile.at_rank(1 - tw.block_rank_in_cluster()) if far else tile
        there[0, i] = 1.0
        tw.fence_proxy_async()
        tw.cluster_sync()
        if i == 0:
            tw.copy(tw.atoms.SM90_TMA_STORE, tile, tw.local_tile(out, (1, 32), (tw.block_idx.x, 0), guard=True))
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    for far, space in ((True, "cluster"), (False, "cta")):
        ptx = write[2, 32].ptx(SPEC, far, arch="sm_90a")
        assert f"fence.proxy.async.shared::{space};" in ptx
        assert write[2, 32].resources(SPEC, far, arch="sm_90a").spills == 0


def test_without_clusters_it_is_a_cluster_of_one() -> None:
    @tw.kernel
    def alone(out, x):
        out[tw.block_rank_in_cluster() + tw.cluster_idx.x, tw.thread_idx.x] = tw.cluster_dim.x

    text = alone[1, 32].source(SPEC, SPEC)
    assert "%%cluster" not in text and "blockIdx.x" in text


def refused(function: Any, arch: str = "sm_90a", cluster: Any = 2) -> str:
    kernel = tw.kernel(function)
    kernel = kernel.configure(cluster=cluster) if arch == "sm_90a" else kernel
    with pytest.raises(tw.LanguageError) as caught:
        kernel[2, 32].source(SPEC, SPEC, arch=arch)
    assert "test_clusters.py" in str(caught.value) and "help: " in str(caught.value)
    return str(caught.value)


def remote_of_remote(out, x):
    tile = tw.shared(tw.float32, 32)
    tile.at_rank(0).at_rank(1)[0] = 1.0


def remote_of_global(out, x):
    out.at_rank(1)[0, 0] = 1.0


def beyond(out, x):
    tw.shared(tw.float32, 32).at_rank(2)[0] = 1.0


def copied_by_cp_async(out, x):
    tile = tw.shared(tw.float32, 32)
    tw.copy(tw.atoms.CpAsync(128), tw.local_tile(x[0, :], (4,), (tw.thread_idx.x,)), tile.at_rank(1)[0:4])


def waited_for_elsewhere(out, x):
    tw.mbarrier(1).at_rank(1).wait(0)


def relaxed_here(out, x):
    tw.mbarrier(1).arrive(relaxed=True)


def barrier_beyond(out, x):
    tw.mbarrier(1).at_rank(7).arrive()


def multicast(atom: Any, mask: Any) -> Any:
    def start(out, x):
        tile, full = tw.shared(tw.float32, tw.row_major((8, 32))), tw.mbarrier(1)
        if tw.thread_idx.x == 0:
            tw.copy(atom, tw.local_tile(x, (8, 32), (0, 0), guard=True), tile, barrier=full, mask=mask)

    return start


def ring_of_others(out, x):
    tw.pipeline(2, consumers=1, bytes=64, blocks=4)


def masked_copy_of_threads(out, x):
    tw.copy(x[0, :], out[0, :], mask=3)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (remote_of_remote, "this is shared memory of another block already"),
        (remote_of_global, "this is global memory"),
        (beyond, "there is no block 2 in a cluster of 2"),
        (copied_by_cp_async, "reached by loads, stores and atomic operations, not by AsyncCopy"),
        (waited_for_elsewhere, "wait of an mbarrier of another block"),
        (relaxed_here, "an arrival at the mbarrier of another block can be relaxed"),
        (barrier_beyond, "there is no block 7 in a cluster of 2"),
        (multicast(MULTICAST, None), "is told by mask= which blocks of the cluster get the tile"),
        (multicast(MULTICAST, 0b100), "goes to blocks 0 to 1 of the cluster, and the mask is 0b100"),
        (multicast(MULTICAST, 0), "the mask is 0b0"),
        (multicast(LOAD, 3), "goes to one block, and has no mask"),
        (ring_of_others, "all 2 blocks of the cluster send to each other, or none, and blocks is 4"),
        (masked_copy_of_threads, "mask= names the blocks of a cluster"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_refusals(function: Any, message: str) -> None:
    assert message in refused(function)


@pytest.mark.parametrize("arch", ["sm_80", "gfx942"])
@pytest.mark.parametrize("what", ["sync", "arrive", "wait", "memory", "mbarrier"])
def test_older_targets(what: str, arch: str) -> None:
    def use(out, x):
        if what == "memory":
            tw.shared(tw.float32, 32).at_rank(0)[0] = 1.0
        elif what == "mbarrier":
            tw.mbarrier(1).at_rank(0).arrive()
        else:
            getattr(tw, f"cluster_{what}")()

    assert "has no clusters of blocks, which need sm_90 or later" in refused(use, arch)


def test_memory_that_other_blocks_reach_shares_its_bytes_with_none() -> None:
    @tw.kernel(cluster=2)
    def both(out, x):
        first, i = tw.shared(tw.float32, 32), tw.thread_idx.x
        first[i] = x[0, i]
        tw.sync_threads()
        out[0, i] = first[31 - i]
        tw.sync_threads()
        second = tw.shared(tw.float32, 32)
        second.at_rank(1 - tw.block_rank_in_cluster())[i] = x[1, i]
        tw.cluster_sync()
        out[1, i] = second[31 - i]

    assert both[2, 32].lower(SPEC, SPEC).kernel.shared_bytes == 2 * 32 * 4
