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
def transpose_tiles(y, x, smem_layout: tw.constexpr, load: tw.constexpr, store: tw.constexpr):
    """Copy y[..., p, q] = x[..., q, p], a tile in a block: rows of x are read, and rows of y written."""
    tile = smem_layout.shape
    rows, columns = (tw.ceil_div(x.shape[n], tile[n]) for n in (-2, -1))
    at, column = tw.block_idx.x // columns, tw.block_idx.x % columns
    batch, row = at // rows, at % rows
    x_tile = tw.local_tile(matrix_of(x, batch, 2), tile, (row, column))
    y_tile = tw.local_tile(matrix_of(y, batch, 2), (tile[1], tile[0]), (column, row))
    smem = tw.shared(x.dtype, smem_layout)
    reader, writer = (copy.get_slice(tw.thread_idx.x) for copy in (load, store))
    tw.copy(reader.partition_S(x_tile), reader.partition_D(smem))
    tw.cp_async_wait()
    tw.sync_threads()
    writer.partition_D(y_tile)[...] = writer.partition_S(smem.T)
