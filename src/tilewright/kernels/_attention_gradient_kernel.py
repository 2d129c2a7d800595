"""Gradients of attention by warpgroups; device code, traced into kernels.

Two kernels of one text. `rows` stay in shared memory, `columns` go by in a ring that a producer fills by TMA:

    of tokens    rows are tokens    A1, A2 = Q, dO    B1, B2 = K, V     dQ = scale * W B1
    of keys      rows are keys      A1, A2 = K, V     B1, B2 = Q, dO    dK = scale * W B1, dV = P B2

with P = exp2(scale A1 B1^T - tops), W = P (A2 B2^T - delta), where tops and delta are numbers of tokens. Where rows are
keys, scores are transposed, so that P and W are operand A of the second products, and stay in registers. Each consumer
has 64 rows. The second products of a step are under way while the first ones of the next step begin. Where columns are
tokens, their numbers come with them: loads of global memory would be waited for in each step.
"""

from __future__ import annotations

import math

import tilewright as tw

WARPGROUP = 128
LOAD, LOAD_NUMBERS = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_BULK_COPY_G2S


@tw.kernel
def gradients_by_warpgroups(D1, D2, A1, A2, B1, B2, tops, deltas, scale, factor, before, after, plan: tw.constexpr):
    """Compute a tile of D1, and of D2 where rows are keys.

    `tops` is lse in units of log 2, and 0 where a token sees no key; behind the last token, tops and deltas have finite
    numbers for a tile more. `scale` has the factor log2(e) and is positive. A
    row sees `before` and `after` columns before and behind the one beside it.
    """
    sA1, sA2 = (tw.shared(A1.dtype, plan.smem_a) for _ in "12")
    sB1, sB2 = (tw.shared(A1.dtype, plan.smem_b) for _ in "12")
    warps = 4 * plan.consumers
    there = tw.pipeline(1, consumers=warps, bytes=4 * plan.rows * plan.head)
    bytes_of_numbers = 8 * plan.columns if plan.of_keys else 0
    ring = tw.pipeline(plan.smem_b.shape[2], consumers=warps, bytes=4 * plan.columns * plan.head + bytes_of_numbers)
    numbers = tw.shared(tw.float32, (plan.columns, 2, plan.smem_b.shape[2])) if plan.of_keys else None
    tw.sync_threads()  # the barriers are there
    if tw.warpgroup_id() == 0:
        tw.set_registers(plan.registers[0])
        if tw.thread_idx.x == 0:
            bring(
                A1, A2, B1, B2, tops, deltas, sA1, sA2, sB1, sB2, numbers, there.producer(), ring.producer(),
                before, after, plan,
            )  # fmt: skip
    else:
        tw.set_registers(plan.registers[1])
        add_up(
            D1, D2, A1, B1, tops, deltas, scale, factor, before, after, sA1, sA2, sB1, sB2, numbers,
            there.consumer(), ring.consumer(), plan,
        )  # fmt: skip


@tw.function
def place_of(A1, B1, before, after, plan):
    """Return a block's tile, head and batch, and the tiles of columns that its rows see: begin, end.

    The longest rows of a causal mask begin first: the last tokens, and the first keys.
    """
    tiles, number = tw.ceil_div(A1.shape[2], plan.rows), tw.block_idx.x
    tile = number % tiles if plan.of_keys else tiles - 1 - number % tiles
    first = tile * plan.rows + B1.shape[2] - A1.shape[2]
    begin = tw.maximum(first - before, 0) // plan.columns
    end = tw.ceil_div(tw.minimum(B1.shape[2], first + plan.rows + after), plan.columns)
    return tile, number // tiles % A1.shape[1], number // tiles // A1.shape[1], begin, tw.maximum(end, begin)


@tw.function
def heads_of(A1, B1, head, plan):
    """Return the first head of B, and how many there are: a group where rows are keys."""
    if plan.of_keys:
        group = B1.shape[1] // A1.shape[1]
        return head * group, group
    return head // (A1.shape[1] // B1.shape[1]), 1


@tw.function
def bring(A1, A2, B1, B2, tops, deltas, sA1, sA2, sB1, sB2, numbers, there, state, before, after, plan):
    """Bring rows once, and columns in the order in which they are used."""
    tile, head, batch, begin, end = place_of(A1, B1, before, after, plan)
    with there.fill() as (_, full):
        for rows, target in ((A1, sA1), (A2, sA2)):
            source = tw.guarded(rows)[batch, head, ...]
            tw.copy(LOAD, tw.local_tile(source, (plan.rows, plan.head), (tile, 0)), target, barrier=full)
    first, count = heads_of(A1, B1, head, plan)
    for member in range(count):
        for step in range(begin, end):
            with state.fill() as (stage, full):
                for columns, target in ((B1, sB1), (B2, sB2)):
                    source = tw.guarded(columns)[batch, first + member, ...]
                    part = tw.local_tile(source, (plan.columns, plan.head), (step, 0))
                    tw.copy(LOAD, part, target[:, :, stage], barrier=full)
                if plan.of_keys:
                    for n, of_tokens in enumerate((tops, deltas)):
                        part = tw.local_tile(of_tokens[batch, first + member, :], (plan.columns,), (step,))
                        tw.copy(LOAD_NUMBERS, part, numbers[:, n, stage], barrier=full)


@tw.function
def add_up(
    D1, D2, A1, B1, tops, deltas, scale, factor, before, after, sA1, sA2, sB1, sB2, numbers, there, state, plan,
):  # fmt: skip
    """Compute 64 rows of the tile."""
    tid = tw.thread_idx.x - WARPGROUP
    by_scores, by_sums = plan.scores.get_slice(tid), plan.sums.get_slice(tid)
    tA1, tA2 = (by_scores.partition_A(x) for x in (sA1, sA2))
    tB1, tB2 = (by_scores.partition_B(x) for x in (sB1, sB2))
    turned1, turned2 = (
        by_sums.partition_B(x.map_layout(lambda layout: tw.select(layout, 1, 0, 2))) for x in (sB1, sB2)
    )
    S, dP = (tw.registers(tw.float32, plan.scores.partition_shape((plan.rows, plan.columns), "C")) for _ in "SP")
    acc1 = tw.registers(tw.float32, plan.sums.partition_shape((plan.rows, plan.head), "C"))
    tw.clear(acc1)
    if plan.of_keys:
        acc2 = tw.registers(tw.float32, plan.sums.partition_shape((plan.rows, plan.head), "C"))
        tw.clear(acc2)
    scores, slopes = tw.accumulator_rows(plan.scores, S), tw.accumulator_rows(plan.scores, dP)
    # Where the values are in the tile: those of a thread are as far from its first one as those of thread 0.
    whole_tile = tw.identity_tensor((plan.rows, plan.columns))
    at, at_of_first = (
        tw.accumulator_rows(plan.scores, plan.scores.get_slice(n).partition_C(whole_tile)) for n in (tid, 0)
    )
    rows, columns = tw.size(scores.shape[0]), tw.size(scores.shape[1])

    tile, head, batch, begin, end = place_of(A1, B1, before, after, plan)
    _, count = heads_of(A1, B1, head, plan)
    first, extent = tile * plan.rows, B1.shape[2]
    beside = first + extent - A1.shape[2]
    top, least = tw.registers(tw.float32, rows), tw.registers(tw.float32, rows)
    if not plan.of_keys:
        for r in tw.static_range(rows):
            row = at[r, 0][0] + first
            top[r], least[r] = tw.guarded(tops)[batch, head, row], tw.guarded(deltas)[batch, head, row]
    there.acquire()
    used, begun = tw.int32(0), tw.int32(0)
    for _member in range(count):
        for step in tw.range(begin, end, unroll=1):
            stage = state.acquire()
            tw.wgmma_fence()
            tw.gemm(plan.scores, tA1[:, :, :], tB1[:, :, :, stage], S, accumulate=False)
            tw.wgmma_commit()
            tw.gemm(plan.scores, tA2[:, :, :], tB2[:, :, :, stage], dP, accumulate=False)
            tw.wgmma_commit()
            tw.wgmma_wait(1)  # the products with W of the step before too
            if begun > 0:
                state.give_back(used)
            used, begun = stage, begun + 1
            column = step * plan.columns
            is_inside = (column + plan.columns <= extent) & (column + plan.columns - 1 <= beside + after)
            if ~(is_inside & (column >= beside + plan.rows - 1 - before)):
                for r in tw.static_range(rows):
                    row = at[r, 0][0] + beside
                    fewest, most = row - before, tw.minimum(row + after, extent - 1)
                    for c in tw.static_range(columns):
                        place = at[0, c][1] + column
                        scores[r, c] = tw.where((place >= fewest) & (place <= most), scores[r, c], -math.inf)
            if plan.of_keys:
                for c in tw.static_range(columns):
                    token = at[0, 0][1] + at_of_first[0, c][1]
                    scores[:, c] = tw.ex2_approx(scores[:, c] * scale - numbers[token, 0, stage], ftz=True)
                weights = tw.as_operand_a(plan.scores, S, to=plan.sums)
            else:
                for r in tw.static_range(rows):
                    scores[r, :] = tw.ex2_approx(scores[r, :] * scale - top[r], ftz=True)
            tw.wgmma_wait(0)
            if plan.of_keys:
                for c in tw.static_range(columns):
                    token = at[0, 0][1] + at_of_first[0, c][1]
                    slopes[:, c] = scores[:, c] * (slopes[:, c] - numbers[token, 1, stage])
            else:
                for r in tw.static_range(rows):
                    slopes[r, :] = scores[r, :] * (slopes[r, :] - least[r])
            steep = tw.as_operand_a(plan.scores, dP, to=plan.sums)
            tw.wgmma_fence()
            if plan.of_keys:
                tw.gemm(plan.sums, weights, turned2[:, :, :, stage], acc2)
            tw.gemm(plan.sums, steep, turned1[:, :, :, stage], acc1)
            tw.wgmma_commit()
    tw.wgmma_wait(0)
    acc1 *= factor
    store(D1, acc1, tile, head, batch, plan)
    if plan.of_keys:
        store(D2, acc2, tile, head, batch, plan)


@tw.function
def store(target, acc, tile, head, batch, plan):
    """Store a consumer's rows."""
    thread = plan.sums.get_slice(tw.thread_idx.x - WARPGROUP)
    part = tw.local_tile(tw.guarded(target)[batch, head, ...], (plan.rows, plan.head), (tile, 0))
    tw.copy(acc.to(target.dtype), thread.partition_C(part))
