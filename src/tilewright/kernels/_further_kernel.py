"""Results beside D: values of a tile reduced over its rows or columns, and what tiles left combined; device code.

No two tiles write at the same place. What a tile has of a row or column goes to memory of its own, [row or column,
part, matrix], and `combine_parts` combines the parts in an order that is always the same.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.dtypes import LARGEST_FLOAT8


def neutral(x):
    """Return the value that changes no result of an operation."""
    if x.operation in ("sum", "amax"):
        return x.dtype(0)
    if x.dtype.is_float:
        return x.dtype(float("-inf" if x.operation == "max" else "inf"))
    return x.dtype(x.dtype.lowest if x.operation == "max" else x.dtype.highest)


def combined(x, a, b):
    """Return what an operation makes of two values."""
    if x.operation == "sum":
        return a + b
    return tw.minimum(a, b) if x.operation == "min" else tw.maximum(a, b)


def scale_of(most, dtype):
    """Return the scale by which values up to `most` become numbers of an 8-bit type; 1 for zeros.

    It is no subnormal number: the inverse of most of those is infinite, and 0 times that NaN.
    """
    return tw.where(most > 0, tw.maximum(most * (1 / LARGEST_FLOAT8[dtype]), 2.0**-126), 1.0)


@tw.kernel
def combine_parts(out, parts, x: tw.constexpr, ways: tw.constexpr, lanes: tw.constexpr):
    """Compute out[i, l] = x.operation over p of parts[i, p, l].

    Of the `ways` threads for an i, thread w takes p = w, w + ways, ..., and the first combines what they have in the
    order of w: the same bits in every run.
    """
    lane, way = tw.thread_idx.x % lanes, tw.thread_idx.x // lanes
    i, matrix, count = tw.block_idx.x * lanes + lane, tw.block_idx.y, parts.shape[1]
    total = neutral(x)
    if i < out.shape[0]:
        for p in tw.range(tw.ceil_div(tw.maximum(count - way, 0), ways), unroll=8):
            total = combined(x, total, parts[i, way + p * ways, matrix])
    if ways > 1:
        held = tw.shared(x.dtype, tw.Layout((lanes, ways)))
        held[lane, way] = total
        tw.sync_threads()
        if way == 0:
            for w in tw.static_range(1, ways):
                total = combined(x, total, held[lane, w])
    if (way == 0) and (i < out.shape[0]):
        out[i, matrix] = total


# --- of a tile that lies in shared memory ----------------------------------------------------------------------------


@tw.function
def reduce_tile(x, tile, extents, block, thread, threads, target):
    """Reduce a block's tile of values, as far as it is there, to the block's part of a further result."""
    rows, columns = tile.shape
    rows_left = tw.minimum(extents[0] - block[0] * rows, rows)
    columns_left = tw.minimum(extents[1] - block[1] * columns, columns)
    if x.over == "M":
        for column in range(thread, columns, threads):
            total = neutral(x)
            if column < columns_left:
                for row in tw.range(rows_left, unroll=4):
                    total = combined(x, total, tile[row, column])
                target[block[1] * columns + column, block[0]] = total
    else:
        for row in range(thread, rows, threads):
            total = neutral(x)
            if row < rows_left:
                for i in tw.range(columns, unroll=4):
                    column = (i + thread) % columns  # lanes read side by side, and not one bank
                    total = combined(x, total, tw.where(column < columns_left, tile[row, column], neutral(x)))
                target[block[0] * rows + row, block[1]] = total


@tw.function
def scale_tile(tile, extents, block, thread, threads, held, target, dtype):
    """Compute the scales of a block's tile of absolute values, and to `held` what its values are multiplied by."""
    rows, columns = tile.shape
    _, blocks = held.shape
    width = columns // blocks
    for number in range(thread, rows * blocks, threads):
        row, part = number % rows, number // rows
        most = tw.float32(0)
        for i in tw.range(width, unroll=4):
            column = part * width + (i + thread) % width  # lanes read side by side, and not one bank
            inside = block[1] * columns + column < extents[1]
            most = tw.maximum(most, tw.where(inside, tile[row, column], 0.0))
        scale = scale_of(most, dtype)
        held[row, part] = 1.0 / scale
        if (block[0] * rows + row < extents[0]) & (block[1] * columns + part * width < extents[1]):
            target[block[0] * rows + row, block[1] * blocks + part] = scale


# --- of an accumulator of a warpgroup --------------------------------------------------------------------------------

_OF_A_ROW, _OF_A_COLUMN = (1, 2), (4, 8, 16)  # distances of lanes that have values of one row of wgmma's D, or column
_WARPS = 4


@tw.function
def reduce_part(x, mma, values, extents, where, target):
    """Reduce the values of a warpgroup's tile to its part, one of each warp over M, of a further result."""
    thread, (rows, columns) = mma.get_slice(tw.thread_idx.x % mma.size), mma.tiler_mn
    at = thread.partition_C(tw.local_tile(tw.identity_tensor(extents), (rows, columns), where))
    steps = mma.get_slice(0).partition_C(tw.identity_tensor((rows, columns)))
    row, column = at[0]
    warp, lane = tw.warp_id() % _WARPS, tw.lane_id()
    lines = {}
    for i in tw.static_range(tw.size(values)):
        down, along = steps[i]
        inside = (row + down < extents[0]) & (column + along < extents[1])
        lines.setdefault(down if x.over == "N" else along, []).append(tw.where(inside, values[i], neutral(x)))
    is_there = (where[0] * rows < extents[0]) & (where[1] * columns < extents[1])
    for step in lines:
        total = lines[step][0]
        for value in lines[step][1:]:
            total = combined(x, total, value)
        for distance in _OF_A_ROW if x.over == "N" else _OF_A_COLUMN:
            total = combined(x, total, tw.shuffle_xor(total, distance))
        if x.over == "N":
            if is_there & (lane % 4 == 0) & (row + step < extents[0]):
                target[row + step, where[1]] = total
        elif is_there & (lane < 4) & (column + step < extents[1]):
            target[column + step, _WARPS * where[0] + warp] = total


def over_quad(value):
    """Return the greatest of a value over the lanes that have values of a row."""
    for distance in _OF_A_ROW:
        value = tw.maximum(value, tw.shuffle_xor(value, distance))
    return value
