"""Compute attention, O = softmax(scale * Q K^T) V, without ever storing the matrix of scores.

A block takes 128 rows of Q, and goes through K and V in tiles of 64 keys. For each tile it multiplies twice on the
tensor cores, S = Q K^T and O += P V, and between the two turns scores into weights, P = exp2(S - top), where `top` is
the greatest score of a row so far (all scores are in units of log 2). What has been summed with another `top` is scaled
by exp2(old - new). That is FlashAttention 2 (Dao 2023). Two things are different here:

- `top` moves only when a score is more than 8 above it: weights then stay below 2^8, which loses nothing in float32,
  and the 128 products that scaling takes a row are left out for almost all tiles (FlashAttention 4 does so).
- Tiles of K and V pass through a ring of two stages with mbarriers. `full` says that all threads' copies into a stage
  have landed, `empty` that all have read it. A barrier of the whole block would hold the four warps in step, and
  then all of them want the tensor cores at once, and all the exponentials at once. On an H200 that costs 6 %.

The scores of a warp are its accumulator. `tw.accumulator_rows` shows it as rows and columns, and `tw.as_operand_a`
hands the weights on as operand A of the second product: neither passes through shared memory.

Any number of tokens: tiles are guarded, and scores of keys that do not exist are -inf, as are those of later keys if
`causal` (row r of m sees key c of n where c - n <= r - m). Heads of Q may share heads of K and V (grouped queries).

Run it: `tilewright demo examples/kernels/attention.py`, or `python examples/kernels/attention.py`
"""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe


@dataclass(frozen=True)
class Plan:
    """Everything that the kernel knows at compile time."""

    rows: int  # of Q in a block
    keys: int  # in a tile of K and V
    head: int  # elements of a head
    causal: bool
    smem_q: tw.Layout  # (rows, head)
    smem_kv: tw.Layout  # (keys, head, stages)
    fill: tw.TiledCopy  # global to shared memory
    load_q: tw.TiledCopy  # shared memory to fragments
    load_k: tw.TiledCopy
    load_v: tw.TiledCopy
    mma: tw.TiledMMA


@tw.kernel
def attention(out, Q, K, V, scale: tw.float32, plan: tw.constexpr):
    """Compute `plan.rows` rows of out (batch, heads, tokens, head). `scale` is that of the scores, times log2(e)."""
    # The longest rows of a causal mask start first.
    tile = tw.grid_dim.x - 1 - tw.block_idx.x if plan.causal else tw.block_idx.x
    head, batch, tid = tw.block_idx.y, tw.block_idx.z, tw.thread_idx.x
    shared_head = head // (Q.shape[1] // K.shape[1])
    gQ, gO = (tw.local_tile(x[batch, head, ...], (plan.rows, plan.head), (tile, 0), guard=True) for x in (Q, out))
    heads_kv = (K[batch, shared_head, ...], V[batch, shared_head, ...])
    keys = K.shape[2]
    ahead = keys - Q.shape[2] if plan.causal else keys  # row r sees the keys up to r + ahead
    tiles = tw.maximum(tw.ceil_div(tw.minimum(keys, (tile + 1) * plan.rows + ahead), plan.keys), 0)

    sQ, sK, sV = (tw.shared(Q.dtype, layout) for layout in (plan.smem_q, plan.smem_kv, plan.smem_kv))
    full, empty = tw.mbarrier(THREADS, stages=STAGES), tw.mbarrier(THREADS, stages=STAGES)
    filler = plan.fill.get_slice(tid)
    tw.copy(plan.fill, filler.partition_S(gQ), filler.partition_D(sQ))
    tw.sync_threads()  # the barriers are there

    def fill(step, guard):  # from the last tile to the first: only the last one can overhang
        for source, target in zip(heads_kv, (sK, sV), strict=True):
            tile = tw.local_tile(source, (plan.keys, plan.head), (tiles - 1 - step, 0), guard=guard)
            tw.copy(plan.fill, filler.partition_S(tile), filler.partition_D(target[:, :, step % STAGES]))
        full[step % STAGES].cp_async_arrive()

    thread = plan.mma.get_slice(tid)
    q = Operand(plan.load_q, thread.partition_fragment_A(sQ), sQ, tid)
    k = Operand(plan.load_k, thread.partition_fragment_B(sK[:, :, 0]), sK, tid)
    v_by_columns = sV.map_layout(lambda layout: tw.select(layout, 1, 0, 2))
    v = Operand(plan.load_v, thread.partition_fragment_B(v_by_columns[:, :, 0]), v_by_columns, tid)
    S, acc = (tw.registers(tw.float32, plan.mma.partition_shape((plan.rows, n), "C")) for n in (plan.keys, plan.head))
    scores, sums = tw.accumulator_rows(plan.mma, S), tw.accumulator_rows(plan.mma, acc)
    places = tw.accumulator_rows(plan.mma, thread.partition_C(tw.identity_tensor((plan.rows, plan.keys))))
    top, total = (tw.registers(tw.float32, tw.size(scores.shape[0])) for _ in ("greatest score", "sum of weights"))
    tw.fill(top, -1e30)
    tw.clear(total)
    tw.clear(acc)

    fill(0, guard=True)  # with no key to see, nothing is read
    for step in tw.range(tiles, unroll=1):
        stage, first_key = step % STAGES, (tiles - 1 - step) * plan.keys
        full[stage].wait(step // STAGES % 2)  # the first time, Q is there too
        tw.clear(S)
        for i in tw.static_range(plan.head // 16):
            tw.gemm(plan.mma, S, q.load(i), k.load(i, stage), S)
        if step + 1 < tiles:
            empty[(step + 1) % STAGES].wait(((step + 1) // STAGES + 1) % 2)
            fill(step + 1, guard=False)
        if first_key + plan.keys > tw.minimum(keys, tile * plan.rows + ahead + 1):  # a mask cuts this tile
            for r in range(top.size):
                for c in range(tw.size(scores.shape[1])):
                    row, key = places[r, c][0] + tile * plan.rows, places[r, c][1] + first_key
                    scores[r, c] = tw.where((key < keys) & (key <= row + ahead), scores[r, c], -float("inf"))
        for r in tw.static_range(top.size):
            best = tw.maximum(top[r], tw.reduce(scores[r, :], "max", group=4))
            if tw.vote_any((best - top[r]) * scale > 8.0):
                factor = tw.ex2_approx((top[r] - best) * scale, ftz=True)
                top[r], total[r] = best, total[r] * factor
                sums[r, :] *= factor
            scores[r, :] = tw.ex2_approx(scores[r, :] * scale - top[r] * scale, ftz=True)
            total[r] += scores[r, :].reduce("add")
        weights = tw.as_operand_a(plan.mma, S, Q.dtype)
        for i in tw.static_range(plan.keys // 16):
            tw.gemm(plan.mma, acc, weights[:, :, i], v.load(i, stage), acc)
        empty[stage].arrive()

    for r in tw.static_range(top.size):
        sums[r, :] *= 1.0 / tw.maximum(tw.reduce(total[r], "add", group=4), 1e-30)  # a row may see no key
    tw.copy(acc.to(out.dtype), thread.partition_C(gO))


class Operand:
    """An operand in shared memory, which ldmatrix reads into registers 16 of K at a time."""

    def __init__(self, loader, fragment, smem, tid):
        self.loader, self.fragment = loader, fragment
        part = loader.get_slice(tid)
        self.source, self.target = part.partition_S(smem), part.retile_D(fragment)

    def load(self, i, stage=None):
        """Return the fragment of step i of K."""
        source = self.source[:, :, i] if stage is None else self.source[:, :, i, stage]
        tw.copy(self.loader, source, self.target[:, :, i])
        return self.fragment[:, :, i]


TWO_BLOCKS = attention.configure(min_blocks=2)  # on each multiprocessor: all registers that a thread can have
WARPS = 4
THREADS = 32 * WARPS
STAGES = 2
MMA_OF = {tw.float16: tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.bfloat16: tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN}


@cache
def plan_for(dtype: tw.DType, head: int, causal: bool) -> Plan:
    """Return the plan for an element type and 64 or 128 elements a head."""
    rows, keys = 128, 64
    mma = tw.make_tiled_mma(MMA_OF[dtype], (WARPS, 1, 1), (16 * WARPS, 16, 16))
    # Rows are padded by 16 bytes, so that ldmatrix meets every bank once. A swizzle does so too, but then each step
    # has its own address: 24 registers more, of which some are spilled (5 % of the time on an H200).
    row = head + 8
    vectors = head // 8
    fill = tw.make_tiled_copy(
        tw.atoms.CpAsync(128, cache="global"), tw.Layout((THREADS // vectors, vectors), (vectors, 1)), tw.Layout((1, 8))
    )
    return Plan(
        rows,
        keys,
        head,
        causal,
        tw.Layout((rows, head), (row, 1)),
        tw.Layout((keys, head, STAGES), (row, 1, keys * row)),
        fill,
        tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, mma),
        tw.make_tiled_copy_B(tw.atoms.SM75_U32x4_LDSM_N, mma),
        tw.make_tiled_copy_B(tw.atoms.SM75_U16x8_LDSM_T, mma),
        mma,
    )


def launch(out, Q, K, V, causal: bool = False) -> None:
    """Compute attention of Q (batch, heads, tokens, head) over K and V (batch, key heads, keys, head)."""
    batch, heads, tokens, head = Q.shape
    plan = plan_for(describe(Q).dtype, head, causal)
    grid = (tw.ceil_div(tokens, plan.rows), heads, batch)
    scale = np.float32(np.log2(np.e) / np.sqrt(head))
    TWO_BLOCKS[grid, THREADS](out, Q, K, V, scale, plan)


def reference(Q: np.ndarray, K: np.ndarray, V: np.ndarray, causal: bool, rows: np.ndarray) -> np.ndarray:
    """Return some rows of attention in float64."""
    k, v = (np.repeat(x.astype(np.float64), Q.shape[1] // x.shape[1], axis=1) for x in (K, V))
    scores = Q[:, :, rows].astype(np.float64) @ k.swapaxes(2, 3) / np.sqrt(Q.shape[3])
    if causal:
        hidden = np.arange(K.shape[2]) - K.shape[2] > rows[:, None] - Q.shape[2]
        scores = np.where(hidden, -np.inf, scores)
    top = scores.max(3, keepdims=True, initial=-1e30)
    weights = np.exp(scores - top)
    total = weights.sum(3, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0) @ v


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: causal and not, grouped heads, lengths that no tile divides."""
    shapes = (
        [(1, 2, 1, 192, 192, 128, True), (1, 1, 1, 100, 77, 64, False)]
        if quick
        else [
            (1, 16, 16, 16384, 16384, 128, False),
            (1, 16, 16, 16384, 16384, 128, True),
            (2, 16, 4, 4000, 5001, 64, True),
        ]
    )
    return [_case(*shape, backend) for shape in shapes]


def _case(
    batch: int, heads: int, shared: int, tokens: int, keys: int, head: int, causal: bool, backend: Backend
) -> Case:  # fmt: skip
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        dtype = np.float16 if backend == "cuda" else ml_dtypes.bfloat16  # NumPy has no bfloat16 that goes to a GPU
        q, k, v = (
            random.standard_normal((batch, h, n, head), dtype=np.float32).astype(dtype)
            for h, n in ((heads, tokens), (shared, keys), (shared, keys))
        )
        out, Q, K, V = (put(x, backend) for x in (np.full_like(q, np.nan), q, k, v))
        checked = np.r_[: min(tokens, 64), max(tokens - 64, 0) : tokens]  # rows: the matrix of scores is large
        expected = reference(q, k, v, causal, checked)
        return Trial(
            lambda: launch(out, Q, K, V, causal),
            lambda: fetch(out)[:, :, checked].astype(np.float64),
            expected,
            limit=0.03,
        )

    kind = ("causal, " if causal else "") + f"{heads} heads of {head}" + (f" over {shared}" if shared != heads else "")
    share = keys - tokens / 2 if causal else keys  # scores of a row, on average
    flops = int(4 * batch * heads * tokens * share * head)
    return Case(f"attention, {kind}", f"{batch} x {tokens} x {keys}", prepare, flops=flops)


def example_attention():
    """Return grid, block and arguments for `tilewright show examples/kernels/attention.py:attention`."""
    heads = tw.spec(tw.bfloat16, (1, 16, 16384, 128))
    return (
        (128, 16, 1),
        THREADS,
        (heads, heads, heads, heads, np.float32(0.1), plan_for(tw.bfloat16, 128, causal=False)),
    )


if __name__ == "__main__":
    main(cases)
