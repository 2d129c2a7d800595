"""Adding up the pieces of tiles whose K blocks shared; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._hopper_kernel import StreamWorks
from tilewright.kernels._hopper_results_kernel import slots
from tilewright.kernels._split_k_kernel import put_group

_TOGETHER = 8  # loads of a thread


@tw.kernel
def add_pieces(D, sums, alpha, beta, k_tiles, blocks, width: tw.constexpr, plan: tw.constexpr, *operands):
    """Compute D[m, n, l] = epilogue(alpha * sum over pieces of sums[m, n, piece], operands[m, n, l]) of shared tiles.

    `plan` is that of the kernel which left the sums, with `blocks` blocks, or clusters of them, and `k_tiles` tiles of
    K. A block here has some rows of a tile (y), and a thread `width` elements side by side. It adds the pieces in the
    order of K: the same bits in every run. Behind the operands come the numbers that the epilogue's function uses.
    """
    epilogue, (m, n, _) = plan.epilogue, plan.tile
    numbers = operands[len(operands) - len(epilogue.numbers) :]
    operands = operands[: len(operands) - len(numbers)]
    works = StreamWorks(plan, D.shape, k_tiles, 0, blocks)
    number, rank = tw.block_idx.y // plan.cluster, tw.block_idx.y % plan.cluster
    row, column, batch = works.tile(works.begin + number)
    first, last = (works.shared.block_at(place) for place in (number * k_tiles, (number + 1) * k_tiles - 1))
    element = (tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x) * width
    down, across = element // n, element % n
    total = tw.registers(sums.dtype, tw.row_major((1, width)))
    tw.clear(total)
    for begin in range(first, last + 1, _TOGETHER):
        pieces = [tw.registers(sums.dtype, total.shape) for _ in range(_TOGETHER)]
        for i, piece in enumerate(pieces):
            tw.clear(piece)
            if begin + i <= last:
                slot = plan.cluster * (number + begin + i) + rank
                tw.copy(tw.local_tile(slots(plan, sums)[:, :, slot], (1, width), (down, across // width)), piece)
        for piece in pieces:
            for i in tw.static_range(width):
                total[0, i] += piece[0, i]
    row, column = (plan.cluster * row + rank) * m + down, column * n + across
    if (row < D.shape[0]) and (column < D.shape[1]):
        place = row, column // width, batch
        put_group(D, total, alpha, beta, epilogue.bind(numbers), operands, place)
