"""Copies between arrays whose modes are in different orders; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw

THREADS = 256


def matrix_of(x, at, modes):
    """Return what is left of an array, guarded, at place `at` of the modes before its last `modes` ones."""
    lead = x.shape[:-modes]
    coord = []
    for extent in reversed(lead[1:]):
        coord.insert(0, at % extent)
        at = at // extent
    return tw.guarded(x)[(at, *coord, ...)] if lead else tw.guarded(x)


@tw.kernel
def copy_rows(y, x, tiles: tw.constexpr, columns: tw.constexpr):
    """Copy rows, `columns` elements of each in a block; threads along y have rows of their own."""
    parts = tw.ceil_div(x.shape[-1], columns)
    group, part = tw.block_idx.x // parts, tw.block_idx.x % parts
    at, thread = group * tw.block_dim.y + tw.thread_idx.y, tiles.get_slice(tw.thread_idx.x)
    source, target = (thread.partition_S(tw.local_tile(matrix_of(t, at, 1), (columns,), part)) for t in (x, y))
    target[...] = +source


@tw.kernel
def copy_interleaved(y, x, count: tw.constexpr, smem_layout: tw.constexpr, tiles: tw.constexpr):
    """Copy y[..., q * count + p] = x[..., p, q], or the other way; a thread has a vector of q, and all p, in registers.

    What lies together goes through shared memory, so that neighbouring threads have neighbouring vectors of it.
    """
    is_read = len(x.shape) < len(y.shape)
    whole, rows = (x, y) if is_read else (y, x)
    held = tw.size(smem_layout)  # elements of a block
    each, thread = held // (count * tw.block_dim.x), tiles.get_slice(tw.thread_idx.x)
    parts = tw.ceil_div(rows.shape[-1], held // count)
    batch, part = tw.block_idx.x // parts, tw.block_idx.x % parts
    together = tw.local_tile(matrix_of(whole, batch, 1), (held,), (part,))
    smem = tw.shared(x.dtype, smem_layout)
    own = tw.local_tile(smem, (each * count,), (tw.thread_idx.x,))
    own = own.map_layout(lambda layout: tw.composition(layout, tw.row_major((each, count))))
    by_row = tw.local_tile(matrix_of(rows, batch, 2), (count, each), (0, part * tw.block_dim.x + tw.thread_idx.x)).T
    if is_read:
        tw.copy(thread.partition_S(together), thread.partition_D(smem))
        tw.cp_async_wait()
        tw.sync_threads()
        by_row[...] = +own
    else:
        own[...] = +by_row
        tw.sync_threads()
        tw.copy(thread.partition_S(smem), thread.partition_D(together))


def tile_of(x, batch, place, tile, runs):
    """Return a tile of matrix `batch`; of several runs, rows are the last three modes' first two: a run, and which."""
    if runs == 1:
        return tw.local_tile(matrix_of(x, batch, 2), tile, place)
    part = tw.local_tile(matrix_of(x, batch, 3), (tile[0] // runs, runs, tile[1]), (0, *place))
    return part.map_layout(lambda layout: tw.group(layout, 0, 2))


@tw.kernel
def transpose_tiles(y, x, plan: tw.constexpr):
    """Copy y[..., p, q] = x[..., q, p], a tile in a block: rows of x are read, and rows of y written.

    Of x, q may be two modes, and of y, p: the runs that are neighbours in the other array.
    """
    down, across = plan.runs
    tall, wide = plan.smem.shape
    rows, columns = (tw.ceil_div(t.shape[-1], extent) for t, extent in ((y, tall), (x, wide)))
    at, column = tw.block_idx.x // columns, tw.block_idx.x % columns
    batch, row = at // rows, at % rows
    x_tile = tile_of(x, batch, (row, column), (tall, wide), down)
    y_tile = tile_of(y, batch, (column, row), (wide, tall), across)
    smem = tw.shared(x.dtype, plan.smem)
    reader, writer = (copy.get_slice(tw.thread_idx.x) for copy in (plan.load, plan.store))
    tw.copy(reader.partition_S(x_tile), reader.partition_D(smem))
    tw.cp_async_wait()
    tw.sync_threads()
    writer.partition_D(y_tile)[...] = writer.partition_S(smem.T)
