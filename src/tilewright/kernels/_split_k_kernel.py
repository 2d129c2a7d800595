"""Adding up the splits of K, always in the same order; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw


@tw.kernel
def add_splits(D, sums, alpha, beta, plan: tw.constexpr, *operands):
    """Compute D[m, n, l] = epilogue(alpha * sum over s of sums[m, n, l + batches * s], operands[m, n, l]).

    Behind the operands come the numbers that the epilogue's function uses. Of `plan.ways` threads for an element,
    thread w adds splits w, w + ways, ... in this order, and the first adds what they have in the order of w: the same
    bits in every run.
    """
    epilogue = plan.epilogue
    numbers = operands[len(operands) - len(epilogue.numbers) :]
    operands = operands[: len(operands) - len(numbers)]
    rows, columns, batches = D.shape
    splits = sums.shape[2] // batches
    elements = plan.threads // plan.ways  # of this block, side by side
    shared = tw.shared(sums.dtype, tw.Layout((elements, plan.ways)))
    lane, way = tw.thread_idx.x % elements, tw.thread_idx.x // elements
    runs = tw.ceil_div(columns, elements)
    run, row = tw.block_idx.x % runs, tw.block_idx.x // runs
    column, batch = run * elements + lane, row // rows
    row = row % rows
    total = sums.dtype(0)
    if column < columns:
        for s in tw.range(tw.ceil_div(splits - way, plan.ways), unroll=8):
            total += sums[row, column, batch + (way + s * plan.ways) * batches]
    shared[lane, way] = total
    tw.sync_threads()
    if (way == 0) and (column < columns):
        for w in tw.static_range(1, plan.ways):
            total += shared[lane, w]
        given = [x[row, column, batch] for x in operands]
        D[row, column, batch] = epilogue.bind(numbers).apply(total, alpha, beta, given).to(D.dtype)
