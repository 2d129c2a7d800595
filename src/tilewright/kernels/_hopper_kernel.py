"""The Hopper kernel: blocks that stay, a producer that fills a ring of stages by TMA, and warpgroups that multiply.

Device code, traced into kernels. One text serves all element types, majors and orders of work: the plan says which.
"""

from __future__ import annotations

from typing import Any, NamedTuple  # Any: numbers of the device

import tilewright as tw
from tilewright.kernels._blocks_kernel import BlockScales, ScalesOfStages, add_scaled
from tilewright.kernels._hopper_results_kernel import Peers, Results, results_buffer
from tilewright.kernels.hopper_plan import CONSUMERS, KEPT_OF, PAIRED_ROWS, WARPGROUP
from tilewright.kernels.problem import BLOCK
from tilewright.schedulers import StreamK

# Pieces of a tile whose K blocks share, at most, and the tiles of K that they have at least, on average.
MOST_PIECES, LEAST_PIECE = 16, 8


@tw.kernel
def matmul_warpgroups(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute tiles of D[m, n, l] = epilogue(alpha * sum over k of A[m, k, l] * B[n, k, l], operands[m, n, l]).

    Before the operands come the scales of blocks of A and B, by which each sum over a block of K is multiplied, and
    behind them the numbers that the epilogue's function uses. A plan that is swapped has the columns of D as its rows:
    it computes the transpose. One with several splits writes the sums of each to D[m, n, split * L + l], where L is the
    extent of the batch. Where the epilogue takes pairs, B[n, k, pair, l] has two matrices, of which a tile has half of
    its columns each. Where the plan `streams`, the first operand is what takes the sums of pieces, (m, n, piece).
    """
    sums, operands = (operands[0], operands[1:]) if plan.streams else (None, operands)
    begin, count = len(plan.blocks), len(operands) - len(plan.epilogue.numbers)
    scales = operands[:begin]
    epilogue, operands = plan.epilogue.bind(operands[count:]), operands[begin:count]
    operands, further = epilogue.where_stored(operands)
    if plan.is_swapped:
        A, B = B, A
        D, *operands = (tw.select(x, 1, 0, 2) for x in (D, *operands))
        kinds = zip(further, epilogue.further, strict=True)
        further = [tw.select(x, 1, 0, 2) if kind.operation is None else x for x, kind in kinds]
    operands = (*operands, *further)
    A, B = once_if_shared(A), once_if_shared(B)
    sA, sB, sD, ring, order = memory_of(plan, A, B, D)
    boxes = [None if x is None else tw.shared(tw.float32, x) for x in plan.smem_scales]
    peers = Peers(plan, None if plan.lender is None else (sA, sB)[plan.lender]) if plan.peers > 1 else None
    meet(plan)  # the barriers are there
    if plan.begins_early:
        tw.grid_dependency_wait()  # up to here this ran beside the launch before
        tw.launch_dependents()
    rank = tw.block_rank_in_cluster() if plan.sharers > 1 else 0
    works = works_of(plan, D, A)

    if tw.warpgroup_id() == 0:
        tw.set_registers(plan.registers[0])
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column, batch, split in works:
                first, last = works.steps(split, peers)
                for k_tile in range(first, last):
                    with state.fill() as (stage, full):
                        high, wide = corner_of(plan, row, column, rank)
                        bring_rows(plan, A, sA[:, :, stage], (high, k_tile, batch), full, rank)
                        bring_columns(plan, B, sB[:, :, stage], (wide, k_tile, batch), full, rank)
                        bring_scales(plan, scales, boxes, (row, column, batch, k_tile), stage, full)
            if plan.sharers > 1:
                state.drain()  # other blocks still arrive here
        if plan.peers > 1:
            tw.cluster_wait()  # the others have begun
            if tw.thread_idx.x == 32:
                peers.send()
    else:
        tw.set_registers(plan.registers[1])
        results = Results(plan, epilogue, sD, D, tuple(operands), alpha, beta, sums)
        consume(plan, works, ring, order, peers, sA, sB, results, tuple(zip(scales, boxes, strict=True)), rank)


def memory_of(plan, A, B, D):
    """Return the shared memory of A, B and D, the ring of stages, and the order of consumers in ping-pong."""
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    sD = results_buffer(plan, D)
    readers = 4 if plan.is_ping_pong else 4 * plan.consumers
    ring = tw.pipeline(plan.stages, consumers=readers, bytes=plan.stage_bytes, blocks=plan.sharers)
    order = Order(plan.takes_turns) if plan.is_ping_pong else None
    return sA, sB, sD, ring, order


def meet(plan):
    """Wait for all threads of the block, or of the cluster; where that shares K, `tw.cluster_wait` is still to come."""
    if plan.sharers > 1 or plan.peers > 1:
        tw.cluster_arrive(relaxed=True)  # mbarriers have a fence of their own, and nothing else was written
    if plan.sharers > 1:
        tw.cluster_wait()
    else:
        tw.sync_threads()


def once_if_shared(matrix):
    """Return an operand of the batch; one matrix that serves all of the batch has a batch of one.

    A tensor map has no mode of several elements at the same place.
    """
    *extents, batches = matrix.shape
    shape = *extents, tw.where(matrix.stride[-1] == 0, 1, batches)
    return tw.Tensor(matrix.engine, tw.Layout(shape, tuple(matrix.stride)))


class Works:
    """The tiles of this block: (row, column, matrix of the batch, split of K) of each, as its cluster counts both.

    `blocks` clusters share them; all tiles of one split come before those of the next.
    """

    def __init__(self, plan, extents, k_tiles, block, blocks):
        self.plan = plan
        self.k_tiles = k_tiles
        m, n = plan.results
        self.m_tiles = tw.ceil_div(extents[0], plan.cluster * m)
        self.n_tiles = tw.ceil_div(extents[1], plan.cluster_n * n)
        self.batches = extents[2]
        self.block, self.blocks = block, blocks

    @tw.function
    def __iter__(self):
        return map(self.place, range(self.block, self.m_tiles * self.n_tiles * self.batches, self.blocks))

    def place(self, number):
        """Return what the tile of a number is."""
        tiles = self.m_tiles * self.n_tiles
        if self.plan.batched or self.plan.splits > 1:
            rest, number = number // tiles, number % tiles
        else:
            rest = 0
        return *self.plan.scheduler.place(number, self.m_tiles, self.n_tiles), *self.part(rest)

    def part(self, rest):
        """Return the matrix of the batch and the split of K."""
        if self.plan.splits == 1:
            return rest, 0
        matrices = self.batches // self.plan.splits
        return (rest % matrices, rest // matrices) if self.plan.batched else (0, rest)

    def steps(self, split, peers):
        """Return the first tile of K of a split, or of this block in its cluster, and that behind its last."""
        splits = self.plan.splits
        if peers is not None:
            split, splits = peers.rank, self.plan.peers
        if splits == 1:
            return 0, self.k_tiles
        return split * self.k_tiles // splits, (split + 1) * self.k_tiles // splits

    def share(self, number, count):
        """Return the tiles of one of `count` roles that take every `count`-th."""
        found = object.__new__(type(self))
        found.__dict__.update(self.__dict__)
        found.block, found.blocks = self.block + number * self.blocks, count * self.blocks
        return found


def works_of(plan, D, A):
    """Return the tiles of this block."""
    block, blocks = tw.block_idx.x, tw.grid_dim.x
    if tw.cluster_dim.x > 1:
        block, blocks = tw.cluster_idx.x, blocks // tw.cluster_dim.x
    kind = StreamWorks if plan.streams else Works
    return kind(plan, D.shape, tw.ceil_div(A.shape[1], plan.tile[2]), block, blocks)


def corner_of(plan, row, column, rank):
    """Return the row and the column of a block's tile, from those of its cluster."""
    if plan.cluster_n == 1:
        return plan.cluster * row + rank, column
    return plan.cluster * row + rank % plan.cluster, plan.cluster_n * column + rank // plan.cluster


class Piece(NamedTuple):
    """The tiles of K of a tile of D, from `first` up to `last`; where it `is_shared`, its sums go to a `slot`."""

    first: Any
    last: Any
    is_shared: Any
    slot: Any


@tw.function
def sharers_of(left: Any, k_tiles: Any, blocks: Any) -> Any:
    """Return how many of the blocks, or clusters, share the K of the tiles that are left behind whole waves.

    >>> sharers_of(12, 256, 132), sharers_of(2, 256, 132), sharers_of(2, 64, 132)
    (132, 32, 16)
    """
    return max(min(blocks, left * min(MOST_PIECES, max(k_tiles // LEAST_PIECE, 1))), 1)


class StreamWorks(Works):
    """Stream-K: the tiles of this block in whole waves, and then an equal stretch of the K of all tiles that are left.

    A stretch has pieces of several tiles where it begins within one of them. Piece p of tile t by block b has slot
    t + b: numbers grow by one from a piece to the next, and by two where a stretch ends with its tile. Stretches come
    last, so that L2 has the sums when another launch adds them up. Blocks do not wait for each other, and in whole
    waves they are at the same K, of which they share what comes from memory.
    """

    def __init__(self, plan, extents, k_tiles, block, blocks):
        super().__init__(plan, extents, k_tiles, block, blocks)
        tiles = self.m_tiles * self.n_tiles * self.batches
        left = tiles % blocks
        self.waves, self.begin, self.sharers = tiles // blocks, tiles - left, sharers_of(left, k_tiles, blocks)
        self.shared = StreamK(whole_waves=False)(left, 1, k_tiles, block=block, blocks=self.sharers)

    @tw.function
    def __iter__(self):
        pieces = 0
        if self.block < self.sharers:
            pieces = self.shared.parts
        return map(self.place, range(self.waves + pieces))

    @tw.function
    def place(self, index):
        """Return what the tile of a number is, in the order of this block."""
        number, first, last, slot = self.block + index * self.blocks, 0, self.k_tiles, 0
        if index >= self.waves:
            part = self.shared.part(index - self.waves)
            number, first, last, slot = self.begin + part.number, part.first, part.last, part.number + self.block
        row, column, batch = self.tile(number)
        return row, column, batch, Piece(first, last, index >= self.waves, slot)

    def tile(self, number):
        """Return the row, the column and the matrix of the batch of a tile."""
        return Works.place(self, number)[:3]

    def steps(self, split, peers):
        return split.first, split.last


def matrix_of(operand, batch):
    """Return the place along the batch of an operand that may be one for all of it."""
    return tw.where(operand.stride[-1] == 0, 0, batch)


def tile_of(plan, matrix, extents, place):
    """Return a tile of (rows, K) of a matrix of the batch, or of its pairs, zeros where the matrix has ended."""
    *first, batch = place
    where = (*first, matrix_of(matrix, batch) if plan.batched else 0)
    ones = (1,) * (len(where) - 2)
    return tw.local_tile(matrix, (*extents, *ones), where, guard=True)[(slice(None), slice(None), *(0 for _ in ones))]


def halves_of(matrix):
    """Return what is put into a place of (row, K) for each matrix that a tile has rows of: of pairs, two."""
    return ((0,), (1,)) if len(matrix.shape) == 4 else ((),)


def alternating_tile(plan, matrix, extents, place):
    """Return a tile of (rows, K), whose rows alternate: `PAIRED_ROWS` of each matrix of pairs."""
    (rows, depth, halves, batches), (step, along, partner, further) = matrix.shape, matrix.stride
    shape = PAIRED_ROWS, halves, rows // PAIRED_ROWS, depth, batches
    strides = step, partner, PAIRED_ROWS * step, along, further
    alternating = tw.Tensor(matrix.engine, tw.Layout(shape, strides))
    (m, k), (row, k_tile, batch) = extents, place
    tile = PAIRED_ROWS, 2, m // (2 * PAIRED_ROWS), k, 1
    where = 0, 0, row, k_tile, matrix_of(matrix, batch) if plan.batched else 0
    return tw.local_tile(alternating, tile, where, guard=True)[:, :, :, :, 0]


@tw.function
def load(tile, smem, full, k_tile, kept):
    """Begin to copy a tile to a stage; of 16 along K all but `kept` are the first to leave L2, if that is a number."""
    if kept is None or k_tile % KEPT_OF < kept:
        tw.copy(tw.atoms.SM90_TMA_LOAD, tile, smem, barrier=full)
    else:
        tw.copy(tw.atoms.SM90_TMA_LOAD.with_policy("evict_first"), tile, smem, barrier=full)


def bring_rows(plan, matrix, smem, place, full, rank):
    """Begin to copy a tile of rows to a stage; in a cluster a part of it, to all blocks that share them."""
    (m, _, k), every = plan.tile, plan.cluster_n
    if plan.alternates:
        load(alternating_tile(plan, matrix, (m, k), place), smem, full, place[1], plan.kept[0])
    else:
        mask = sum(1 << plan.cluster * i for i in range(every)) << rank % plan.cluster
        bring(plan, matrix, smem, (m, k), place, full, (every, rank // plan.cluster, mask), plan.kept[0])


def bring_columns(plan, matrix, smem, place, full, rank):
    """Begin to copy a tile of columns to a stage; in a cluster a part of it, to all blocks that share them."""
    (_, n, k), every = plan.tile, plan.cluster
    mask = (1 << every) - 1
    if plan.cluster_n > 1:
        rank, mask = rank % every, mask << rank // every * every
    bring(plan, matrix, smem, (n, k), place, full, (every, rank, mask), plan.kept[1])


def bring(plan, matrix, smem, extents, place, full, share, kept):
    """Begin to copy a tile, or one of `every` parts of it, to the blocks of a mask."""
    (rows, k), (row, k_tile, batch), (every, number, mask) = extents, place, share
    halves = halves_of(matrix)
    part = rows // (every * len(halves)), k
    for i, half in enumerate(halves):
        source = tile_of(plan, matrix, part, (every * row + number, k_tile, *half, batch))
        ours = smem if every * len(halves) == 1 else tw.local_tile(smem, part, (every * i + number, 0))
        if every == 1:
            load(source, ours, full, k_tile, kept)
        else:
            tw.copy(tw.atoms.SM90_TMA_LOAD_MULTICAST, source, ours, barrier=full, mask=mask)


def bring_scales(plan, scales, boxes, place, stage, full):
    """Begin to copy those scales of a tile's rows and columns to a stage that have one for each."""
    *tile, batch, k_tile = place
    for reads, array, box in zip(plan.blocks, scales, boxes, strict=True):
        if box is not None:
            k_block = k_tile * plan.tile[2] // BLOCK
            part = tile_of(plan, once_if_shared(array), (plan.tile[reads.mode], 1), (tile[reads.mode], k_block, batch))
            load(part, box[:, :, stage], full, k_tile, None)


# --- multiplying ---------------------------------------------------------------------------------------------


class Order:
    """Who of the two consumers in ping-pong may multiply, and who may store: an mbarrier for each and both."""

    def __init__(self, stores_by_turns=True):
        self.multiplies = tw.mbarrier(4, stages=CONSUMERS)
        self.multiplies.buffer.name = "multiplies"
        if stores_by_turns:
            self.stores = tw.mbarrier(1, stages=CONSUMERS)
            self.stores.buffer.name = "stores"


@tw.function
def consume(plan, works, ring, order, peers, sA, sB, results, scales, rank):
    """Compute the tiles of a block, whose `results` go where they say."""
    if plan.is_ping_pong:
        alternate(plan, works, ring, order, sA, sB, results, rank)
    else:
        cooperate(plan, works, ring, peers, sA, sB, results, scales, rank)
    results.end()


@tw.function
def cooperate(plan, works, ring, peers, sA, sB, results, scales, rank):
    """Compute tiles of which each consumer has half of the rows."""
    consumer, (m, n, _) = tw.shuffle(tw.warpgroup_id(), 0) - 1, plan.tile
    thread = plan.mma.get_slice(tw.thread_idx.x - WARPGROUP)
    ours = plan.mma.get_slice(consumer * WARPGROUP)
    tA, tB = ours.partition_A(sA), ours.partition_B(sB)
    acc = tw.registers(plan.mma.atom.dtype_c, plan.mma.partition_shape((m, n), "C"))
    state = ring.consumer(behind=0 if plan.promotes else 1, relaxed=True)
    if plan.behind > 0:
        ring.full[tw.minimum(consumer * plan.behind, works.k_tiles // (plan.splits * plan.peers) - 1)].wait(0)
    for row, column, batch, split in works:
        first, last = works.steps(split, peers)
        corner = *corner_of(plan, row, column, rank), batch
        arrays, boxes = zip(*scales, strict=True) if scales else ((), ())
        factors = BlockScales(plan, thread, arrays, corner, boxes) if scales else None
        matrix = batch if plan.streams else works.batches // plan.splits * split + batch
        place = *corner[:2], matrix
        ready = results.begin(place, consumer) if peers is None else None
        if plan.promotes:
            promoted = multiply_pairs if plan.overlaps else multiply_promoted
            promoted(plan, state, tA, tB, acc, first, last, factors)
        else:
            multiply(plan, state, tA, tB, acc, first, last)
            tw.wgmma_wait(0)
            if peers is None:  # otherwise it was the only tile
                state.release()
        results.settle()
        if plan.streams:
            if split.is_shared:
                results.leave(acc, thread, plan.cluster * split.slot + rank)
            else:
                results.finish(acc, place, consumer, ready)
        elif peers is None:
            results.finish(acc, place, consumer, ready)
        else:
            mine = peers.exchange(acc)
            if peers.rank < peers.owners:
                results.finish(mine, (place[0], peers.owners * column + peers.rank, place[2]), consumer)


@tw.function
def alternate(plan, works, ring, order, sA, sB, results, rank):
    """Compute a tile in each consumer, one multiplying while the other one stores, or both."""
    consumer, (m, n, _) = tw.shuffle(tw.warpgroup_id(), 0) - 1, plan.tile
    other = 1 - consumer
    thread = plan.mma.get_slice(tw.thread_idx.x % WARPGROUP)
    tA, tB = thread.partition_A(sA), thread.partition_B(sB)
    acc = tw.registers(plan.mma.atom.dtype_c, plan.mma.partition_shape((m, n), "C"))
    state = ring.consumer(behind=1)
    state.advance(consumer * works.k_tiles)
    parity = other  # consumer 0 does not wait for its first tile
    for row, column, batch, _split in works.share(consumer, CONSUMERS):
        place = *corner_of(plan, row, column, rank), batch
        ready = results.begin(place, 0)
        order.multiplies[consumer].wait(parity)
        multiply(plan, state, tA, tB, acc, 0, works.k_tiles)
        if tw.lane_id() == 0:
            order.multiplies[other].arrive()
        tw.wgmma_wait(0)
        state.release()
        state.advance(works.k_tiles)  # past the other one's tile
        results.settle()
        if plan.takes_turns:
            order.stores[consumer].wait(parity)
        results.finish(acc, place, 0, ready, consumer if plan.own_buffers else 0)
        if plan.takes_turns:
            if plan.rows is not None:
                tw.named_barrier(tw.warpgroup_id(), WARPGROUP).sync()  # all have read the buffer
            if tw.thread_idx.x % WARPGROUP == 0:
                if plan.stores_boxes:
                    tw.tma_store_wait(0)  # the store has read the buffer
                order.stores[other].arrive()
        parity = parity ^ 1


@tw.function
def multiply(plan, state, tA, tB, acc, first, last):
    """Multiply tiles of K; the last products are still under way behind it."""
    for k_tile in range(first, last):
        with state.read() as stage:
            tw.wgmma_fence()
            tw.gemm(plan.mma, tA[:, :, :, stage], tB[:, :, :, stage], acc, accumulate=k_tile > first)
            tw.wgmma_commit()
            tw.wgmma_wait(1)


class Partial:
    """The sums of one tile of K of the rows of one instruction."""

    def __init__(self, plan, dtype):
        rows, _ = plan.mma.tiler_mn
        self.sums = tw.registers(dtype, plan.mma.partition_shape((rows, plan.tile[1]), "C"))

    @tw.function
    def add_to(self, acc, wave, factors):
        """Add the sums to the accumulators of a wave of instructions."""
        target = acc[:, wave, 0]
        if factors is None:
            for i in tw.static_range(tw.size(target)):
                target[i] += self.sums[i]
        else:
            add_scaled(target, self.sums, factors[wave])


@tw.function
def in_turns(multiply, state, first, end, step, stage, ahead):
    """Multiply tiles of K, `step` at a time, and return the stage of the products that are under way.

    Lanes that hold scales of some tiles turn to others between loops: where a register that a load is on its way to is
    read under a condition, a warp waits for the load whether or not the condition holds.
    """
    if not isinstance(ahead, ScalesOfStages):
        for k_tile in range(first, end, step):
            stage = multiply(state, k_tile, stage)
    else:
        for begin in range(first, end, ahead.tiles):
            ahead.advance(begin)
            for k_tile in range(begin, tw.minimum(begin + ahead.tiles, end), step):
                stage = multiply(state, k_tile, stage)
        if step > 1 and (ahead.last - first) // step * step % ahead.tiles == 0:  # tiles are left for these
            ahead.advance(ahead.last)
    return stage


@tw.function
def multiply_promoted(plan, state, tA, tB, acc, first, last, scales):
    """Multiply tiles of K, each of which is added to the accumulators in float32, by the `scales` of its blocks.

    Of 8-bit floats the tensor cores keep some 14 bits of a sum. The rows of one instruction are added before the next
    ones are multiplied, and only the other consumer keeps the tensor cores at work meanwhile.
    """
    rows, _ = plan.mma.tiler_mn
    waves, partial = plan.tile[0] // rows, Partial(plan, acc.dtype)
    ahead = None if scales is None else scales.ahead(first, last - 1, tw.size(partial.sums))

    @tw.function
    def multiply_one(state, k_tile, _):
        factors = None
        with state.read() as stage:
            for wave in tw.static_range(waves):
                if wave > 0:
                    partial.add_to(acc, wave - 1, factors)
                tw.wgmma_fence()
                tw.gemm(plan.mma, tA[:, wave : wave + 1, :, stage], tB[:, :, :, stage], partial.sums, accumulate=False)
                tw.wgmma_commit()
                if wave == 0 and ahead is not None:
                    factors = ahead.take(k_tile + 1, (stage,))[0]
                tw.wgmma_wait(0)
        partial.add_to(acc, waves - 1, factors)

    tw.clear(acc)
    in_turns(multiply_one, state, first, last, 1, None, ahead)


@tw.function
def multiply_pairs(plan, state, tA, tB, acc, first, last, scales):
    """Do the same in two sets of registers alternately: a tile of K is added while the next one is multiplied."""
    one, other = (Partial(plan, acc.dtype) for _ in range(2))
    ahead = None if scales is None else scales.ahead(first, last - 1, tw.size(acc), 2)

    @tw.function
    def begin(state, partial):
        """Begin the products of the next stage, and return it."""
        stage = state.acquire()
        tw.wgmma_fence()
        tw.gemm(plan.mma, tA[:, :, :, stage], tB[:, :, :, stage], partial.sums, accumulate=False)
        tw.wgmma_commit()
        return stage

    @tw.function
    def multiply_two(state, k_tile, stage):
        following = begin(state, other)
        factors = (None, None) if ahead is None else ahead.take(k_tile + 2, (stage, following))
        tw.wgmma_wait(1)
        state.give_back(stage)
        one.add_to(acc, 0, factors[0])
        stage = begin(state, one)
        tw.wgmma_wait(1)
        state.give_back(following)
        other.add_to(acc, 0, factors[1])
        return stage

    tw.clear(acc)
    stage = in_turns(multiply_two, state, first, last - 2, 2, begin(state, one), ahead)
    if (last - first) % 2 == 0:
        following = begin(state, other)
        factors = (None, None) if ahead is None else ahead.take(last, (stage, following))
        tw.wgmma_wait(1)
        state.give_back(stage)
        one.add_to(acc, 0, factors[0])
        tw.wgmma_wait(0)
        state.give_back(following)
        other.add_to(acc, 0, factors[1])
    else:
        factor = None if ahead is None else ahead.take(last, (stage,))[0]
        tw.wgmma_wait(0)
        state.give_back(stage)
        one.add_to(acc, 0, factor)
