"""The Hopper kernel for a product whose K lies on several GPUs and whose rows are divided among them.

Device code, traced into kernels. The pieces of a tile are those of the Hopper kernel of `tw.matmul`. Blocks compute the
rows of the other ranks first, beginning with the one behind the rank in the ring, and store them in the memory of those
ranks; whoever is done last with a part of the rows tells its reader. Then they compute the rank's own rows, to which
they add what the others have sent. Where copy engines send, the rows go to the rank's own memory, and they are told.

In a ring all sums go to the rank before, which computes the same rows next: it adds what has come, and sends that on.

Ranks wait for each other only for rows that the others compute before, and tell of those as soon as they are stored, so
none waits for ever.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._hopper_kernel import (
    bring_columns,
    consume,
    meet,
    memory_of,
    once_if_shared,
    tile_of,
)
from tilewright.kernels._hopper_results_kernel import Pieces, finish, load_part
from tilewright.kernels._ring_kernel import MOST_PARTS, Parts, count_arrival, works_in_ring
from tilewright.kernels.hopper_plan import CONSUMER_REGISTERS, CONSUMERS, PRODUCER_REGISTERS, WARPGROUP


@tw.kernel
def matmul_scattered(
    D,
    A,
    B,
    more,
    bias,
    slots,
    arrived,
    flags,
    told,
    counters,
    rank,
    part,
    pause,
    number,
    staged: tw.constexpr,
    in_ring: tw.constexpr,
    plan: tw.constexpr,
):
    """Compute D[m, n] = P[m, n, rank] + the sum over other ranks r of what they send, where P = A * B of this rank.

    P[m, n, r] = sum over k of A[m, k, r] * B[n, k] + bias goes to `slots`, matrices in the memory of the other ranks r,
    those behind this one in the ring first, by TMA as D. `arrived` are what they send, in the order of ranks; the
    matrices `more` are added too. `part` is the extent (rows, columns) of what is told at once. `flags` are what the
    other ranks wait for, in the order of the slots, and `told` what this one waits for: [r, i] of it becomes `number`
    when part i of rank r has come. `counters` has a zero for each part of each slot.

    With `in_ring` the slots are those of the rank before, and `arrived` is one array, (M, N, ranks): what has come for
    the rows of rank r, the sum over all ranks that compute these before this one, lies at r + 1, of `told` too.

    Stores to other ranks rest for `pause` nanoseconds between rows, if that is given: a wave of tiles that leaves at
    once fills the way to memory, and the next one's operands wait behind it.

    With `staged` copy engines send: `slots` is one array of the rank's own, (M, N, other ranks), and `flags` one, of
    which [n, i] becomes `number` when part i for the n-th of them is complete.
    """
    m, _, k = plan.tile
    B = once_if_shared(B)
    sA, sB, sD, ring, order = memory_of(plan, A, B, D)
    meet(plan)  # the barriers are there
    place = tw.block_rank_in_cluster() if plan.cluster > 1 else 0
    works = works_in_ring(plan, (*D.shape[:2], A.shape[2]), A.shape[1], rank + 1)

    if tw.warpgroup_id() == 0:
        tw.set_registers(PRODUCER_REGISTERS)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column, reader, _split in works:
                for k_tile in range(works.k_tiles):
                    with state.fill() as (stage, full):
                        tile = tile_of(plan, A, (m, k), (plan.cluster * row + place, k_tile, reader))
                        tw.copy(tw.atoms.SM90_TMA_LOAD, tile, sA[:, :, stage], barrier=full)
                        bring_columns(plan, B, sB[:, :, stage], (column, k_tile, reader), full, place)
            if plan.cluster > 1:
                state.drain()  # the other block still arrives here
    else:
        tw.set_registers(CONSUMER_REGISTERS)
        parts = Parts(D.shape[:2], part)
        post = Post(plan, works, parts, sD, bias, slots, flags, counters, rank, pause, number, staged, in_ring)
        results = Sums(plan, D, post, Inbox(plan, parts, arrived, told, rank, number), more)
        consume(plan, works, ring, order, None, sA, sB, results, (), place)


class Post:
    """What a consumer sends. It tells of a tile when it comes to the next one: then the stores are complete.

    In ping-pong that is ahead of the next one's products, while the other consumer multiplies.
    """

    __tilewright_state__ = True  # `target` and `part` change on the device

    def __init__(self, plan, works, parts, sD, bias, slots, flags, counters, rank, pause, number, is_staged, in_ring):
        self.plan, self.works, self.parts, self.sD, self.bias = plan, works, parts, sD, bias
        self.slots, self.flags, self.counters, self.is_staged, self.in_ring = slots, flags, counters, is_staged, in_ring
        self.rank, self.pause, self.number = rank, pause, number
        self.target, self.part = tw.int32(-1), tw.int32(0)  # of the tile that is not told of; -1: there is none

    @tw.function
    def send(self, acc, place, consumer, owner):
        """Store the results of a tile, which `place` says the reader of, in that one's memory."""
        row, column, reader = place
        m, n, _ = self.plan.tile
        self.target, self.part = self.step(reader), self.parts.of(row * m, column * n)
        for n in tw.static_range(len(self.slots)):
            if self.is_staged or self.target == n:
                where = row, column, self.target if self.is_staged else 0
                self.store(acc, self.slots[n], where, consumer, owner, self.pause)

    def step(self, reader):
        """Return after how many others the rows of a rank are computed."""
        return (reader - self.rank - 1 + self.works.batches) % self.works.batches

    @tw.function
    def store(self, acc, target, place, consumer, owner, pause=None):
        """Store the results of a tile."""
        put = self.plan.epilogue, acc, self.sD, target, self.bias, place, consumer, 1, 0, None, owner, pause
        finish(self.plan, *put)

    @tw.function
    def tell(self):
        """Tell of the tile before, if there is one: its stores are awaited."""
        if self.target >= 0:
            if tw.thread_idx.x % WARPGROUP == 0:
                tw.tma_store_wait(0, read=False)
                place = self.target, self.part
                slot = (self.rank + self.target + 2) % self.works.batches if self.in_ring else self.rank
                target, where = (0, place) if self.is_staged else (self.target, (slot, self.part))
                count_arrival(self.counters, place, self.goal(), self.flags, target, where, self.number)
            self.target = tw.int32(-1)

    def goal(self):
        """Return how many times a part is counted: once for each tile that begins in it and each consumer of that.

        A tile that reaches into the next part along a row is complete before that, which is sent behind this one.
        """
        (m, n, _), (rows, columns), across = self.plan.tile, self.parts.extent, self.parts.across
        i, j = self.part // across, self.part % across
        bottom = tw.where(i == self.parts.down - 1, self.works.m_tiles * self.plan.cluster, (i + 1) * rows // m)
        right = tw.where(j == across - 1, self.works.n_tiles, tw.ceil_div((j + 1) * columns, n))
        tiles = (bottom - i * rows // m) * (right - tw.ceil_div(j * columns, n))
        return tiles * (1 if self.plan.is_ping_pong else CONSUMERS)


class Inbox:
    """What other ranks have sent."""

    __tilewright_state__ = True  # `known` changes on the device

    def __init__(self, plan, parts, arrived, told, rank, number):
        self.plan, self.parts, self.arrived, self.told = plan, parts, arrived, told
        self.rank, self.number = rank, number
        self.known = tw.int32(-1)  # what was found to be there last

    @tw.function
    def wait_for_all(self, place):
        """Wait for what all ranks send for a tile of the rank's own rows."""
        row, _, _ = place
        part = self.parts.of(row * self.plan.tile[0], 0)
        if self.known != part:
            if tw.thread_idx.x % WARPGROUP == 0:
                for sender in range(self.told.shape[0]):
                    if sender != self.rank:
                        self.wait(sender, part)
            tw.named_barrier(tw.warpgroup_id(), WARPGROUP).sync()
            self.known = part

    @tw.function
    def add_from(self, slot, acc, place, consumer):
        """Add what the rank behind has passed on for a tile, to one of its slots."""
        row, column, _ = place
        m, n, _ = self.plan.tile
        last = self.parts.of(row * m, tw.minimum((column + 1) * n, self.arrived[0].shape[1]) - 1)
        if self.known != slot * MOST_PARTS + last:
            if tw.thread_idx.x % WARPGROUP == 0:
                # Tiles of another rank may be wider, and what begins here have begun in the part before.
                left = last // self.parts.across * self.parts.across
                first = tw.maximum(self.parts.of(row * m, column * n) - 1, left)
                for part in range(first, last + 1):
                    self.wait(slot, part)
            tw.named_barrier(tw.warpgroup_id(), WARPGROUP).sync()
            self.known = slot * MOST_PARTS + last
        add(self.plan, acc, [self.arrived[0][:, :, slot]], place, consumer)

    @tw.function
    def wait(self, slot, part):
        """Wait until a part has come to a slot."""
        while tw.load(self.told, (slot, part), sem="acquire", scope="sys") < self.number:
            pass


@tw.function
def add(plan, acc, matrices, place, consumer):
    """Add the elements of matrices that belong to a tile to its accumulators."""
    pieces = Pieces(plan, place, consumer)
    thread = plan.part.get_slice(tw.thread_idx.x % WARPGROUP)
    for wave in tw.static_range(pieces.waves):
        for piece in tw.static_range(pieces.parts):
            for matrix in matrices:
                found = load_part(plan, thread, matrix, pieces.where(wave, piece))
                count = tw.size(found)
                for i in tw.static_range(count):
                    acc[:, wave, 0][piece * count + i] += found[i].to(acc.dtype)


class Sums:
    """Where the results of a block's tiles go: to the ranks whose rows they are, or with what has come to D."""

    __tilewright_state__ = True  # `post` and `inbox` change on the device

    def __init__(self, plan, D, post, inbox, more):
        self.plan, self.D, self.post, self.inbox, self.more = plan, D, post, inbox, more

    @tw.function
    def begin(self, place, consumer):
        """Tell of the tile before in ping-pong, and read nothing ahead: what others send may not be there."""
        if self.plan.is_ping_pong:
            self.post.tell()

    @tw.function
    def settle(self):
        """Tell of the tile before, which the stores of this one would wait for."""
        if not self.plan.is_ping_pong:
            self.post.tell()

    @tw.function
    def finish(self, acc, place, consumer, ready=None, owner=None):
        """Send the results of a tile to their reader, or finish the rank's own."""
        row, column, reader = place
        own = row, column, 0
        if self.post.in_ring and self.post.step(reader) > 0:
            self.inbox.add_from((reader + 1) % self.post.works.batches, acc, own, consumer)
        if reader == self.post.rank:
            if not self.post.in_ring:
                self.inbox.wait_for_all(own)
            come = self.more if self.post.in_ring else [*self.inbox.arrived, *self.more]
            add(self.plan, acc, [matrix[:, :, 0] for matrix in come], own, consumer)
            self.post.store(acc, self.D, own, consumer, owner)
        else:
            self.post.send(acc, place, consumer, owner)

    @tw.function
    def end(self):
        """Tell of the last tile; the buffer is there until its last store has read it."""
        self.post.tell()
        if tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)
