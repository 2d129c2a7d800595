"""Guarded tiles on both backends: reads are the padded array's, writes are cropped, and nothing around is touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits

import tilewright as tw

POISON = 113
TILE = (16, 32)


class _Host(Backend):
    """Arrays of the host as they are, to compute what is expected."""

    def put(self, array: Array) -> Any:
        return array

    def strided(self, memory: Any, shape: Any, strides: Any, offset: int = 0) -> Any:
        size = memory.itemsize
        return np.lib.stride_tricks.as_strided(memory[offset:], shape, [s * size for s in strides])


HOST = _Host()


def cut(x: Array, first: tuple[int, int], tile: tuple[int, int], fill: float) -> Array:
    """Return x[first : first + tile], `fill` outside of x."""
    padded = np.pad(x, [(64, 64 + t) for t in tile], constant_values=np.array(fill).astype(x.dtype))
    rows, columns = (64 + f for f in first)
    return padded[rows : rows + tile[0], columns : columns + tile[1]]


def framed(backend: Backend, shape: tuple[int, int], stride: int, offset: int, dtype: tw.DType) -> tuple[Any, Any]:
    """Return memory full of poison, and a view of it as rows that begin `stride` elements apart."""
    host = np.full(offset + shape[0] * stride + 64, POISON).astype(dtype.numpy)
    view = np.lib.stride_tricks.as_strided(host[offset:], shape, [stride * host.itemsize, host.itemsize])
    view[...] = (np.arange(shape[0] * shape[1]) % 97).astype(dtype.numpy).reshape(shape)
    memory = backend.put(host)
    return memory, backend.strided(memory, shape, (stride, 1), offset)


def tiled_copy(dtype: tw.DType, atom: Any) -> tw.TiledCopy:
    width = max(16 // dtype.bytes, 2)
    return tw.make_tiled_copy(atom, tw.Layout((8, 32 // width), (32 // width, 1)), tw.Layout((2, width), (width, 1)))


@tw.kernel
def read_all(out, x, tiles: tw.constexpr, through: tw.constexpr, fill: tw.constexpr):
    """Write each block's tile of x to out, padded, by way of registers or of shared memory."""
    block, thread = (tw.block_idx.y, tw.block_idx.x), tiles.get_slice(tw.thread_idx.x)
    source = thread.partition_S(tw.local_tile(x, TILE, block, guard=True, fill=fill))
    target = thread.partition_D(tw.local_tile(out, TILE, block))
    if through == "registers":
        held = tw.fragment_like(source)
        tw.copy(tiles, source, held)
        tw.copy(held, target)
    else:
        smem = tw.shared(x.dtype, tw.row_major(TILE))
        tw.copy(source, thread.partition_D(smem))
        tw.cp_async_wait()
        tw.sync_threads()
        tw.copy(thread.partition_S(smem), target)


SHAPES = [((16, 32), 32), ((17, 33), 40), ((31, 40), 64), ((1, 1), 8), ((50, 63), 63), ((33, 64), 64)]
DTYPES = (tw.int8, tw.float16, tw.bfloat16, tw.float32, tw.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "stride"), SHAPES, ids=str)
@pytest.mark.parametrize("through", ["registers", "shared"])
@pytest.mark.spread(6)
def test_reads(backend: Backend, through: str, shape: tuple[int, int], stride: int, dtype: tw.DType) -> None:
    rows, columns = (-(-n // t) + 1 for n, t in zip(shape, TILE, strict=True))
    for fill in (0, 5):
        memory, x = framed(backend, shape, stride, 16, dtype)
        before = backend.get(memory)
        out = backend.zeros((rows * TILE[0], columns * TILE[1]), dtype)
        tiles = tiled_copy(dtype, tw.atoms.UniversalCopy())
        read_all[(columns, rows), tiles.size](out, x, tiles, through, fill)
        expected = cut(backend.get(x), (0, 0), (rows * TILE[0], columns * TILE[1]), fill)
        assert_same_bits(backend.get(out), expected, (through, shape, fill))
        assert_same_bits(backend.get(memory), before)


@tw.kernel
def read_asynchronously(out, x, tiles: tw.constexpr, fill: tw.constexpr):
    """As `read_all` through shared memory, by the instruction of the tiled copy."""
    block, thread = (tw.block_idx.y, tw.block_idx.x), tiles.get_slice(tw.thread_idx.x)
    smem = tw.shared(x.dtype, tw.row_major(TILE))
    source = thread.partition_S(tw.local_tile(x, TILE, block, guard=True, fill=fill))
    tw.copy(tiles, source, thread.partition_D(smem))
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(thread.partition_S(smem), thread.partition_D(tw.local_tile(out, TILE, block)))


@pytest.mark.parametrize("dtype", [tw.float16, tw.float32], ids=str)
@pytest.mark.parametrize(("shape", "stride"), [((16, 32), 32), ((17, 33), 40), ((31, 45), 64)], ids=str)
@pytest.mark.parametrize("fill", [0.0, -0.0, 2.0, float("-inf")])
@pytest.mark.spread(4)
def test_cp_async(backend: Backend, fill: float, shape: tuple[int, int], stride: int, dtype: tw.DType) -> None:
    rows, columns = (-(-n // t) for n, t in zip(shape, TILE, strict=True))
    _, x = framed(backend, shape, stride, 16, dtype)
    out = backend.zeros((rows * TILE[0], columns * TILE[1]), dtype)
    tiles = tiled_copy(dtype, tw.atoms.CpAsync(128, cache="global"))
    read_asynchronously[(columns, rows), tiles.size](out, x, tiles, fill)
    expected = cut(backend.get(x), (0, 0), (rows * TILE[0], columns * TILE[1]), fill)
    assert_same_bits(backend.get(out), expected, (shape, fill))


@tw.kernel
def write_all(x, src, index, tiles: tw.constexpr):
    """Write src to the tile of x at the coordinate that `index` holds."""
    thread = tiles.get_slice(tw.thread_idx.x)
    target = thread.partition_D(tw.local_tile(x, TILE, (index[0], index[1]), guard=True))
    source = thread.partition_S(tw.local_tile(src, TILE, (0, 0)))
    held = tw.fragment_like(source)
    tw.copy(source, held)
    tw.copy(held, target)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "stride"), SHAPES, ids=str)
@pytest.mark.spread(6)
def test_writes(backend: Backend, shape: tuple[int, int], stride: int, dtype: tw.DType) -> None:
    tiles = tiled_copy(dtype, tw.atoms.UniversalCopy())
    src = (np.arange(TILE[0] * TILE[1]) % 89).astype(dtype.numpy).reshape(TILE)
    for index in ((0, 0), (1, 0), (0, 1), (1, 1), (-1, 0), (0, -1), (7, 0)):
        memory, x = framed(backend, shape, stride, 16, dtype)
        expected_memory, expected = framed(HOST, shape, stride, 16, dtype)
        for i in range(TILE[0]):
            for j in range(TILE[1]):
                row, column = index[0] * TILE[0] + i, index[1] * TILE[1] + j
                if 0 <= row < shape[0] and 0 <= column < shape[1]:
                    expected[row, column] = src[i, j]
        write_all[1, tiles.size](x, backend.put(src), backend.put(np.array(index, np.int32)), tiles)
        assert_same_bits(backend.get(memory), expected_memory, (shape, index))


MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, (2, 2, 1))
LOAD = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((16, 8), (8, 1)), tw.Layout((1, 8)))


@tw.kernel
def product(d, a, b):
    """d = a b^T in tiles of 64 x 64, of any extents."""
    i, j = tw.block_idx.y, tw.block_idx.x
    a_tiles = tw.local_tile(a, (64, 64), (i, None), guard=True)
    b_tiles = tw.local_tile(b, (64, 64), (j, None), guard=True)
    d_tile = MMA.get_slice(tw.thread_idx.x).partition_C(tw.local_tile(d, (64, 64), (i, j), guard=True))
    a_smem, b_smem = (tw.shared(a.dtype, tw.row_major((64, 64))) for _ in range_of_two())
    load, multiply = LOAD.get_slice(tw.thread_idx.x), MMA.get_slice(tw.thread_idx.x)
    a_part, b_part = load.partition_S(a_tiles), load.partition_S(b_tiles)
    sums = multiply.make_fragment_C(d_tile)
    tw.clear(sums)
    for k in range(a_tiles.shape[2]):
        tw.copy(a_part[:, :, :, k], load.partition_D(a_smem))
        tw.copy(b_part[:, :, :, k], load.partition_D(b_smem))
        tw.cp_async_wait()
        tw.sync_threads()
        tw.gemm(MMA, sums, multiply.partition_A(a_smem), multiply.partition_B(b_smem), sums)
        tw.sync_threads()
    tw.copy(sums.to(d.dtype), d_tile)


def range_of_two() -> tuple[int, int]:
    return (0, 1)


@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 64), (100, 70, 130), (65, 129, 72), (1, 3, 5)])
@pytest.mark.spread(3)
def test_products(backend: Backend, m: int, n: int, k: int) -> None:
    random = np.random.default_rng(m)
    a, b = (random.integers(-3, 4, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    d = backend.put(np.full((m, n), np.nan, np.float16))
    product[(-(-n // 64), -(-m // 64)), 128](d, backend.put(a), backend.put(b))
    assert_same_bits(backend.get(d), (a.astype(np.float32) @ b.T.astype(np.float32)).astype(np.float16))


@tw.kernel
def neighbours(y, x):
    """Add the four neighbours of each element, by single elements and through a tile with a halo."""
    plate, out = tw.guarded(x), tw.guarded(y)
    i, j = tw.block_idx.y * 8, tw.block_idx.x * 8
    row, column = tw.thread_idx.x // 8, tw.thread_idx.x % 8
    halo = tw.local_tile(tw.domain_offset((i - 1, j - 1), plate), (16, 16), (0, 0))
    smem = tw.shared(x.dtype, tw.row_major((16, 16)))
    threads = tw.Layout((8, 8), (8, 1))
    tw.copy(tw.local_partition(halo, threads, tw.thread_idx.x), tw.local_partition(smem, threads, tw.thread_idx.x))
    tw.cp_async_wait()
    tw.sync_threads()
    one = plate[i + row - 1, j + column] + plate[i + row + 1, j + column]
    other = smem[row + 1, column] + smem[row + 1, column + 2]
    out[i + row, j + column] = one + other


@pytest.mark.parametrize("shape", [(8, 8), (9, 17), (1, 1), (30, 23)], ids=str)
def test_halo(backend: Backend, shape: tuple[int, int]) -> None:
    x = np.random.default_rng(1).integers(0, 99, shape).astype(np.float32)
    y = backend.put(np.full(shape, np.nan, np.float32))
    neighbours[(-(-shape[1] // 8), -(-shape[0] // 8)), 64](y, backend.put(x))
    p = np.pad(x, 1)
    assert_same_bits(backend.get(y), p[:-2, 1:-1] + p[2:, 1:-1] + (p[1:-1, :-2] + p[1:-1, 2:]))


@tw.kernel
def doubled(y, x):
    """y = 2 x in tiles of 4, one a block."""
    source, target = (tw.local_tile(t, (4,), (tw.block_idx.x,), guard=True) for t in (x, y))
    held = tw.fragment_like(source)
    tw.copy(source, held)
    tw.axpby(1, held, 1, held)
    tw.copy(held, target)


def test_grids_of_whole_tiles(backend: Backend) -> None:
    """Where static extents fall into whole tiles there is no guard, and no launch with more blocks than tiles."""
    x, y = backend.put(np.arange(8, dtype=np.float32)), backend.zeros(8, tw.float32)
    for blocks in (1, 2, 2):
        doubled[blocks, 1](tw.static(y), tw.static(x))
    assert np.array_equal(backend.get(y), np.arange(8) * 2)
    for _ in range(2):
        with pytest.raises(tw.ArgumentError, match="the grid has 3 blocks along x, and mode 0 of x has 2 tiles"):
            doubled[3, 1](tw.static(y), tw.static(x))
    doubled[3, 1](y, x)  # with extents that only the launch knows it is guarded
    assert np.array_equal(backend.get(y), np.arange(8) * 2)


@tw.kernel
def masked_sums(out, x):
    """Sum up what is inside of each tile, count it, and tell the residue."""
    tile = tw.local_tile(x, (4, 8), (tw.block_idx.y, tw.block_idx.x), guard=True, fill=100)
    values, there = tw.fragment_like(tile), tw.inside(tile)
    tw.copy(tile, values)
    total, count = 0.0, 0
    for i in range(4):
        for j in range(8):
            total += tw.where(there[i, j], values[i, j], 0.0)
            if tile.inside((i, j)):
                count += 1
    found = out[tw.block_idx.y, tw.block_idx.x, None]
    found[0], found[1], found[2], found[3] = total, count, tile.residue[0], tile.residue[1]


def test_masks_and_residue(backend: Backend) -> None:
    x = np.random.default_rng(2).integers(-50, 50, (10, 13)).astype(np.float32)
    out = backend.zeros((4, 3, 4), tw.float32)
    masked_sums[(3, 4), 1](out, backend.put(x))
    parts = [[x[4 * i : 4 * i + 4, 8 * j : 8 * j + 8] for j in range(3)] for i in range(4)]
    # Outside along one mode, the other's residue is still that of the tensor.
    residues = [[(min(max(10 - 4 * i, 0), 4), min(max(13 - 8 * j, 0), 8)) for j in range(3)] for i in range(4)]
    expected = [
        [[p.sum(), p.size, *r] for p, r in zip(*rows, strict=True)] for rows in zip(parts, residues, strict=True)
    ]
    assert np.array_equal(backend.get(out), np.array(expected, np.float32))


@tw.kernel
def compute_all(y, x, sums, tiles: tw.constexpr):
    """Write 3 * x + 2 to y where both are, then double y in place, and add up what was read; x is 5 outside."""
    block, thread = (tw.block_idx.y, tw.block_idx.x), tiles.get_slice(tw.thread_idx.x)
    x_part = thread.partition_S(tw.local_tile(x, TILE, block, guard=True, fill=5))
    y_part = thread.partition_D(tw.local_tile(y, TILE, block, guard=True))
    y_part[...] = 2
    y_part[...] = x_part * 2 + y_part + x_part  # the second load of x stands behind the loop of the product
    y_part += y_part
    tw.atomic_add(sums, 0, x_part.to(tw.float32).reduce("add"))
    tw.atomic_add(sums, 1, y_part.to(tw.float32).reduce("add"))


@pytest.mark.parametrize("dtype", (tw.int8, tw.bfloat16, tw.float32), ids=str)
@pytest.mark.parametrize(("shape", "stride"), SHAPES[1:5], ids=str)
@pytest.mark.spread(4)
def test_tiles_compute(backend: Backend, shape: tuple[int, int], stride: int, dtype: tw.DType) -> None:
    rows, columns = (-(-n // t) + 1 for n, t in zip(shape, TILE, strict=True))
    memory, y = framed(backend, shape, stride, 16, dtype)
    expected_memory, expected = framed(HOST, shape, stride, 16, dtype)
    x_memory, x = framed(HOST, shape, stride, 16, dtype)
    x_memory[...] = x_memory % np.array(7).astype(dtype.numpy)  # small enough for int8 and bfloat16
    expected[...] = 2 * (3 * x + np.array(2).astype(dtype.numpy))
    sums, tiles = backend.zeros(2, tw.float32), tiled_copy(dtype, tw.atoms.UniversalCopy())
    compute_all[(columns, rows), tiles.size](
        y, backend.strided(backend.put(x_memory), shape, (stride, 1), 16), sums, tiles
    )
    assert_same_bits(backend.get(memory), expected_memory, shape)
    outside = rows * columns * TILE[0] * TILE[1] - shape[0] * shape[1]
    assert backend.get(sums).tolist() == [
        x.astype(np.float64).sum() + 5 * outside,
        expected.astype(np.float64).sum(),
    ]
