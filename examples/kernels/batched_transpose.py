"""Transpose the matrices of a batch: y[b, j, i] = x[b, i, j], for any extents and elements of 8 to 64 bits.

Global memory wants rows on both sides, and shared memory turns one into the other: a block reads a tile of 64 x 64
elements of x (128 x 128 if they are bytes) by rows and writes it out by columns. A thread reads 16 bytes of a row at a
time, and writes 16 bytes, which it has collected from as many rows of the tile as it holds elements.

The tile's swizzle makes both free of bank conflicts. A vector is n elements of 16 bytes together. Reading elements of
a column, the lanes of a warp are in rows that are n apart, so the vectors of a row change places with the number of
its group of n rows: vector v of row r is where v ^ (r / n % 8) would be.

Tiles at the edges are guarded. Where rows do not begin at multiples of 16 bytes (61 columns of float32, say), no access
of 16 bytes is legal, and the copies of that side take the widest that are.

Run it: `python examples/kernels/batched_transpose.py`
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe

THREADS = 256


@dataclass(frozen=True)
class Plan:
    """What the kernel knows at compile time: the tile in shared memory, and who reads and writes what of it."""

    smem: tw.ComposedLayout
    load: tw.TiledCopy
    store: tw.TiledCopy


@tw.kernel
def batched_transpose(y, x, plan: tw.constexpr):
    """Transpose one tile of one matrix."""
    i, j, batch = tw.block_idx.y, tw.block_idx.x, tw.block_idx.z
    x_tile = tw.local_tile(x[batch, ...], plan.smem.shape, (i, j), guard=True)
    y_tile = tw.local_tile(y[batch, ...], plan.smem.shape, (j, i), guard=True)
    smem = tw.shared(x.dtype, plan.smem)
    load, store = (copy.get_slice(tw.thread_idx.x) for copy in (plan.load, plan.store))
    tw.copy(load.partition_S(x_tile), load.partition_D(smem))
    tw.cp_async_wait()
    tw.sync_threads()
    store.partition_D(y_tile)[...] = store.partition_S(smem.T)


@cache
def plan_for(dtype: tw.DType) -> Plan:
    """Return the plan for an element type."""
    each = 16 // dtype.bytes
    side = max(64, 8 * each)
    vectors = side // each  # of a row
    log2 = {n: n.bit_length() - 1 for n in (each, side)}
    return Plan(
        tw.composition(tw.Swizzle(3, log2[each], log2[side]), tw.row_major((side, side))),
        # A row of x by neighbouring threads; of y, 8 vectors of a row by neighbouring threads: 8 groups of rows of x.
        tw.make_tiled_copy(
            tw.atoms.UniversalCopy(), tw.Layout((THREADS // vectors, vectors), (vectors, 1)), tw.Layout((1, each))
        ),
        tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((THREADS // 8, 8), (8, 1)), tw.Layout((1, each))),
    )


def launch(y, x) -> None:
    """Transpose x (batch, rows, columns) into y (batch, columns, rows)."""
    batch, rows, columns = x.shape
    plan = plan_for(describe(x).dtype)
    side = plan.smem.shape[0]
    grid = (tw.ceil_div(columns, side), tw.ceil_div(rows, side), batch)
    batched_transpose[grid, THREADS](y, x, plan)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: extents that the tile divides, whole vectors at the edges, and none."""
    shapes = [(2, 64, 128), (1, 72, 100), (2, 61, 67)] if quick else [(4, 8192, 4096), (4, 8200, 4088), (4, 4001, 4099)]
    return [_case(shape, dtype, backend) for shape in shapes for dtype in (np.float32, np.float16)]


def _case(shape: tuple[int, int, int], dtype: type, backend: Backend) -> Case:
    def prepare() -> Trial:
        host = np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(dtype)
        expected = host.swapaxes(1, 2)
        x, y = put(host, backend), put(np.full_like(np.ascontiguousarray(expected), np.nan), backend)
        return Trial(lambda: launch(y, x), lambda: fetch(y), expected, limit=0.0)

    size = f"{' x '.join(map(str, shape))} {dtype.__name__}"
    return Case("batched transpose", size, prepare, bytes_moved=2 * int(np.prod(shape)) * np.dtype(dtype).itemsize)


def example_batched_transpose():
    """Return grid, block and arguments for `tilewright show examples/kernels/batched_transpose.py:...`."""
    x, y = tw.spec(tw.bfloat16, (4, 8192, 4096)), tw.spec(tw.bfloat16, (4, 4096, 8192))
    return (64, 128, 4), THREADS, (y, x, plan_for(tw.bfloat16))


if __name__ == "__main__":
    main(cases)
