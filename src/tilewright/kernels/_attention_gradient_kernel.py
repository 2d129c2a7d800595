"""All gradients of attention in one pass by warpgroups: five products of a tile; device code, traced into kernels.

A block keeps a tile of K and V, and goes over the tokens that see it, in each head of its group:

    P = exp2(scale K Q^T - tops)    W = P (V dO^T - delta)    dV += P dO    dK += W Q    dQ += W^T K

Scores are transposed, keys by tokens, so that P and W are operand A of the sums, and stay in registers. Each consumer
has 64 keys; the product with W^T needs those of all, and W passes through shared memory for it. It is computed a step
later, so that consumers need not be at the same step: one multiplies while the other one computes exponentials.

Registers do not hold dK and dV of 64 keys and a head of more than 128. There both consumers have the same 64 keys, and
half of the head each of dV, dK and dQ; one computes P and the other one W, and both pass through shared memory. Where
K has heads of up to 192 and V of up to 128 they do hold them, and one product beside them.

dQ is added up in global memory, in float32 and in the order of the threads' registers, by bulk copies that two warps
start. Without `turns` each of them serves a consumer. With them the blocks add in one order, and bits are the same each
time; then the warps serve steps alternately, because a block's turn is over when its additions are done, which takes
longer than a step. `finish_tokens` scales the sums and brings them into the order of dQ.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple  # Any: device values

import tilewright as tw
from tilewright.kernels._attention_sequences import WARPGROUP, clear_behind, held, held_sequence_of, number_of, slots_of

LOAD, STORE, ADD = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE, tw.atoms.SM90_TMA_REDUCE_ADD


class Place(NamedTuple):
    """A tile of keys, and the tiles of tokens that see it: `begin` to `end`.

    The sequence has `keys` and `tokens`, of which the first ones are those numbers in their arrays; no tokens where the
    tile has no key. A head has `slots` for tiles of tokens, and the sequence those from `first_slot` on. `is_packed`
    says that sequences are in one array, and `is_cut` that behind a sequence's keys there may be others, not zeros.
    """

    tile: Any
    head: Any
    batch: Any
    begin: Any
    end: Any
    keys: Any
    tokens: Any
    first_key: Any
    first_token: Any
    slots: Any
    first_slot: Any
    is_packed: bool
    is_cut: bool

    def last_slot(self, Q, group):
        """Return the slot of the last tile that sees the keys, in the first head of the group."""
        return (self.batch * Q.shape[1] + self.head * group) * self.slots + self.first_slot + self.end - 1


@tw.kernel
def gradients_by_warpgroups(
    dK, dV, sums, turns, K, V, Q, dO, tops, deltas, tokens_at, keys_at, lengths, scale, factor, before, after, together,
    plan: tw.constexpr,
):  # fmt: skip
    """Compute a tile of dK and dV, and add its part of dQ to `sums`.

    `tops` is lse in units of log 2, and 0 where a token sees no key; behind the last token, tops and deltas have finite
    numbers for a tile more. `scale` has the factor log2(e) and is positive. A key is seen by `before` and `after`
    tokens before and behind the one beside it. Blocks take the tiles of `together` key heads, then those of the next.
    Sequences are those of `attend_by_warpgroups`; in one array, tops and deltas have numbers for each slot, as sums.
    """
    shared = reserve(K.dtype, plan)
    of_both = 2 * (plan.head + plan.head_beside)  # bytes of a row of K and V, and of Q and dO
    there = tw.pipeline(1, consumers=4 * plan.consumers, bytes=plan.rows * of_both)
    ring = tw.pipeline(plan.stages, consumers=4 * plan.consumers, bytes=plan.columns * (of_both + 8))
    written, used = (
        tw.mbarrier(4 * consumers, stages=plan.smem_w.shape[2]) for consumers in (plan.writers, plan.consumers)
    )
    full, empty = tw.mbarrier(4, stages=2 * plan.consumers), tw.mbarrier(1, stages=plan.consumers)
    tw.sync_threads()  # the barriers are there
    place = place_of(K, Q, tokens_at, keys_at, lengths, before, after, together, plan)
    if tw.warpgroup_id() == 0:
        tw.set_registers(plan.registers[0])
        if tw.thread_idx.x == 0:
            bring(K, V, Q, dO, tops, deltas, shared, there.producer(), ring.producer(), place, plan)
        elif (tw.thread_idx.x == 32) | (tw.thread_idx.x == 64):
            if turns is None:
                hand_over(Q, sums, shared.sums, full, empty, K, place, plan)
            else:
                hand_over_in_turn(Q, sums, turns, shared.sums, full, empty, K, after, place, plan)
    else:
        tw.set_registers(plan.registers[1])
        barriers, group = Barriers(written, used, full, empty), Q.shape[1] // K.shape[1]
        consumer = Consumer(plan, place, shared, barriers, K.dtype, scale, before, after)
        consumer.add_up(there.consumer(), ring.consumer(), group)
        consumer.store(dK, dV, factor)


@tw.function
def reserve(dtype, plan):
    """Return the shared memory of a block."""
    tiles = [tw.shared(dtype, layout) for layout in (*plan.smem_kv, *plan.smem_qg)]
    both = None
    if plan.is_divided:
        both = tiles
        kv, qg = tiles
        tiles = [kv[:, :, 0], kv[:, :, 1], qg, tw.domain_offset((0, 0, plan.stages), qg)]
    weights, sums = tw.shared(dtype, plan.smem_w), tw.shared(tw.float32, plan.smem_sums)
    tops, deltas = (tw.shared(tw.float32, plan.smem_numbers) for _ in "td")
    return Shared(*tiles, both, weights, sums, tops, deltas)


@tw.function
def place_of(K, Q, tokens_at, keys_at, lengths, before, after, together, plan):
    """Return the place of a block.

    Heads whose tokens fit into the L2 cache are taken together, and of these the first keys first, which most tokens of
    a causal mask see.
    """
    tiles, number = slots_of(K, keys_at, plan.rows), tw.block_idx.x
    first_head = number // (tiles * together) * together
    beside = tw.minimum(together, K.shape[0] * K.shape[1] - first_head)
    rest = number - first_head * tiles
    tile, head = rest // beside, first_head + rest % beside
    keys, tokens, first_key, first_token, first_slot = K.shape[2], Q.shape[2], 0, 0, 0
    if keys_at is not None:
        row, keys, first_key, sequence = held_sequence_of(tile, keys_at, K.shape[2], plan.rows)
        first_token, tokens = held(sequence, tokens_at, Q.shape[2])
        tokens = tw.where(row < keys, tokens, 0)
        tile, first_slot = row // plan.rows, first_token // plan.columns + sequence
    elif lengths is not None:
        keys = number_of(lengths, head // K.shape[1], keys)
        tokens = tw.where(tile * plan.rows < keys, tokens, 0)
    first = tile * plan.rows + tokens - keys
    begin = tw.maximum(first - before, 0) // plan.columns
    end = tw.maximum(tw.ceil_div(tw.minimum(tokens, first + plan.rows + after), plan.columns), begin)
    slots = slots_of(Q, tokens_at, plan.columns)
    is_packed = tokens_at is not None
    return Place(tile, head % K.shape[1], head // K.shape[1], begin, end, keys, tokens,
                 first_key, first_token, slots, first_slot, is_packed, is_packed or lengths is not None)  # fmt: skip


@tw.function
def bring(K, V, Q, dO, tops, deltas, shared, there, state, place, plan):
    """Bring keys once, and tokens from the last ones that see them to the first ones, of all heads of the group.

    A block adds behind those of earlier keys. It falls behind them once where all heads of a tile of tokens come in
    turn; with all tokens of a head in turn, those of later keys, which have fewer tokens, would wait at each head.
    """
    tile, head, batch, begin, end = place[:5]

    def rows_of(x, head, first):
        rows = tw.guarded(x)[batch, head, ...]
        return tw.domain_offset((first, 0), rows) if place.is_packed else rows

    with there.fill() as (_, full):
        for x, target in ((K, shared.K), (V, shared.V)):
            bring_tile(rows_of(x, head, place.first_key), tile, target, full)
    group = Q.shape[1] // K.shape[1]
    for step in range(end - begin):
        number = end - 1 - step
        for member in range(group):
            of_tokens = head * group + member
            with state.fill() as (stage, full):
                for x, stages in ((Q, shared.Q), (dO, shared.G)):
                    bring_tile(rows_of(x, of_tokens, place.first_token), number, stages[:, :, stage], full)
                for numbers, target in ((tops, shared.tops), (deltas, shared.deltas)):
                    source, slot = tw.guarded(numbers)[batch, of_tokens, ...], place.first_slot + number
                    tw.copy(LOAD, tw.local_tile(source, (plan.columns,), (slot,)), target[:, stage], barrier=full)


@tw.function
def bring_tile(source, number, target, full):
    """Begin to bring a tile of rows, and of all elements of a head."""
    rows, head = (tw.size(extent) for extent in target.shape)
    tw.copy(LOAD, tw.local_tile(source, (rows, head), (number, 0)), target, barrier=full)


@tw.function
def hand_over(Q, sums, sums_of_step, full, empty, K, place, plan):
    """Add what a consumer has computed of dQ to the sums, step by step."""
    who, group = tw.warp_id() - 1, Q.shape[1] // K.shape[1]
    last = place.last_slot(Q, group)
    for n in range(group * (place.end - place.begin)):
        for piece in tw.static_range(plan.pieces):
            full[2 * who + n % 2].wait((n // 2 * plan.pieces + piece) % 2)
            add(sums_of_step, sums, last + n % group * place.slots - n // group, who, piece, plan)
            release([empty[who]])


@tw.function
def hand_over_in_turn(Q, sums, turns, sums_of_step, full, empty, K, after, place, plan):
    """Add what all consumers have computed of dQ to the sums, every other step.

    While a warp waits for its additions to be done and tells the next block, the other one begins the next step.
    """
    tile, begin, end = place.tile, place.begin, place.end
    which, group = tw.warp_id() - 1, Q.shape[1] // K.shape[1]
    last = place.last_slot(Q, group)
    for n in range(which, group * (end - begin), 2):
        slot, column = last + n % group * place.slots - n // group, (end - 1 - n // group) * plan.columns
        # The blocks of the keys before these that the tokens see come first.
        before = tile - tw.maximum(column + place.keys - place.tokens - after, 0) // plan.rows
        while tw.load(turns, slot, sem="acquire") != before:
            pass
        for piece in tw.static_range(plan.pieces):
            for who in tw.static_range(plan.consumers):
                full[2 * who + which].wait((n // 2 * plan.pieces + piece) % 2)
                add(sums_of_step, sums, slot, who, piece, plan)
            release([empty[who] for who in tw.static_range(plan.consumers)])
        tw.tma_store_wait(0, read=False)
        tw.store(turns, slot, before + 1, sem="release")


@tw.function
def add(sums_of_step, sums, slot, who, piece, plan):
    """Begin to add a piece of a consumer's part to the sums of a tile of tokens."""
    source = sums_of_step[:, :, who]
    target = tw.guarded(sums)[slot * plan.consumers + who, ...]
    tw.copy(ADD, source, tw.local_tile(target, source.shape, (piece, 0)))


@tw.function
def release(empty):
    """Wait until the sums have been read, and let them be overwritten."""
    tw.tma_store_commit()
    tw.tma_store_wait(0)
    for barrier in empty:
        barrier.arrive()


class Shared(NamedTuple):
    """The shared memory of a block."""

    K: Any  # (keys, head)
    V: Any
    Q: Any  # (tokens, head, stage)
    G: Any  # dO
    both: Any  # if a consumer has half of the head, K and V in one tensor, and Q and dO: a runtime number chooses
    W: Any  # (keys, tokens, stage), or P and W
    sums: Any  # a piece of dQ, of each consumer
    tops: Any  # (tokens, stage)
    deltas: Any


class Barriers(NamedTuple):
    """The barriers of W, and of pieces of dQ."""

    written: Any
    used: Any
    full: Any
    empty: Any


class Consumer:
    """A warpgroup that multiplies: its parts of shared memory, its sums, and a step of them."""

    @tw.function
    def __init__(self, plan, place, shared, barriers, dtype, scale, before, after):
        self.plan, self.place, self.shared, self.barriers = plan, place, shared, barriers
        self.dtype, self.scale, self.before, self.after = dtype, scale, before, after
        # Of a number that comes from one lane the compiler knows that it is the same in all.
        self.consumer, self.tid = tw.shuffle(tw.warpgroup_id() - 1, 0), tw.thread_idx.x - WARPGROUP
        of_scores = self.tid % plan.scores.size
        by_sums, by_values, by_tokens = (
            mma.get_slice(self.consumer * WARPGROUP) for mma in (plan.sums, plan.value_sums, plan.tokens)
        )
        by_scores = plan.scores.get_slice(of_scores if plan.is_divided else self.consumer * WARPGROUP)
        # Operands of S and of dP; if a consumer has half of the head, those of both in one.
        of_keys, of_tokens = (shared.K, shared.V), (shared.Q, shared.G)
        if plan.is_divided:
            of_keys, of_tokens = ((each,) for each in shared.both)
        self.of_keys = [by_scores.partition_A(each) for each in of_keys]
        self.of_tokens = [by_scores.partition_B(each) for each in of_tokens]
        turned_q, turned_g = (x.map_layout(lambda layout: tw.select(layout, 1, 0, 2)) for x in (shared.Q, shared.G))
        self.turned_q = by_sums.partition_B(turned_q)
        of_values = plan.value_head, plan.columns, plan.stages
        self.turned_g = by_values.partition_B(tw.local_tile(turned_g, of_values, (0, 0, 0)))
        self.weights = by_sums.partition_A(shared.W) if plan.is_divided or plan.is_tight else None
        self.tW = by_tokens.partition_A(shared.W.map_layout(lambda layout: tw.select(layout, 1, 0, 2)))
        turned, self.wide = shared.K.map_layout(lambda layout: tw.select(layout, 1, 0)), plan.head // plan.parts
        self.turned_k = [
            by_tokens.partition_B(tw.local_tile(turned, (self.wide, plan.rows), (n, 0))) for n in range(plan.parts)
        ]
        self.acc_k = fragment(plan.sums, plan.rows, plan.head)
        self.acc_v = fragment(plan.value_sums, plan.rows, plan.value_head)
        tw.clear(self.acc_k)
        tw.clear(self.acc_v)
        whole_tile = tw.identity_tensor((plan.rows, plan.columns))
        # Where the values are in the tile: those of a thread are as far from its first one as those of thread 0.
        self.at, self.at_of_first = (
            tw.accumulator_rows(plan.scores, plan.scores.get_slice(n).partition_C(whole_tile)) for n in (of_scores, 0)
        )
        self.part_of_step = tw.make_tensor(shared.sums.engine, plan.quads)
        self.writer, self.reader = plan.write.get_slice(of_scores), plan.read.get_slice(of_scores)
        self.first = place.tile * plan.rows
        self.beside = self.first + place.tokens - place.keys

    @tw.function
    def add_up(self, there, state, group):
        """Add up dK and dV of the tokens that see the keys, in all heads of a group, and pass parts of dQ on."""
        plan, place = self.plan, self.place
        if not plan.is_tight:  # where each step computes its own part of dQ
            self.put_nothing()
        there.acquire()
        if place.is_cut:
            clear_behind([self.shared.K, self.shared.V], place.keys - self.first, plan)
        steps = group * (place.end - place.begin)
        column, heads_left = (place.end - 1) * plan.columns, group
        for n in tw.range(1, steps + 1, unroll=1):
            stage = state.acquire()
            if place.is_packed:
                of_both = [each[:, :, stage] for each in (self.shared.Q, self.shared.G)]
                clear_behind(of_both, place.tokens - column, plan)
            S = fragment(plan.scores, plan.rows, plan.columns)
            if plan.parts > 1:  # passed on under this product, and the other half under that of dK
                acc_q = self.begin_tokens(n - 1, 1)
            self.begin_scores(self.consumer if plan.is_divided else 0, stage, S)
            tw.wgmma_wait(1)  # the product of the step before with its W
            if plan.is_divided:
                signal(self.barriers.used[1])
            if n > 1:
                state.give_back(tw.where(stage == 0, plan.stages, stage) - 1)
                if plan.parts > 1:
                    self.pass_on(n - 1, acc_q, 1)
            if plan.is_divided or plan.is_tight:
                tw.wgmma_wait(0)
            if plan.is_divided:
                self.divide(n, stage, column, S)
            elif plan.is_tight:
                self.multiply_in_turn(n, stage, column, S)
            else:
                self.multiply(n, stage, column, S)
            column = tw.where(heads_left == 1, column - plan.columns, column)
            heads_left = tw.where(heads_left == 1, group, heads_left - 1)
        if plan.is_divided:  # or the compiler moves sums of the loop while a product runs, and serialises products
            tw.wgmma_wait(0)
        if plan.parts > 1 or not (plan.is_divided or plan.is_tight):
            acc_q = self.begin_tokens(steps, plan.parts - 1)
            tw.wgmma_wait(0)
            if steps > 0:
                self.pass_on(steps, acc_q, plan.parts - 1)

    @tw.function
    def put_nothing(self):
        """Write zeros for the weights of the step before the first one, which there is not."""
        none = fragment(self.plan.scores, self.plan.rows, self.plan.columns)
        tw.clear(none)
        if self.plan.is_divided:
            if self.consumer == 1:
                self.put(1, none)
            self.barriers.written[1].wait(0)  # or the wait for those of the first step might hold before it is over
        else:
            self.put(0, none)

    @tw.function
    def multiply(self, n, stage, column, S):
        """Compute a step of 64 keys: P and W stay in registers, and W is written for the next step too."""
        plan, used = self.plan, self.barriers.used
        stages = self.shared.W.shape[2]
        dP = fragment(plan.scores, plan.rows, plan.columns)
        scores, slopes = tw.accumulator_rows(plan.scores, S), tw.accumulator_rows(plan.scores, dP)
        self.begin_scores(1, stage, dP)
        tw.wgmma_wait(1)
        self.weigh(scores, stage, column)
        weights = tw.as_operand_a(plan.scores, S, to=plan.sums)
        # Long rows of scores do not fit into registers beside all else; as weights they do.
        shares = scores
        if plan.columns > 64:
            shares = tw.accumulator_rows(plan.scores, tw.make_tensor(weights.engine, S.layout))
        tw.wgmma_fence()
        tw.gemm(plan.value_sums, weights, self.turned_g[:, :, :, stage], self.acc_v)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        self.incline(slopes, shares, stage)
        used[n % stages].wait((n // stages + 1) % 2)
        self.put(n % stages, dP)
        steep = tw.as_operand_a(plan.scores, dP, to=plan.sums)
        acc_q = self.begin_tokens(n - 1, 0)
        tw.gemm(plan.sums, steep, self.turned_q[:, :, :, stage], self.acc_k)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        signal(used[(n - 1) % stages])
        if n > 1:
            self.pass_on(n - 1, acc_q, 0)

    @tw.function
    def multiply_in_turn(self, n, stage, column, S):
        """Compute a step of 64 keys where sums leave registers for one product beside them.

        P stays in registers, and W is read from shared memory. What comes from P ends before it is an operand, or it
        would be held twice. dQ is of this step, so that one stage of W does, and all of dQ has room there; until the
        other consumer has written its W, the sums of dV and dK go on.
        """
        plan, used = self.plan, self.barriers.used
        self.weigh(tw.accumulator_rows(plan.scores, S), stage, column)
        weights = tw.as_operand_a(plan.scores, S, to=plan.value_sums)
        shares = tw.accumulator_rows(plan.scores, tw.make_tensor(weights.engine, S.layout))
        dP = fragment(plan.scores, plan.rows, plan.columns)
        self.begin_scores(1, stage, dP)
        tw.wgmma_wait(0)
        self.incline(tw.accumulator_rows(plan.scores, dP), shares, stage)
        tw.wgmma_fence()
        tw.gemm(plan.value_sums, weights, self.turned_g[:, :, :, stage], self.acc_v)
        tw.wgmma_commit()
        used[0].wait(n % 2)
        self.put(0, dP)
        tw.named_barrier(1 + self.consumer, WARPGROUP).sync()  # all of its W is there
        tw.wgmma_fence()
        tw.gemm(plan.sums, self.weights[:, :, :, 0], self.turned_q[:, :, :, stage], self.acc_k)
        tw.wgmma_commit()
        tw.wgmma_wait(0)
        acc_q = self.begin_tokens(n, 0)
        tw.wgmma_wait(0)
        signal(used[0])
        self.pass_on(n, acc_q, 0)

    @tw.function
    def divide(self, n, stage, column, S):
        """Compute a step of half of the head: one consumer has P, and the other one W."""
        plan, written, used = self.plan, self.barriers.written, self.barriers.used
        scores = tw.accumulator_rows(plan.scores, S)
        if self.consumer == 0:
            self.weigh(scores, stage, column)
            used[0].wait(n % 2)
            self.put(0, S)
        else:
            shares = tw.registers(self.dtype, plan.scores.partition_shape((plan.rows, plan.columns), "C"))
            written[0].wait((n - 1) % 2)
            tw.copy(plan.read, self.reader.partition_S(self.shared.W[:, :, 0]), self.reader.retile_D(shares))
            self.incline(scores, tw.accumulator_rows(plan.scores, shares), stage)
            used[1].wait((n - 1) % 2)
            self.put(1, S)
        written[0].wait((n - 1) % 2)
        tw.wgmma_fence()
        tw.gemm(plan.value_sums, self.weights[:, :, :, 0], self.turned_g[:, :, :, stage], self.acc_v)
        tw.wgmma_commit()
        acc_q = self.begin_tokens(n, 0)
        tw.gemm(plan.sums, self.weights[:, :, :, 1], self.turned_q[:, :, :, stage], self.acc_k)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        signal(used[0])
        self.pass_on(n, acc_q, 0)

    @tw.function
    def begin_scores(self, which, stage, acc):
        """Begin the product of K or V with Q or dO of a stage."""
        tw.wgmma_fence()
        for n in tw.static_range(max(self.plan.depths) // 16):
            if n < self.plan.depths[1] // 16 or which == 0:
                if self.plan.is_divided:
                    a = self.of_keys[0][:, :, n, which]
                    b = self.of_tokens[0][:, :, n, which * self.plan.stages + stage]
                else:
                    a, b = self.of_keys[which][:, :, n], self.of_tokens[which][:, :, n, stage]
                tw.gemm(self.plan.scores, a, b, acc, accumulate=n > 0)
        tw.wgmma_commit()

    @tw.function
    def begin_tokens(self, n, part):
        """Begin the product of step n with W^T, when all consumers have written theirs; return the sums."""
        stages = self.shared.W.shape[2]
        acc = fragment(self.plan.tokens, self.plan.columns, self.wide)
        # W of step n, and how often that was written before
        written = n - 1 if self.plan.is_tight else n  # the steps before it: nothing stands for the one before the first
        slot, uses = (1, n) if self.plan.is_divided else (written % stages, written // stages)
        self.barriers.written[slot].wait(uses % 2)
        tw.wgmma_fence()
        tw.gemm(self.plan.tokens, self.tW[:, :, :, slot], self.turned_k[part], acc, accumulate=False)
        tw.wgmma_commit()
        return acc

    @tw.function
    def put(self, slot, values):
        """Write P or W to shared memory, and tell those who read it."""
        target = self.writer.partition_D(self.shared.W[:, :, slot])
        tw.copy(self.plan.write, self.writer.retile_S(values.to(self.dtype)), target)
        tw.fence_proxy_async()
        signal(self.barriers.written[slot])

    @tw.function
    def weigh(self, scores, stage, column):
        """Compute P, of what tokens see."""
        plan, at, at_of_first, beside = self.plan, self.at, self.at_of_first, self.beside
        before, after, extent = self.before, self.after, self.place.tokens
        rows, columns = tw.size(at.shape[0]), tw.size(at.shape[1])
        is_inside = (column + plan.columns <= extent) & (column + plan.columns - 1 <= beside + after)
        is_inside &= beside + plan.rows <= extent  # the scores behind the last key are 0, and weights may overflow
        if ~(is_inside & (column >= beside + plan.rows - 1 - before)):
            origin = at[0, 0][1] + column
            apart = at[0, 0][0] + beside - origin
            for r in tw.static_range(rows):
                row = apart + at_of_first[r, 0][0]
                fewest, behind = row - before, tw.minimum(row + after + 1, extent - origin)
                behind = tw.where(row < extent - origin, behind, 0)  # the last key is beside the last token
                for c in tw.static_range(columns):
                    here = at_of_first[0, c][1]
                    scores[r, c] = tw.where((here >= fewest) & (here < behind), scores[r, c], -math.inf)
        for c in tw.static_range(columns):
            top = self.shared.tops[at[0, 0][1] + at_of_first[0, c][1], stage]
            scores[:, c] = tw.ex2_approx(scores[:, c] * self.scale - top, ftz=True)

    @tw.function
    def incline(self, slopes, shares, stage):
        """Compute W from P."""
        for c in tw.static_range(tw.size(self.at.shape[1])):
            token = self.at[0, 0][1] + self.at_of_first[0, c][1]
            slopes[:, c] = shares[:, c].to(tw.float32) * (slopes[:, c] - self.shared.deltas[token, stage])

    @tw.function
    def pass_on(self, n, acc, part):
        """Give the sums of step n to the warp that adds them; the first one is step 1."""
        # Four values of a thread at a time: no two threads meet at a bank.
        plan, consumer = self.plan, self.consumer
        pieces = plan.pieces // plan.parts
        quads = tw.size(acc.layout) // 4 // pieces
        values = acc.map_layout(lambda _: tw.Layout((pieces, quads, 4), (4 * quads, 4, 1)))
        for piece in tw.static_range(pieces):
            self.barriers.empty[consumer].wait(((n - 1) * plan.pieces + part * pieces + piece + 1) % 2)
            for each in tw.static_range(quads):
                tw.copy(values[piece, each, :], self.part_of_step[each, self.tid % WARPGROUP, :, consumer])
            tw.fence_proxy_async()
            signal(self.barriers.full[2 * consumer + 1 - n % 2])

    @tw.function
    def store(self, dK, dV, factor):
        """Store the consumer's rows."""
        self.acc_k *= factor
        plan = self.plan
        for target, acc, mma, head in (
            (dK, self.acc_k, plan.sums, plan.head),
            (dV, self.acc_v, plan.value_sums, plan.value_head),
        ):
            thread, rows = mma.get_slice(self.tid), target[self.place.batch, self.place.head, ...]
            if self.place.is_packed:
                rows = rows[self.place.first_key : self.place.first_key + self.place.keys, :]
            part = tw.local_tile(tw.guarded(rows), (plan.rows, head), (self.place.tile, 0))
            tw.copy(acc.to(target.dtype), thread.partition_C(part))


def fragment(mma, *extents):
    """Return registers for sums of a tile."""
    return tw.registers(tw.float32, mma.partition_shape(extents, "C"))


@tw.function
def signal(barrier):
    """Arrive for the warp, with what its lanes have done."""
    tw.sync_warp()
    if tw.elect_one():
        barrier.arrive()


@tw.kernel
def finish_tokens(dQ, sums, tokens_at, factor, plan: tw.constexpr):
    """Compute a tile of dQ = factor * sums; rows behind a sequence's last token are not written."""
    tid, tiles = tw.thread_idx.x, slots_of(dQ, tokens_at, plan.columns)
    number, consumer = tw.block_idx.x, tid // WARPGROUP
    buffer = tw.shared(dQ.dtype, plan.smem_tokens)
    acc = tw.registers(tw.float32, plan.tokens.partition_shape((plan.columns, plan.head), "C"))
    quads = tw.size(acc.layout) // 4
    values = acc.map_layout(lambda _: tw.Layout((quads, 4), (4, 1)))
    for each in tw.static_range(quads):
        source = sums[number * plan.consumers + consumer, each, tid % WARPGROUP, :]
        tw.copy(tw.local_tile(source, (4,), (0,)), values[each, :])
    acc *= factor
    batch, head, tile, row = number // tiles // dQ.shape[1], number // tiles % dQ.shape[1], number % tiles, 0
    if tokens_at is not None:
        row, tokens, first, _ = held_sequence_of(tile, tokens_at, dQ.shape[2], plan.columns)
        tile = 0
    if tokens_at is not None and row + plan.columns > tokens:
        rows = tw.guarded(dQ[batch, head, first : first + tokens, :])
        part = tw.local_tile(rows, (plan.columns, plan.head), (row // plan.columns, 0))
        tw.copy(acc.to(dQ.dtype), plan.tokens.get_slice(tid).partition_C(part))
    else:
        writer = plan.write_tokens.get_slice(tid)
        tw.copy(plan.write_tokens, writer.retile_S(acc.to(dQ.dtype)), writer.partition_D(buffer))
        tw.fence_proxy_async()
        tw.sync_threads()
        if tid == 0:
            target = tw.guarded(dQ)[batch, head, ...]
            if tokens_at is not None:
                target = tw.domain_offset((first + row, 0), target)
            tw.copy(STORE, buffer, tw.local_tile(target, (plan.columns, plan.head), (tile, 0)))
            tw.tma_store_commit()
            tw.tma_store_wait(0)
