"""Gradients of functions of rows; device code, traced into kernels.

With x^ = (x - mean) * scale and g = dy * weight, where scale is 1 / sqrt(variance + eps), the gradients of a norm are

    dx = scale * (g - mean(g) - x^ * mean(g * x^)),    dweight = sum over rows of dy * x^,    dbias = sum of dy,

those of RMS norm the same without means of x and g. Sums over rows are taken in an order of their own, by blocks and
then over blocks, so that they have the same bits each time.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._row_kernels import exponential, held_part, long_parts, row_number, row_of, wide

COLUMNS = 32  # of a block that adds up partial sums
GROUPS = 16  # of threads that take rows of their own there


@tw.kernel
def softmax_gradient_held(dx, dy, y, tiles: tw.constexpr, columns: tw.constexpr, is_log: tw.constexpr):
    """Compute y * (dy - sum(dy * y)), or for the logarithm dy - exp(y) * sum(dy), of rows that threads hold."""
    at, kind = row_number(), wide(y.dtype)
    gradient, values = (held_part(row_of(t, at), tiles, columns).to(kind) for t in (dy, y))
    part = held_part(row_of(dx, at), tiles, columns)
    if is_log:
        part[...] = gradient - exponential(values, dx.dtype) * tw.reduce(gradient, "add", tiles.size)
    else:
        part[...] = values * (gradient - tw.reduce(gradient * values, "add", tiles.size))


@tw.kernel
def softmax_gradient_long(dx, dy, y, tiles: tw.constexpr, columns: tw.constexpr, is_log: tw.constexpr):
    """Compute the same of a row in a block."""
    at, kind = tw.block_idx.x, wide(y.dtype)
    target, gradients, results = (long_parts(row_of(t, at), tiles, columns) for t in (dx, dy, y))
    count, total = tw.ceil_div(y.shape[-1], columns), kind(0)
    for i in range(count):
        gradient = gradients[..., i].to(kind)
        if is_log:
            total = total + gradient.reduce("add")
        else:
            total = total + (gradient * results[..., i].to(kind)).reduce("add")
    total = tw.reduce(total, "add")
    for i in range(count - 1, -1, -1):
        gradient, values = gradients[..., i].to(kind), results[..., i].to(kind)
        if is_log:
            target[..., i] = gradient - exponential(values, dx.dtype) * total
        else:
            target[..., i] = values * (gradient - total)


@tw.kernel
def norm_gradient_held(
    dx, weight_sums, bias_sums, dy, x, mean, scale, weight,
    tiles: tw.constexpr, columns: tw.constexpr, sums_layout: tw.constexpr, is_ahead: tw.constexpr,
):  # fmt: skip
    """Compute dx of every row, and rows of weight_sums and bias_sums, which may be None, as mean and weight may.

    A block goes through many rows. With `is_ahead`, threads load the next row before they wait for the sums of this
    one. With a `sums_layout` sums are kept in shared memory, else they and the weight in registers.
    """
    kind, extent, rows, step = wide(x.dtype), x.shape[-1], scale.shape[0], tw.grid_dim.x * tw.block_dim.y
    first = tw.block_idx.x * tw.block_dim.y
    w = None if weight is None else held_part(tw.guarded(weight), tiles, columns)
    if w is not None and sums_layout is None:
        w = +w
    parts = [held_part(row_of(t, first + tw.thread_idx.y), tiles, columns) for t in (dy, x)]
    ahead = [+part for part in parts] if is_ahead else []
    sums = []
    for out in (weight_sums, bias_sums):
        if out is not None and sums_layout is not None:
            sums.append(tw.shared(kind, sums_layout)[tw.thread_idx.x, ...])
        else:
            sums.append(None if out is None else tw.fragment_like(ahead[1].to(kind)))
    for total in sums:
        if total is not None:
            tw.clear(total)
    for start in range(first, rows, step):
        at = start + tw.thread_idx.y
        if is_ahead:
            gradient, values = (rows_read.to(kind) for rows_read in ahead)
            for t, rows_read in zip((dy, x), ahead, strict=True):
                tw.copy(held_part(row_of(t, at + step), tiles, columns), rows_read)
        else:
            gradient, values = (held_part(row_of(t, at), tiles, columns).to(kind) for t in (dy, x))
        factor = tw.guarded(scale)[at]
        values = (values if mean is None else values - tw.guarded(mean)[at]) * factor
        if sums[0] is not None:
            sums[0] += gradient * values
        if sums[1] is not None:
            sums[1] += gradient
        if w is not None:
            gradient = gradient * w.to(kind)
        part = held_part(row_of(dx, at), tiles, columns)
        if mean is None:
            slope = tw.reduce((gradient * values).reduce("add"), "add", tiles.size) / extent
            part[...] = (gradient - values * slope) * factor
        else:
            both = tw.reduce(((gradient * values).reduce("add"), gradient.reduce("add")), "add", tiles.size)
            slope, shift = both[0] / extent, both[1] / extent
            part[...] = (gradient - (shift + values * slope)) * factor
    for out, total in zip((weight_sums, bias_sums), sums, strict=True):
        if out is not None:
            held_part(row_of(out, first + tw.thread_idx.y), tiles, columns)[...] = total


@tw.kernel
def norm_gradient_long(dx, dy, x, mean, scale, weight, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute dx of a row in a block; mean and weight may be None."""
    at, kind, extent = tw.block_idx.x, wide(x.dtype), x.shape[-1]
    target, gradients, parts = (long_parts(row_of(t, at), tiles, columns) for t in (dx, dy, x))
    w = None if weight is None else long_parts(tw.guarded(weight), tiles, columns)
    count, slope, shift, factor = tw.ceil_div(extent, columns), kind(0), kind(0), scale[at]
    for i in range(count):
        gradient, values = gradient_and_values(gradients, parts, w, i, at, mean, factor, kind)
        slope = slope + (gradient * values).reduce("add")
        if mean is not None:
            shift = shift + gradient.reduce("add")
    slope, shift = (total / extent for total in tw.reduce((slope, shift), "add"))
    for i in range(count - 1, -1, -1):
        gradient, values = gradient_and_values(gradients, parts, w, i, at, mean, factor, kind)
        target[..., i] = (gradient - (values * slope if mean is None else shift + values * slope)) * factor


def gradient_and_values(gradients, parts, w, i, at, mean, factor, kind):
    """Return dy * weight and x^ of a part of a row."""
    gradient, values = gradients[..., i].to(kind), parts[..., i].to(kind)
    if w is not None:
        gradient = gradient * w[..., i].to(kind)
    return gradient, (values if mean is None else values - mean[at]) * factor


@tw.kernel
def weight_gradient_long(weight_sums, bias_sums, dy, x, mean, scale, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute rows of weight_sums and bias_sums: a block takes `columns` columns of every so many rows."""
    kind, column = wide(x.dtype), tw.block_idx.x
    sums = [tw.fragment_like(tiles_part(x, 0, column, tiles, columns).to(kind)) for _ in range(2)]
    for total in sums:
        tw.clear(total)
    for at in tw.range(tw.block_idx.y, scale.shape[0], tw.grid_dim.y, unroll=4):
        gradient, values = (tiles_part(t, at, column, tiles, columns).to(kind) for t in (dy, x))
        values = (values if mean is None else values - mean[at]) * scale[at]
        sums[0] += gradient * values
        sums[1] += gradient
    for out, total in zip((weight_sums, bias_sums), sums, strict=True):
        if out is not None:
            tiles_part(out, tw.block_idx.y, column, tiles, columns)[...] = total


def tiles_part(x, at, column, tiles, columns):
    """Return a thread's elements of tile `column` of row `at`."""
    return tiles.get_slice(tw.thread_idx.x).partition_S(tw.local_tile(row_of(x, at), (columns,), column))


@tw.kernel
def add_rows(out, partial):
    """Add up the rows of partial sums: threads along y take rows of their own, whose sums meet in shared memory."""
    column, group = tw.block_idx.x * COLUMNS + tw.thread_idx.x, tw.thread_idx.y
    sums, numbers, total = tw.shared(partial.dtype, (GROUPS, COLUMNS)), tw.guarded(partial), partial.dtype(0)
    for row in tw.range(group, partial.shape[0], GROUPS, unroll=8):
        total = total + numbers[row, column]
    sums[group, tw.thread_idx.x] = total
    tw.sync_threads()
    if group == 0:
        for n in tw.static_range(1, GROUPS):
            total = total + sums[n, tw.thread_idx.x]
        tw.guarded(out)[column] = total
