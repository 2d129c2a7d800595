"""`tw.copy` in every width and type: aligned and not, padded, strided, predicated, through swizzled shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import ALL, Array, Backend, Simulator, assert_same_bits, edge_values

import tilewright as tw

SENTINEL = 77  # what memory holds where a copy must not write


def values(dtype: tw.DType, shape: int | tuple[int, ...], seed: int = 0) -> Array:
    return np.random.default_rng(seed).choice(edge_values(dtype), shape)


def untouched(dtype: tw.DType, shape: int | tuple[int, ...]) -> Array:
    return np.full(shape, SENTINEL).astype(dtype.numpy)


@tw.kernel
def copy_rows(dst, src, count: tw.constexpr):
    """Each thread copies `count` neighbours, straight and by way of registers and shared memory."""
    tid = tw.thread_idx.x
    part = tw.local_tile(src, (count,), (tid,))
    tw.copy(part, tw.local_tile(dst[0, None], (count,), (tid,)))
    fragment = tw.fragment_like(part)
    tw.copy(part, fragment)
    tw.copy(fragment, tw.local_tile(dst[1, None], (count,), (tid,)))
    smem = tw.shared(src.dtype, (count * tw.block_dim.x,))
    tw.copy(part, tw.local_tile(smem, (count,), (tid,)))
    tw.cp_async_wait()
    tw.sync_threads()
    other = tid ^ 1
    tw.copy(tw.local_tile(smem, (count,), (other,)), tw.local_tile(dst[2, None], (count,), (other,)))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 24])
@pytest.mark.spread(6)
def test_contiguous_runs(backend: Backend, dtype: tw.DType, count: int) -> None:
    src = values(dtype, 32 * count)
    dst = backend.zeros((3, 32 * count), dtype)
    copy_rows[1, 32](dst, backend.put(src), count)
    assert_same_bits(backend.get(dst), np.stack([src] * 3))


@tw.kernel
def copy_one(dst, src):
    tid = tw.thread_idx.x
    smem = tw.shared(src.dtype, (tw.block_dim.x,))
    part = tw.local_tile(src, (1,), (tid,))
    tw.copy(part, tw.local_tile(smem, (1,), (tid,)))
    tw.cp_async_wait()
    fragment = tw.fragment_like(part)
    tw.copy(tw.local_tile(smem, (1,), (tid,)), fragment)
    tw.copy(fragment, tw.local_tile(dst, (1,), (tid,)))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_copies_of_one_element(backend: Backend, dtype: tw.DType) -> None:
    src = values(dtype, 32)
    dst = backend.zeros(32, dtype)
    copy_one[1, 32](dst, backend.put(src))
    assert_same_bits(backend.get(dst), src)


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 8])
@pytest.mark.spread(6)
def test_views_that_begin_anywhere(backend: Backend, dtype: tw.DType, offset: int) -> None:
    """The pointer's alignment decides the width: a view at an odd element is copied by elements."""
    count = 16
    memory = values(dtype, 32 * count + 8)
    whole = backend.put(untouched(dtype, 3 * 512 + 8))
    src = backend.strided(backend.put(memory), (512,), (1,), offset)
    dst = backend.strided(whole, (3, 512), (512, 1), offset)
    copy_rows[1, 32](dst, src, count)
    expected = untouched(dtype, 3 * 512 + 8)
    expected[offset : offset + 3 * 512] = np.tile(memory[offset : offset + 512], 3)
    assert_same_bits(backend.get(whole), expected)


@tw.kernel
def copy_matrix(dst, src, tile: tw.constexpr, tiled_copy: tw.constexpr):
    """A tile a block, by way of shared memory, as a tiled copy lays it out."""
    smem = tw.shared(src.dtype, tw.Layout(tile, (tile[1], 1)))
    block = (tw.block_idx.y, tw.block_idx.x)
    g_src, g_dst = tw.local_tile(src, tile, block), tw.local_tile(dst, tile, block)
    thread = tiled_copy.get_slice(tw.thread_idx.x)
    tw.copy(thread.partition_S(g_src), thread.partition_D(smem))
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(thread.partition_S(smem), thread.partition_D(g_dst))


ROWS = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((8, 4), (4, 1)), tw.Layout((1, 8)))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize(("leading", "offset"), [(64, 0), (65, 0), (66, 2), (68, 4), (72, 8), (80, 1)])
@pytest.mark.spread(6)
def test_padded_matrices(backend: Backend, dtype: tw.DType, leading: int, offset: int) -> None:
    """A leading dimension that is not a multiple of the vector, and views at an offset."""
    memory = values(dtype, 32 * leading + 16)
    whole = backend.put(untouched(dtype, memory.size))
    src = backend.strided(backend.put(memory), (32, 64), (leading, 1), offset)
    dst = backend.strided(whole, (32, 64), (leading, 1), offset)
    copy_matrix[(2, 2), 32](dst, src, (16, 32), ROWS)
    expected = untouched(dtype, memory.size)
    for row in range(32):
        start = offset + row * leading
        expected[start : start + 64] = memory[start : start + 64]
    assert_same_bits(backend.get(whole), expected)


@pytest.mark.parametrize("dtype", [tw.float16, tw.float32, tw.int64], ids=str)
@pytest.mark.parametrize("strides", [(1, 40), (2, 80), (130, 2), (3, 128)])
def test_strided_matrices(backend: Backend, dtype: tw.DType, strides: tuple[int, int]) -> None:
    """Column-major sources, and sources in which neighbours lie apart."""
    memory = values(dtype, 31 * strides[0] + 63 * strides[1] + 1)
    src = backend.strided(backend.put(memory), (32, 64), strides)
    dst = backend.zeros((32, 64), dtype)
    copy_matrix[(2, 2), 32](dst, src, (16, 32), ROWS)
    rows, columns = np.ogrid[:32, :64]
    assert_same_bits(backend.get(dst), memory[rows * strides[0] + columns * strides[1]])


@pytest.mark.parametrize("dtype", [tw.int32, tw.float16, tw.float64], ids=str)
def test_negative_strides(dtype: tw.DType) -> None:
    """NumPy has them; PyTorch does not."""
    backend = Simulator()
    src = values(dtype, (32, 64))
    for view in (src[::-1], src[:, ::-1], src[::-1, ::-1]):
        dst = backend.zeros((32, 64), dtype)
        copy_matrix[(2, 2), 32](dst, view, (16, 32), ROWS)
        assert_same_bits(dst, view.copy())
        reversed_dst = backend.zeros((32, 64), dtype)
        copy_matrix[(2, 2), 32](reversed_dst[:, ::-1], src, (16, 32), ROWS)
        assert_same_bits(reversed_dst, src[:, ::-1].copy())


@tw.kernel
def copy_by_atom(dst, src, atom: tw.constexpr, count: tw.constexpr):
    tid = tw.thread_idx.x
    values = tw.registers(src.dtype, (count,))
    tw.copy(atom, tw.local_tile(src, (count,), (tid,)), values)
    tw.copy(atom, values, tw.local_tile(dst, (count,), (tid,)))


WIDTHS = [(t, bits) for t in ALL for bits in (8, 16, 32, 64, 128) if bits >= t.bits]


@pytest.mark.parametrize(("dtype", "bits"), WIDTHS, ids=str)
def test_atoms_of_every_width(backend: Backend, dtype: tw.DType, bits: int) -> None:
    count = 32
    src = values(dtype, 32 * count)
    dst = backend.zeros(32 * count, dtype)
    copy_by_atom[1, 32](dst, backend.put(src), tw.atoms.UniversalCopy(bits), count)
    assert_same_bits(backend.get(dst), src)


# --- predicates ----------------------------------------------------------------------------------------


@tw.kernel
def copy_if(dst, src, flags, count: tw.constexpr):
    """One bool for all that a thread copies: to global memory, registers and shared memory."""
    tid = tw.thread_idx.x
    flag = flags[tid]
    part = tw.local_tile(src, (count,), (tid,))
    tw.copy(part, tw.local_tile(dst[0, None], (count,), (tid,)), pred=flag)
    fragment = tw.fragment_like(part)
    tw.fill(fragment, SENTINEL)
    tw.copy(part, fragment, pred=flag)
    tw.copy(fragment, tw.local_tile(dst[1, None], (count,), (tid,)))
    smem = tw.shared(src.dtype, (count, tw.block_dim.x))
    tw.copy(part, smem[None, tid], pred=flag)
    tw.cp_async_wait()
    tw.copy(smem[None, tid], tw.local_tile(dst[2, None], (count,), (tid,)))


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.spread(4)
def test_copies_under_a_bool(backend: Backend, dtype: tw.DType, count: int) -> None:
    """Where it is false nothing is written to global memory, and zeros to registers and shared memory."""
    src, flags = values(dtype, (32, count)), np.arange(32) % 3 == 0
    dst = backend.put(untouched(dtype, (3, 32 * count)))
    copy_if[1, 32](dst, backend.put(src.ravel()), backend.put(flags), count)
    zeros = np.where(flags[:, None], src, np.zeros_like(src)).astype(src.dtype)
    kept = np.where(flags[:, None], src, untouched(dtype, src.shape)).astype(src.dtype)
    assert_same_bits(backend.get(dst), np.stack([kept.ravel(), zeros.ravel(), zeros.ravel()]))


@tw.kernel
def copy_with_edges(dst, src, tile: tw.constexpr, tiled_copy: tw.constexpr):
    """A matrix whose extents are not multiples of the tile: a predicate for each element, from its coordinate."""
    smem = tw.shared(src.dtype, tw.Layout(tile, (tile[1], 1)))
    block = (tw.block_idx.y, tw.block_idx.x)
    g_src, g_dst = tw.local_tile(src, tile, block), tw.local_tile(dst, tile, block)
    places = tw.local_tile(tw.identity_tensor(src.shape), tile, block)
    thread = tiled_copy.get_slice(tw.thread_idx.x)
    t_src, t_dst, t_smem = thread.partition_S(g_src), thread.partition_D(g_dst), thread.partition_D(smem)
    t_places = thread.partition_S(places)
    inside = tw.registers(tw.bool_, t_src.shape)
    for i in tw.static_range(tw.size(t_src.shape)):
        row, column = t_places[i]
        inside[i] = (row < src.shape[0]) & (column < src.shape[1])
    tw.copy(t_src, t_smem, pred=inside)
    tw.cp_async_wait()
    tw.copy(t_smem, t_dst, pred=inside)


@pytest.mark.parametrize("dtype", [tw.bool_, tw.float16, tw.bfloat16, tw.int32, tw.float32, tw.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (15, 31), (16, 32), (17, 33), (40, 70)])
@pytest.mark.spread(6)
def test_copies_under_a_tensor_of_bools(backend: Backend, dtype: tw.DType, shape: tuple[int, int]) -> None:
    src = values(dtype, shape)
    whole = backend.put(untouched(dtype, shape[0] * shape[1] + 64))
    dst = backend.strided(whole, shape, (shape[1], 1), 32)
    grid = (-(-shape[1] // 32), -(-shape[0] // 16))
    copy_with_edges[grid, 32](dst, backend.put(src), (16, 32), ROWS)
    expected = untouched(dtype, src.size + 64)
    expected[32:-32] = src.ravel()
    assert_same_bits(backend.get(whole), expected)


@tw.kernel
def copy_chunks(dst, src, flags, width: tw.constexpr):
    """One bool for each of four chunks of `width` neighbours: a predicate that stands still inside a chunk."""
    tid = tw.thread_idx.x
    chosen = tw.registers(tw.bool_, tw.Layout((width, 4), (0, 1)))
    for k in tw.static_range(4):
        chosen[0, k] = flags[tid, k]
    part = tw.local_tile(src, (width, 4), (0, tid))
    smem = tw.shared(src.dtype, (width, 4, tw.block_dim.x))
    tw.copy(part, smem[None, None, tid], pred=chosen)
    tw.cp_async_wait()
    tw.copy(smem[None, None, tid], tw.local_tile(dst[0, None, None], (width, 4), (0, tid)))
    tw.copy(part, tw.local_tile(dst[1, None, None], (width, 4), (0, tid)), pred=chosen)


@pytest.mark.parametrize("dtype", [tw.bool_, tw.float16, tw.float32, tw.int64], ids=str)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_copies_of_chunks_under_bools(backend: Backend, dtype: tw.DType, width: int) -> None:
    memory, flags = values(dtype, 128 * width), np.random.default_rng(0).random((32, 4)) < 0.6
    target = backend.put(untouched(dtype, 2 * 128 * width))
    src = backend.strided(backend.put(memory), (width, 128), (1, width))
    dst = backend.strided(target, (2, width, 128), (128 * width, 1, width))
    copy_chunks[1, 32](dst, src, backend.put(flags), width)
    chosen = np.repeat(flags.ravel(), width)
    expected = [np.where(chosen, memory, other).astype(memory.dtype) for other in (0, untouched(dtype, memory.size))]
    assert_same_bits(backend.get(target), np.concatenate(expected))


# --- swizzles ------------------------------------------------------------------------------------------


@tw.kernel
def copy_through(dst, src, layout: tw.constexpr, load: tw.constexpr, store: tw.constexpr):
    """Into shared memory by rows, out of it by columns."""
    smem = tw.shared(src.dtype, layout)
    loader, storer = load.get_slice(tw.thread_idx.x), store.get_slice(tw.thread_idx.x)
    tw.copy(loader.partition_S(src), loader.partition_D(smem))
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(storer.partition_S(smem.T), storer.partition_D(dst))


LOAD = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((16, 8), (8, 1)), tw.Layout((1, 8)))
STORE = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((16, 8), (8, 1)), tw.Layout((1, 4)))


@pytest.mark.parametrize("dtype", [tw.float16, tw.bfloat16, tw.int32, tw.float32, tw.float64], ids=str)
@pytest.mark.parametrize("swizzle", [(1, 2, 4), (3, 2, 6), (3, 3, 3), (2, 3, 6), (3, 0, 6)], ids=str)
@pytest.mark.spread(4)
def test_swizzled_shared_memory(backend: Backend, dtype: tw.DType, swizzle: tuple[int, int, int]) -> None:
    layout = tw.composition(tw.Swizzle(*swizzle), tw.Layout((64, 64), (64, 1)))
    src = values(dtype, (64, 64))
    dst = backend.zeros((64, 64), dtype)
    copy_through[1, 128](tw.static(dst), tw.static(backend.put(src)), layout, LOAD, STORE)
    assert_same_bits(backend.get(dst), src.T.copy())


@tw.kernel
def fills(out, x, dtype: tw.constexpr):
    tid = tw.thread_idx.x
    tw.fill(out[0, None, tid], SENTINEL)
    tw.clear(out[1, None, tid])
    tw.copy(x[None, tid], out[2, None, tid])
    tw.axpby(2, x[None, tid], 1, out[2, None, tid])
    tw.copy(x[None, tid], out[3, None, tid])
    tw.axpby(3, x[None, tid], 0, out[3, None, tid])


@pytest.mark.parametrize("dtype", [tw.int32, tw.int64, tw.float16, tw.bfloat16, tw.float32, tw.float64], ids=str)
def test_fill_clear_and_axpby(backend: Backend, dtype: tw.DType) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (6, 32)).astype(dtype.numpy)
    out = backend.put(untouched(dtype, (4, 6, 32)))
    fills[1, 32](out, backend.put(x), dtype)
    expected = np.stack([untouched(dtype, x.shape), np.zeros_like(x), x * 3, x * 3]).astype(x.dtype)
    assert_same_bits(backend.get(out), expected)


@tw.kernel
def copy_rows_with_counts(dst, src, tiled_copy: tw.constexpr, cached: tw.constexpr):
    """Copy tiles by vectors of which the last of a row may hold fewer elements; rows beyond the last hold none."""
    smem = tw.shared(src.dtype, tw.Layout((16, 32), (32, 1)))
    block = (tw.block_idx.y, tw.block_idx.x)
    g_src, g_dst = tw.local_tile(src, (16, 32), block), tw.local_tile(dst, (16, 32), block)
    thread = tiled_copy.get_slice(tw.thread_idx.x)
    t_src, t_dst, t_smem = thread.partition_S(g_src), thread.partition_D(g_dst), thread.partition_D(smem)
    places = thread.partition_S(tw.local_tile(tw.identity_tensor(src.shape), (16, 32), block))
    rest = t_src.shape[1:]
    counts = tw.registers(tw.int32, tw.Layout((tw.size(t_src.shape[0]), *rest), (0, 1, rest[0])))
    for i in tw.static_range(rest[0]):
        for j in tw.static_range(rest[1]):
            row, column = places[0, i, j]
            counts[0, i, j] = tw.where(row < src.shape[0], src.shape[1] - column, 0)
    if cached:
        tw.copy(tiled_copy, t_src, t_smem, count=counts)
        tw.cp_async_wait()
        tw.copy(t_smem, t_dst, count=counts)
    else:
        rows = tw.fragment_like(t_src)
        tw.copy(tiled_copy, t_src, rows, count=counts)
        tw.copy(tiled_copy, rows, t_dst, count=counts)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("dtype", [tw.int8, tw.bfloat16, tw.float32, tw.float64], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (16, 32), (17, 33), (40, 67), (31, 63)])
@pytest.mark.spread(6)
def test_copies_under_counts(backend: Backend, dtype: tw.DType, shape: tuple[int, int], cached: bool) -> None:
    width = 128 // dtype.bits
    row = -(-shape[1] // width) * width + width  # a row's padding is not ours: neither read nor written
    src = values(dtype, (shape[0], row))
    whole = backend.put(untouched(dtype, (shape[0], row)))
    grid = (-(-shape[1] // 32), -(-shape[0] // 16))
    atom = tw.atoms.CpAsync(128, cache="global") if cached else tw.atoms.UniversalCopy(128)
    threads = 32 // width
    tiled = tw.make_tiled_copy(atom, tw.Layout((32 // threads, threads), (threads, 1)), tw.Layout((1, width)))
    source = backend.put(src)
    if backend.name == "sim":
        source[:, shape[1] :] = source.flat[0]
    copy_rows_with_counts[grid, 32](
        backend.strided(whole.reshape(-1), shape, (row, 1)),
        backend.strided(source.reshape(-1), shape, (row, 1)),
        tiled,
        cached,
    )
    expected = untouched(dtype, (shape[0], row))
    expected[:, : shape[1]] = src[:, : shape[1]]
    assert_same_bits(backend.get(whole), expected)
