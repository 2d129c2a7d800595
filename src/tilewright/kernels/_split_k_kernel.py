"""Adding up the splits of K, always in the same order; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._places_kernel import Places

TOGETHER = 8  # loads of a thread


@tw.kernel
def add_splits(D, sums, alpha, beta, plan: tw.constexpr, *operands):
    """Compute D[m, n, l] = epilogue(alpha * sum over s of sums[m, n, l + batches * s], operands[m, n, l]).

    Behind the operands come the numbers that the epilogue's function uses. `plan.width` elements of a row, side by
    side, are a group. Of the `plan.ways` threads for a group, thread w adds splits w, w + ways, ... in this order, and
    the first adds what they have in the order of w: the same bits in every run. Up to 8 loads of a thread are under way
    before the first of them is added.
    """
    epilogue, width = plan.epilogue, plan.width
    numbers = operands[len(operands) - len(epilogue.numbers) :]
    operands = operands[: len(operands) - len(numbers)]
    rows, columns, batches = D.shape
    lanes, groups = plan.threads // plan.ways, columns // width
    lane, way = tw.thread_idx.x % lanes, tw.thread_idx.x // lanes
    number = tw.block_idx.x * lanes + lane
    group, row, batch = number % groups, number // groups % rows, number // groups // rows
    total = tw.registers(sums.dtype, tw.row_major((1, width)))
    tw.clear(total)
    if batch < batches:
        for first in tw.static_range(0, plan.splits, TOGETHER * plan.ways):
            parts = []
            for begin in tw.static_range(first, min(first + TOGETHER * plan.ways, plan.splits), plan.ways):
                split, part = tw.minimum(begin + way, plan.splits - 1), tw.registers(sums.dtype, total.shape)
                tw.copy(tw.local_tile(sums[:, :, batch + split * batches], (1, width), (row, group)), part)
                parts.append((begin, part))
            for begin, part in parts:
                if begin + way < plan.splits:
                    for i in tw.static_range(width):
                        total[0, i] += part[0, i]
    if plan.ways > 1:
        shared = tw.shared(sums.dtype, tw.Layout((lanes, width, plan.ways)))
        for i in tw.static_range(width):
            shared[lane, i, way] = total[0, i]
        tw.sync_threads()
        if way == 0:
            for w in tw.static_range(1, plan.ways):
                for i in tw.static_range(width):
                    total[0, i] += shared[lane, i, w]
    if (way == 0) and (batch < batches):
        put_group(D, total, alpha, beta, epilogue.bind(numbers), operands, (row, group, batch))


@tw.function
def put_group(D, total, alpha, beta, epilogue, operands, place):
    """Write what the epilogue makes of the sums of a group of elements, side by side in a row."""
    (row, group, batch), width = place, total.shape[1]
    out = tw.registers(D.dtype, total.shape)
    places = Places(row, group * width, batch, zeros=width - 1)
    for i in tw.static_range(width):
        given = [x[row, group * width + i, batch] for x in operands]
        out[0, i] = epilogue.apply(total[0, i], alpha, beta, given, places.at(0, i)).to(D.dtype)
    tw.copy(out, tw.local_tile(D[:, :, batch], (1, width), (row, group)))
