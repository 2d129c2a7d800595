"""Attention by warpgroups: a producer, and consumers that multiply alternately; device code, traced into kernels.

A tile is 64 rows of Q for each consumer. A consumer goes through the tiles of keys from the last one that its rows see
to the first one, and begins S = Q K^T of a tile before O += P V of the tile before, so that the exponentials of this
tile run under the product of the last one. At named barriers the consumers wait for one another, so that the products
of one run under the softmax of the others. The producer brings Q, K and V by TMA in the order in which they are used;
K and V share a ring. `examples/hopper/10_attention.py` explains the schedule, that of FlashAttention 3 (Shah et al.
2024).

Row r of m tokens sees key c of n where -left <= c - r - (n - m) <= right. Masks are applied only in tiles that the end
of the keys or one of the two bounds cuts.

Few tokens leave multiprocessors idle, and the keys of a tile are computed in parts then: out and lse have a batch for
each part and batch, in float32, and `add_parts` makes one of them (FlashDecoding: Dao et al. 2023).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple  # Any: device values

import tilewright as tw
from tilewright.kernels._attention_sequences import WARPGROUP, clear_behind, number_of, sequence_of, slots_of

LOAD, STORE = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE
NOTHING = -(2.0**120)  # the greatest score of no keys: finite, and its product with the scale too
LN2 = math.log(2)
GROWTH = 8.0  # powers of two by which weights may exceed 1 before sums are scaled
LOWEST = -60.0  # of a greatest score in powers of two, so that its weight is far from 0 if that is not subtracted


class Work(NamedTuple):
    """A tile of 64 rows for each consumer, from `row` on, of a sequence; and the tiles of keys that it sees.

    The sequence has `tokens` and `keys`, of which the first ones are those numbers in their arrays; no keys where the
    tile has no row, or no key of its part. Its tiles of keys are `steps`, one at least; the last one is `last`.
    """

    row: Any
    head: Any
    batch: Any
    part: Any
    tokens: Any
    keys: Any
    first_token: Any
    first_key: Any
    last: Any
    steps: Any


@tw.kernel
def attend_by_warpgroups(
    out, lse, Q, K, V, tokens_at, keys_at, lengths, scale, left, right, together, plan: tw.constexpr
):
    """Compute out (batch, heads, tokens, head), and lse unless it is None; `scale` has the factor log2(e).

    Sequences are batches, of which each has so many keys as `lengths` says, unless that is None; or parts of one batch
    that begin where `tokens_at` and `keys_at` say.
    """
    sQ, sKV = tw.shared(Q.dtype, plan.smem_q), tw.shared(K.dtype, plan.smem_kv)
    warps = 4 * plan.consumers
    ring_q = tw.pipeline(plan.smem_q.shape[2], consumers=warps, bytes=2 * plan.rows * plan.head)
    ring_kv = tw.pipeline(plan.smem_kv.shape[2], consumers=warps, bytes=2 * plan.keys * plan.head)
    works = Works(plan, Q, K, (tokens_at, keys_at, lengths), (left, right, together), out)
    tw.sync_threads()  # the barriers are there
    if tw.warpgroup_id() == 0:
        tw.set_registers(plan.registers[0])
        if tw.thread_idx.x == 0:
            produce(works, Q, K, V, sQ, sKV, ring_q.producer(), ring_kv.producer(), plan)
    else:
        tw.set_registers(plan.registers[1])
        consumer = Consumer(plan, works, Q.dtype, scale, left, right, sQ, sKV, ring_q.consumer(), ring_kv.consumer())
        consumer.run(out, lse)


class Works:
    """The tiles of this block, in rounds of all blocks."""

    def __init__(self, plan, Q, K, sequences, sides, out):
        self.plan, self.Q, self.K = plan, Q, K
        self.tokens_at, self.keys_at, self.lengths = sequences
        self.left, self.right, self.together = sides
        self.parts = out.shape[0] // Q.shape[0] if plan.is_in_parts else 1

    @property
    def is_cut(self):
        """Whether keys end where others may follow, in place of zeros."""
        return self.tokens_at is not None or self.lengths is not None

    def slots(self):
        """Return how many tiles a head has."""
        return slots_of(self.Q, self.tokens_at, self.plan.rows)

    @tw.function
    def count(self):
        """Return how many tiles the block computes."""
        tiles = self.slots() * self.Q.shape[1] * self.Q.shape[0] * self.parts
        whole, rest = tiles // tw.grid_dim.x, tiles % tw.grid_dim.x
        return whole + (position(whole) < rest).to(tw.int32)

    @tw.function
    def place(self, round):
        """Return a round's tile. Under a causal mask those with most keys come first."""
        plan, slots, heads = self.plan, self.slots(), self.Q.shape[1] * self.Q.shape[0]
        number, part = round * tw.grid_dim.x + position(round), 0
        if plan.is_in_parts:
            number, part = number // self.parts, number % self.parts
        if plan.has_right:  # the longest rows of a causal mask first, of so many heads that L2 keeps their keys
            of_these = self.together * slots
            before, number = number // of_these * self.together, number % of_these
            beside = tw.minimum(self.together, heads - before)
            slot, head = slots - 1 - number // beside, before + number % beside
        else:
            slot, head = number % slots, number // slots
        batch = head // self.Q.shape[1]
        row, tokens, keys, first_token, first_key = self.sequence(slot, batch)
        return self.seen(row, head % self.Q.shape[1], batch, part, tokens, keys, first_token, first_key)

    @tw.function
    def sequence(self, slot, batch):
        """Return a slot's first row, and how many tokens and keys its sequence has, and its first ones."""
        if self.tokens_at is None:
            keys = self.K.shape[2]
            if self.lengths is not None:
                keys = number_of(self.lengths, batch, keys)
            return slot * self.plan.rows, self.Q.shape[2], keys, 0, 0
        return sequence_of(slot, self.tokens_at, self.keys_at, self.Q.shape[2], self.K.shape[2], self.plan.rows)[:5]

    @tw.function
    def seen(self, row, head, batch, part, tokens, keys, first_token, first_key):
        """Return the work of a tile."""
        plan = self.plan
        first, seen = row + keys - tokens, keys
        if plan.has_right:
            seen = tw.minimum(keys, first + plan.rows + self.right)
        last, begin = tw.maximum(tw.ceil_div(seen, plan.keys), 1) - 1, tw.int32(0)
        if plan.has_left:
            begin = tw.minimum(tw.maximum(first - self.left, 0) // plan.keys, last)
        steps = last - begin + 1
        if plan.is_in_parts:
            before, steps = steps * part // self.parts, steps * (part + 1) // self.parts - steps * part // self.parts
            last = begin + tw.maximum(before + steps, 1) - 1
            keys, steps = tw.where(steps == 0, 0, keys), tw.maximum(steps, 1)
        return Work(row, head, batch, part, tokens, keys, first_token, first_key, last, steps)


@tw.function
def position(round):
    """Return the block's place in a round of tiles: in the order of blocks, or in every second one opposite."""
    return tw.where(round % 2 == 0, tw.block_idx.x, tw.grid_dim.x - 1 - tw.block_idx.x)


@tw.function
def produce(works, Q, K, V, sQ, sKV, state_q, state_kv, plan):
    """Bring the tiles in the order in which they are used."""
    gQ, gK, gV = (tw.guarded(x) for x in (Q, K, V))
    share = Q.shape[1] // K.shape[1]  # heads of Q for one of K and V

    def bring(heads, tile):
        with state_kv.fill() as (stage, full):
            tw.copy(LOAD, tw.local_tile(heads, (plan.keys, plan.head), (tile, 0)), sKV[:, :, stage], barrier=full)

    for round in range(works.count()):
        work = works.place(round)
        last, steps = work.last, work.steps
        rows = tw.domain_offset((work.first_token + work.row, 0), gQ[work.batch, work.head, ...])
        k, v = (x[work.batch, work.head // share, ...] for x in (gK, gV))
        if works.tokens_at is not None:
            k, v = (tw.domain_offset((work.first_key, 0), x) for x in (k, v))
        with state_q.fill() as (stage, full):
            tw.copy(LOAD, tw.local_tile(rows, (plan.rows, plan.head), (0, 0)), sQ[:, :, stage], barrier=full)
        bring(k, last)
        for step in range(1, steps):
            bring(k, last - step)
            bring(v, last - step + 1)
        bring(v, last - steps + 1)


class Consumer:
    """A warpgroup that multiplies: its parts of shared memory, its scores, and the sums of 64 rows of a tile."""

    @tw.function
    def __init__(self, plan, works, dtype, scale, left, right, sQ, sKV, state_q, state_kv):
        self.plan, self.works, self.dtype = plan, works, dtype
        self.scale, self.left, self.right = scale, left, right
        self.sQ, self.sKV, self.state_q, self.state_kv = sQ, sKV, state_q, state_kv
        self.consumer, tid = tw.warpgroup_id() - 1, tw.thread_idx.x - WARPGROUP
        self.ours = tw.named_barrier(1 + self.consumer, 2 * WARPGROUP)
        self.next = tw.named_barrier(1 + (self.consumer + 1) % plan.consumers, 2 * WARPGROUP)
        by_scores, self.by_output = plan.scores.get_slice(tid), plan.output.get_slice(tid)
        self.tQ, self.tK = by_scores.partition_A(sQ), by_scores.partition_B(sKV)
        sV = tw.local_tile(sKV, (plan.keys, plan.value_head, plan.smem_kv.shape[2]), (0, 0, 0))
        self.tV = self.by_output.partition_B(sV.map_layout(lambda layout: tw.select(layout, 1, 0, 2)))
        self.S = tw.registers(tw.float32, plan.scores.partition_shape((plan.rows, plan.keys), "C"))
        self.acc = tw.registers(tw.float32, plan.output.partition_shape((plan.rows, plan.value_head), "C"))
        self.scores, self.sums = (
            tw.accumulator_rows(mma, values) for mma, values in ((plan.scores, self.S), (plan.output, self.acc))
        )
        # Where the values are in the tile: those of a thread are as far from its first one as those of thread 0.
        whole_tile = tw.identity_tensor((plan.rows, plan.keys))
        self.at, self.at_of_first = (
            tw.accumulator_rows(plan.scores, plan.scores.get_slice(n).partition_C(whole_tile)) for n in (tid, 0)
        )
        self.rows = tw.size(self.scores.shape[0])
        # Weights are 2^(score - top): `top` is near the greatest score, and grows only where weights would get large.
        self.top, self.total, self.factor = (
            tw.registers(tw.float32, self.rows) for _ in ("subtracted", "sum of weights", "of sums")
        )
        self.grown = tw.registers(tw.int32, 1)

    @tw.function
    def run(self, out, lse):
        """Compute 64 rows of each tile of the block."""
        plan, works = self.plan, self.works
        if plan.consumers > 1 and self.consumer == plan.consumers - 1:
            self.next.arrive()  # the first consumer begins
        for round in range(works.count()):
            work = works.place(round)
            q, v = self.add_up(work)
            for r in tw.static_range(self.rows):
                self.total[r] = tw.reduce(self.total[r], "add", group=4)
            tw.wgmma_wait(0)
            self.state_kv.give_back(v)
            self.finish_rows(work, lse)
            self.store(out, work, q)
            self.state_q.give_back(q)
        if plan.consumers > 1 and self.consumer == 0:
            self.ours.sync()  # the last arrival, which no one waits for

    @tw.function
    def add_up(self, work):
        """Begin all products of a tile; return the stage of Q, and that of V of the last product, which runs yet."""
        plan, last, steps = self.plan, work.last, work.steps
        tw.fill(self.top, NOTHING)
        tw.clear(self.total)
        tw.clear(self.acc)
        q, k, v = self.state_q.acquire(), self.state_kv.acquire(), 0
        self.begin_scores(q, k)
        tw.wgmma_wait(0)
        self.state_kv.give_back(k)
        self.mask(work, last * plan.keys)
        self.weigh()
        # Tiles before `whole` end before the last key that all rows see; from `cut` on they begin behind the first one.
        first, done = work.row + work.keys - work.tokens, 1
        if plan.has_right:
            whole = tw.minimum(work.keys, first + self.right + 1) // plan.keys
            done = tw.minimum(tw.maximum(last - whole + 1, 1), steps)
        for step in tw.range(1, done, unroll=1):
            v = self.advance(step, v, q, work, masked=True)
        until = steps
        if plan.has_left:
            cut = tw.ceil_div(tw.maximum(first + plan.rows - 1 - self.left, 0), plan.keys)
            until = tw.minimum(tw.maximum(last - cut + 1, done), steps)
        for step in tw.range(done, until, unroll=1):
            v = self.advance(step, v, q, work, masked=False)
        if plan.has_left:
            for step in tw.range(until, steps, unroll=1):
                v = self.advance(step, v, q, work, masked=True)
        weights = self.finish(steps, v)
        v = self.state_kv.acquire()
        if self.works.is_cut and steps == 1:
            clear_behind([self.sKV[:, :, v]], work.keys - last * plan.keys, plan)
        self.begin_sums(weights, v)
        return q, v

    @tw.function
    def advance(self, step, v, q, work, masked):
        """Begin the scores of a step and the sums of the one before, whose V is in stage v; return that of its V."""
        plan, state_kv = self.plan, self.state_kv
        weights = self.finish(step, v)
        k = state_kv.acquire()
        if self.works.is_cut:  # while all consumers may wait for each other
            v = state_kv.acquire()
            if step == 1:
                clear_behind([self.sKV[:, :, v]], work.keys - work.last * plan.keys, plan)
        if plan.consumers > 1:
            self.ours.sync()
        self.begin_scores(q, k)
        if not self.works.is_cut:
            v = state_kv.acquire()
        self.begin_sums(weights, v)
        if plan.consumers > 1:
            self.next.arrive()
        tw.wgmma_wait(1)
        state_kv.give_back(k)
        if masked:
            self.mask(work, (work.last - step) * plan.keys)
        self.weigh()
        return v

    @tw.function
    def begin_scores(self, q, k):
        """Begin S = Q K^T of two stages."""
        tw.wgmma_fence()
        for n in tw.static_range(self.plan.depth // 16):
            tw.gemm(self.plan.scores, self.tQ[:, :, n, q], self.tK[:, :, n, k], self.S, accumulate=n > 0)
        tw.wgmma_commit()

    @tw.function
    def finish(self, step, v):
        """Wait for the product of the step before, and return the weights of the last scores."""
        tw.wgmma_wait(0)  # the registers of the weights are free again
        if step > 1:
            self.state_kv.give_back(v)
        return tw.as_operand_a(self.plan.scores, self.S, to=self.plan.output)

    @tw.function
    def begin_sums(self, weights, v):
        """Begin O += P V, with what was subtracted of scores made the same in both."""
        if not self.plan.is_lazy or self.grown[0] != 0:
            for r in tw.static_range(self.rows):
                self.sums[r, :] *= self.factor[r]
        tw.wgmma_fence()
        tw.gemm(self.plan.output, weights, self.tV[:, :, :, v], self.acc)
        tw.wgmma_commit()

    @tw.function
    def mask(self, work, first_key):
        """Take the scores of keys that rows do not see away."""
        plan, at, scores = self.plan, self.at, self.scores
        ahead = work.keys - work.tokens  # row r is beside key r + ahead
        for r in tw.static_range(self.rows):
            beside, place = at[r, 0][0] + work.row + ahead, first_key + at[0, 0][1]
            behind = (tw.minimum(work.keys, beside + self.right + 1) if plan.has_right else work.keys) - place
            before = beside - self.left - place
            for c in tw.static_range(tw.size(scores.shape[1])):
                column = self.at_of_first[0, c][1]
                is_seen = (column >= before) & (column < behind) if plan.has_left else column < behind
                scores[r, c] = tw.where(is_seen, scores[r, c], -math.inf)

    @tw.function
    def weigh(self):
        """Compute weights from scores, and what is subtracted of them, their sums, and the factor of earlier ones."""
        plan, scores, top, total, scale = self.plan, self.scores, self.top, self.total, self.scale
        if plan.is_lazy:
            grows = [(bound(scores[r, :]) - top[r]) * scale > GROWTH for r in tw.static_range(self.rows)]
            self.grown[0] = tw.vote_any(grows[0] | grows[1]).to(tw.int32)
        if not plan.is_lazy or self.grown[0] != 0:
            for r in tw.static_range(self.rows):
                best = tw.maximum(top[r], tw.reduce(scores[r, :], "max", group=4))
                if plan.is_lazy and self.dtype == tw.bfloat16:  # with the exponents of float32; `bound` is 0 at least
                    best = tw.where(best * scale > LOWEST, tw.maximum(best, -GROWTH / scale), best)
                self.factor[r], top[r] = tw.ex2_approx((top[r] - best) * scale, ftz=True), best
                total[r] *= self.factor[r]
        for r in tw.static_range(self.rows):
            scores[r, :] = tw.ex2_approx(scores[r, :] * scale - top[r] * scale, ftz=True)
            total[r] += scores[r, :].reduce("add")

    @tw.function
    def finish_rows(self, work, lse):
        """Divide sums by those of the weights, and store lse."""
        batch = work.part * self.works.Q.shape[0] + work.batch
        for r in tw.static_range(self.rows):
            self.sums[r, :] *= 1.0 / tw.maximum(self.total[r], 1e-30)  # a row may see no key
            row = self.at[r, 0][0] + work.row
            if lse is not None and (row < work.tokens) & (tw.lane_id() % 4 == 0):
                found = (self.top[r] * self.scale + tw.lg2_approx(self.total[r])) * LN2
                lse[batch, work.head, work.first_token + row] = found

    @tw.function
    def store(self, out, work, q):
        """Store the consumer's rows of out: whole ones through the shared memory of Q, in stage q."""
        plan, is_packed = self.plan, self.works.tokens_at is not None
        batch = work.part * self.works.Q.shape[0] + work.batch
        results = tw.guarded(out)[batch, work.head, ...]
        if is_packed:  # the rows behind are another sequence's
            begin = work.first_token
            results = tw.guarded(out[batch, work.head, begin : begin + work.tokens, :])
        tile = self.by_output.partition_C(
            tw.local_tile(results, (plan.rows, plan.value_head), (work.row // plan.rows, 0))
        )
        if plan.is_in_parts:
            tw.copy(self.acc, tile)
        elif is_packed and work.row + 64 * self.consumer + 64 > work.tokens:
            tw.copy(self.acc.to(out.dtype), tile)
        else:
            buffer = tw.local_tile(self.sQ[:, :, q], (64, plan.value_head), (self.consumer, 0))
            self.store_whole(out, buffer, work)

    @tw.function
    def store_whole(self, out, buffer, work):
        """Store 64 rows by TMA, and wait until shared memory has been read."""
        consumer, tid = tw.warpgroup_id() - 1, tw.thread_idx.x % WARPGROUP
        writer = self.plan.write.get_slice(tid)
        tw.copy(self.plan.write, writer.retile_S(self.acc.to(out.dtype)), writer.partition_D(buffer))
        tw.fence_proxy_async()
        tw.named_barrier(1 + self.plan.consumers + consumer, WARPGROUP).sync()
        if tid == 0:
            first_row = work.first_token + work.row + 64 * consumer
            rows = tw.domain_offset((first_row, 0), tw.guarded(out)[work.batch, work.head, ...])
            tw.copy(STORE, buffer, tw.local_tile(rows, (64, self.plan.value_head), (0, 0)))
            tw.tma_store_commit()
            tw.tma_store_wait(0)


@tw.function
def bound(row):
    """Return a thread's greatest score of a row, or 0: from 0 on, the bits of floats are in their order."""
    most = tw.int32(0)
    for c in tw.static_range(0, tw.size(row.shape), 2):  # maxima of three are one instruction
        most = tw.maximum(tw.maximum(most, row[c].bitcast(tw.int32)), row[c + 1].bitcast(tw.int32))
    return most.bitcast(tw.float32)
