"""A matrix product of any element type: several tiles of K under way, fragments a step ahead of the instructions.

Device code, traced into kernels.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels.finishing import finish
from tilewright.kernels.loading import TileLoader, start_rows, start_tile, start_whole_tile


@tw.kernel
def matmul_tiles(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute one tile of D[m, n, l] = epilogue(alpha * sum over k of A[m, k, l] * B[n, k, l], operands[m, n, l]).

    Behind the operands come the numbers that the epilogue's function uses.

    Three things run at the same time: asynchronous copies bring the tiles of rounds to come into a ring of stages, the
    fragments of the next step of K are read from shared memory, and those of this one are multiplied.
    """
    m_block, n_block, batch = block_of(plan, D.shape)
    numbers = operands[len(operands) - len(plan.epilogue.numbers) :]
    D, A, B, *operands = (x[:, :, batch] for x in (D, A, B, *operands[: len(operands) - len(numbers)]))

    tid = tw.thread_idx.x
    sA, sB = tw.shared(A.dtype, plan.a.smem), tw.shared(B.dtype, plan.b.smem)
    tiles_a = TileLoader(plan.a, A, sA, m_block, tid)
    tiles_b = TileLoader(plan.b, B, sB, n_block, tid)

    # Fragments of some steps of K; their loads see the same registers in their own order.
    thread, loader_a, loader_b = (part.get_slice(tid) for part in (plan.mma, plan.a.load, plan.b.load))
    held = plan.held_steps
    rA = tw.registers(A.dtype, (*plan.mma.partition_shape((plan.a.rows, plan.a.depth), "A")[:2], held))
    rB = tw.registers(B.dtype, (*plan.mma.partition_shape((plan.b.rows, plan.b.depth), "B")[:2], held))
    acc = tw.registers(plan.mma.atom.dtype_c, plan.mma.partition_shape(plan.tile[:2], "C"))
    tw.clear(acc)
    tLsA, tLrA = loader_a.partition_S(sA), loader_a.retile_D(rA)
    tLsB, tLrB = loader_b.partition_S(sB), loader_b.retile_D(rB)

    k_tiles, steps = tiles_a.tiles, tw.size(tLsA.shape[2])
    pipe = tw.pipeline(plan.stages)
    for k_tile in tw.static_range(pipe.ahead):
        start_tile(tiles_a, k_tile, k_tile)
        start_tile(tiles_b, k_tile, k_tile)
        pipe.commit()
    pipe.wait()
    tw.copy(plan.a.load, tLsA[:, :, 0, 0], tLrA[:, :, 0])
    tw.copy(plan.b.load, tLsB[:, :, 0, 0], tLrB[:, :, 0])

    def start_next(k_tile, start):
        """Begin to copy the tile that comes `pipe.ahead` tiles later."""
        coming, free = k_tile + pipe.ahead, pipe.write_stage(k_tile)
        start(tiles_a, coming, free)
        start(tiles_b, coming, free)
        pipe.commit()

    @tw.function
    def multiply(k_tile, start):
        """Multiply a tile of K while the copies of a later one begin."""
        stage = pipe.read_stage(k_tile)
        # Guards need registers, of which more are free before the next fragments are there.
        is_early = plan.has_edges
        for k in tw.static_range(steps):
            if k == 0 and is_early:
                start_next(k_tile, start)
            if k == steps - 1:  # the next fragments are those of the next tile
                pipe.wait()
                stage = pipe.read_stage(k_tile + 1)
            following = (k + 1) % steps
            tw.copy(plan.a.load, tLsA[:, :, following, stage], tLrA[:, :, (k + 1) % held])
            tw.copy(plan.b.load, tLsB[:, :, following, stage], tLrB[:, :, (k + 1) % held])
            if k == 0 and not is_early:
                start_next(k_tile, start)
            tw.gemm(plan.mma, acc, rA[:, :, k % held], rB[:, :, k % held], acc)

    first = 0
    if plan.has_edges:
        # As long as the copies bring whole tiles of K only rows have to be guarded, and those only at the edges.
        first = tw.maximum(tiles_a.whole_tiles - pipe.ahead, 0)
        if first > 0 and tiles_a.has_all_rows() and tiles_b.has_all_rows():
            for k_tile in range(first):
                multiply(k_tile, start_whole_tile)
        elif first > 0:
            for k_tile in range(first):
                multiply(k_tile, start_rows)
    for k_tile in range(first, k_tiles):
        multiply(k_tile, start_tile)
    pipe.drain()
    finish(plan.epilogue.bind(numbers), acc, thread, D, tuple(operands), (m_block, n_block), alpha, beta)


def block_of(plan, extents):
    """Return the tile of (M, N) and the matrix of the batch that this block computes.

    `plan.group` tiles along M come before the next along N: blocks that run at the same time share rows of A and B.
    """
    tiles_m, tiles_n = (tw.ceil_div(extent, tile) for extent, tile in zip(extents[:2], plan.tile[:2], strict=True))
    block, batch = tw.block_idx.x, 0
    if plan.batched:
        block, batch = block % (tiles_m * tiles_n), block // (tiles_m * tiles_n)
    first = block // (plan.group * tiles_n) * plan.group
    height = tw.minimum(tiles_m - first, plan.group)
    inside = block % (plan.group * tiles_n)
    return first + inside % height, inside // height, batch
