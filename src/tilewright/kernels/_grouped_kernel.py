"""Products of many matrices in one launch of blocks that stay; device code, traced into kernels.

Each product is computed as the multistage kernel computes one: a ring of stages by cp.async, fragments one step ahead.
"""

from __future__ import annotations

from typing import ClassVar

import tilewright as tw
from tilewright.kernels._epilogue_kernel import finish
from tilewright.kernels._multistage_kernel import TileLoader, start_tile


@tw.kernel
def grouped_tiles(D, A, B, offsets, plan: tw.constexpr):
    """Compute the products of ragged groups: D[m, n, g] = sum over k of A[m, k, g] * B[n, k, g].

    `offsets` are the ends of the groups along M (`plan.ragged` is "M": A and D have one matrix for all groups, of
    which each has rows of its own) or along K ("K": A and B do).
    """
    ends = Ends(plan, offsets, D.shape, A.shape)
    for group, row, column in plan.scheduler(tw.size(offsets) + plan.rest, ends.tiles):
        if plan.ragged == "M":
            # Rows behind the last group get sums of nothing.
            matrix = tw.minimum(group, tw.size(offsets) - 1)
            depth = tw.where(group < tw.size(offsets), A.shape[1], 0)
            rows = ends.end - ends.begin
            product = (
                part_of(D[:, :, 0], (ends.begin, 0), (rows, D.shape[1])),
                part_of(A[:, :, 0], (ends.begin, 0), (rows, depth)),
                part_of(B[:, :, matrix], (0, 0), (B.shape[0], depth)),
            )
        else:
            depth = ends.end - ends.begin
            product = (
                D[:, :, group],
                part_of(A[:, :, 0], (0, ends.begin), (A.shape[0], depth)),
                part_of(B[:, :, 0], (0, ends.begin), (B.shape[0], depth)),
            )
        multiply_tile(plan.plan, *product, row, column)


@tw.kernel
def listed_tiles(addresses_d, addresses_a, addresses_b, table, plan: tw.constexpr):
    """Compute the products of matrices anywhere: of each its addresses, and a row of `table`: extents and strides."""

    def tiles(g):
        return tuple(tw.ceil_div(table[g, i].to(tw.int32), plan.plan.tile[i]) for i in range(2))

    for group, row, column in plan.scheduler(table.shape[0], tiles):
        m, n, k = (table[group, i].to(tw.int32) for i in range(3))
        matrices = []
        for i, (dtype, shape, unit, align) in enumerate(
            zip(plan.dtypes, ((m, n), (m, k), (n, k)), plan.units, plan.alignments, strict=True)
        ):
            # Strides are counted in whole vectors, so that the compiler knows what divides them.
            vector = max(align // dtype.bytes, 1)
            row_step, column_step = (table[group, 3 + 2 * i + mode] * vector for mode in range(2))
            strides = (1 if unit == 0 else row_step, 1 if unit == 1 else column_step)
            address = tw.pointer((addresses_d, addresses_a, addresses_b)[i][group], dtype, align=align)
            matrices.append(tw.make_tensor(address, tw.Layout(shape, strides)))
        multiply_tile(plan.plan, *matrices, row, column)


class Ends:
    """Where the group begins and ends that was asked for last; offsets that fall or run past the end are held back."""

    __tilewright_state__: ClassVar[bool] = True

    def __init__(self, plan, offsets, extents_of_d, extents_of_a):
        self.plan, self.offsets = plan, offsets
        self.rows, self.columns = extents_of_d[0], extents_of_d[1]
        # Extents are int64 where an array has more than 2^31 elements; one of them alone is not as large.
        self.all = (self.rows if plan.ragged == "M" else extents_of_a[1]).to(tw.int32)
        self.begin, self.end = 0, 0

    @tw.function
    def tiles(self, group):
        """Return the tiles of the next group."""
        self.begin = self.end
        end = self.all
        if group < tw.size(self.offsets):
            end = tw.minimum(tw.maximum(self.offsets[group], self.begin), self.all).to(tw.int32)
        self.end = end
        rows = self.end - self.begin if self.plan.ragged == "M" else self.rows
        m, n, _ = self.plan.plan.tile
        return tw.ceil_div(rows, m), tw.ceil_div(self.columns, n)


def part_of(matrix, begin, shape):
    """Return a matrix's part of a shape, from an element on."""
    return tw.domain_offset(begin, matrix).map_layout(lambda layout: tw.Layout(shape, layout.stride))


@tw.function
def multiply_tile(plan, D, A, B, m_block, n_block):
    """Compute one tile of D = A B^T, and leave shared memory free for the next."""
    tid = tw.thread_idx.x
    sA, sB = tw.shared(A.dtype, plan.a.smem), tw.shared(B.dtype, plan.b.smem)
    tiles_a = TileLoader(plan.a, A, sA, m_block, tid, None)
    tiles_b = TileLoader(plan.b, B, sB, n_block, tid, None)
    thread, loader_a, loader_b = (part.get_slice(tid) for part in (plan.mma, plan.a.load, plan.b.load))
    held = plan.held_steps
    rA = tw.registers(A.dtype, (*plan.mma.partition_shape((plan.a.rows, plan.a.depth), "A")[:2], held))
    rB = tw.registers(B.dtype, (*plan.mma.partition_shape((plan.b.rows, plan.b.depth), "B")[:2], held))
    acc = tw.registers(plan.mma.atom.dtype_c, plan.mma.partition_shape(plan.tile[:2], "C"))
    tw.clear(acc)
    tLsA, tLrA = loader_a.partition_S(sA), loader_a.retile_D(rA)
    tLsB, tLrB = loader_b.partition_S(sB), loader_b.retile_D(rB)
    steps = tw.size(tLsA.shape[2])
    pipe = tw.pipeline(plan.stages)
    for k_tile in tw.static_range(pipe.ahead):
        start_tile(tiles_a, k_tile, k_tile)
        start_tile(tiles_b, k_tile, k_tile)
        pipe.commit()
    pipe.wait()
    tw.copy(plan.a.load, tLsA[:, :, 0, 0], tLrA[:, :, 0])
    tw.copy(plan.b.load, tLsB[:, :, 0, 0], tLrB[:, :, 0])
    for k_tile in tw.range(tiles_a.tiles, unroll=1):
        stage = pipe.read_stage(k_tile)
        for k in tw.static_range(steps):
            if k == 0:
                coming, free = k_tile + pipe.ahead, pipe.write_stage(k_tile)
                start_tile(tiles_a, coming, free)
                start_tile(tiles_b, coming, free)
                pipe.commit()
            if k == steps - 1:
                pipe.wait()
                stage = pipe.read_stage(k_tile + 1)
            following = (k + 1) % steps
            tw.copy(plan.a.load, tLsA[:, :, following, stage], tLrA[:, :, (k + 1) % held])
            tw.copy(plan.b.load, tLsB[:, :, following, stage], tLrB[:, :, (k + 1) % held])
            tw.gemm(plan.mma, acc, rA[:, :, k % held], rB[:, :, k % held], acc)
    pipe.drain()
    finish(plan.epilogue, acc, thread, D, (), (m_block, n_block), plan.mma.atom.dtype_c(1), 0)
    tw.sync_threads()
