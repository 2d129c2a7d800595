"""Attention by warpgroups: a producer, and consumers that multiply alternately; device code, traced into kernels.

A tile is 64 rows of Q for each consumer. A consumer goes through the tiles of keys from the last one that its rows see
to the first one, and begins S = Q K^T of a tile before O += P V of the tile before, so that the exponentials of this
tile run under the product of the last one. At named barriers the consumers wait for one another, so that the products
of one run under the softmax of the others. The producer brings Q, K and V by TMA in the order in which they are used;
K and V share a ring. `examples/hopper/10_attention.py` explains the schedule, that of FlashAttention 3 (Shah et al.
2024). What a consumer does is in `_attention_hopper_consumer`.

Row r of m tokens sees key c of n where -left <= c - r - (n - m) <= right. Masks are applied only in tiles that the end
of the keys or one of the two bounds cuts.

Few tokens leave multiprocessors idle, and the keys of a tile are computed in parts then: out and lse have a batch for
each part and batch, in float32, and `add_parts` makes one of them (FlashDecoding: Dao et al. 2023).
"""

from __future__ import annotations

from typing import Any, NamedTuple  # Any: device values

import tilewright as tw
from tilewright.kernels._attention_hopper_consumer import Consumer
from tilewright.kernels._attention_sequences import number_of, sequence_of, slots_of

LOAD = tw.atoms.SM90_TMA_LOAD


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
