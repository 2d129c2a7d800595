"""Rotary position embedding; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._permute_kernels import matrix_of
from tilewright.kernels._row_kernels import row_number, wide


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
