"""Tensor maps that threads make, on both backends: matrices behind addresses, and arrays of unusual extents."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw

LOAD, STORE = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE
TILE = (16, 32)


@tw.kernel
def transfer(outs, xs, rows, columns, room, layout: tw.constexpr, dtype: tw.constexpr, repeat: tw.constexpr):
    """Copy matrix number block, of its own extents, to another place, tile by tile."""
    g = tw.block_idx.x
    smem, full = tw.shared(dtype, layout), tw.mbarrier(1)
    tw.sync_threads()
    matrix = tw.Layout((rows[g], columns[g]), (columns[g], 1))
    if tw.warp_id() == 1:
        phase = 0
        for _ in range(repeat):
            x, y = (tw.guarded(tw.make_tensor(tw.pointer(p[g], dtype, align=16), matrix)) for p in (xs, outs))
            x = tw.make_tensor_map(tw.local_tile(x, TILE, (0, 0)), smem, room, 2 * g)
            y = tw.make_tensor_map(tw.local_tile(y, TILE, (0, 0)), smem, room, 2 * g + 1)
            if tw.lane_id() == 0:
                for i in range(tw.ceil_div(rows[g], TILE[0])):
                    for j in range(tw.ceil_div(columns[g], TILE[1])):
                        full.arrive_expect_tx(TILE[0] * TILE[1] * dtype.bytes)
                        tw.copy(LOAD, tw.local_tile(x, TILE, (i, j)), smem, barrier=full)
                        full.wait(phase)
                        phase ^= 1
                        tw.copy(STORE, smem, tw.local_tile(y, TILE, (i, j)))
                        tw.tma_store_commit()
                        tw.tma_store_wait(0)
                tw.tma_store_wait(0, read=False)
            tw.sync_warp()


SHAPES = [(20, 40), (16, 32), (33, 104), (1, 8)]
SWIZZLED = tw.ComposedLayout(tw.Swizzle(3, 2, 3), 0, tw.row_major(TILE))


@pytest.mark.parametrize(("dtype", "layout"), [("float32", tw.row_major(TILE)), ("float32", SWIZZLED),
                                               ("float16", tw.row_major(TILE))], ids=["plain", "swizzled", "half"])  # fmt: skip
@pytest.mark.parametrize("repeat", [1, 2])
@pytest.mark.spread(4)
def test_matrices_of_their_own_extents(backend: Backend, dtype: str, layout: tw.Layout, repeat: int) -> None:
    kind = tw.dtype(dtype)
    xs = [(np.arange(np.prod(s)) % 97 + n).reshape(s).astype(kind.numpy) for n, s in enumerate(SHAPES)]
    outs, given = [backend.zeros(s, kind) for s in SHAPES], [backend.put(x) for x in xs]
    rows, columns = (backend.put(np.array([s[k] for s in SHAPES], np.int32)) for k in (0, 1))
    room = backend.zeros(16 * 2 * len(SHAPES), tw.uint64)
    transfer[len(SHAPES), 64](tw.addresses(outs), tw.addresses(given), rows, columns, room, layout, kind, repeat)
    for x, out in zip(xs, outs, strict=True):
        assert (backend.get(out) == x).all()


@tw.kernel
def part(out, x, extents, room):
    """Load the first rows of an array, as many as an element of another array says; the rest reads as zeros."""
    smem, full = tw.shared(tw.int32, tw.row_major(TILE)), tw.mbarrier(1)
    tw.sync_threads()
    if tw.warp_id() == 0:
        first = tw.make_tensor(x.engine, tw.Layout((extents[0], x.shape[1]), (x.shape[1], 1)))
        first = tw.make_tensor_map(tw.local_tile(tw.guarded(first), TILE, (0, 0)), smem, room)
        if tw.elect_one():
            full.arrive_expect_tx(TILE[0] * TILE[1] * 4)
            tw.copy(LOAD, tw.local_tile(first, TILE, (0, 0)), smem, barrier=full)
    full.wait(0)
    for i in range(tw.thread_idx.x, TILE[0] * TILE[1], 64):
        out[i // TILE[1], i % TILE[1]] = smem[i // TILE[1], i % TILE[1]]


def test_extents_that_threads_know(backend: Backend) -> None:
    x = np.arange(1, 1 + 40 * 32, dtype=np.int32).reshape(40, 32)
    out, room = backend.zeros(TILE, tw.int32), backend.zeros(16, tw.uint64)
    part[1, 64](out, backend.put(x), backend.put(np.array([7], np.int32)), room)
    found = backend.get(out)
    assert (found[:7] == x[:7]).all() and not found[7:].any()
