"""All gradients of attention in one pass by warpgroups: five products of a tile; device code, traced into kernels.

A block keeps a tile of K and V, and goes over the tokens that see it, in each head of its group:

    P = exp2(scale K Q^T - tops)    W = P (V dO^T - delta)    dV += P dO    dK += W Q    dQ += W^T K

Scores are transposed, keys by tokens, so that P and W are operand A of the sums, and stay in registers. Each consumer
has 64 keys; the product with W^T needs those of all, and W passes through shared memory for it. It is computed a step
later, so that consumers need not be at the same step: one multiplies while the other one computes exponentials.

Registers do not hold dK and dV of 64 keys and a head of 256. There both consumers have the same 64 keys, and half of
the head each of dV, dK and dQ; one computes P and the other one W, and both pass through shared memory.

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
    sKV, sQG = tw.shared(K.dtype, plan.smem_a), tw.shared(K.dtype, plan.smem_b)
    sW, sums_of_step = tw.shared(K.dtype, plan.smem_w), tw.shared(tw.float32, plan.smem_sums)
    s_tops, s_deltas = (tw.shared(tw.float32, plan.smem_numbers) for _ in "td")
    there = tw.pipeline(1, consumers=4 * plan.consumers, bytes=4 * plan.rows * plan.head)
    ring = tw.pipeline(plan.stages, consumers=4 * plan.consumers, bytes=4 * plan.columns * plan.head + 8 * plan.columns)
    written, used = (
        tw.mbarrier(4 * consumers, stages=plan.smem_w.shape[2]) for consumers in (plan.writers, plan.consumers)
    )
    full, empty = tw.mbarrier(4, stages=2 * plan.consumers), tw.mbarrier(1, stages=plan.consumers)
    tw.sync_threads()  # the barriers are there
    place = place_of(K, Q, tokens_at, keys_at, lengths, before, after, together, plan)
    if tw.warpgroup_id() == 0:
        tw.set_registers(plan.registers[0])
        if tw.thread_idx.x == 0:
            bring(K, V, Q, dO, tops, deltas, sKV, sQG, s_tops, s_deltas,
                  there.producer(), ring.producer(), place, plan)  # fmt: skip
        elif (tw.thread_idx.x == 32) | (tw.thread_idx.x == 64):
            if turns is None:
                hand_over(Q, sums, sums_of_step, full, empty, K, place, plan)
            else:
                hand_over_in_turn(Q, sums, turns, sums_of_step, full, empty, K, after, place, plan)
    else:
        tw.set_registers(plan.registers[1])
        add_up(dK, dV, K, Q, scale, factor, before, after, sKV, sQG, sW, sums_of_step, s_tops, s_deltas,
               there.consumer(), ring.consumer(), written, used, full, empty, place, plan)  # fmt: skip


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
def bring(K, V, Q, dO, tops, deltas, sKV, sQG, s_tops, s_deltas, there, state, place, plan):
    """Bring keys once, and tokens from the last ones that see them to the first ones, of all heads of the group.

    A block adds behind those of earlier keys. It falls behind them once where all heads of a tile of tokens come in
    turn; with all tokens of a head in turn, those of later keys, which have fewer tokens, would wait at each head.
    """
    tile, head, batch, begin, end = place[:5]

    def rows_of(x, head, first):
        rows = tw.guarded(x)[batch, head, ...]
        return tw.domain_offset((first, 0), rows) if place.is_packed else rows

    with there.fill() as (_, full):
        for which, x in enumerate((K, V)):
            source = tw.local_tile(rows_of(x, head, place.first_key), (plan.rows, plan.head), (tile, 0))
            tw.copy(LOAD, source, sKV[:, :, which], barrier=full)
    group = Q.shape[1] // K.shape[1]
    for step in range(end - begin):
        number = end - 1 - step
        for member in range(group):
            of_tokens = head * group + member
            with state.fill() as (stage, full):
                for which, x in enumerate((Q, dO)):
                    source = rows_of(x, of_tokens, place.first_token)
                    part = tw.local_tile(source, (plan.columns, plan.head), (number, 0))
                    tw.copy(LOAD, part, sQG[:, :, which * plan.stages + stage], barrier=full)
                for numbers, target in ((tops, s_tops), (deltas, s_deltas)):
                    source, slot = tw.guarded(numbers)[batch, of_tokens, ...], place.first_slot + number
                    tw.copy(LOAD, tw.local_tile(source, (plan.columns,), (slot,)), target[:, stage], barrier=full)


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


@tw.function
def signal(barrier):
    """Arrive for the warp, with what its lanes have done."""
    tw.sync_warp()
    if tw.elect_one():
        barrier.arrive()


@tw.function
def add_up(dK, dV, K, Q, scale, factor, before, after, sKV, sQG, sW, sums_of_step, s_tops, s_deltas,
           there, state, written, used, full, empty, place, plan):  # fmt: skip
    """Compute 64 rows of the tile, and a part of dQ."""
    # Of a number that comes from one lane the compiler knows that it is the same in all.
    consumer, tid = tw.shuffle(tw.warpgroup_id() - 1, 0), tw.thread_idx.x - WARPGROUP
    of_scores = tid % plan.scores.size
    by_sums, by_tokens = (mma.get_slice(consumer * WARPGROUP) for mma in (plan.sums, plan.tokens))
    by_scores = plan.scores.get_slice(of_scores if plan.is_divided else consumer * WARPGROUP)
    # K and V; Q and dO, first all stages of Q
    tKV, tQG = by_scores.partition_A(sKV), by_scores.partition_B(sQG)
    turned_qg = by_sums.partition_B(sQG.map_layout(lambda layout: tw.select(layout, 1, 0, 2)))
    tP = by_sums.partition_A(sW) if plan.is_divided else None
    tW = by_tokens.partition_A(sW.map_layout(lambda layout: tw.select(layout, 1, 0, 2)))
    turned = sKV[:, :, 0].map_layout(lambda layout: tw.select(layout, 1, 0))
    wide = plan.head // plan.parts
    turned_k = [by_tokens.partition_B(tw.local_tile(turned, (wide, plan.rows), (n, 0))) for n in range(plan.parts)]
    acc_k, acc_v = (tw.registers(tw.float32, plan.sums.partition_shape((plan.rows, plan.head), "C")) for _ in "KV")
    tw.clear(acc_k)
    tw.clear(acc_v)
    whole_tile = tw.identity_tensor((plan.rows, plan.columns))
    # Where the values are in the tile: those of a thread are as far from its first one as those of thread 0.
    at, at_of_first = (
        tw.accumulator_rows(plan.scores, plan.scores.get_slice(n).partition_C(whole_tile)) for n in (of_scores, 0)
    )
    rows, columns = tw.size(at.shape[0]), tw.size(at.shape[1])
    part_of_step = tw.make_tensor(sums_of_step.engine, plan.quads)
    writer, stages = plan.write.get_slice(of_scores), plan.smem_w.shape[2]
    reader = plan.read.get_slice(of_scores)

    begin, end, group = place.begin, place.end, Q.shape[1] // K.shape[1]
    first, extent = place.tile * plan.rows, place.tokens
    beside = first + extent - place.keys

    def fragment(mma, *extents):
        return tw.registers(tw.float32, mma.partition_shape(extents, "C"))

    def slot_of(n):
        """Return where W of step n is, and how often that was written before."""
        return (1, n) if plan.is_divided else (n % stages, n // stages)

    def begin_tokens(n, part):
        """Begin the product of step n with W^T, when all consumers have written theirs; return the sums."""
        acc, (slot, uses) = fragment(plan.tokens, plan.columns, wide), slot_of(n)
        written[slot].wait(uses % 2)
        tw.wgmma_fence()
        tw.gemm(plan.tokens, tW[:, :, :, slot], turned_k[part], acc, accumulate=False)
        tw.wgmma_commit()
        return acc

    def put(slot, values):
        tw.copy(plan.write, writer.retile_S(values.to(K.dtype)), writer.partition_D(sW[:, :, slot]))
        tw.fence_proxy_async()
        signal(written[slot])

    def begin_scores(which, stage, acc):
        tw.wgmma_fence()
        tw.gemm(plan.scores, tKV[:, :, :, which], tQG[:, :, :, which * plan.stages + stage], acc, accumulate=False)
        tw.wgmma_commit()

    def weigh(scores, stage, column):
        """Compute P, of what tokens see."""
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
            token = at[0, 0][1] + at_of_first[0, c][1]
            scores[:, c] = tw.ex2_approx(scores[:, c] * scale - s_tops[token, stage], ftz=True)

    def incline(slopes, shares, stage):
        """Compute W from P."""
        for c in tw.static_range(columns):
            token = at[0, 0][1] + at_of_first[0, c][1]
            slopes[:, c] = shares[:, c].to(tw.float32) * (slopes[:, c] - s_deltas[token, stage])

    @tw.function
    def pass_on(n, acc, part):
        """Give the sums of step n to the warp that adds them; the first one is step 1."""
        # Four values of a thread at a time: no two threads meet at a bank.
        pieces = plan.pieces // plan.parts
        quads = tw.size(acc.layout) // 4 // pieces
        values = acc.map_layout(lambda _: tw.Layout((pieces, quads, 4), (4 * quads, 4, 1)))
        for piece in tw.static_range(pieces):
            empty[consumer].wait(((n - 1) * plan.pieces + part * pieces + piece + 1) % 2)
            for each in tw.static_range(quads):
                tw.copy(values[piece, each, :], part_of_step[each, tid % WARPGROUP, :, consumer])
            tw.fence_proxy_async()
            signal(full[2 * consumer + 1 - n % 2])

    def put_own(values):
        for which in tw.static_range(2):
            if consumer == which:
                put(which, values)

    @tw.function
    def multiply(n, stage, column, S):
        """Compute a step of 64 keys: P and W stay in registers, and W is written for the next step too."""
        dP = fragment(plan.scores, plan.rows, plan.columns)
        scores, slopes = tw.accumulator_rows(plan.scores, S), tw.accumulator_rows(plan.scores, dP)
        begin_scores(1, stage, dP)
        tw.wgmma_wait(1)
        weigh(scores, stage, column)
        weights = tw.as_operand_a(plan.scores, S, to=plan.sums)
        # Long rows of scores do not fit into registers beside all else; as weights they do.
        shares = scores
        if plan.columns > 64:
            shares = tw.accumulator_rows(plan.scores, tw.make_tensor(weights.engine, S.layout))
        tw.wgmma_fence()
        tw.gemm(plan.sums, weights, turned_qg[:, :, :, plan.stages + stage], acc_v)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        incline(slopes, shares, stage)
        used[n % stages].wait((n // stages + 1) % 2)
        put(n % stages, dP)
        steep = tw.as_operand_a(plan.scores, dP, to=plan.sums)
        acc_q = begin_tokens(n - 1, 0)
        tw.gemm(plan.sums, steep, turned_qg[:, :, :, stage], acc_k)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        signal(used[(n - 1) % stages])
        if n > 1:
            pass_on(n - 1, acc_q, 0)

    @tw.function
    def divide(n, stage, column, S):
        """Compute a step of half of the head: one consumer has P, and the other one W."""
        scores = tw.accumulator_rows(plan.scores, S)
        if consumer == 0:
            weigh(scores, stage, column)
            used[0].wait((n - 1) % 2)
            put(0, S)
        else:
            shares = tw.registers(K.dtype, plan.scores.partition_shape((plan.rows, plan.columns), "C"))
            written[0].wait(n % 2)
            tw.copy(plan.read, reader.partition_S(sW[:, :, 0]), reader.retile_D(shares))
            incline(scores, tw.accumulator_rows(plan.scores, shares), stage)
            used[1].wait((n - 1) % 2)
            put(1, S)
        written[0].wait(n % 2)
        tw.wgmma_fence()
        tw.gemm(plan.sums, tP[:, :, :, 0], turned_qg[:, :, :, plan.stages + stage], acc_v)
        tw.wgmma_commit()
        acc_q = begin_tokens(n, 0)
        tw.gemm(plan.sums, tP[:, :, :, 1], turned_qg[:, :, :, stage], acc_k)
        tw.wgmma_commit()
        tw.wgmma_wait(1)
        signal(used[0])
        pass_on(n, acc_q, 0)

    # Before the first step there is none: its weights are zeros.
    none = fragment(plan.scores, plan.rows, plan.columns)
    tw.clear(none)
    if plan.is_divided:
        put_own(none)
        signal(used[0])
    else:
        put(0, none)
    there.acquire()
    if place.is_cut:
        clear_behind([sKV[:, :, 0], sKV[:, :, 1]], tw.maximum(place.keys - first, 0), plan)
    steps = group * (end - begin)
    column, heads_left = (end - 1) * plan.columns, group
    for n in tw.range(1, steps + 1, unroll=1):
        stage = state.acquire()
        if place.is_packed:
            clear_behind([sQG[:, :, stage], sQG[:, :, plan.stages + stage]], extent - column, plan)
        S = fragment(plan.scores, plan.rows, plan.columns)
        if plan.is_divided:  # passed on under this product, and the other half under that of dK
            acc_q = begin_tokens(n - 1, 1)
        begin_scores(consumer if plan.is_divided else 0, stage, S)
        tw.wgmma_wait(1)  # the product of the step before with its W
        if plan.is_divided:
            signal(used[1])
        if n > 1:
            state.give_back(tw.where(stage == 0, plan.stages, stage) - 1)
            if plan.is_divided:
                pass_on(n - 1, acc_q, 1)
        if plan.is_divided:
            tw.wgmma_wait(0)
            divide(n, stage, column, S)
        else:
            multiply(n, stage, column, S)
        column = tw.where(heads_left == 1, column - plan.columns, column)
        heads_left = tw.where(heads_left == 1, group, heads_left - 1)
    if plan.is_divided:  # or the compiler moves sums of the loop while a product is under way, and serialises products
        tw.wgmma_wait(0)
    acc_q = begin_tokens(steps, plan.parts - 1)
    tw.wgmma_wait(0)
    if steps > 0:
        pass_on(steps, acc_q, plan.parts - 1)
    acc_k *= factor
    store(dK, acc_k, place, plan)
    store(dV, acc_v, place, plan)


@tw.function
def store(target, acc, place, plan):
    """Store a consumer's rows."""
    thread, rows = plan.sums.get_slice(tw.thread_idx.x - WARPGROUP), target[place.batch, place.head, ...]
    if place.is_packed:
        rows = rows[place.first_key : place.first_key + place.keys, :]
    part = tw.local_tile(tw.guarded(rows), (plan.rows, plan.head), (place.tile, 0))
    tw.copy(acc.to(target.dtype), thread.partition_C(part))


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
