"""local_tile and local_partition of one to three modes, TiledCopy's and TiledMMA's partitions, and tw.gemm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits

import tilewright as tw

# --- local_tile and local_partition --------------------------------------------------------------------


@tw.kernel
def tile_1(out, x, tile: tw.constexpr, threads: tw.constexpr):
    block = tw.local_tile(x, (tile,), (tw.block_idx.x,))
    part = tw.local_partition(block, threads, tw.thread_idx.x)
    for i in range(tw.size(part.shape)):
        out[tw.block_idx.x, tw.thread_idx.x, i] = part[i]


@pytest.mark.parametrize(("tile", "threads"), [(32, 32), (64, 32), (96, 32), (64, 64), (128, 16)])
def test_one_mode(backend: Backend, tile: int, threads: int) -> None:
    x = np.arange(4 * tile, dtype=np.int32)
    out = backend.zeros((4, threads, tile // threads), tw.int32)
    tile_1[4, threads](out, backend.put(x), tile, tw.Layout(threads))
    assert np.array_equal(backend.get(out), x.reshape(4, tile // threads, threads).transpose(0, 2, 1))


@tw.kernel
def tile_2(out, x, tile: tw.constexpr, threads: tw.constexpr):
    block = tw.local_tile(x, tile, (tw.block_idx.y, tw.block_idx.x))
    part = tw.local_partition(block, threads, tw.thread_idx.x)
    number = tw.block_idx.y * tw.grid_dim.x + tw.block_idx.x
    for i in range(part.shape[0]):
        for j in range(part.shape[1]):
            out[number, tw.thread_idx.x, i, j] = part[i, j]


def partitioned(tile: Array, threads: tw.Layout, number: int) -> Array:
    """Return what thread `number` owns of a tile: every element whose place in the thread's shape is its own."""
    rows, columns = (int(n) for n in threads.shape)
    row, column = next((r, c) for r in range(rows) for c in range(columns) if threads(r, c) == number)
    return tile[row::rows, column::columns]


@pytest.mark.parametrize(
    ("tile", "threads"),
    [
        ((16, 16), tw.Layout((4, 8))),
        ((16, 16), tw.Layout((4, 8), (8, 1))),
        ((8, 32), tw.Layout((1, 32))),
        ((32, 8), tw.Layout((32, 1))),
        ((16, 8), tw.Layout((8, 8), (1, 8))),
    ],
    ids=str,
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_two_modes(backend: Backend, tile: tuple[int, int], threads: tw.Layout, order: str) -> None:
    rows, columns = 2 * tile[0], 3 * tile[1]
    x = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    memory = backend.put(x.ravel(order=order))  # type: ignore[arg-type]
    view = backend.strided(memory, x.shape, (columns, 1) if order == "C" else (1, rows))
    shape = threads.shape
    assert isinstance(shape, tuple)
    counts = (tile[0] // shape[0], tile[1] // shape[1])
    out = backend.zeros((6, threads.size, *counts), tw.int32)
    tile_2[(3, 2), threads.size](out, view, tile, threads)
    found = backend.get(out)
    for b in range(6):
        block = x[b // 3 * tile[0] :, b % 3 * tile[1] :][: tile[0], : tile[1]]
        for t in range(threads.size):
            assert np.array_equal(found[b, t], partitioned(block, threads, t)), (b, t)


@tw.kernel
def tile_3(out, x, tile: tw.constexpr):
    block = tw.local_tile(x, tile, (tw.block_idx.x, tw.block_idx.y, tw.block_idx.z))
    part = tw.local_partition(block, tw.Layout((2, 4, 4)), tw.thread_idx.x)
    for i in range(part.shape[0]):
        for j in range(part.shape[1]):
            for k in range(part.shape[2]):
                out[tw.block_idx.x, tw.block_idx.y, tw.block_idx.z, tw.thread_idx.x, i, j, k] = part[i, j, k]


def test_three_modes(backend: Backend) -> None:
    x = np.arange(8 * 16 * 24, dtype=np.int32).reshape(8, 16, 24)
    out = backend.zeros((2, 2, 3, 32, 2, 2, 2), tw.int32)
    tile_3[(2, 2, 3), 32](out, backend.put(x), (4, 8, 8))
    found = backend.get(out)
    for b in np.ndindex(2, 2, 3):
        block = x[b[0] * 4 :, b[1] * 8 :, b[2] * 8 :][:4, :8, :8]
        for t in range(32):
            i, j, k = t % 2, t // 2 % 4, t // 8
            assert np.array_equal(found[(*b, t)], block[i::2, j::4, k::4])


@tw.kernel
def tiles_along(out, x):
    """None keeps all tiles of a mode, and a device loop goes along them."""
    tiles = tw.local_tile(x, (8, 4), (tw.block_idx.x, None))  # (8, 4, tiles)
    tid = tw.thread_idx.x
    total = 0
    for t in range(tiles.shape[2]):
        total = total * 3 + tiles[tid % 8, tid // 8, t]
    out[tw.block_idx.x, tid] = total


def test_all_tiles_of_a_mode(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(0, 5, (16, 20)).astype(np.int32)
    out = backend.zeros((2, 32), tw.int32)
    tiles_along[2, 32](out, backend.put(x))
    total = np.zeros((2, 32), np.int32)
    for t in range(5):
        total = total * 3 + x[:, 4 * t : 4 * t + 4].reshape(2, 8, 4).transpose(0, 2, 1).reshape(2, 32)
    assert np.array_equal(backend.get(out), total)


@tw.kernel
def projected(out, x):
    """proj leaves the middle mode out: one tiler for three operands."""
    tile = tw.local_tile(x, (8, 99, 4), (tw.block_idx.x, 5, tw.block_idx.y), proj=(1, None, 1))
    tid = tw.thread_idx.x
    out[tw.block_idx.x, tw.block_idx.y, tid] = tile[tid % 8, tid // 8]


def test_projection(backend: Backend) -> None:
    x = np.arange(16 * 12, dtype=np.int32).reshape(16, 12)
    out = backend.zeros((2, 3, 32), tw.int32)
    projected[(2, 3), 32](out, backend.put(x))
    expected = x.reshape(2, 8, 3, 4).transpose(0, 2, 3, 1).reshape(2, 3, 32)
    assert np.array_equal(backend.get(out), expected)


@tw.kernel
def nested_layout(out, x):
    """A hierarchical view of a vector: composed in the kernel, indexed by nested coordinates."""
    view = x.compose(tw.Layout(((2, 4), (2, 2)), ((1, 8), (2, 4))))
    tid = tw.thread_idx.x
    out[tid] = view[(tid % 2, tid // 2 % 4), (tid // 8 % 2, tid // 16)]


def test_nested_layouts(backend: Backend) -> None:
    x = np.random.default_rng(0).integers(0, 99, 32).astype(np.int32)
    out = backend.zeros(32, tw.int32)
    nested_layout[1, 32](out, backend.put(x))
    t = np.arange(32)
    assert np.array_equal(backend.get(out), x[t % 2 + t // 2 % 4 * 8 + t // 8 % 2 * 2 + t // 16 * 4])


# --- tiled copies --------------------------------------------------------------------------------------


@tw.kernel
def owners(out, tiled_copy: tw.constexpr):
    """Each thread writes its number to the elements of its partition."""
    part = tiled_copy.get_slice(tw.thread_idx.x).partition_D(out)
    tw.fill(part, tw.thread_idx.x)


COPIES = {
    "columns": (tw.Layout((32, 8)), tw.Layout((2, 1))),
    "rows": (tw.Layout((8, 4), (4, 1)), tw.Layout((1, 4))),
    "both": (tw.Layout((4, 8)), tw.Layout((2, 2))),
    "nested": (tw.Layout(((2, 2), 8), ((1, 16), 2)), tw.Layout((1, 2))),
}


@pytest.mark.parametrize("name", COPIES)
def test_tiled_copies_give_each_thread_its_part(backend: Backend, name: str) -> None:
    """A block of val_layout's shape for each place of thr_layout; the tile repeats over the matrix."""
    threads, block = COPIES[name]
    tiled_copy = tw.make_tiled_copy(tw.atoms.UniversalCopy(), threads, block)
    shape = tuple(2 * int(n) for n in tiled_copy.tile_shape)
    out = backend.put(np.full(shape, -1, np.int32))
    owners[1, tiled_copy.size](out, tiled_copy)
    (rows, columns), (block_rows, block_columns) = (int(threads[m].size) for m in range(2)), block.shape  # type: ignore[misc]
    expected = np.empty(shape, np.int32)
    for i, j in np.ndindex(*shape):
        expected[i, j] = threads(i // block_rows % rows, j // block_columns % columns)
    assert np.array_equal(backend.get(out), expected)


# --- tiled products ------------------------------------------------------------------------------------


@tw.kernel
def gemm(C, A, B, mma: tw.constexpr, tile: tw.constexpr):
    """One block a tile of C; operands straight from global memory."""
    block = (tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, tile, block, proj=(1, None, 1))
    gB = tw.local_tile(B, tile, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, tile, block, proj=(1, 1, None))
    thread = mma.get_slice(tw.thread_idx.x)
    tA, tB, tC = thread.partition_A(gA), thread.partition_B(gB), thread.partition_C(gC)
    acc = thread.make_fragment_C(tC)
    tw.clear(acc)
    for k in range(gA.shape[2]):
        tw.gemm(mma, acc, tA[:, :, :, k], tB[:, :, :, k], acc)
    tw.copy(acc, tC)


def product(a: Array, b: Array, dtype: Any) -> Array:
    """Return A B^T of small integers, which every type here holds exactly."""
    return (a.astype(np.float64) @ b.astype(np.float64).T).astype(dtype)


MMA_SHAPES: dict[str, tuple[Any, Any]] = {
    "16x16": ((16, 16, 1), (None, None, None)),
    "columns": ((32, 8, 1), (None, 32, None)),
    "row-major threads": (tw.Layout((8, 16, 1), (16, 1, 0)), (None, None, None)),
    "permuted": ((32, 8, 1), (tw.Layout((32, 2), (2, 1)), tw.Layout((8, 2), (2, 1)), None)),
}


@pytest.mark.parametrize("dtype", [tw.int32, tw.int64, tw.float16, tw.bfloat16, tw.float32, tw.float64], ids=str)
@pytest.mark.parametrize("shape", MMA_SHAPES)
@pytest.mark.spread(4)
def test_products_in_several_types(backend: Backend, dtype: tw.DType, shape: str) -> None:
    threads, permutations = MMA_SHAPES[shape]
    mma = tw.make_tiled_mma(tw.atoms.UniversalFMA(dtype), threads, permutations)
    random = np.random.default_rng(0)
    a, b = (random.integers(-2, 3, (128, 12)).astype(dtype.numpy) for _ in range(2))
    out = backend.zeros((128, 128), dtype)
    gemm[(2, 2), mma.size](out, backend.put(a), backend.put(b), mma, (64, 64, 4))
    assert_same_bits(backend.get(out), product(a, b, dtype.numpy))


@pytest.mark.parametrize(
    ("narrow", "wide"), [(tw.float16, tw.float32), (tw.bfloat16, tw.float32), (tw.float32, tw.float64)]
)
def test_products_in_a_wider_type(backend: Backend, narrow: tw.DType, wide: tw.DType) -> None:
    mma = tw.make_tiled_mma(tw.atoms.UniversalFMA(wide, narrow), (16, 8, 1))
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((64, 8)).astype(narrow.numpy) for _ in range(2))
    out = backend.zeros((64, 64), wide)
    gemm[(1, 1), 128](out, backend.put(a), backend.put(b), mma, (64, 64, 8))
    # The products are exact in the wider type, so only the sums round: in order, one k after another.
    total = np.zeros((64, 64), wide.numpy)
    for k in range(8):
        total = total + a[:, k : k + 1].astype(wide.numpy) * b[:, k].astype(wide.numpy)
    assert_same_bits(backend.get(out), total)


@pytest.mark.parametrize("orders", ["MN", "MK", "KN", "KK"])
@pytest.mark.parametrize("result", ["C", "F"])
@pytest.mark.spread(4)
def test_products_of_every_order(backend: Backend, orders: str, result: str) -> None:
    """A and B with M, N or K contiguous, C by rows and by columns."""
    mma = tw.make_tiled_mma(tw.atoms.UniversalFMA(tw.float32), (16, 16, 1))
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, (128, 24)).astype(np.float32) for _ in range(2))
    views = []
    for x, order in zip((a, b), orders, strict=True):
        by_rows = order == "K"
        memory = backend.put(np.ascontiguousarray(x if by_rows else x.T).ravel())
        views.append(backend.strided(memory, x.shape, (24, 1) if by_rows else (1, 128)))
    memory = backend.zeros(128 * 128, tw.float32)
    out = backend.strided(memory, (128, 128), (128, 1) if result == "C" else (1, 128))
    gemm[(4, 2), 256](out, *views, mma, (32, 64, 8))
    assert_same_bits(backend.get(out), product(a, b, np.float32))


@tw.kernel
def gemm_by_parts(D, A, B, C, mma: tw.constexpr):
    """Operands in shared memory and in registers, and d apart from c."""
    sA, sB = tw.shared(A.dtype, tw.Layout((32, 4), (1, 36))), tw.shared(B.dtype, tw.Layout((32, 4), (5, 1)))
    tid = tw.thread_idx.x
    threads = tw.Layout((32, 2))
    tw.copy(tw.local_partition(A, threads, tid), tw.local_partition(sA, threads, tid))
    tw.copy(tw.local_partition(B, threads, tid), tw.local_partition(sB, threads, tid))
    tw.cp_async_wait()
    tw.sync_threads()
    thread = mma.get_slice(tid)
    tCsA, tCsB = thread.partition_A(sA), thread.partition_B(sB)
    tCgC, tCgD = thread.partition_C(C), thread.partition_C(D)
    rA, rB = thread.make_fragment_A(tCsA), thread.make_fragment_B(tCsB)
    rC, rD = thread.make_fragment_C(tCgC), thread.make_fragment_C(tCgD)
    tw.copy(tCsA, rA)
    tw.copy(tCsB, rB)
    tw.copy(tCgC, rC)
    tw.gemm(mma, rD, rA[:, :, 0], rB[:, :, 0], rC)
    for k in tw.static_range(1, 4):
        tw.gemm(mma, rD, rA[:, :, k], rB[:, :, k], rD)
    for k in tw.static_range(4):
        tw.gemm(mma, rD, tCsA[:, :, k], tCsB[:, :, k], rD)
    tw.gemm(mma, tCsA, rB, rD)
    tw.copy(rD, tCgD)


def test_fragments_and_shared_operands(backend: Backend) -> None:
    mma = tw.make_tiled_mma(tw.atoms.UniversalFMA(tw.float32), (8, 8, 1))
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, (32, 4)).astype(np.float32) for _ in range(2))
    c = random.integers(-9, 9, (32, 32)).astype(np.float32)
    out = backend.zeros((32, 32), tw.float32)
    gemm_by_parts[1, 64](*(tw.static(x) for x in (out, backend.put(a), backend.put(b), backend.put(c))), mma)
    assert_same_bits(backend.get(out), 3 * product(a, b, np.float32) + c)


@tw.kernel
def gemm_into(D, A, B, C, mma: tw.constexpr):
    thread = mma.get_slice(tw.thread_idx.x)
    tC, tD = thread.partition_C(C), thread.partition_C(D)
    result = thread.make_fragment_C(tD)
    tw.gemm(mma, result, thread.partition_A(A), thread.partition_B(B), tC)
    tw.copy(result, tD)


@pytest.mark.parametrize("size", [8, 16])
def test_result_apart_from_the_addend(backend: Backend, size: int) -> None:
    mma = tw.make_tiled_mma(tw.atoms.UniversalFMA(tw.float32), (8, 8, 1))
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, (size, 4)).astype(np.float32) for _ in range(2))
    c = random.integers(-9, 9, (size, size)).astype(np.float32)
    out = backend.zeros((size, size), tw.float32)
    gemm_into[1, 64](*(tw.static(x) for x in (out, backend.put(a), backend.put(b), backend.put(c))), mma)
    assert_same_bits(backend.get(out), a @ b.T + c)


@tw.kernel
def retiled(out, A, B, mma: tw.constexpr, tiled_copy: tw.constexpr):
    """The accumulators of a product, written by a copy of its own that fits the mma."""
    thread = mma.get_slice(tw.thread_idx.x)
    acc = thread.make_fragment_C(thread.partition_C(out))
    tw.clear(acc)
    tw.gemm(mma, acc, thread.partition_A(A), thread.partition_B(B), acc)
    copier = tiled_copy.get_slice(tw.thread_idx.x)
    tw.copy(tiled_copy, copier.retile_S(acc), copier.partition_D(out))


def test_retiled_accumulators(backend: Backend) -> None:
    mma = tw.make_tiled_mma(tw.atoms.UniversalFMA(tw.float32), (8, 8, 1), (tw.Layout((8, 4), (4, 1)), None, None))
    tiled_copy = tw.make_tiled_copy_C(tw.atoms.UniversalCopy(128), mma)
    random = np.random.default_rng(0)
    a, b = (random.integers(-9, 9, (64, 4)).astype(np.float32) for _ in range(2))
    memory = backend.zeros(64 * 64, tw.float32)
    out = backend.strided(memory, (64, 64), (1, 64))
    retiled[1, 64](*(tw.static(x) for x in (out, backend.put(a), backend.put(b))), mma, tiled_copy)
    assert_same_bits(backend.get(out), product(a, b, np.float32))
