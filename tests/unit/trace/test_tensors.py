"""Tensors in kernels: indexing, slicing, transposing, tiling, carrying over loops, and vectors that survive it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.language import compiles, lowered, run, zeros

import tilewright as tw
from tilewright.instructions.cp_async import AsyncCopy
from tilewright.ir import ops
from tilewright.ir.core import VectorType


def vector_bytes(kernel, *args, **options):
    """Return the widest load of global memory, in bytes; a cp.async counts as one."""
    found = [4]
    for op in lowered(kernel, *args, **options):
        if isinstance(op, ops.Load) and isinstance(op.result.type, VectorType):
            found.append(op.result.type.bytes)
        if isinstance(op, AsyncCopy):
            found.append(op.elements * op.source.dtype.bytes)
    return max(found)


def test_indexing_and_transposed_view():
    @tw.kernel
    def indices(out, x):
        i, j = tw.thread_idx.x, tw.thread_idx.y
        out[j, i] = x.T[j, i]
        assert x.T.shape == (x.shape[1], x.shape[0])

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.array_equal(run(indices, np.zeros((4, 3), np.float32), x, block=(3, 4)), x.T)
    compiles(indices, tw.spec("float32", 2), tw.spec("float32", 2), block=(3, 4))


def test_linear_index_goes_along_the_first_mode_first():
    @tw.kernel
    def linear(out, x):
        i = tw.thread_idx.x
        out[i] = x[i]

    x = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert run(linear, zeros(12), x, block=12).tolist() == x.ravel(order="F").tolist()


def test_slicing():
    @tw.kernel
    def slices(out, x):
        i = tw.thread_idx.x
        out[0, i] = x[:, 1, 2][i]
        out[1, i] = x[..., 0][i, 1]
        out[2, i] = x[1][i] if False else x[i, 0, 0]
        row = x[None, 2, :]
        out[3, i] = row[i, i]

    x = np.arange(3 * 4 * 5, dtype=np.int32).reshape(3, 4, 5)
    out = run(slices, np.zeros((4, 3), np.int32), x, block=3)
    assert np.array_equal(out, [x[:, 1, 2], x[:, 1, 0], x[:, 0, 0], [x[i, 2, i] for i in range(3)]])


def test_arrays_of_any_strides():
    @tw.kernel
    def copy(out, x):
        i, j = tw.thread_idx.x, tw.thread_idx.y
        out[i, j] = x[i, j]

    base = np.arange(400, dtype=np.float32).reshape(20, 20)
    for x in (base[::2, 1::3], base[::-1, ::-2], base.T[3:9], np.broadcast_to(base[0], (4, 20)), base[:1]):
        m, n = x.shape
        assert np.array_equal(run(copy, np.zeros((m, n), np.float32), x, block=(m, n)), x)


def test_whole_views_are_filled_and_copied():
    @tw.kernel
    def fill(out, x):
        i = tw.thread_idx.x
        tw.fill(out[i, :], 7)
        tw.copy(x[i, :], out[i, :]) if False else None
        if i == 1:
            tw.clear(out[i, :])

    out = np.ones((3, 4), np.float32)
    run(fill, out, np.zeros((3, 4), np.float32), block=3)
    assert out.tolist() == [[7] * 4, [0] * 4, [7] * 4]


def test_static_arrays_have_python_extents():
    @tw.kernel
    def extents(x):
        assert isinstance(x.shape[0], int)
        for i in tw.static_range(x.shape[0]):
            x[i, 0] = i

    x = zeros((3, 2))
    extents[1, 1](tw.static(x))
    assert x[:, 0].tolist() == [0, 1, 2]


# --- carried tensors ------------------------------------------------------------------------------------


@tw.kernel
def advance(out, x, tiles):
    """Add up tiles of 4; the tile moves on by reassigning a view."""
    total = tw.fragment_like(tw.Layout(4), tw.float32)
    part = tw.fragment_like(total)
    tw.clear(total)
    here = tw.local_tile(x, (4,), (0,))
    for k in range(tiles):
        tw.copy(here, part)
        for i in tw.static_range(4):
            total[i] += part[i]
        here = tw.local_tile(x, (4,), (k + 1,))
    tw.copy(total, tw.local_tile(out, (4,), (0,)))


def test_tensor_that_moves_in_a_loop_keeps_its_vectors():
    x = np.arange(32, dtype=np.float32)
    out = zeros(4, np.float32)
    run(advance, out, np.concatenate([x, np.zeros(4, np.float32)]), 8)
    assert np.array_equal(out, x.reshape(8, 4).sum(0))
    assert vector_bytes(advance, tw.spec("float32", (4,)), tw.spec("float32", (64,)), 8) == 16
    compiles(advance, tw.spec("float32", (4,)), tw.spec("float32", (64,)), 8)


def test_tensors_that_trade_places_keep_their_vectors():
    @tw.kernel
    def trade(out, a, n):
        smem = tw.shared(tw.float32, tw.Layout((4, 2)))
        now, later = smem[:, 0], smem[:, 1]
        part = tw.fragment_like(now)
        for i in tw.static_range(4):
            now[i] = a[i]
            later[i] = a[4 + i]
        for k in range(n):
            tw.copy(now, part)
            tw.copy(part, tw.local_tile(out, (1, 4), (k, 0))[0, :])
            now, later = later, now

    a = np.arange(8, dtype=np.float32)
    out = run(trade, np.zeros((3, 4), np.float32), a, 3)
    assert np.array_equal(out, a.reshape(2, 4)[[0, 1, 0]])
    specs = tw.spec("float32", (3, 4)), tw.spec("float32", (8,)), 3
    assert vector_bytes(trade, *specs) == 16
    compiles(trade, *specs)


def test_tensor_with_dynamic_layout_is_carried():
    @tw.kernel
    def rows(out, x):
        row = x[0, :]
        for i in range(x.shape[0]):
            out[i] = row[1]
            if i + 1 < x.shape[0]:
                row = x[i + 1, :]

    x = np.arange(12, dtype=np.int32).reshape(4, 3)
    assert run(rows, zeros(4), x).tolist() == x[:, 1].tolist()
    assert run(rows, zeros(4), x.T.copy().T).tolist() == x[:, 1].tolist()


def test_tuple_of_tensors_is_carried():
    @tw.kernel
    def pair(out, x, n):
        views = (x[0, :], x[1, :])
        for _ in range(n):
            views = (views[1], views[0])
        out[0] = views[0][0]

    x = np.array([[5], [6]], np.int32)
    assert [run(pair, zeros(1), x, n).tolist() for n in (0, 1, 2)] == [[5], [6], [5]]


def test_tensor_chosen_by_a_branch_is_read_through_one_offset():
    @tw.kernel
    def chosen(out, x, second):
        view = tw.local_tile(x, (4,), (0,))
        if second:
            view = tw.local_tile(x, (4,), (2,))
        tw.copy(view, tw.local_tile(out, (4,), (0,)))

    x = np.arange(12, dtype=np.float32)
    assert run(chosen, zeros(4, np.float32), x, True).tolist() == [8, 9, 10, 11]
    assert run(chosen, zeros(4, np.float32), x, False).tolist() == [0, 1, 2, 3]
    assert vector_bytes(chosen, tw.spec("float32", (4,)), tw.spec("float32", (16,)), True) == 16


# --- wide arrays -----------------------------------------------------------------------------------------


WIDE = (2**17, 2**16)


@tw.kernel
def tiles(src, dst):
    smem = tw.shared(src.dtype, tw.Layout((8, 8)))
    i, j = tw.thread_idx.x, tw.thread_idx.y
    block = (tw.block_idx.x, tw.block_idx.y)
    g_src, g_dst = tw.local_tile(src, (8, 8), block), tw.local_tile(dst, (8, 8), block)
    smem[i, j] = g_src[i, j]
    tw.sync_threads()
    tw.local_partition(g_dst, tw.Layout((8, 8)), i + 8 * j)[0, 0] = smem[i, j]
    dst[i, j] = src[j, i]
    src[:, 3][i] = 0


def offsets(kernel, *args, **options):
    """Return the types of all indices into global memory, and of the arithmetic that makes them."""
    found = []
    for op in lowered(kernel, *args, **options):
        if isinstance(op, (ops.Load, ops.Store)) and op.buffer.space.value == "global":
            found.append(op.index)
    return found


def narrow_products(value, seen=()):
    """Return the multiplications in 32 bits that an index is made of and that may overflow."""
    op = value.definition
    if op is None or isinstance(op, ops.Constant):
        return []
    found = [x for operand in op.operands for x in narrow_products(operand)]
    if isinstance(op, ops.Binary) and op.kind in ("mul", "add", "shl") and value.dtype is tw.int32:
        facts = value.facts
        if facts is None or facts.high >= 2**31 - 1 or facts.low < -(2**31) + 1:
            found.append(op)
    return found


@pytest.mark.parametrize("static", [False, True])
def test_offsets_of_wide_arrays_are_computed_in_64_bits(static):
    wide = tw.spec("float32", WIDE)
    arguments = [tw.static(wide), tw.static(wide)] if static else [wide, wide]
    indices = offsets(tiles, *arguments, block=(8, 8))
    assert len(indices) == 5
    for index in indices:
        assert index.dtype is tw.int64
        assert narrow_products(index) == []
    compiles(tiles, *arguments, block=(8, 8))


def test_offsets_of_other_arrays_stay_in_32_bits():
    narrow = tw.spec("float32", (2**14, 2**14))
    assert {index.dtype for index in offsets(tiles, narrow, narrow, block=(8, 8))} == {tw.int32}
    assert "long long" not in tiles.source(narrow, narrow, block=(8, 8))


def test_copy_over_a_static_wide_tensor():
    @tw.kernel
    def whole(src, dst):
        tw.copy(src, dst)

    wide = tw.static(tw.spec("float32", (2**16, 2**16), (2**17, 1)))
    for index in offsets(whole, wide, wide):
        assert index.dtype is tw.int64
        assert narrow_products(index) == []
