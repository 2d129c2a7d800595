"""Adding up the splits of K, always in the same order; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw

THREADS = 256


@tw.kernel
def add_splits(D, sums, alpha, beta, plan: tw.constexpr, *operands):
    """Compute D[m, n, l] = epilogue(alpha * sum over s of sums[m, n, s * L + l], operands[m, n, l]).

    L is the extent of D's batch. Blocks have a row each of a matrix, and a thread an element.
    """
    count = len(operands) - len(plan.numbers)
    epilogue = plan.bind(operands[count:])
    row, column, batch = tw.block_idx.x, tw.block_idx.y * THREADS + tw.thread_idx.x, tw.block_idx.z
    batches = D.shape[2]
    if column < D.shape[1]:
        total = sums[row, column, batch]
        for split in tw.range(1, sums.shape[2] // batches, unroll=4):
            total += sums[row, column, split * batches + batch]
        elements = [x[row, column, batch] for x in operands[:count]]
        D[row, column, batch] = epilogue.apply(total, alpha, beta, elements).to(D.dtype)
