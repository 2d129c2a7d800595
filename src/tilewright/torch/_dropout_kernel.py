"""Dropout of a matrix, with the mask that epilogues of products have; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._places_kernel import Places

THREADS = 256
PERIOD, GROUPS, EACH = 32, 4, 8  # columns of a row, the calls of Philox for them, and the elements of a call


@tw.kernel
def drop_elements(y, x, seed, threshold, scale, width: tw.constexpr):
    """Compute y = x * scale, and 0 for elements whose random bits are below a threshold.

    A thread takes what one call of Philox is for: pairs of columns in four groups of eight. `width` of these, side by
    side, are one access.
    """
    rows, columns = x.shape
    number = tw.block_idx.x * THREADS + tw.thread_idx.x
    calls = tw.ceil_div(columns, PERIOD) * GROUPS
    row, call = number // calls, number % calls
    kind = tw.float64 if x.dtype == tw.float64 else tw.float32
    if row < rows:
        first = call // GROUPS * PERIOD + call % GROUPS * 2
        places, numbers = Places(row, first, 0, zeros=0b11001), [tw.uint32(n) for n in (0, 1, 0)]
        factor, key = scale.to(kind), seed[0]
        bits = {}  # computed before the branches below, all of which use them
        for along in [8 * word + half for word in range(EACH // 2) for half in range(2)]:
            bits[along] = places.at(0, along).bits(0, key, "N", numbers)
        for word in tw.static_range(EACH // 2):
            for half in tw.static_range(0, 2, width):
                column = first + 8 * word + half
                if column < columns:
                    vector = tw.registers(x.dtype, (1, width))
                    source, target = (tw.local_tile(t, (1, width), (row, column // width)) for t in (x, y))
                    tw.copy(source, vector)
                    for i in tw.static_range(width):
                        is_kept = bits[8 * word + half + i] >= threshold
                        vector[0, i] = tw.where(is_kept, vector[0, i].to(kind) * factor, 0).to(x.dtype)
                    tw.copy(vector, target)
