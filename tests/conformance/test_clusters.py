"""Clusters on both backends: ranks, the barrier, memory and mbarriers of other blocks, multicast, a product by them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw
from tilewright.demo.examples import examples_folder, load_example

MULTICAST = tw.atoms.SM90_TMA_LOAD_MULTICAST


@tw.kernel
def places(out):
    """Write what each block is in its cluster."""
    block = tw.block_idx.x + tw.grid_dim.x * (tw.block_idx.y + tw.grid_dim.y * tw.block_idx.z)
    rank, inside, cluster = tw.block_rank_in_cluster(), tw.block_idx_in_cluster, tw.cluster_idx
    if tw.thread_idx.x == 0:
        for n, number in enumerate((rank, inside.x, inside.y, inside.z, cluster.x, cluster.y, cluster.z)):
            out[block, n] = number


@pytest.mark.parametrize("cluster", [(1, 1, 1), (2, 1, 1), (4, 2, 1), (1, 2, 2), (2, 3, 1)])
def test_places(backend: Backend, cluster: tuple[int, int, int]) -> None:
    grid = 4, 6, 2
    out = backend.zeros((4 * 6 * 2, 7), tw.int32)
    places.configure(cluster=cluster)[grid, 32](out)
    z, y, x = (index.ravel() for index in np.indices(grid[::-1]))
    a, b, c = cluster
    expected = [x % a + a * (y % b + b * (z % c)), x % a, y % b, z % c, x // a, y // b, z // c]
    assert (backend.get(out) == np.stack(expected, axis=1)).all()


@tw.kernel
def rotate(out, x):
    """Read a row from the next block, add to a counter of the first, and write to the one before."""
    mine, theirs, count = (tw.shared(tw.int32, 64) for _ in range(3))
    i, rank, blocks = tw.thread_idx.x, tw.block_rank_in_cluster(), tw.cluster_dim.x
    mine[i] = x[tw.block_idx.x, i]
    count[i] = 0
    tw.cluster_sync()
    tw.atomic_add(count.at_rank(0), i, rank + 1)
    theirs.at_rank((rank + blocks - 1) % blocks)[63 - i] = mine[i]
    out[tw.block_idx.x, 0, i] = mine.at_rank((rank + 1) % blocks)[i]
    tw.cluster_arrive()
    tw.cluster_wait()
    out[tw.block_idx.x, 1, i] = theirs[i]
    out[tw.block_idx.x, 2, i] = count.at_rank(0)[i]
    tw.cluster_sync()


@pytest.mark.parametrize("blocks", [2, 4, 8])
@pytest.mark.spread(2)
def test_memory_of_other_blocks(backend: Backend, blocks: int) -> None:
    x = np.arange(16 * 64, dtype=np.int32).reshape(16, 64)
    out = backend.zeros((16, 3, 64), tw.int32)
    rotate.configure(cluster=blocks)[16, 64](out, backend.put(x))
    following = np.roll(x.reshape(-1, blocks, 64), -1, axis=1).reshape(16, 64)
    found = backend.get(out)
    assert (found[:, 0] == following).all() and (found[:, 1] == following[:, ::-1]).all()
    assert (found[:, 2] == blocks * (blocks + 1) // 2).all()


@tw.kernel(cluster=2)
def ping_pong(out, x, rounds):
    """Send a row there and back: a thread's stores, then its arrival at the other block's mbarrier."""
    mine, full, i = tw.shared(tw.int32, 64), tw.mbarrier(64), tw.thread_idx.x
    rank = tw.block_rank_in_cluster()
    if rank == 0:
        mine[i] = x[i]
    tw.cluster_sync()
    for turn in range(rounds):
        if turn % 2 == rank:
            mine.at_rank(1 - rank)[63 - i] = mine[i] + 1
            full.at_rank(1 - rank).arrive()
        else:
            full.wait(turn // 2 % 2)
    tw.cluster_sync()
    out[tw.block_idx.x, i] = mine[i]


def test_arrivals_at_other_blocks(backend: Backend) -> None:
    x = np.arange(64, dtype=np.int32)
    out = backend.zeros((2, 64), tw.int32)
    ping_pong[2, 64](out, backend.put(x), 6)
    found = backend.get(out)
    assert (found[0] == x + 6).all() and (found[1] == (x + 5)[::-1]).all()


@tw.kernel
def share(out, x, swizzled: tw.constexpr):
    """Let each block of a cluster bring its rows of a tile to all of them, again and again."""
    rows, columns = swizzled.shape
    tile, full, i = tw.shared(x.dtype, swizzled), tw.mbarrier(1), tw.thread_idx.x
    tw.cluster_sync()
    rank, blocks = tw.block_rank_in_cluster(), tw.cluster_dim.x
    for turn in range(2):
        if i == 0:
            full.arrive_expect_tx(rows * columns * x.dtype.bytes)
            part = tw.local_tile(x, (rows // blocks, columns), (blocks * turn + rank, tw.cluster_idx.x), guard=True)
            ours = tw.local_tile(tile, (rows // blocks, columns), (rank, 0))
            tw.copy(MULTICAST, part, ours, barrier=full, mask=(1 << blocks) - 1)
        full.wait(turn)
        for r in range(rows):
            out[tw.block_idx.x, turn * rows + r, i] = tile[r, i]
        tw.cluster_sync()  # all have read


@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize("bits", [0, 3])
def test_multicast(backend: Backend, blocks: int, bits: int) -> None:
    rows, columns = 32, 32
    layout = tw.row_major((rows, columns))
    if bits:
        layout = tw.ComposedLayout(tw.Swizzle(3, 2, 3), 0, layout)
    x = np.arange(2 * rows * 2 * columns, dtype=np.float32).reshape(2 * rows, 2 * columns)
    out = backend.zeros((2 * blocks, 2 * rows, columns), tw.float32)
    share.configure(cluster=blocks)[2 * blocks, columns](out, backend.put(x), layout)
    expected = np.repeat(x.reshape(2 * rows, 2, columns).swapaxes(0, 1), blocks, axis=0)
    assert (backend.get(out) == expected).all()


@pytest.mark.parametrize(
    ("extents", "blocks"), [((256, 256, 64), 2), pytest.param((512, 768, 320), 4, marks=pytest.mark.slow)]
)
def test_product(backend: Backend, extents: tuple[int, int, int], blocks: int) -> None:
    m, n, k = extents
    random = np.random.default_rng(k)
    a, b = (random.integers(-4, 5, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
    out = backend.zeros((m, n), tw.bfloat16)
    example = load_example(examples_folder() / "hopper" / "06_cluster_multicast.py")
    example.matmul(out, backend.put(a), backend.put(b), stages=3, blocks=blocks)
    exact = a.astype(np.float32) @ b.astype(np.float32).T
    assert (backend.get(out).astype(np.float32) == exact.astype(ml_dtypes.bfloat16).astype(np.float32)).all()


@tw.kernel(cluster=4)
def pass_on(out, x, size: tw.constexpr):
    """Let a row go around a cluster: each block adds one to what it got, and sends it to the next one."""
    mine, got, i = tw.shared(tw.int32, size), tw.shared(tw.int32, size), tw.thread_idx.x
    full, rank = tw.mbarrier(1), tw.block_rank_in_cluster()
    tw.cluster_arrive(relaxed=True)  # what the others need is the mbarrier
    mine[i] = x[tw.block_idx.x, i]
    tw.fence_proxy_async()
    tw.sync_threads()
    tw.cluster_wait()
    for turn in range(3):
        if i == 0:
            to = (rank + 1) % 4
            full.arrive_expect_tx(size * 4)
            tw.copy(tw.atoms.SM90_BULK_COPY_S2S, mine, got.at_rank(to), barrier=full.at_rank(to))
        full.wait(turn % 2)
        tw.cluster_sync()  # what this block has sent was read
        mine[i] = got[i] + 1
        tw.fence_proxy_async()
        tw.cluster_sync()  # and all have taken what they got
    out[tw.block_idx.x, i] = mine[i]


def test_runs_that_go_around_a_cluster(backend: Backend) -> None:
    x = np.arange(8 * 96, dtype=np.int32).reshape(8, 96)
    out = backend.zeros(x.shape, tw.int32)
    pass_on[8, 96](out, backend.put(x), 96)
    assert (backend.get(out).reshape(2, 4, 96) == np.roll(x.reshape(2, 4, 96), 3, axis=1) + 3).all()
