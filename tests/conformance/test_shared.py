"""Shared memory, barriers and asynchronous copies."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import ALL, Backend, assert_same_bits, edge_values

import tilewright as tw


@tw.kernel
def block_sum(out, x):
    """A tree over the threads of a block."""
    smem = tw.shared(x.dtype, (tw.block_dim.x,))
    tid = tw.thread_idx.x
    smem[tid] = x[tw.block_idx.x * tw.block_dim.x + tid]
    tw.sync_threads()
    step = tw.block_dim.x // 2
    while step > 0:
        if tid < step:
            smem[tid] = smem[tid] + smem[tid + step]
        tw.sync_threads()
        step = step // 2
    if tid == 0:
        out[tw.block_idx.x] = smem[0]


@pytest.mark.parametrize(
    "dtype", [tw.int32, tw.int64, tw.uint32, tw.float16, tw.bfloat16, tw.float32, tw.float64], ids=str
)
def test_reduction(backend: Backend, dtype: tw.DType) -> None:
    x = np.random.default_rng(0).integers(0, 3, 5 * 128).astype(dtype.numpy)
    out = backend.zeros(5, dtype)
    block_sum[5, 128](out, backend.put(x))
    tree = x.reshape(5, 128)
    while tree.shape[1] > 1:
        half = tree.shape[1] // 2
        tree = tree[:, :half] + tree[:, half:]
    assert_same_bits(backend.get(out), tree[:, 0])


@tw.kernel
def block_scan(out, x):
    """An inclusive scan (Hillis and Steele), between two buffers."""
    tid = tw.thread_idx.x
    smem = tw.shared(x.dtype, (tw.block_dim.x, 2))
    smem[tid, 0] = x[tw.block_idx.x, tid]
    side = 0
    step = 1
    while step < tw.block_dim.x:
        tw.sync_threads()
        value = smem[tid, side]
        if tid >= step:
            value += smem[tid - step, side]
        smem[tid, 1 - side] = value
        side = 1 - side
        step *= 2
    out[tw.block_idx.x, tid] = smem[tid, side]


@pytest.mark.parametrize("dtype", [tw.int32, tw.int64, tw.float32], ids=str)
@pytest.mark.parametrize("threads", [1, 33, 256, 1024])
@pytest.mark.spread(4)
def test_scan(backend: Backend, dtype: tw.DType, threads: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (3, threads)).astype(dtype.numpy)
    out = backend.zeros(x.shape, dtype)
    block_scan[3, threads](out, backend.put(x))
    assert_same_bits(backend.get(out), np.cumsum(x, axis=1, dtype=x.dtype))


@tw.kernel
def transpose(dst, src, layout: tw.constexpr):
    smem = tw.shared(src.dtype, layout)
    tx, ty = tw.thread_idx.x, tw.thread_idx.y
    bx, by = tw.block_idx.x * 32, tw.block_idx.y * 32
    for k in range(0, 32, 8):
        smem[ty + k, tx] = src[by + ty + k, bx + tx]
    tw.sync_threads()
    for k in range(0, 32, 8):
        dst[bx + ty + k, by + tx] = smem[tx, ty + k]


LAYOUTS = {
    "rows": tw.Layout((32, 32), (32, 1)),
    "columns": tw.Layout((32, 32)),
    "padded": tw.Layout((32, 32), (33, 1)),
    "swizzled": tw.composition(tw.Swizzle(5, 0, 5), tw.Layout((32, 32), (32, 1))),
    "nested": tw.Layout(((4, 8), (2, 16)), ((2, 8), (1, 64))),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.spread(6)
def test_transposed_tiles(backend: Backend, dtype: tw.DType, layout: tw.Layout) -> None:
    values = edge_values(dtype)
    src = np.random.default_rng(0).choice(values, (64, 96))
    dst = backend.zeros((96, 64), dtype)
    transpose[(3, 2), (32, 8)](dst, backend.put(src), layout)
    assert_same_bits(backend.get(dst), src.T.copy())


@tw.kernel
def phases(out, x):
    """Three buffers of different types whose lives do not overlap, and one that lives through all."""
    tid = tw.thread_idx.x
    total = tw.shared(tw.float32, (64,))
    total[tid] = 0.0

    first = tw.shared(tw.int32, (64,))
    first[tid] = x[tid]
    tw.sync_threads()
    total[tid] += first[63 - tid].to(tw.float32)
    tw.sync_threads()

    second = tw.shared(tw.float64, (64, 2))
    second[tid, 0] = x[tid].to(tw.float64)
    second[tid, 1] = 2.0
    tw.sync_threads()
    other = tid ^ 1
    total[tid] += (second[other, 0] * second[other, 1]).to(tw.float32)
    tw.sync_threads()

    third = tw.shared(tw.bool_, (64,))
    third[tid] = x[tid] % 2 == 0
    tw.sync_threads()
    if third[(tid + 7) % 64]:
        total[tid] += 1000.0
    tw.sync_threads()
    out[tid] = total[(tid + 1) % 64]


def test_overlapping_lifetimes(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(0, 100, 64).astype(np.int32)
    out = backend.zeros(64, tw.float32)
    phases[1, 64](out, backend.put(x))
    t = np.arange(64)
    total = x[63 - t] + 2.0 * x[t ^ 1] + 1000.0 * (x[(t + 7) % 64] % 2 == 0)
    assert_same_bits(backend.get(out), np.roll(total, -1).astype(np.float32))


@tw.kernel
def large_shared(out, x, size: tw.constexpr):
    smem = tw.shared(x.dtype, (size,))
    tid = tw.thread_idx.x
    for i in range(tid, size, tw.block_dim.x):
        smem[i] = x[i] + tw.block_idx.x
    tw.sync_threads()
    for i in range(tid, size, tw.block_dim.x):
        out[tw.block_idx.x, i] = smem[size - 1 - i]


@pytest.mark.parametrize("kilobytes", [48, 49, 96, 99])
def test_much_shared_memory(backend: Backend, kilobytes: int) -> None:
    """Beyond 48 KB a kernel has to ask for it; 99 KB is what every GPU since sm_86 grants."""
    size = kilobytes * 1024 // 4
    x = np.arange(size, dtype=np.int32)
    out = backend.zeros((2, size), tw.int32)
    large_shared[2, 256](out, backend.put(x), size)
    assert np.array_equal(backend.get(out), np.stack([x[::-1], x[::-1] + 1]))


@tw.kernel
def warp_exchange(out, x):
    """Threads of one warp exchange through shared memory with a barrier of the warp only."""
    smem = tw.shared(x.dtype, (128,))
    tid = tw.thread_idx.x
    smem[tid] = x[tid]
    tw.sync_warp()
    out[tid] = smem[tid ^ 31]


def test_barrier_of_a_warp(backend: Backend) -> None:
    x = np.arange(128, dtype=np.float32)
    out = backend.zeros(128, tw.float32)
    warp_exchange[1, 128](out, backend.put(x))
    assert_same_bits(backend.get(out), x[np.arange(128) ^ 31])


# --- asynchronous copies -------------------------------------------------------------------------------


@tw.kernel
def pipeline(out, x, stages: tw.constexpr):
    """Sum the tiles of a row, with `stages - 1` groups of asynchronous copies under way."""
    smem = tw.shared(x.dtype, tw.Layout((64, 4, stages), (4, 1, 256)))
    tid = tw.thread_idx.x
    tiles = x.shape[1] // 256
    row = tw.block_idx.x
    source = tw.local_tile(x[row, None], (256,), (None,))  # (256, tiles)
    total = tw.registers(x.dtype, (4,))
    tw.clear(total)
    for s in tw.static_range(stages - 1):
        if s < tiles:
            part = tw.local_tile(source[None, s], (4,), (tid,))
            tw.copy(part, smem[tid, None, s])
        tw.cp_async_commit()
    for t in range(tiles):
        tw.cp_async_wait(stages - 2)
        tw.sync_threads()
        ahead = t + stages - 1
        if ahead < tiles:
            part = tw.local_tile(source[None, ahead], (4,), (tid,))
            tw.copy(part, smem[tid, None, ahead % stages])
        tw.cp_async_commit()
        # What another thread brought.
        for k in tw.static_range(4):
            total[k] = total[k] * 2 + smem[63 - tid, k, t % stages]
    tw.cp_async_wait()
    for k in tw.static_range(4):
        out[row, tid, k] = total[k]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("dtype", [tw.int32, tw.float32, tw.float64, tw.float16], ids=str)
@pytest.mark.spread(4)
def test_stages_of_asynchronous_copies(backend: Backend, dtype: tw.DType, stages: int) -> None:
    x = np.random.default_rng(0).integers(0, 2, (2, 256 * 6)).astype(dtype.numpy)
    out = backend.zeros((2, 64, 4), dtype)
    pipeline[2, 64](out, backend.put(x), stages)
    total = np.zeros((2, 64, 4), dtype.numpy)
    for tile in x.reshape(2, 6, 64, 4)[:, :, ::-1].transpose(1, 0, 2, 3):
        total = total * dtype.numpy.type(2) + tile
    assert_same_bits(backend.get(out), total)


@tw.kernel
def asynchronous(out, x, atom: tw.constexpr, width: tw.constexpr):
    smem = tw.shared(x.dtype, (64 * width,))
    tid = tw.thread_idx.x
    tw.copy(atom, tw.local_tile(x, (2 * width,), (tid,)), tw.local_tile(smem, (2 * width,), (tid,)))
    tw.cp_async_commit()
    tw.cp_async_wait(0)
    tw.sync_threads()
    for k in tw.static_range(2 * width):
        out[tid * 2 * width + k] = smem[(31 - tid) * 2 * width + k]


ATOMS = (tw.atoms.CpAsync(32), tw.atoms.CpAsync(64), tw.atoms.CpAsync(128), tw.atoms.CpAsync(128, cache="global"))


@pytest.mark.parametrize(
    ("dtype", "atom"), [(t, a) for t in ALL for a in ATOMS if a.bits is not None and a.bits >= t.bits], ids=str
)
@pytest.mark.spread(6)
def test_asynchronous_copies_of_every_width(backend: Backend, dtype: tw.DType, atom: tw.atoms.CopyAtom) -> None:
    assert atom.bits is not None
    width = atom.bits // dtype.bits
    x = np.random.default_rng(0).choice(edge_values(dtype), 64 * width)
    out = backend.zeros(64 * width, dtype)
    asynchronous[1, 32](out, backend.put(x), atom, width)
    assert_same_bits(backend.get(out), x.reshape(32, 2 * width)[::-1].ravel())


@tw.kernel
def two_groups(out, x, y):
    """The first group has landed while the second is still under way."""
    a, b = tw.shared(x.dtype, (256,)), tw.shared(x.dtype, (256,))
    tid = tw.thread_idx.x
    tw.copy(tw.local_tile(x, (2,), (tid,)), tw.local_tile(a, (2,), (tid,)))
    tw.cp_async_commit()
    tw.copy(tw.local_tile(y, (2,), (tid,)), tw.local_tile(b, (2,), (tid,)))
    tw.cp_async_commit()
    tw.cp_async_wait(1)
    tw.sync_threads()
    first = a[255 - tid]
    tw.cp_async_wait(0)
    tw.sync_threads()
    out[tid] = first * 1000 + b[(tid + 1) % 256]


def test_groups_land_in_order(backend: Backend) -> None:
    x, y = (np.random.default_rng(n).integers(0, 999, 256).astype(np.int32) for n in range(2))
    out = backend.zeros(128, tw.int32)
    two_groups[1, 128](out, backend.put(x), backend.put(y))
    assert np.array_equal(backend.get(out), x[::-1][:128] * 1000 + y[1:129])
