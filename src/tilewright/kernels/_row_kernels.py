"""Functions of rows: softmax, RMS norm, layer norm, rotary embedding; device code, traced into kernels.

A row is the last mode of an array, and all modes before it count rows. The threads along x of a block share a row, and
those along y have rows of their own. A thread takes `tiles`' vector of neighbouring elements, and goes on by what the
threads of the row take together. Rows that the threads hold are read once; longer ones are read twice, the second time
from their end, which is still in the caches.
"""

from __future__ import annotations

import math
import sys

import tilewright as tw
from tilewright.kernels._permute_kernels import matrix_of

LOG2E = math.log2(math.e)
LOWEST = {tw.float32: -(2.0**128 - 2.0**104), tw.float64: -sys.float_info.max}


def wide(dtype):
    """Return the type that elements are computed in."""
    return tw.float64 if dtype == tw.float64 else tw.float32


def exponential(x, dtype):
    """Return e^x for a result of a type: for 16 bits by one instruction, whose results below 2^-126 are 0.

    That instruction is of float32: what is computed in float64 is not.
    """
    return tw.ex2_approx(x * LOG2E, ftz=True) if dtype.bits <= 16 and x.dtype == tw.float32 else tw.exp(x)


def row_number():
    """Return which row the thread works on, counted over all blocks; it may be behind the last one."""
    return tw.block_idx.x * tw.block_dim.y + tw.thread_idx.y


def row_of(x, at, fill=0):
    """Return row `at` of an array, guarded: the modes before the last count rows, the last of them fastest."""
    coord = []
    for extent in reversed(x.shape[1:-1]):
        coord.insert(0, at % extent)
        at = at // extent
    return tw.guarded(x, fill=fill)[(at, *coord, ...)]


def held_part(row, tiles, columns, tile=0):
    """Return a thread's elements of a row, or of a tile of it, whose threads hold `columns` elements."""
    return tiles.get_slice(tw.thread_idx.x).partition_S(tw.local_tile(row, (columns,), tile))


def long_parts(row, tiles, columns):
    """Return a thread's elements of a row, `columns` elements at a time along the last mode."""
    return tiles.get_slice(tw.thread_idx.x).partition_S(tw.zipped_divide(row, columns))


@tw.kernel
def softmax_held(y, x, tiles: tw.constexpr, columns: tw.constexpr, is_log: tw.constexpr):
    """Compute softmax, or its logarithm, of rows that threads hold."""
    at, kind = row_number(), wide(x.dtype)
    values = held_part(row_of(x, at, -math.inf), tiles, columns).to(kind)
    values = values - tw.reduce(values, "max", tiles.size)
    part = held_part(row_of(y, at), tiles, columns)
    if is_log:
        part[...] = values - tw.log(tw.reduce(exponential(values, y.dtype), "add", tiles.size))
    else:
        values = exponential(values, y.dtype)
        part[...] = values * (1 / tw.reduce(values, "add", tiles.size))


@tw.kernel
def softmax_long(y, x, tiles: tw.constexpr, columns: tw.constexpr, is_log: tw.constexpr):
    """Compute softmax, or its logarithm, of a row in a block.

    Each thread keeps the greatest element that it has seen and the sum of exp(element - greatest), and scales the sum
    when a greater one comes. No thread waits for another before the end.
    """
    at, kind = tw.block_idx.x, wide(x.dtype)
    x_part, y_part = (long_parts(row_of(t, at, f), tiles, columns) for t, f in ((x, -math.inf), (y, 0)))
    count = tw.ceil_div(x.shape[-1], columns)
    top, total = kind(LOWEST[kind]), kind(0)  # not -inf, because -inf - -inf is NaN
    for i in range(count):
        values = x_part[..., i].to(kind)
        top, old = tw.maximum(top, values.reduce("max")), top
        total = total * exponential(old - top, y.dtype) + exponential(values - top, y.dtype).reduce("add")
    greatest = tw.reduce(top, "max")
    total = tw.reduce(total * exponential(top - greatest, y.dtype), "add")
    for i in range(count - 1, -1, -1):
        values = x_part[..., i].to(kind) - greatest
        if is_log:
            y_part[..., i] = values - tw.log(total)
        else:
            y_part[..., i] = exponential(values, y.dtype) * (1 / total)


@tw.kernel
def norm_held(
    y, mean, rstd, x, weight, bias, eps, tiles: tw.constexpr, columns: tw.constexpr, is_centred: tw.constexpr,
    is_even: tw.constexpr,
):  # fmt: skip
    """Compute RMS norm, or layer norm (`is_centred`), of rows that threads hold; vectors may be None.

    The variance is that of distances from the mean, taken when the mean is known: the mean of squares less the square
    of the mean would lose what is far from zero.
    """
    at, kind, extent = row_number(), wide(x.dtype), x.shape[-1]
    part = held_part(row_of(x, at), tiles, columns)
    values = part.to(kind)
    w, b = (None if v is None else held_part(tw.guarded(v), tiles, columns) for v in (weight, bias))
    if is_centred:
        shift = tw.reduce(values, "add", tiles.size) / extent
        values = apart(values, part, shift, is_even)
        put_number(mean, at, shift)
    scale = tw.rsqrt(tw.reduce(values * values, "add", tiles.size) / extent + eps)
    put_number(rstd, at, scale)
    y_part = held_part(row_of(y, at), tiles, columns)
    for i in tw.static_range(tw.size(values.shape[1])):  # at once, all weights and biases would be in registers too
        y_part[:, i] = scaled(values[:, i] * scale, w, b, i, kind)


@tw.kernel
def norm_long(
    y, mean, rstd, x, weight, bias, eps, tiles: tw.constexpr, columns: tw.constexpr, is_centred: tw.constexpr,
    is_even: tw.constexpr,
):  # fmt: skip
    """Compute RMS norm, or layer norm (`is_centred`), of a row in a block; vectors may be None.

    For the variance each thread keeps number, mean, and sum of squared distances of what it has seen, and joins those
    of the next elements to them (Chan, Golub and LeVeque), which is as exact as with the mean known before.
    """
    at, kind, extent = tw.block_idx.x, wide(x.dtype), x.shape[-1]
    x_part, y_part = (long_parts(row_of(t, at), tiles, columns) for t in (x, y))
    w, b = (None if v is None else long_parts(tw.guarded(v), tiles, columns) for v in (weight, bias))
    count, n, shift, squares = tw.ceil_div(extent, columns), kind(0), kind(0), kind(0)
    for i in range(count):
        values = x_part[..., i].to(kind)
        if is_centred:
            number = inside_of(x_part[..., i], kind, is_even)
            middle = values.reduce("add") / tw.maximum(number, 1)
            values = apart(values, x_part[..., i], middle, is_even)
            n, shift, squares = joined((n, shift, squares), (number, middle, (values * values).reduce("add")))
        else:
            squares = squares + (values * values).reduce("add")
    if is_centred:
        n, shift, squares = tw.reduce((n, shift, squares), joined)
        put_number(mean, at, shift)
    else:
        squares = tw.reduce(squares, "add")
    scale = tw.rsqrt(squares / extent + eps)
    put_number(rstd, at, scale)
    for i in range(count - 1, -1, -1):
        values = x_part[..., i].to(kind)
        if is_centred:
            values = values - shift
        y_part[..., i] = scaled(values * scale, w, b, i, kind)


def apart(values, part, shift, is_even):
    """Return distances from a number, and 0 of what is outside of a row.

    With `is_even` a row ends with a vector, so that one comparison tells for all of its elements: comparisons for each
    are a quarter of all instructions.
    """
    if not is_even:
        return tw.where(tw.inside(part), values - shift, 0)
    for i in tw.static_range(tw.size(values.shape[1])):
        values[:, i] = values[:, i] - tw.where(part.inside((0, i)), shift, 0)
    return values


def inside_of(part, kind, is_even):
    """Return the number of a thread's elements that are inside of a row."""
    if not is_even:
        return tw.inside(part).to(kind).reduce("add")
    return sum(tw.where(part.inside((0, i)), kind(tw.size(part.shape[0])), 0) for i in range(tw.size(part.shape[1])))


def joined(a, b):
    """Return number, mean and sum of squared distances of two sets together."""
    n, apart = a[0] + b[0], b[1] - a[1]
    share = b[0] / tw.maximum(n, 1)
    return n, a[1] + apart * share, a[2] + b[2] + apart * apart * (a[0] * share)


def scaled(values, weight, bias, i, kind):
    """Return values * weight + bias, without those that are None; `i` is the place along their last mode."""
    if weight is not None:
        values = values * weight[..., i].to(kind)
    return values if bias is None else values + bias[..., i].to(kind)


@tw.function
def put_number(numbers, at, value):
    """Store a number of a row by one of its threads; `numbers` may be None."""
    if numbers is not None and tw.thread_idx.x == 0:
        tw.guarded(numbers)[at] = value


@tw.kernel
def rotate(y, x, cos, sin, each: tw.constexpr, is_interleaved: tw.constexpr, is_inverse: tw.constexpr):
    """Turn the pairs of rows by the angles of rows (pairs,): `each` neighbouring pairs a thread.

    Rows of x and y are (pairs, 2); if pairs are neighbours, (2 pairs,), so that accesses are of whole vectors.
    """
    at, kind = row_number(), wide(x.dtype)
    part = tw.block_idx.y * tw.block_dim.x + tw.thread_idx.x
    c, s = (tw.local_tile(matrix_of(t, at, 1), (each,), part).to(kind) for t in (cos, sin))
    if is_interleaved:
        source, target = (tw.local_tile(matrix_of(t, at, 1), (2 * each,), part) for t in (x, y))
    else:
        source, target = (tw.local_tile(matrix_of(t, at, 2), (each, 2), (part, 0)) for t in (x, y))
    values = source.to(kind)
    turned = tw.fragment_like(values)
    if is_inverse:
        s = -s
    first, second = (slice(0, None, 2), slice(1, None, 2)) if is_interleaved else ((..., 0), (..., 1))
    turned[first] = values[first] * c - values[second] * s
    turned[second] = values[second] * c + values[first] * s
    target[...] = turned
