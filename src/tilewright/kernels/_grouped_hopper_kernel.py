"""The Hopper kernel for ragged groups: blocks that stay, a producer by TMA, warpgroups that multiply.

Device code, traced into kernels. The tiles are dealt by `Groups`, and what a tile is made of are the pieces of the
Hopper kernel of `tw.matmul`. Only the device knows where groups begin, and they begin anywhere:

    ragged M    tiles of A begin at the group's first row. The last ones have rows of the next group, whose results are
                not stored: a consumer whose 64 rows reach over the group's end writes those before it from shared
                memory by 16 bytes, and all else is stored by TMA. A plan that `skips` neither reads nor multiplies the
                second half of a tile that has rows for the first consumer alone.
    ragged K    tiles of A and B begin at the group's first index. Of the last one the indices behind the group's end
                are set to 0 in shared memory, in both operands, because a 0 of one times a NaN of the other is NaN.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._grouped_kernel import Ends, part_of
from tilewright.kernels._hopper_kernel import Order
from tilewright.kernels._hopper_results_kernel import of_part, results_buffer, store_rows
from tilewright.kernels.hopper_plan import CONSUMER_REGISTERS, CONSUMERS, PRODUCER_REGISTERS, ROWS, WARPGROUP

_CUTTERS = 3  # the named barrier of both consumers; those of one have the numbers 1 and 2


@tw.kernel
def grouped_warpgroups(D, A, B, offsets, plan: tw.constexpr):
    """Compute the products of ragged groups: D[m, n, g] = sum over k of A[m, k, g] * B[n, k, g].

    `offsets` are the ends of the groups along M (`plan.ragged` is "M": A and D have one matrix for all groups, of
    which each has rows of its own) or along K ("K": A and B do).
    """
    own = plan.plan
    sA, sB = tw.shared(A.dtype, own.smem_a), tw.shared(B.dtype, own.smem_b)
    sD = results_buffer(own, D)
    readers = 4 if own.is_ping_pong else 4 * CONSUMERS
    ring = tw.pipeline(own.stages, consumers=readers, bytes=own.stage_bytes)
    order = Order() if own.is_ping_pong else None
    tw.sync_threads()  # the barriers are there

    if tw.warpgroup_id() == 0:
        tw.set_registers(PRODUCER_REGISTERS)
        if tw.thread_idx.x == 0:
            bring(plan, Products(plan, D, A, offsets), ring.producer(), A, B, sA, sB)
    else:
        tw.set_registers(CONSUMER_REGISTERS)
        products = Products(plan, D, A, offsets)
        if own.is_ping_pong:
            alternate(plan, products, ring, order, sA, sB, sD, D)
        else:
            cooperate(plan, products, ring, sA, sB, sD, D)
            if own.stores_boxes and tw.thread_idx.x % WARPGROUP == 0:
                tw.tma_store_wait(0)  # the buffer is there until its last store has read it


class Products:
    """The tiles of this block, and what the group of the tile is that was taken last."""

    def __init__(self, plan, D, A, offsets):
        self.plan, self.groups, self.k = plan, tw.size(offsets), A.shape[1]
        self.ends = Ends(plan, offsets, D.shape, A.shape)
        # Rows behind the last group get sums of nothing.
        self.tiles = plan.scheduler(self.groups + plan.rest, self.ends.tiles)

    def steps(self, group):
        """Return the tiles of K."""
        depth = self.plan.plan.tile[2]
        if self.plan.ragged == "K":
            return tw.ceil_div(self.depth(), depth)
        return tw.where(group < self.groups, tw.ceil_div(self.k, depth), 0)

    def left(self, row):
        """Return how many rows of a ragged M the group has from a row of tiles on."""
        return self.ends.end - self.ends.begin - row * self.plan.plan.tile[0]

    def depth(self):
        """Return how many indices of a ragged K the group has."""
        return self.ends.end - self.ends.begin


@tw.function
def bring(plan, products, state, A, B, sA, sB):
    """Fill the stages with the tiles of A and B, in the order in which they are multiplied."""
    own = plan.plan
    m, n, k = own.tile
    for group, row, column in products.tiles:
        first = products.ends.begin
        if plan.ragged == "M":
            rows = tw.domain_offset((first, 0), tw.guarded(A[:, :, 0]))
            columns, matrix = tw.guarded(B), group
        else:
            rows = tw.domain_offset((0, first), tw.guarded(A[:, :, 0]))
            columns, matrix = tw.domain_offset((0, first, 0), tw.guarded(B)), 0
        is_half = plan.skips and products.left(row) <= ROWS
        bytes = tw.where(is_half, own.stage_bytes - ROWS * k * A.dtype.bytes, own.stage_bytes)
        for k_tile in range(products.steps(group)):
            with state.fill(bytes) as (stage, full):
                if is_half:
                    tile = tw.local_tile(rows, (ROWS, k), (row * CONSUMERS, k_tile))
                    half = tw.local_tile(sA[:, :, stage], (ROWS, k), (0, 0))
                    tw.copy(tw.atoms.SM90_TMA_LOAD, tile, half, barrier=full)
                else:
                    tile = tw.local_tile(rows, (m, k), (row, k_tile))
                    tw.copy(tw.atoms.SM90_TMA_LOAD, tile, sA[:, :, stage], barrier=full)
                tile = tw.local_tile(columns, (n, k, 1), (column, k_tile, matrix))[:, :, 0]
                tw.copy(tw.atoms.SM90_TMA_LOAD, tile, sB[:, :, stage], barrier=full)


# --- multiplying ---------------------------------------------------------------------------------------------


@tw.function
def cooperate(plan, products, ring, sA, sB, sD, D):
    """Compute tiles of which each consumer has half of the rows."""
    own, consumer = plan.plan, tw.warpgroup_id() - 1
    thread = own.mma.get_slice(tw.thread_idx.x - WARPGROUP)
    tA, tB = thread.partition_A(sA), thread.partition_B(sB)
    acc = tw.registers(own.mma.atom.dtype_c, own.mma.partition_shape(own.tile[:2], "C"))
    state = ring.consumer(behind=1)
    for group, row, column in products.tiles:
        steps = products.steps(group)
        if plan.skips and products.left(row) <= consumer * ROWS:
            for _k_tile in range(steps):
                with state.read():
                    pass  # the other one's
        else:
            multiply(plan, products, state, tA, tB, sA, sB, acc, steps)
        tw.wgmma_wait(0)
        state.release()
        finish(plan, products, acc, sD, D, (row, column, group), consumer)


@tw.function
def alternate(plan, products, ring, order, sA, sB, sD, D):
    """Compute a tile in each consumer, one multiplying while the other one stores."""
    own, consumer = plan.plan, tw.warpgroup_id() - 1
    other = 1 - consumer
    thread = own.mma.get_slice(tw.thread_idx.x % WARPGROUP)
    tA, tB = thread.partition_A(sA), thread.partition_B(sB)
    acc = tw.registers(own.mma.atom.dtype_c, own.mma.partition_shape(own.tile[:2], "C"))
    state = ring.consumer(behind=1)
    owner = 0  # the consumer that has the tile
    parity = other  # consumer 0 does not wait for its first tile
    for group, row, column in products.tiles:
        steps = products.steps(group)
        if owner == consumer:
            order.multiplies[consumer].wait(parity)
            multiply(plan, products, state, tA, tB, sA, sB, acc, steps)
            if tw.lane_id() == 0:
                order.multiplies[other].arrive()
            tw.wgmma_wait(0)
            state.release()
            order.stores[consumer].wait(parity)
            finish(plan, products, acc, sD, D, (row, column, group), 0)
            if tw.thread_idx.x % WARPGROUP == 0:
                if own.stores_boxes:
                    tw.tma_store_wait(0)  # the store has read the buffer
                order.stores[other].arrive()
            parity = parity ^ 1
        else:
            state.advance(steps)
        owner = owner ^ 1


@tw.function
def multiply(plan, products, state, tA, tB, sA, sB, acc, steps):
    """Multiply tiles of K; the last products are still under way behind it."""
    if steps == 0:
        tw.clear(acc)
    for k_tile in range(steps):
        with state.read() as stage:
            if plan.ragged == "K":
                left = products.depth() - k_tile * plan.plan.tile[2]
                if left < plan.plan.tile[2]:
                    cut(plan, sA[:, :, stage], sB[:, :, stage], left)
            tw.wgmma_fence()
            tw.gemm(plan.plan.mma, tA[:, :, :, stage], tB[:, :, :, stage], acc, accumulate=k_tile > 0)
            tw.wgmma_commit()
            tw.wgmma_wait(1)


@tw.function
def cut(plan, sA, sB, left):
    """Set what a stage has of K from `left` on to 0, before it is multiplied: it belongs to the next group."""
    if plan.plan.is_ping_pong:
        threads, thread, ours = WARPGROUP, tw.thread_idx.x % WARPGROUP, tw.named_barrier(tw.warpgroup_id(), WARPGROUP)
    else:
        threads, thread = CONSUMERS * WARPGROUP, tw.thread_idx.x - WARPGROUP
        ours = tw.named_barrier(_CUTTERS, threads)
    m, n, depth = plan.plan.tile
    for smem, rows, major in ((sA, m, plan.majors[0]), (sB, n, plan.majors[1])):
        if major == "K":
            for row in range(thread, rows, threads):
                for k in range(left, depth):
                    smem[row, k] = 0
        else:
            # Eight elements at a time.
            zeros = tw.registers(smem.dtype, (8, 1))
            tw.clear(zeros)
            for i in range(left * (rows // 8) + thread, depth * (rows // 8), threads):
                tw.copy(zeros, tw.local_tile(smem, (8, 1), (i % (rows // 8), i // (rows // 8))))
    tw.fence_proxy_async()
    ours.sync()


# --- results -------------------------------------------------------------------------------------------------


@tw.function
def finish(plan, products, acc, sD, D, place, consumer):
    """Write the results of a consumer's accumulators, a part at a time: those that the group has."""
    own, (row, column, group) = plan.plan, place
    m, n, _ = own.tile
    rows, columns = own.part.tiler_mn
    parts, groups = n // columns, own.mma.size // WARPGROUP
    waves = m // (rows * groups)
    count = tw.size(acc) // (waves * parts)
    thread = own.part.get_slice(tw.thread_idx.x % WARPGROUP)
    begin, end = products.ends.begin, products.ends.end
    if plan.ragged == "M":
        whole = tw.domain_offset((begin, 0), tw.guarded(D[:, :, 0]))
        matrix = part_of(D[:, :, 0], (begin, 0), (end - begin, D.shape[1]))
    else:
        whole, matrix = tw.guarded(D), D[:, :, group]
    for wave in tw.static_range(waves):
        down = (row * waves + wave) * groups + consumer
        left = end - begin - down * rows if plan.ragged == "M" else rows
        if left > 0:
            for part in tw.static_range(parts):
                where = down, parts * column + part
                out = tw.registers(D.dtype, own.part.partition_shape((rows, columns), "C"))
                for i in tw.static_range(count):
                    out[i] = of_part(acc, i, wave, part * count).to(D.dtype)
                if own.stores_boxes:
                    # In ping-pong the other consumer has told that the buffer is free.
                    gather(own, out, sD[:, :, consumer], own.is_ping_pong and wave == part == 0)
                    if left < rows:
                        store_inside(sD[:, :, consumer], tw.local_tile(matrix, (rows, columns), where, guard=True))
                    elif tw.thread_idx.x % WARPGROUP == 0:
                        if plan.ragged == "M":
                            tile = tw.local_tile(whole, (rows, columns), where)
                        else:
                            tile = tw.local_tile(whole, (rows, columns, 1), (*where, group))[:, :, 0]
                        tw.copy(tw.atoms.SM90_TMA_STORE, sD[:, :, consumer], tile)
                        tw.tma_store_commit()
                elif own.rows is not None:
                    store_rows(own, out, sD[:, :, consumer], matrix, where, own.is_ping_pong and wave == part == 0)
                else:
                    tile = tw.local_tile(matrix, (rows, columns), where, guard=True)
                    tw.copy(out, thread.partition_C(tile))
    if own.is_ping_pong:
        is_cut = plan.ragged == "M" and end - begin - row * m < m
        if own.rows is not None or (own.stores_boxes and is_cut):
            tw.named_barrier(tw.warpgroup_id(), WARPGROUP).sync()  # all have read the buffer


@tw.function
def gather(plan, out, buffer, is_free):
    """Write a part of the results to shared memory, when it is free, for the consumer and for bulk copies."""
    ours = tw.named_barrier(tw.warpgroup_id(), WARPGROUP)
    writer = plan.write.get_slice(tw.thread_idx.x % WARPGROUP)
    if not is_free:
        if tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the store before has read the buffer
        ours.sync()
    tw.copy(plan.write, writer.retile_S(out), writer.partition_D(buffer))
    tw.fence_proxy_async()
    ours.sync()


@tw.function
def store_inside(buffer, tile):
    """Write what a consumer gathered of a part to the rows of a tile that are inside, 16 bytes at a time."""
    width = 128 // tile.dtype.bits
    across = tile.shape[1] // width
    across &= -across  # of 12 vectors 4: a vector is one thread's
    threads = tw.Layout((WARPGROUP // across, across), (across, 1))
    copy = tw.make_tiled_copy(tw.atoms.UniversalCopy(128), threads, tw.Layout((1, width)))
    thread = copy.get_slice(tw.thread_idx.x % WARPGROUP)
    tw.copy(copy, thread.partition_S(buffer), thread.partition_D(tile))
