"""Products with packed weights by warpgroups; device code, traced into kernels.

The weights are operand A of wgmma, which a thread holds in registers, and x is operand B, in shared memory: what is
summed is D transposed. A producer brings 128 of K of both by TMA, with scales and zeros, to a ring of stages. A
consumer has 64 columns of the weights, once or twice, makes operand A of a chunk while the products of the one before
are under way, and adds the sums of a group, times their scale, to the total:

    total += scale * (sum over k of the group: x[k] * (q[k] - zero))
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._hopper_kernel import Peers, finish, meet, once_if_shared, tile_of, works_of
from tilewright.kernels._weights_kernel import taken_apart, unpack
from tilewright.kernels.hopper_plan import CONSUMERS, PRODUCER_REGISTERS, WARPGROUP

CONSUMER_REGISTERS = 232


@tw.kernel
def multiply_weights_by_warpgroups(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute tiles of D = epilogue(alpha * A @ weights, operands) in blocks that stay.

    Where tiles are few, the blocks of a cluster share the K of one (`plan.peers`), and the first one adds up their
    sums.
    """
    parts, rest, numbers = taken_apart(plan, operands)
    D, *rest = (tw.select(x, 1, 0, 2) for x in (D, *rest))
    A = once_if_shared(A)
    sX, sW = tw.shared(A.dtype, plan.smem_x), tw.shared(B.dtype, plan.smem_w)
    beside = [tw.shared(x.dtype, plan.smem_groups) for x in parts]
    sD = tw.shared(D.dtype, plan.smem_d) if plan.stores_boxes else None
    ring = tw.pipeline(plan.stages, consumers=4 * CONSUMERS, bytes=plan.stage_bytes)
    peers = Peers(plan) if plan.peers > 1 else None
    meet(plan)  # the barriers are there
    works = works_of(plan, D, A)

    if tw.warpgroup_id() == 0:
        tw.set_registers(PRODUCER_REGISTERS)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column, batch, _split in works:
                first, last = works.steps(0, peers)
                for step in range(first, last):
                    for c in tw.static_range(plan.chunks):
                        bring(plan, state, A, B, parts, (sX, sW, *beside), (row, column, batch), step * plan.chunks + c)
    else:
        tw.set_registers(CONSUMER_REGISTERS)
        consume(plan, numbers, works, ring, peers, B.shape[1], sX, sW, beside, sD, D, tuple(rest), alpha, beta)
        if plan.stores_boxes and tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it
    if plan.peers > 1:
        tw.cluster_sync()


@tw.function
def bring(plan, state, A, B, parts, smem, place, chunk):
    """Begin to copy a chunk of K to the next stage; past the last one come zeros."""
    row, column, batch = place
    tiles, words = plan.block_tiles, plan.weights.words
    group = chunk
    if plan.weights.chunks_in_group > 1:
        # A group's scale may be infinite, which makes no number of sums of zeros.
        group = tw.where(chunk < B.shape[1], chunk // plan.weights.chunks_in_group, parts[0].shape[1])
    with state.fill() as (stage, full):
        source = tw.local_tile(B, (tiles, 1, words), (row, chunk, 0), guard=True)[:, 0, :]
        tw.copy(tw.atoms.SM90_TMA_LOAD, source, smem[1][:, :, stage], barrier=full)
        x = tile_of(plan, A, (plan.tokens, 128), (column, chunk, batch))
        tw.copy(tw.atoms.SM90_TMA_LOAD, x, smem[0][:, :, stage], barrier=full)
        for part, target in zip(parts, smem[2:], strict=True):
            source = tw.local_tile(part, (tiles, plan.parts, 16), (row, group, 0), guard=True)
            tw.copy(tw.atoms.SM90_TMA_LOAD, source, target[:, :, :, stage], barrier=full)


@tw.function
def consume(plan, numbers, works, ring, peers, chunks, sX, sW, beside, sD, D, operands, alpha, beta):
    """Compute a consumer's columns of the weights of each tile.

    What is multiplied at a time is an item: 64 columns of a chunk. There are fragments for two of them.
    """
    consumer, lane = tw.warpgroup_id() - 1, tw.lane_id()
    epilogue = plan.epilogue.bind(numbers)
    thread = plan.mma.get_slice(tw.thread_idx.x - WARPGROUP)
    tX = thread.partition_B(sX)
    warp = tw.thread_idx.x // 32 - 4
    rows = CONSUMERS * 64
    fragments = [tw.registers(sX.dtype, plan.mma.partition_shape((rows, 128), "A")) for _ in range(2)]
    acc = tw.registers(tw.float32, plan.mma.partition_shape((plan.columns, plan.tokens), "C"))
    part = tw.registers(tw.float32, plan.mma.partition_shape((rows, plan.tokens), "C"))
    sums, group_sums = tw.accumulator_rows(plan.mma, acc), tw.accumulator_rows(plan.mma, part)
    words, packed = tw.registers(tw.uint32, plan.word_layout), sW.recast(tw.uint32)
    steps = plan.steps // plan.parts
    state = ring.consumer()
    tw.clear(fragments[1])

    def dequantise(item, stage):
        """Make operand A of an item."""
        w, tile = fragments[item % 2], 8 * (item % plan.tiles) + warp
        for half in tw.static_range(2):
            for vector in tw.static_range(plan.vectors):
                number = (half * plan.vectors + vector) * 32 + lane
                tw.copy(plan.read, tw.local_tile(packed[tile, :, stage], (4,), (number,)), words[:, vector, half])
        for half in tw.static_range(2):
            for s in tw.static_range(plan.steps):
                zero = plan.weights.zero
                if len(beside) > 1:
                    zero = beside[1][tile, s // steps, 2 * (lane // 4) + half, stage]
                unpack(plan, w[:, 0, s], words, zero, half, s)

    def begin(item, stage, g):
        """Begin the products of a group."""
        tw.wgmma_fence()
        for s in tw.static_range(steps):
            step = g * steps + s
            a, b = fragments[item % 2][:, :, step], tX[:, :, step, stage]
            tw.gemm(plan.mma, a, b, part, accumulate=s > 0)
        tw.wgmma_commit()

    def add(item, stage, g):
        """Wait for the sums of a group, and add them to the total."""
        tile = 8 * (item % plan.tiles) + warp
        scales = [beside[0][tile, g, 2 * (lane // 4) + half, stage].to(tw.float32) for half in range(2)]
        tw.wgmma_wait(0)
        for half in tw.static_range(2):
            row = 2 * (item % plan.tiles) + half
            sums[row, :] = tw.fma(group_sums[half, :], scales[half], sums[row, :])

    def finish_item(item, stage):
        """Multiply the groups of an item behind its first, and add all."""
        add(item, stage, 0)
        for g in tw.static_range(plan.parts - 1):
            begin(item, stage, g + 1)
            add(item, stage, g + 1)

    for row, column, batch, _split in works:
        first, last = works.steps(0, peers)
        tw.clear(acc)
        stage = state.acquire()
        dequantise(0, stage)
        for step in tw.range(first, last, unroll=1):
            begin(0, stage, 0)
            next = state.acquire() if plan.chunks == 2 else stage
            # Behind the last chunk, or column, nothing is made. ptxas moves what stands in a branch over no wait: so
            # both items are made while products are under way.
            if (2 * step + 1 < chunks) if plan.chunks == 2 else (row * plan.columns + rows < D.shape[0]):
                dequantise(1, next)
            finish_item(0, stage)
            if plan.chunks == 2:
                state.give_back(stage)
            begin(1, next, 0)
            if step + 1 < last:
                stage = state.acquire()
                dequantise(0, stage)
            finish_item(1, next)
            state.give_back(next)
        place = row, column, batch
        if peers is None:
            finish(plan, epilogue, acc, sD, D, operands, place, consumer, alpha, beta)
        elif peers.rank > 0:
            peers.send(acc)
        else:
            peers.add(acc)
            finish(plan, epilogue, acc, sD, D, operands, place, consumer, alpha, beta)
