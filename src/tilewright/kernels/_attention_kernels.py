"""Attention and its gradients by products of tiles; device code, traced into kernels.

All arrays have the modes (batch, heads, tokens, head). Sequences that follow one another in one array are parts of its
tokens, from `offsets[n]` to `offsets[n + 1]`; their arrays have one batch. Row r of m tokens sees key c of n where

    -left <= c - r - (n - m) <= right

so that the last token is beside the last key. Both products take tiles of `rows` tokens that stay in shared memory and
tiles of `columns` keys that go by; the gradients of keys and values are the same with tokens and keys exchanged. Scores
are in units of log 2: exp(x) is exp2(x log2(e)).
"""

from __future__ import annotations

import math

import tilewright as tw
from tilewright.kernels._attention_sequences import held_sequence_of
from tilewright.kernels._row_kernels import LOG2E, LOWEST, held_part, row_number, row_of, wide

LN2 = math.log(2)


# --- which part a block has -----------------------------------------------------------------------------------------


@tw.function
def part_of(x, offsets, lengths, sequence):
    """Return where a sequence is in an array: its batch, its first token, and how many tokens it has.

    Numbers that lead out of the array are cut off there. A sequence behind the last one has no tokens.
    """
    extent = x.shape[2]
    if offsets is not None:
        begin = tw.minimum(tw.maximum(tw.guarded(offsets)[sequence].to(tw.int32), 0), extent)
        end = tw.minimum(tw.maximum(tw.guarded(offsets)[sequence + 1].to(tw.int32), begin), extent)
        return 0, begin, end - begin
    if lengths is not None:
        return sequence, 0, tw.minimum(tw.maximum(lengths[sequence].to(tw.int32), 0), extent)
    return sequence, 0, extent


@tw.function
def place_of(x, offsets, rows, number):
    """Return tile `number`, its head, and its sequence; the longest rows of a causal mask begin first.

    With offsets, tiles are counted over the sequences, and some numbers have a sequence behind the last one.
    """
    heads = x.shape[1]
    if offsets is None:
        tiles = tw.ceil_div(x.shape[2], rows)
        return tiles - 1 - number % tiles, number // tiles % heads, number // tiles // heads
    count = offsets.shape[0] - 1
    slots = x.shape[2] // rows + count
    rest, sequence = number % slots, tw.int32(0)
    tiles = tw.ceil_div(part_of(x, offsets, None, sequence)[2], rows)
    while (sequence < count) & (rest >= tiles):
        rest, sequence = rest - tiles, sequence + 1
        tiles = tw.ceil_div(part_of(x, offsets, None, sequence)[2], rows)
    return rest, number // slots, sequence


def matrix_of(x, part, head):
    """Return the tokens of a part and a head, guarded: (tokens, head)."""
    batch, begin, count = part
    return tw.guarded(x[batch, head, begin : begin + count, :])


def numbers_of(x, part, head):
    """Return the numbers of tokens, as lse, of a part and a head, guarded."""
    batch, begin, count = part
    return tw.guarded(x[batch, head, begin : begin + count])


# --- tiles ----------------------------------------------------------------------------------------------------------


class Operand:
    """An operand in shared memory, read into registers a step of K at a time."""

    def __init__(self, loader, fragment, smem):
        self.loader, self.fragment = loader, fragment
        part = loader.get_slice(tw.thread_idx.x)
        self.source, self.target = part.partition_S(smem), part.retile_D(fragment)
        self.steps = tw.size(fragment.shape[2])

    def load(self, i, stage=None):
        """Return the fragment of step i of K."""
        source = self.source[:, :, i] if stage is None else self.source[:, :, i, stage]
        tw.copy(self.loader, source, self.target[:, :, i])
        return self.fragment[:, :, i]


def resident(plan, thread, smem):
    """Return A in shared memory."""
    return Operand(plan.load_a, thread.partition_fragment_A(smem), smem)


def streamed(plan, thread, smem):
    """Return B in shared memory, (columns, head, stages)."""
    return Operand(plan.load_b, thread.partition_fragment_B(smem[:, :, 0]), smem)


def transposed(plan, thread, smem):
    """Return B of the second product, (head, columns, stages)."""
    turned = smem.map_layout(lambda layout: tw.select(layout, 1, 0, 2))
    return Operand(plan.load_t, thread.partition_fragment_B(turned[:, :, 0]), turned)


def multiply(plan, acc, a, b, stage):
    """Add the product of A and B in shared memory to an accumulator."""
    for i in tw.static_range(a.steps):
        tw.gemm(plan.mma, acc, a.load(i), b.load(i, stage), acc)


class Weights:
    """An accumulator handed on as A of the next product: in registers, or through shared memory where it has to be."""

    def __init__(self, plan, thread):
        self.plan = plan
        if plan.smem_p is not None:
            self.smem = tw.shared(plan.dtype, plan.smem_p)
            self.part = thread.partition_C(self.smem)
            self.operand = resident(plan, thread, self.smem)

    def put(self, fragment):
        """Write the tile where it passes through shared memory. A barrier has to follow."""
        if self.plan.smem_p is not None:
            tw.copy(fragment.to(self.plan.dtype), self.part)

    def multiply(self, acc, fragment, b, stage):
        """Add the product with B to an accumulator."""
        plan = self.plan
        if plan.smem_p is not None:
            multiply(plan, acc, self.operand, b, stage)
        else:
            weights = tw.as_operand_a(plan.mma, fragment, plan.dtype)
            for i in tw.static_range(tw.size(weights.shape[2])):
                tw.gemm(plan.mma, acc, weights[:, :, i], b.load(i, stage), acc)


def fill(copy, source, tile, target):
    """Begin to copy a tile of rows into shared memory."""
    part = copy.get_slice(tw.thread_idx.x)
    shape = (target.shape[0], target.shape[1])
    tw.copy(copy, part.partition_S(tw.local_tile(source, shape, (tile, 0))), part.partition_D(target))


def power(x, dtype):
    """Return 2^x: for 16 bits by one instruction, whose results below 2^-126 are 0."""
    return tw.ex2_approx(x, ftz=True) if dtype.bits <= 16 else tw.exp2(x)


@tw.function
def columns_seen(first, offset, before, after, extent, plan):
    """Return the tiles of columns that rows see from `first` on: the first one, and the one behind the last."""
    begin = tw.maximum(first + offset - before, 0) // plan.columns
    end = tw.ceil_div(tw.minimum(extent, first + plan.rows + offset + after), plan.columns)
    return begin, tw.maximum(end, begin)


@tw.function
def mask(scores, at, first, column, offset, before, after, extent, plan):
    """Give -inf to scores of columns that do not exist or that a row does not see."""
    last = first + plan.rows - 1
    inside = (column + plan.columns <= extent) & (column + plan.columns - 1 <= first + offset + after)
    if ~(inside & (column >= last + offset - before)):
        for r in tw.static_range(tw.size(scores.shape[0])):
            row = at[r, 0][0] + first + offset
            least, most = row - before, tw.minimum(row + after, extent - 1)
            for c in tw.static_range(tw.size(scores.shape[1])):
                place = at[0, c][1] + column
                scores[r, c] = tw.where((place >= least) & (place <= most), scores[r, c], -math.inf)


@tw.function
def clear_behind(plan, acc, at, count):
    """Clear the rows of an accumulator behind so many: 0 times what is not finite would be NaN there."""
    values = tw.accumulator_rows(plan.mma, acc)
    for r in tw.static_range(tw.size(values.shape[0])):
        for c in tw.static_range(tw.size(values.shape[1])):
            values[r, c] = tw.where(at[r, 0][0] < count, values[r, c], 0)


# --- forward --------------------------------------------------------------------------------------------------------


@tw.kernel
def attend(
    out, lse, Q, K, V, tokens_at, keys_at, lengths, scale, left, right, is_in_parts: tw.constexpr, plan: tw.constexpr
):
    """Compute a tile of out, and of lse = log(sum(exp(scores))) unless it is None; `scale` has the factor log2(e).

    In parts of keys, out and lse have a batch for each part and batch, in the type of lse; see `add_parts`.
    """
    kind, thread = wide(Q.dtype), plan.mma.get_slice(tw.thread_idx.x)
    parts = out.shape[0] // Q.shape[0] if is_in_parts else 1
    tile, head, sequence = place_of(Q, tokens_at, plan.rows, tw.block_idx.x // parts)
    of_tokens, of_keys = part_of(Q, tokens_at, None, sequence), part_of(K, keys_at, lengths, sequence)
    shared_head, keys = head // (Q.shape[1] // K.shape[1]), of_keys[2]
    q, k, v = matrix_of(Q, of_tokens, head), matrix_of(K, of_keys, shared_head), matrix_of(V, of_keys, shared_head)
    first, ahead = tile * plan.rows, keys - of_tokens[2]
    begin, end = columns_seen(first, ahead, left, right, keys, plan)
    of_results = of_tokens
    if is_in_parts:
        part, steps = tw.block_idx.x % parts, end - begin
        begin, end = begin + steps * part // parts, begin + steps * (part + 1) // parts
        of_results = (part * Q.shape[0] + of_tokens[0], *of_tokens[1:])

    sQ, sK, sV = (tw.shared(plan.dtype, layout) for layout in (plan.smem_a1, plan.smem_b1, plan.smem_b2))
    weights = Weights(plan, thread)
    by_rows, by_keys, by_values = resident(plan, thread, sQ), streamed(plan, thread, sK), transposed(plan, thread, sV)
    S = tw.registers(kind, plan.mma.partition_shape((plan.rows, plan.columns), "C"))
    acc = tw.registers(kind, plan.mma.partition_shape((plan.rows, plan.value_head), "C"))
    scores, sums = tw.accumulator_rows(plan.mma, S), tw.accumulator_rows(plan.mma, acc)
    at = tw.accumulator_rows(plan.mma, thread.partition_C(tw.identity_tensor((plan.rows, plan.columns))))
    rows = tw.size(scores.shape[0])
    top, total = (tw.registers(kind, rows) for _ in ("greatest score", "sum of weights"))
    tw.fill(top, LOWEST[kind])  # not -inf, because -inf - -inf is NaN
    tw.clear(total)
    tw.clear(acc)

    def bring(step):
        if step < end:
            fill(plan.fill1, k, step, sK[:, :, step % plan.stages])
            fill(plan.fill2, v, step, sV[:, :, step % plan.stages])
        if plan.is_async:
            tw.cp_async_commit()

    fill(plan.fill1, q, tile, sQ)
    if plan.stages > 1:
        bring(begin)
    for step in tw.range(begin, end, unroll=1):
        stage = step % plan.stages
        bring(step + plan.stages - 1)
        if plan.is_async:
            tw.cp_async_wait(plan.stages - 1)
        tw.sync_threads()
        tw.clear(S)
        multiply(plan, S, by_rows, by_keys, stage)
        S *= scale
        mask(scores, at, first, step * plan.columns, ahead, left, right, keys, plan)
        greatest = tw.reduce_rows(plan.mma, S, "max")
        for r in tw.static_range(rows):
            best = tw.maximum(top[r], greatest[r, 0])
            factor, top[r] = power(top[r] - best, plan.dtype), best
            scores[r, :] = power(scores[r, :] - best, plan.dtype)
            total[r] *= factor
            sums[r, :] *= factor
        weights.put(S)
        added = tw.reduce_rows(plan.mma, S, "add")
        for r in tw.static_range(rows):
            total[r] += added[r, 0]
        if plan.smem_p is not None:
            tw.sync_threads()
        weights.multiply(acc, S, by_values, stage)
        tw.sync_threads()

    if lse is not None:
        numbers = numbers_of(lse, of_results, head)
        for r in tw.static_range(rows):
            if at[r, 0][1] == 0:
                found = (top[r] + tw.log2(total[r])) * LN2
                numbers[at[r, 0][0] + first] = tw.where(total[r] == 0, -math.inf, found)
    for r in tw.static_range(rows):
        sums[r, :] *= tw.where(total[r] == 0, 0, 1 / total[r])  # a row may see no key
    target = tw.local_tile(matrix_of(out, of_results, head), (plan.rows, plan.value_head), (tile, 0))
    tw.copy(acc.to(out.dtype), thread.partition_C(target))


@tw.kernel
def add_parts(out, lse, sums, numbers, is_early: tw.constexpr, columns: tw.constexpr, groups: tw.constexpr):
    """Compute out, and lse unless it is None, of parts of the keys: the mean of `sums` weighted by exp(`numbers`).

    Those have a batch for each part and batch. A block has a row: groups of threads, a thread for each of `columns`.
    """
    kind, row, (batches, heads, tokens, head) = sums.dtype, tw.block_idx.x, out.shape
    batch, place, parts = row // (heads * tokens), (row // tokens % heads, row % tokens), sums.shape[0] // batches
    column, group, lane = tw.thread_idx.x % columns, tw.thread_idx.x // columns, tw.lane_id()
    if is_early:
        tw.grid_dependency_wait()  # up to here this ran beside the parts
    top, total, found = kind(LOWEST[kind]), kind(0), kind(0)  # not -inf, because -inf - -inf is NaN
    for part in range(lane, parts, 32):
        top = tw.maximum(top, numbers[(part * batches + batch, *place)])
    top = tw.reduce(top, "max", group=32)
    for part in range(lane, parts, 32):
        total += tw.exp(numbers[(part * batches + batch, *place)] - top)
    total = tw.reduce(total, "add", group=32)
    if column < head:
        for part in tw.range(group, parts, groups, unroll=4):
            at = (part * batches + batch, *place)
            found += tw.exp(numbers[at] - top) * sums[(*at, column)]
    of_groups = tw.shared(kind, (groups, columns))
    of_groups[group, column] = found
    tw.sync_threads()
    if (group == 0) & (column < head):
        for other in tw.static_range(1, groups):
            found += of_groups[other, column]
        out[(batch, *place, column)] = (found * tw.where(total == 0, 0, 1 / total)).to(out.dtype)
        if lse is not None and column == 0:
            lse[(batch, *place)] = tw.where(total == 0, -math.inf, top + tw.log(total))


# --- backward -------------------------------------------------------------------------------------------------------


@tw.kernel
def sum_products(
    total, tops, grad, out, lse, subtracted, sums, turns, tokens_at,
    rows: tw.constexpr, tiles: tw.constexpr, columns: tw.constexpr,
):  # fmt: skip
    """Compute sum(grad * out) of each row, less the row's gradient of lse, unless that is None.

    `tops` is lse in units of log 2, and 0 where a row sees no key: its weights are exp2(-inf - 0). What total and tops
    have behind the tokens becomes 0, and so do `sums` (batch, heads, tokens and more, head) and `turns`, unless None.
    With `tokens_at`, a tile of `rows` tokens of a sequence has numbers and sums of its own.
    """
    at, kind = row_number(), wide(out.dtype)
    heads, tokens = out.shape[1:3]
    source = at
    if tokens_at is not None:  # from here on, tokens are those of all tiles
        all_tokens, tokens = tokens, total.shape[2]
        row, count, first, _ = held_sequence_of(at % tokens // rows, tokens_at, all_tokens, rows)
        row += at % tokens % rows
        token = tw.where(row < count, first + row, 0)
        source = at // tokens * all_tokens + token
    parts = [held_part(row_of(x, source), tiles, columns).to(kind) for x in (grad, out)]
    found = tw.reduce(parts[0] * parts[1], "add", tiles.size)
    place = (at // (heads * tokens), at // tokens % heads, at % tokens)
    if at < out.shape[0] * heads * tokens:
        if tw.thread_idx.x == 0:
            of_token = place if tokens_at is None else (*place[:2], token)
            if subtracted is not None:
                found = found - subtracted[of_token].to(kind)
            top = lse[of_token]
            if tokens_at is not None:
                found, top = (tw.where(row < count, x, y) for x, y in ((found, 0), (top, -math.inf)))
            total[place], tops[place] = found, tw.where(top == -math.inf, 0, top * kind(LOG2E))
        if place[2] == tokens - 1:
            for token in range(tokens + tw.thread_idx.x, total.shape[2], tiles.size):
                behind = (*place[:2], token)
                total[behind], tops[behind] = kind(0), kind(0)
        if sums is not None:
            # The last token's threads clear what is behind it too.
            last = tw.where(place[2] == tokens - 1, sums.shape[2], place[2] + 1)
            for token in range(place[2], last):
                clear_row(sums[(*place[:2], token, ...)], tiles)
            if turns is not None and place[2] == tokens - 1:
                for number in range(tw.thread_idx.x, turns.shape[2], tiles.size):
                    turns[(*place[:2], number)] = 0


@tw.function
def clear_row(row, tiles):
    """Write zeros to a row of whole vectors."""
    zeros = tw.registers(row.dtype, 4)
    tw.clear(zeros)
    for number in range(tw.thread_idx.x, row.shape[0] // 4, tiles.size):
        tw.copy(zeros, tw.local_tile(row, (4,), (number,)))


@tw.kernel
def gradient_of_tokens(
    dQ, Q, dO, K, V, tops, delta, tokens_at, keys_at, lengths, scale, factor, left, right, plan: tw.constexpr
):
    """Compute a tile of dQ = scale * W K with W = P (dO V^T - delta), P = exp2(scores - tops)."""
    kind, thread = wide(Q.dtype), plan.mma.get_slice(tw.thread_idx.x)
    tile, head, sequence = place_of(Q, tokens_at, plan.rows, tw.block_idx.x)
    of_tokens, of_keys = part_of(Q, tokens_at, None, sequence), part_of(K, keys_at, lengths, sequence)
    shared_head, keys = head // (Q.shape[1] // K.shape[1]), of_keys[2]
    q, grad = matrix_of(Q, of_tokens, head), matrix_of(dO, of_tokens, head)
    k, v = matrix_of(K, of_keys, shared_head), matrix_of(V, of_keys, shared_head)
    first, ahead = tile * plan.rows, keys - of_tokens[2]
    begin, end = columns_seen(first, ahead, left, right, keys, plan)

    sQ, sG, sK, sV = (tw.shared(plan.dtype, x) for x in (plan.smem_a1, plan.smem_a2, plan.smem_b1, plan.smem_b2))
    weights = Weights(plan, thread)
    a1, a2, b1, b2 = (
        *(resident(plan, thread, x) for x in (sQ, sG)), *(streamed(plan, thread, x) for x in (sK, sV))
    )  # fmt: skip
    turned = transposed(plan, thread, sK)
    S, dP = (tw.registers(kind, plan.mma.partition_shape((plan.rows, plan.columns), "C")) for _ in "SP")
    acc = tw.registers(kind, plan.mma.partition_shape((plan.rows, plan.head), "C"))
    scores, slopes = tw.accumulator_rows(plan.mma, S), tw.accumulator_rows(plan.mma, dP)
    at = tw.accumulator_rows(plan.mma, thread.partition_C(tw.identity_tensor((plan.rows, plan.columns))))
    rows = tw.size(scores.shape[0])
    top, least = tw.registers(kind, rows), tw.registers(kind, rows)
    for r in tw.static_range(rows):
        top[r] = numbers_of(tops, of_tokens, head)[at[r, 0][0] + first]
        least[r] = numbers_of(delta, of_tokens, head)[at[r, 0][0] + first]
    tw.clear(acc)

    def bring(step):
        if step < end:
            fill(plan.fill1, k, step, sK[:, :, step % plan.stages])
            fill(plan.fill2, v, step, sV[:, :, step % plan.stages])
        if plan.is_async:
            tw.cp_async_commit()

    fill(plan.fill1, q, tile, sQ)
    fill(plan.fill2, grad, tile, sG)
    if plan.stages > 1:
        bring(begin)
    for step in tw.range(begin, end, unroll=1):
        stage = step % plan.stages
        bring(step + plan.stages - 1)
        if plan.is_async:
            tw.cp_async_wait(plan.stages - 1)
        tw.sync_threads()
        tw.clear(S)
        tw.clear(dP)
        multiply(plan, S, a1, b1, stage)
        multiply(plan, dP, a2, b2, stage)
        S *= scale
        mask(scores, at, first, step * plan.columns, ahead, left, right, keys, plan)
        for r in tw.static_range(rows):
            slopes[r, :] = power(scores[r, :] - top[r], plan.dtype) * (slopes[r, :] - least[r])
        weights.put(dP)
        if plan.smem_p is not None:
            tw.sync_threads()
        weights.multiply(acc, dP, turned, stage)
        tw.sync_threads()
    acc *= factor
    target = tw.local_tile(matrix_of(dQ, of_tokens, head), (plan.rows, plan.head), (tile, 0))
    tw.copy(acc.to(dQ.dtype), thread.partition_C(target))


@tw.kernel
def gradients_of_keys(
    dK, dV, K, V, Q, dO, tops, delta, tokens_at, keys_at, lengths, scale, factor, left, right, plan: tw.constexpr
):
    """Compute a tile of dK = scale * W^T Q and dV = P^T dO, over all tokens and heads that see these keys.

    Scores are computed transposed, keys by tokens, so that weights are the operand A of both products.
    """
    kind, thread = wide(Q.dtype), plan.mma.get_slice(tw.thread_idx.x)
    tile, shared_head, sequence = place_of(K, keys_at, plan.rows, tw.block_idx.x)
    of_tokens, of_keys = part_of(Q, tokens_at, None, sequence), part_of(K, keys_at, lengths, sequence)
    group, tokens = Q.shape[1] // K.shape[1], of_tokens[2]
    k, v = matrix_of(K, of_keys, shared_head), matrix_of(V, of_keys, shared_head)
    first, behind = tile * plan.rows, tokens - of_keys[2]
    begin, end = columns_seen(first, behind, right, left, tokens, plan)

    sK, sV, sQ, sG = (tw.shared(plan.dtype, x) for x in (plan.smem_a1, plan.smem_a2, plan.smem_b1, plan.smem_b2))
    weights, of_slopes = Weights(plan, thread), Weights(plan, thread)
    a1, a2, b1, b2 = (
        *(resident(plan, thread, x) for x in (sK, sV)), *(streamed(plan, thread, x) for x in (sQ, sG))
    )  # fmt: skip
    turned_q, turned_g = transposed(plan, thread, sQ), transposed(plan, thread, sG)
    S, dP = (tw.registers(kind, plan.mma.partition_shape((plan.rows, plan.columns), "C")) for _ in "SP")
    sum_k, sum_v = (
        tw.registers(kind, plan.mma.partition_shape((plan.rows, n), "C")) for n in (plan.head, plan.value_head)
    )
    scores, slopes = tw.accumulator_rows(plan.mma, S), tw.accumulator_rows(plan.mma, dP)
    at = tw.accumulator_rows(plan.mma, thread.partition_C(tw.identity_tensor((plan.rows, plan.columns))))
    tw.clear(sum_k)
    tw.clear(sum_v)

    fill(plan.fill1, k, tile, sK)
    fill(plan.fill2, v, tile, sV)
    for member in range(group):
        head = shared_head * group + member
        q, grad = matrix_of(Q, of_tokens, head), matrix_of(dO, of_tokens, head)
        of_head = [numbers_of(x, of_tokens, head) for x in (tops, delta)]

        def bring(step, q=q, grad=grad):
            if step < end:
                fill(plan.fill1, q, step, sQ[:, :, step % plan.stages])
                fill(plan.fill2, grad, step, sG[:, :, step % plan.stages])
            if plan.is_async:
                tw.cp_async_commit()

        if plan.stages > 1:
            bring(begin)
        for step in tw.range(begin, end, unroll=1):
            stage = step % plan.stages
            bring(step + plan.stages - 1)
            if plan.is_async:
                tw.cp_async_wait(plan.stages - 1)
            tw.sync_threads()
            tw.clear(S)
            tw.clear(dP)
            multiply(plan, S, a1, b1, stage)
            multiply(plan, dP, a2, b2, stage)
            S *= scale
            mask(scores, at, first, step * plan.columns, behind, right, left, tokens, plan)
            for c in tw.static_range(tw.size(scores.shape[1])):
                token = at[0, c][1] + step * plan.columns
                top, least = of_head[0][token], of_head[1][token]
                scores[:, c] = power(scores[:, c] - top, plan.dtype)
                slopes[:, c] = scores[:, c] * (slopes[:, c] - least)
            weights.put(S)
            of_slopes.put(dP)
            if plan.smem_p is not None:
                tw.sync_threads()
            weights.multiply(sum_v, S, turned_g, stage)
            of_slopes.multiply(sum_k, dP, turned_q, stage)
            tw.sync_threads()
    sum_k *= factor
    for x, acc, head in ((dK, sum_k, plan.head), (dV, sum_v, plan.value_head)):
        place = of_keys
        if lengths is not None:  # keys behind the number that the sequence has: nothing sees them
            place = sequence, 0, x.shape[2]
            clear_behind(plan, acc, at, of_keys[2] - first)
        target = tw.local_tile(matrix_of(x, place, shared_head), (plan.rows, head), (tile, 0))
        tw.copy(acc.to(x.dtype), thread.partition_C(target))
