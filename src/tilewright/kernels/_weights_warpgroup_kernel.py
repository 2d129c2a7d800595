"""Products with packed weights by warpgroups; device code, traced into kernels.

The weights are operand A of wgmma, which a thread holds in registers, and x is operand B, in shared memory: what is
summed is D transposed. A producer brings 128 of K of both by TMA, with scales and zeros, to a ring of stages. A
consumer has 64 columns of the weights, once or twice, makes operand A of a chunk while the products of the one before
are under way, and adds the sums of a group, times their scale, to the total:

    total += scale * (sum over k of the group: x[k] * (q[k] - zero))

Where a plan `rounds`, operand A is scale * (q - zero), rounded to the type of x, and products add up to the total.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._hopper_kernel import meet, once_if_shared, tile_of, works_of
from tilewright.kernels._hopper_results_kernel import Peers, finish
from tilewright.kernels._weights_kernel import taken_apart, unpack
from tilewright.kernels.hopper_plan import CONSUMERS, WARPGROUP


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
    ring = tw.pipeline(plan.stages, consumers=4 * CONSUMERS // plan.shares, bytes=plan.stage_bytes)
    peers = Peers(plan, (sX, sW)[plan.lender]) if plan.peers > 1 else None
    meet(plan)  # the barriers are there
    if plan.begins_early:
        tw.grid_dependency_wait()  # up to here this ran beside the launch before
        tw.launch_dependents()
    works = works_of(plan, D, A)

    if tw.warpgroup_id() == 0:
        tw.set_registers(plan.registers[0])
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column, batch, _split in works:
                first, last = works.steps(0, peers)
                for step in range(first, last):
                    for i in tw.static_range(plan.pieces):
                        bring(plan, state, A, B, parts, (sX, sW, *beside), (row, column, batch), step * plan.pieces + i)
        if plan.peers > 1:
            tw.cluster_wait()  # the others have begun
            if tw.thread_idx.x == 32:
                peers.send()
    else:
        tw.set_registers(plan.registers[1])
        consume(plan, numbers, works, ring, peers, B.shape[1], sX, sW, beside, sD, D, tuple(rest), alpha, beta)
        if plan.stores_boxes and tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it


@tw.function
def bring(plan, state, A, B, parts, smem, place, piece):
    """Begin to copy a piece of K, one chunk or two, to the next stage; past the last one come zeros."""
    row, column, batch = place
    tiles, words, span = plan.block_tiles, plan.weights.words, plan.span
    group = piece
    if plan.weights.chunks_in_group > 1:
        # A group's scale may be infinite, which makes no number of sums of zeros.
        group = tw.where(piece < B.shape[1], piece // plan.weights.chunks_in_group, parts[0].shape[1])
    with state.fill() as (stage, full):
        source = tw.local_tile(B, (tiles, span, words), (row, piece, 0), guard=True)
        tw.copy(tw.atoms.SM90_TMA_LOAD, source, smem[1][:, :, :, stage], barrier=full)
        x = tile_of(plan, A, (plan.tokens, 128 * span), (column, piece, batch))
        tw.copy(tw.atoms.SM90_TMA_LOAD, x, smem[0][:, :, stage], barrier=full)
        for part, target in zip(parts, smem[2:], strict=True):
            source = tw.local_tile(part, (tiles, plan.parts * span, 16), (row, group, 0), guard=True)
            tw.copy(tw.atoms.SM90_TMA_LOAD, source, target[:, :, :, stage], barrier=full)


def take(plan, state):
    """Wait for the next stage of the consumer."""
    stage = state.acquire()
    if plan.shares > 1:
        state.advance(plan.shares - 1)  # those of the others
    return stage


class Shares:
    """The consumers that share the K of a tile: the first one adds up the sums."""

    def __init__(self, plan):
        count = plan.columns * plan.tokens // WARPGROUP
        self.sums = tw.shared(tw.float32, tw.Layout((WARPGROUP, count)))
        self.meet = tw.named_barrier(3, CONSUMERS * WARPGROUP)
        self.thread = tw.thread_idx.x % WARPGROUP

    @tw.function
    def add(self, acc, consumer):
        """Add the accumulators of the second consumer to those of the first."""
        count = tw.size(acc)
        if consumer > 0:
            for i in tw.range(count, unroll=True):
                self.sums[self.thread, i] = acc[i]
        self.meet.sync()
        if consumer == 0:
            for i in tw.range(count, unroll=True):
                acc[i] += self.sums[self.thread, i]
        self.meet.sync()  # they are read


@tw.function
def scale_column(w, half, scale):
    """Multiply weights of a column by their scale; they are rounded once, or to float32 before if the scale is."""
    if scale.dtype is w.dtype:
        w[(None, half, None),] *= scale
    else:
        w[(None, half, None),] = (w[(None, half, None),].to(tw.float32) * scale.to(tw.float32)).to(w.dtype)


class Consumer:
    """A consumer's fragments of weights, and its sums of a tile, or of a share of the K of one.

    What is multiplied at a time is an item: 64 columns of a chunk. There are fragments for two of them.
    """

    @tw.function
    def __init__(self, plan, ring, chunks, columns, sX, sW, beside):
        self.plan, self.chunks, self.columns, self.beside = plan, chunks, columns, beside
        self.consumer, self.lane = tw.shuffle(tw.warpgroup_id(), 0) - 1, tw.lane_id()
        thread = plan.mma.get_slice((tw.thread_idx.x - WARPGROUP) % plan.mma.size)
        self.tX = thread.partition_B(sX)
        self.warp = (tw.thread_idx.x // 32 - 4) % (plan.mma.size // 32)
        self.rows = plan.mma.size // 2  # columns of the weights in the items of the consumers
        of_item = plan.mma.partition_shape((self.rows, 128), "A")
        self.fragments = [tw.registers(sX.dtype, of_item) for _ in range(2)]
        self.acc = tw.registers(tw.float32, plan.mma.partition_shape((plan.columns, plan.tokens), "C"))
        self.sums = tw.accumulator_rows(plan.mma, self.acc)
        self.words, self.packed = tw.registers(tw.uint32, plan.word_layout), sW.recast(tw.uint32)
        self.steps = plan.steps // plan.additions
        self.state = ring.consumer()
        if plan.shares > 1:
            self.state.advance(self.consumer)
        tw.clear(self.fragments[1])

    @tw.function
    def add_up(self, row, first, last):
        """Add up some steps of K of a tile."""
        plan, state = self.plan, self.state
        tw.clear(self.acc)
        stage = take(plan, state)
        self.dequantise(0, stage)
        for step in tw.range(first, last, unroll=1):
            held, parts = stage, self.parts_of_iteration()
            self.begin(0, held, 0, parts)
            for item in tw.static_range(1, plan.items):
                is_next = item % (plan.tiles * plan.span) == 0
                next = take(plan, state) if is_next else held
                if plan.overlaps:
                    self.dequantise(item, next)
                    self.begin(item, next, 0, parts)
                    self.add(item - 1, held, 0, parts, pending=1)
                else:
                    # Behind the last chunk, or column, nothing is made. ptxas moves what stands in a branch over no
                    # wait: so items are made while products are under way.
                    if self.is_there(item, step, row):
                        self.dequantise(item, next)
                    self.finish_item(item - 1, held, parts)
                if is_next:
                    state.give_back(held)
                if not plan.overlaps:
                    self.begin(item, next, 0, parts)
                held = next
            if step + 1 < last:
                stage = take(plan, state)
                self.dequantise(0, stage)
            self.finish_item(plan.items - 1, held, parts)
            state.give_back(held)

    def chunk_of(self, item):
        """Return the chunk of a stage."""
        return item // self.plan.tiles % self.plan.span

    def parts_of_iteration(self):
        """Return registers for the sums of groups; ptxas would copy those that one iteration has from another."""
        plan = self.plan
        if plan.rounds:
            return [self.acc]
        shape = plan.mma.partition_shape((self.rows, plan.tokens), "C")
        return [tw.registers(tw.float32, shape) for _ in range(1 + plan.overlaps)]

    @tw.function
    def dequantise(self, item, stage):
        """Make operand A of an item."""
        plan, beside, words = self.plan, self.beside, self.words
        steps_of_group = plan.steps // plan.parts
        w, tile, chunk = self.fragments[item % 2], 8 * (item % plan.tiles) + self.warp, self.chunk_of(item)
        for half in tw.static_range(2):
            for vector in tw.static_range(plan.vectors):
                number = (half * plan.vectors + vector) * 32 + self.lane
                source = tw.local_tile(self.packed[tile, chunk, :, stage], (4,), (number,))
                tw.copy(plan.read, source, words[:, vector, half])
        for half in tw.static_range(2):
            for s in tw.static_range(plan.steps):
                place = tile, chunk * plan.parts + s // steps_of_group, 2 * (self.lane // 4) + half, stage
                zero = beside[1][place] if len(beside) > 1 else plan.weights.zero
                unpack(plan, w[:, 0, s], words, zero, half, s)
                if plan.rounds:
                    scale_column(w[:, 0, s], half, beside[0][place])

    @tw.function
    def begin(self, item, stage, g, parts):
        """Begin the products of a group, or of an item."""
        tw.wgmma_fence()
        plan, part = self.plan, parts[item % len(parts)]
        for s in tw.static_range(self.steps):
            step = g * self.steps + s
            a, b = self.fragments[item % 2][:, 0, step], self.tX[:, 0, self.chunk_of(item) * plan.steps + step, stage]
            tw.gemm(plan.mma, a, b, part[:, 0, 0], accumulate=plan.rounds or s > 0)
        tw.wgmma_commit()

    @tw.function
    def add(self, item, stage, g, parts, pending=0):
        """Wait for the sums of a group, and add them to the total; `pending` newer groups may be under way."""
        plan, sums = self.plan, self.sums
        if plan.rounds:
            tw.wgmma_wait(pending)
            return
        tile, group = 8 * (item % plan.tiles) + self.warp, self.chunk_of(item) * plan.parts + g
        scales = [self.beside[0][tile, group, 2 * (self.lane // 4) + half, stage].to(tw.float32) for half in range(2)]
        tw.wgmma_wait(pending)
        for half in tw.static_range(2):
            row, found = 2 * (item % plan.tiles) + half, tw.accumulator_rows(plan.mma, parts[item % len(parts)])
            sums[row, :] = tw.fma(found[half, :], scales[half], sums[row, :])

    @tw.function
    def finish_item(self, item, stage, parts):
        """Multiply the groups of an item behind its first, and add all."""
        self.add(item, stage, 0, parts)
        for g in tw.static_range(self.plan.additions - 1):
            self.begin(item, stage, g + 1, parts)
            self.add(item, stage, g + 1, parts)

    def is_there(self, item, step, row):
        """Say whether an item of a step has weights."""
        plan = self.plan
        if plan.tiles > 1:
            return row * plan.columns + item % plan.tiles * self.rows < self.columns
        chunk = (plan.items * step + item) * plan.shares + (self.consumer if plan.shares > 1 else 0)
        return chunk < self.chunks


@tw.function
def consume(plan, numbers, works, ring, peers, chunks, sX, sW, beside, sD, D, operands, alpha, beta):
    """Compute a consumer's columns of the weights of each tile, or all columns for a consumer's share of K."""
    epilogue = plan.epilogue.bind(numbers)
    products = Consumer(plan, ring, chunks, D.shape[0], sX, sW, beside)
    consumer, shares = products.consumer, Shares(plan) if plan.shares > 1 else None
    for row, column, batch, _split in works:
        products.add_up(row, *works.steps(0, peers))
        acc, place = products.acc, (row, column, batch)
        if shares is not None:
            shares.add(acc, consumer)
            if consumer == 0:
                finish(plan, epilogue, acc, sD, D, operands, place, 0, alpha, beta)
        elif peers is None:
            finish(plan, epilogue, acc, sD, D, operands, place, consumer, alpha, beta)
        else:
            mine = peers.exchange(acc)
            if peers.rank < plan.owners:
                place = row, plan.owners * column + peers.rank, batch
                finish(plan, epilogue, mine, sD, D, operands, place, consumer, alpha, beta)
