"""Compute attention forward, O = softmax(scale * Q K^T) V, in the schedule of FlashAttention 3 (Shah et al. 2024).

A tile is 128 rows of Q of one head, or 192 where a head has 64 elements; each consumer has 64 of them. It goes through
K and V in tiles of keys, from the last to the first: S = Q K^T, weights P = exp2(S - top), O += P V, where `top` is the
greatest score of a row so far (scores are in units of log 2). Tensor cores and special function units would work in
turns if a consumer did one after the other. Two things let them work at the same time:

- Inside a consumer, S of a tile is begun before P V of the tile before. `tw.wgmma_wait(1)` waits for S alone, and the
  exponentials of this tile run under the product of the last one::

      S(1)  P V(0) | max, exp2 of 1 | S(2)  P V(1) | max, exp2 of 2 | ...

- The consumers take turns at named barriers: one begins both products, then the next one. So while one has its
  softmax, the products of the other run.

The producer brings Q, K and V by TMA, one thread for all, in the order in which they are used: K of a tile before V of
the tile before. K and V share a ring, for a tile of either lies alike in shared memory: rows of keys. Q K^T reads it
with K contiguous, P V through a transposed view with N contiguous (`with_majors("K", "MN")`). P never leaves the
registers: the sums of S are where operand A of the next product is wanted (`tw.as_operand_a`).

The wait for P V stands at the beginning of a step and not behind the softmax of the step before, where it belongs: the
assembler moves arithmetic behind a wait that does not concern it, but not from one step of a loop to the next. O is
scaled between the two products, for it would have to be done before the first one otherwise.

Scores of keys that do not exist, or that a causal mask hides (row r of m sees key c of n where c - n <= r - m), are
-inf; only the last tile of keys and those on the diagonal are looked at. The results leave through the shared memory of
Q's rows by stmatrix and TMA, while Q of the next tile is in the other of two stages.

Blocks stay, one for each multiprocessor. Tiles of a causal mask are taken from the longest to the shortest, and blocks
turn round after each: the first one to begin is the last one to begin the next time, which keeps their work even.

Any number of tokens and keys; heads of Q may share heads of K and V (grouped queries); heads of 64 and 128 elements.

Run it: `python examples/hopper/10_attention.py`
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe

WARPGROUP = 128
LOAD, STORE = tw.atoms.SM90_TMA_LOAD, tw.atoms.SM90_TMA_STORE


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    rows: int  # of Q in a tile: 64 for each consumer
    keys: int  # in a tile of K and V
    head: int  # elements of a head
    causal: bool
    smem_q: Any  # (rows, head, stages)
    smem_kv: Any  # (keys, head, stages)
    scores: tw.TiledMMA  # S = Q K^T
    output: tw.TiledMMA  # O += P V
    write: tw.TiledCopy  # a consumer's fragments of O to shared memory
    registers: tuple[int, int]  # of the producer and of a consumer

    @property
    def consumers(self) -> int:
        """How many warpgroups multiply."""
        return self.rows // 64


@tw.kernel
def attention(out, Q, K, V, lse, scale: tw.float32, plan: tw.constexpr):
    """Compute out (batch, heads, tokens, head), and lse unless it is None; `scale` includes a factor of log2(e)."""
    sQ, sKV = tw.shared(Q.dtype, plan.smem_q), tw.shared(K.dtype, plan.smem_kv)
    warps = 4 * plan.consumers
    ring_q = tw.pipeline(plan.smem_q.shape[2], consumers=warps, bytes=2 * plan.rows * plan.head)
    ring_kv = tw.pipeline(plan.smem_kv.shape[2], consumers=warps, bytes=2 * plan.keys * plan.head)
    tw.sync_threads()  # the barriers are there
    if tw.warpgroup_id() == 0:
        tw.set_registers(plan.registers[0])
        if tw.thread_idx.x == 0:
            produce(Q, K, V, sQ, sKV, ring_q.producer(), ring_kv.producer(), plan)
    else:
        tw.set_registers(plan.registers[1])
        consume(out, Q, K, lse, scale, sQ, sKV, ring_q.consumer(), ring_kv.consumer(), plan)


@tw.function
def count_turns(Q, plan):
    """Return how many tiles the block computes."""
    tiles = tw.ceil_div(Q.shape[2], plan.rows) * Q.shape[1] * Q.shape[0]
    whole, rest = tiles // tw.grid_dim.x, tiles % tw.grid_dim.x
    return whole + (position(whole) < rest).to(tw.int32)


@tw.function
def position(turn):
    """Return the block's place among those that begin a turn: in their order, and in the opposite one."""
    return tw.where(turn % 2 == 0, tw.block_idx.x, tw.grid_dim.x - 1 - tw.block_idx.x)


@tw.function
def place(turn, Q, K, plan):
    """Return what the block computes: the tile along the tokens, head and batch, and how many tiles of keys it sees."""
    tiles, heads, keys = tw.ceil_div(Q.shape[2], plan.rows), Q.shape[1] * Q.shape[0], K.shape[2]
    number = turn * tw.grid_dim.x + position(turn)
    tile, head, seen = number % tiles, number // tiles, keys
    if plan.causal:
        tile, head = tiles - 1 - number // heads, number % heads
        seen = tw.minimum(keys, (tile + 1) * plan.rows + keys - Q.shape[2])
    return tile, head % Q.shape[1], head // Q.shape[1], tw.maximum(tw.ceil_div(seen, plan.keys), 1)


@tw.function
def produce(Q, K, V, sQ, sKV, state_q, state_kv, plan):
    """Bring the tiles in the order in which they are used."""
    gQ, gK, gV = (tw.guarded(x) for x in (Q, K, V))
    share = Q.shape[1] // K.shape[1]  # heads of Q for one of K and V

    def bring(heads, tile):
        with state_kv.fill() as (stage, full):
            tw.copy(LOAD, tw.local_tile(heads, (plan.keys, plan.head), (tile, 0)), sKV[:, :, stage], barrier=full)

    for turn in range(count_turns(Q, plan)):
        tile, head, batch, steps = place(turn, Q, K, plan)
        rows, k, v = gQ[batch, head, ...], gK[batch, head // share, ...], gV[batch, head // share, ...]
        with state_q.fill() as (stage, full):
            tw.copy(LOAD, tw.local_tile(rows, (plan.rows, plan.head), (tile, 0)), sQ[:, :, stage], barrier=full)
        bring(k, steps - 1)
        for step in range(1, steps):
            bring(k, steps - 1 - step)
            bring(v, steps - step)
        bring(v, 0)


@tw.function
def consume(out, Q, K, lse, scale, sQ, sKV, state_q, state_kv, plan):
    """Compute 64 rows of each tile."""
    consumer, tid = tw.warpgroup_id() - 1, tw.thread_idx.x - WARPGROUP
    ours = tw.named_barrier(1 + consumer, 2 * WARPGROUP)
    next = tw.named_barrier(1 + (consumer + 1) % plan.consumers, 2 * WARPGROUP)
    by_scores, by_output = plan.scores.get_slice(tid), plan.output.get_slice(tid)
    tQ, tK = by_scores.partition_A(sQ), by_scores.partition_B(sKV)
    tV = by_output.partition_B(sKV.map_layout(lambda layout: tw.select(layout, 1, 0, 2)))
    S = tw.registers(tw.float32, plan.scores.partition_shape((plan.rows, plan.keys), "C"))
    acc = tw.registers(tw.float32, plan.output.partition_shape((plan.rows, plan.head), "C"))
    scores, sums = tw.accumulator_rows(plan.scores, S), tw.accumulator_rows(plan.output, acc)
    # Where the values are in the tile: those of a thread are as far from its first one as those of thread 0.
    whole_tile = tw.identity_tensor((plan.rows, plan.keys))
    at, at_of_first = (
        tw.accumulator_rows(plan.scores, plan.scores.get_slice(n).partition_C(whole_tile)) for n in (tid, 0)
    )
    rows = tw.size(scores.shape[0])
    top, total, factor = (tw.registers(tw.float32, rows) for _ in ("greatest score", "sum of weights", "of sums"))
    keys = K.shape[2]
    ahead = keys - Q.shape[2]  # with a causal mask, row r sees the keys up to r + ahead

    def begin_scores(q, k):
        tw.wgmma_fence()
        tw.gemm(plan.scores, tQ[:, :, :, q], tK[:, :, :, k], S, accumulate=False)
        tw.wgmma_commit()

    def begin_sums(weights, v):
        for r in tw.static_range(rows):
            sums[r, :] *= factor[r]
        tw.wgmma_fence()
        tw.gemm(plan.output, weights, tV[:, :, :, v], acc)
        tw.wgmma_commit()

    def mask(tile, first_key):
        for r in tw.static_range(rows):
            seen = tw.minimum(keys, at[r, 0][0] + tile * plan.rows + ahead + 1) if plan.causal else keys
            room = seen - first_key - at[0, 0][1]
            for c in tw.static_range(tw.size(scores.shape[1])):
                scores[r, c] = tw.where(at_of_first[0, c][1] < room, scores[r, c], -float("inf"))

    def weigh():
        for r in tw.static_range(rows):
            best = tw.maximum(top[r], tw.reduce(scores[r, :], "max", group=4))
            factor[r], top[r] = tw.ex2_approx((top[r] - best) * scale, ftz=True), best
            scores[r, :] = tw.ex2_approx(scores[r, :] * scale - best * scale, ftz=True)
            total[r] = total[r] * factor[r] + scores[r, :].reduce("add")

    def finish(step, v):
        tw.wgmma_wait(0)  # the registers of the weights are free again
        if step > 1:
            state_kv.give_back(v)
        return tw.as_operand_a(plan.scores, S, to=plan.output)

    def advance(step, v, q, tile, first_key, masked):
        weights = finish(step, v)
        k = state_kv.acquire()
        ours.sync()
        begin_scores(q, k)
        v = state_kv.acquire()
        begin_sums(weights, v)
        next.arrive()
        tw.wgmma_wait(1)
        state_kv.give_back(k)
        if masked:
            mask(tile, first_key)
        weigh()
        return v

    if consumer == plan.consumers - 1:
        next.arrive()  # the first consumer has the first turn
    for turn in range(count_turns(Q, plan)):
        tile, head, batch, steps = place(turn, Q, K, plan)
        tw.fill(top, -1e30)
        tw.clear(total)
        tw.clear(acc)
        q, k, v, last = state_q.acquire(), state_kv.acquire(), 0, steps - 1
        begin_scores(q, k)
        tw.wgmma_wait(0)
        state_kv.give_back(k)
        mask(tile, last * plan.keys)
        weigh()
        whole = tw.minimum(keys, tile * plan.rows + ahead + 1) // plan.keys  # tiles of which every row sees every key
        cut = tw.minimum(tw.maximum(steps - whole, 1), steps) if plan.causal else 1
        for step in tw.range(1, cut, unroll=1):
            v = advance(step, v, q, tile, (last - step) * plan.keys, masked=True)
        for step in tw.range(cut, steps, unroll=1):
            v = advance(step, v, q, tile, (last - step) * plan.keys, masked=False)
        weights = finish(steps, v)
        v = state_kv.acquire()
        begin_sums(weights, v)
        for r in tw.static_range(rows):
            total[r] = tw.reduce(total[r], "add", group=4)
        tw.wgmma_wait(0)
        state_kv.give_back(v)
        for r in tw.static_range(rows):
            sums[r, :] *= 1.0 / tw.maximum(total[r], 1e-30)  # a row may see no key
            row = at[r, 0][0] + tile * plan.rows
            if lse is not None and (row < Q.shape[2]) & (tw.lane_id() % 4 == 0):
                lse[batch, head, row] = (top[r] * scale + tw.lg2_approx(total[r])) * float(np.log(2))
        store(out, acc, tw.local_tile(sQ[:, :, q], (64, plan.head), (consumer, 0)), tile, head, batch, plan)
        state_q.give_back(q)
    if consumer == 0:
        ours.sync()  # the last turn, which no one takes


@tw.function
def store(out, acc, buffer, tile, head, batch, plan):
    """Store a consumer's rows of out through shared memory, and wait until that has been read."""
    consumer, tid = tw.warpgroup_id() - 1, tw.thread_idx.x % WARPGROUP
    writer = plan.write.get_slice(tid)
    tw.copy(plan.write, writer.retile_S(acc.to(out.dtype)), writer.partition_D(buffer))
    tw.fence_proxy_async()
    tw.named_barrier(1 + plan.consumers + consumer, WARPGROUP).sync()
    if tid == 0:
        where = (plan.consumers * tile + consumer, 0)
        tw.copy(STORE, buffer, tw.local_tile(tw.guarded(out)[batch, head, ...], (64, plan.head), where))
        tw.tma_store_commit()
        tw.tma_store_wait(0)


@cache
def plan_for(dtype: tw.DType, head: int, causal: bool, keys: int | None = None) -> Plan:
    """Return the plan for float16 or bfloat16 and 64 or 128 elements a head."""
    if head not in (64, 128):
        raise ValueError(f"heads have 64 or 128 elements, not {head}")
    # What registers and shared memory hold; 160 keys are too coarse for the diagonal.
    rows, most = (192, 112) if head == 64 else (128, 128 if causal else 160)
    keys, consumers, stages = keys or most, rows // 64, 4
    types = {tw.bfloat16: "F32BF16BF16", tw.float16: "F32F16F16"}[dtype]
    lines = tw.atoms.GMMA_K_SW128(dtype)
    product = getattr(tw.atoms, f"SM90_64x{head}x16_{types}_RS").with_majors("K", "MN")
    return Plan(
        rows,
        keys,
        head,
        causal,
        tw.tile_to_shape(lines, (rows, head, 2)),
        tw.tile_to_shape(lines, (keys, head, stages)),
        tw.make_tiled_mma(getattr(tw.atoms, f"SM90_64x{keys}x16_{types}_SS"), (consumers, 1, 1)),
        tw.make_tiled_mma(product, (consumers, 1, 1)),
        tw.make_tiled_copy_C(tw.atoms.SM90_U32x4_STSM_N, tw.make_tiled_mma(product)),
        (24, 240) if consumers == 2 else (32, 160),
    )


def launch(
    out, Q, K, V, causal: bool = False, lse: Any = None, blocks: int = 132, keys_of_tile: int | None = None
) -> None:
    """Compute attention of Q (batch, heads, tokens, head) over K and V (batch, key heads, keys, head).

    `lse` (batch, heads, tokens) of float32, unless it is None, is filled with log(sum(exp(scores))) of each row.
    """
    batch, heads, tokens, head = Q.shape
    plan = plan_for(describe(Q).dtype, head, causal, keys_of_tile)
    scale = np.float32(np.log2(np.e) / np.sqrt(head))
    grid = min(blocks, tw.ceil_div(tokens, plan.rows) * heads * batch)
    attention[grid, WARPGROUP * (1 + plan.consumers)](out, Q, K, V, lse, scale, plan)


def reference(Q: Any, K: Any, V: Any, causal: bool, rows: Any) -> tuple[Any, Any]:
    """Return some rows of attention and log(sum(exp(scores))) of them, in float64."""
    k, v = (np.repeat(x.astype(np.float64), Q.shape[1] // x.shape[1], axis=1) for x in (K, V))
    scores = Q[:, :, rows].astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(Q.shape[3])
    if causal:
        hidden = np.arange(K.shape[2]) - K.shape[2] > rows[:, None] - Q.shape[2]
        scores = np.where(hidden, -np.inf, scores)
    top = scores.max(3, keepdims=True, initial=-1e30)
    weights = np.exp(scores - top)
    total = weights.sum(3, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0) @ v, lse


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: causal and not, shared heads, lengths that no tile divides; on a GPU, 16384 tokens."""
    shapes = (
        [(1, 2, 1, 70, 100, 128, False), (1, 1, 1, 100, 90, 64, True)]
        if quick
        else [
            *[(1, 16, 16, 16384, 16384, 128, causal) for causal in (False, True)],
            *[(4, 32, 8, 4096, 4096, 64, causal) for causal in (False, True)],
            (2, 16, 4, 4000, 5001, 128, True),
        ]
    )
    return [_case(*shape, backend, quick) for shape in shapes]


def _float64(x: Any) -> Any:
    """Return bfloat16 of NumPy or torch as float64."""
    return fetch(x.float() if hasattr(x, "float") else x).astype(np.float64)


def _case(
    batch: int, heads: int, shared: int, tokens: int, keys: int, head: int, causal: bool, backend: Backend, quick: bool
) -> Case:  # fmt: skip
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        q, k, v = (
            random.standard_normal((batch, h, n, head), dtype=np.float32).astype(ml_dtypes.bfloat16)
            for h, n in ((heads, tokens), (shared, keys), (shared, keys))
        )
        out, Q, K, V = (put(x, backend) for x in (np.full_like(q, np.nan), q, k, v))
        checked = np.r_[: min(tokens, 64), max(tokens - 64, 0) : tokens]  # rows: the matrix of scores is large
        expected, _ = reference(q, k, v, causal, checked)
        # Weights are rounded to 8 bits, the results as well.
        limit = 2.0**-7 * float(np.abs(expected).max())
        small = {"blocks": 1, "keys_of_tile": 32} if quick else {}
        library = by_library(Q, K, V, causal) if backend == "cuda" else None
        return Trial(
            lambda: launch(out, Q, K, V, causal, **small),
            lambda: _float64(out)[:, :, checked],
            expected,
            limit,
            library,
        )

    kind = ("causal, " if causal else "") + f"{heads} heads of {head}" + (f" over {shared}" if shared != heads else "")
    share = keys - tokens / 2 if causal else keys  # scores of a row, on average
    flops = int(4 * batch * heads * tokens * share * head)
    return Case(f"attention, {kind}", f"{batch} x {tokens} x {keys}", prepare, flops=flops)


def by_library(Q: Any, K: Any, V: Any, causal: bool) -> Any:
    """Return a function that computes the same by cuDNN through torch, or None where its causal mask is another."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if causal and Q.shape[2] != K.shape[2]:
        return None

    def run() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                Q, K, V, is_causal=causal, enable_gqa=Q.shape[1] != K.shape[1]
            )

    return run


def example_attention():
    """Return grid, block and arguments for `tilewright show examples/hopper/10_attention.py:attention`."""
    heads = tw.spec(tw.bfloat16, (1, 16, 16384, 128))
    plan = plan_for(tw.bfloat16, 128, causal=False)
    return 132, WARPGROUP * (1 + plan.consumers), (heads, heads, heads, heads, None, np.float32(0.1), plan)


if __name__ == "__main__":
    main(cases)
