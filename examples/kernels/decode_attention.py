"""Compute attention of one new token of each sequence over its keys and values, which lie in pages: decoding.

Sequences grow, and their keys and values are stored in pages of 16 or 64 tokens that need not be neighbours: page p of
sequence b is number block_table[b, p] of the pool. Every key is used by the few heads of Q that share its head, so this
is bound by reading K and V once. For 4 heads of 128, a key and its value of 512 bytes take 1024 multiply-adds, 256
conversions and, for sums over lanes, 256 shuffles and additions: more than half of the instructions that a
multiprocessor can issue at 4.4 TB/s. The tensor cores take the heads as 16 rows of which 12 are zero, with 48
instructions for 16 keys, and have time for ten times as many.

Each warp has a ring of stages of its own in shared memory, with 16 keys and 16 values a stage, and goes through its
tiles without waiting for other warps: `cp_async_wait` waits for the lane's own copies, `sync_warp` for those of the
other lanes. With two blocks of four warps and two stages on their way, 128 KB of a multiprocessor are in flight;
4.4 TB/s times a microsecond of latency asks for 33.

A sequence is split among blocks, so that few sequences keep the GPU busy too (flash decoding). What comes out of a part
of the keys is a weighted sum of values, the sum of the weights, and the score that they are relative to. Parts are
merged in any number: those of the warps in shared memory, those of the blocks by the block that is done last.

Run it: `python examples/kernels/decode_attention.py`
"""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe

WARPS, KEYS, STAGES = 4, 16, 3
ROWS = 16  # of the products: heads of Q, and zeros
THREADS = 32 * WARPS
RESIDENT = 2 * 132  # blocks on the GPU at once
NOTHING = -1e30  # the score of no keys
MMA_OF = {tw.float16: tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.bfloat16: tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN}


@dataclass(frozen=True)
class Plan:
    """Everything that the kernel knows at compile time."""

    group: int  # heads of Q that share a head of K and V
    head: int  # elements of a head
    page: int  # tokens of a page
    smem: tw.ComposedLayout  # (keys, head, stages, warps)
    fill: tw.TiledCopy  # global to shared memory, by a warp
    load_k: tw.TiledCopy  # shared memory to fragments
    load_v: tw.TiledCopy
    mma: tw.TiledMMA


@tw.kernel
def decode_attention(
    out, parts, done, q, k_pages, v_pages, block_table, lengths, scale: tw.float32, plan: tw.constexpr
):
    """Attend with a group of heads of a sequence to a part of its keys; the last block of a group merges all parts."""
    split, shared_head, batch = tw.block_idx.x, tw.block_idx.y, tw.block_idx.z
    lane, warp = tw.lane_id(), tw.warp_id()
    group = slice(shared_head * plan.group, (shared_head + 1) * plan.group)
    length = lengths[batch]
    tiles = tw.ceil_div(length, KEYS)
    share = tw.ceil_div(tiles, tw.grid_dim.x)  # tiles of a block, which its warps take in turn
    first = split * share + warp
    count = tw.maximum(tw.ceil_div(tw.minimum(tiles, (split + 1) * share) - first, WARPS), 0)

    sK, sV = (tw.shared(q.dtype, plan.smem)[:, :, :, warp] for _ in "KV")
    filler = plan.fill.get_slice(lane)

    def fill(step):  # keys that do not exist are zero: what a page has behind them may be NaN
        if step < count:
            key = (first + step * WARPS) * KEYS
            page, row = block_table[batch, key // plan.page], key % plan.page
            for pages, smem in ((k_pages, sK), (v_pages, sV)):
                rows = pages[page, row : row + tw.minimum(length - key, KEYS), shared_head, : plan.head]
                tile = tw.local_tile(rows, (KEYS, plan.head), (0, 0), guard=True)
                tw.copy(plan.fill, filler.partition_S(tile), filler.partition_D(smem[:, :, step % STAGES]))
        tw.cp_async_commit()

    for step in tw.static_range(STAGES - 1):
        fill(step)
    thread = plan.mma.get_slice(lane)
    heads = q[batch, group, : plan.head]
    query = thread.partition_A(tw.local_tile(heads, (ROWS, plan.head), (0, 0), guard=True))
    Q = +query
    v_by_columns = sV.map_layout(lambda layout: tw.select(layout, 1, 0, 2))
    k = Operand(plan.load_k, thread.partition_fragment_B(sK[:, :, 0]), sK, lane)
    v = Operand(plan.load_v, thread.partition_fragment_B(v_by_columns[:, :, 0]), v_by_columns, lane)
    S, acc = (tw.registers(tw.float32, plan.mma.partition_shape((ROWS, n), "C")) for n in (KEYS, plan.head))
    scores, sums = tw.accumulator_rows(plan.mma, S), tw.accumulator_rows(plan.mma, acc)
    places = tw.accumulator_rows(plan.mma, thread.partition_C(tw.identity_tensor((ROWS, KEYS))))
    used = tw.ceil_div(plan.group, 8)  # rows of a thread that are heads of Q: of 8 apart
    top, total = (tw.registers(tw.float32, used) for _ in ("greatest score", "sum of weights"))
    tw.fill(top, NOTHING)
    tw.clear(total)
    tw.clear(acc)

    for step in tw.range(count, unroll=1):
        tw.cp_async_wait(STAGES - 2)
        tw.sync_warp()  # the stage is there, and the one before has been read
        fill(step + STAGES - 1)
        tw.clear(S)
        for i in tw.static_range(plan.head // 16):
            tw.gemm(plan.mma, S, Q[:, :, i], k.load(i, step % STAGES), S)
        missing = KEYS - (length - (first + step * WARPS) * KEYS)
        for r in tw.static_range(used):
            if missing > 0:
                for c in range(tw.size(scores.shape[1])):
                    scores[r, c] = tw.where(places[r, c][1] + missing < KEYS, scores[r, c], -float("inf"))
            best = tw.maximum(top[r], tw.reduce(scores[r, :], "max", group=4) * scale)
            factor = tw.ex2_approx(top[r] - best, ftz=True)
            scores[r, :] = tw.ex2_approx(tw.fma(scores[r, :], scale, -best), ftz=True)
            sums[r, :] *= factor
            top[r], total[r] = best, total[r] * factor + scores[r, :].reduce("add")
        weights = tw.as_operand_a(plan.mma, S, q.dtype)
        tw.gemm(plan.mma, acc, weights[:, :, 0], v.load(0, step % STAGES), acc)

    of_warps = tw.shared(tw.float32, tw.row_major((WARPS, plan.group, plan.head + 4)))
    mine = of_warps[warp, ...]
    tw.copy(acc, thread.partition_C(tw.local_tile(mine, (ROWS, plan.head), (0, 0), guard=True)))
    for r in tw.static_range(used):
        row, weight = places[r, 0][0], tw.reduce(total[r], "add", group=4)
        if (row < plan.group) & (lane % 4 == 0):
            mine[row, plan.head], mine[row, plan.head + 1] = top[r], weight
    tw.sync_threads()
    for row in range(warp, plan.group, WARPS):
        store(parts[batch, shared_head, split, row, :], *merge(of_warps[:, row, :], plan.head))

    last = tw.shared(tw.int32, 1)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        last[0] = tw.atomic_add(done, (batch, shared_head), 1, sem="acq_rel") == tw.grid_dim.x - 1
    tw.sync_threads()
    if last[0] != 0:
        for row in range(warp, plan.group, WARPS):
            values, weight, _ = merge(parts[batch, shared_head, :, row, :], plan.head)
            columns(out[batch, group, :][row, :], plan.head)[...] = (values / tw.maximum(weight, 1e-30)).to(out.dtype)
        if tw.thread_idx.x == 0:
            done[batch, shared_head] = 0  # for the next launch


@tw.function
def merge(parts, head):
    """Merge parts (parts, head + 4) of a head by a warp: return the lane's sums of values, the weight and the score."""
    sums, weight, top = tw.registers(tw.float32, head // 32), 0.0, NOTHING
    tw.clear(sums)
    for p in tw.range(parts.shape[0], unroll=4):
        best = tw.maximum(top, parts[p, head])
        old, new = tw.ex2_approx(top - best, ftz=True), tw.ex2_approx(parts[p, head] - best, ftz=True)
        sums *= old
        sums += columns(parts[p, :], head) * new
        weight, top = weight * old + parts[p, head + 1] * new, best
    return sums, weight, top


@tw.function
def store(part, sums, weight, top):
    """Store what `merge` returned as a part."""
    head = 32 * sums.size
    columns(part, head)[...] = sums
    if tw.lane_id() == 0:
        part[head], part[head + 1] = top, weight


def columns(row, head):
    """Return a lane's elements of a row that a warp shares."""
    return tw.local_tile(row, (head // 32,), (tw.lane_id(),))


class Operand:
    """An operand in shared memory, which ldmatrix reads into registers 16 of K at a time."""

    def __init__(self, loader, fragment, smem, lane):
        self.loader, self.fragment = loader, fragment
        part = loader.get_slice(lane)
        self.source, self.target = part.partition_S(smem), part.retile_D(fragment)

    def load(self, i, stage):
        """Return the fragment of step i of K."""
        tw.copy(self.loader, self.source[:, :, i, stage], self.target[:, :, i])
        return self.fragment[:, :, i]


@cache
def plan_for(dtype: tw.DType, group: int, head: int, page: int) -> Plan:
    """Return the plan for an element type, heads that share keys, elements a head and tokens a page."""
    if group > ROWS or head not in (64, 128) or page % KEYS:
        raise ValueError(
            f"decode_attention takes up to {ROWS} heads for one of K and V, heads of 64 or 128 elements and pages of a "
            f"multiple of {KEYS} tokens, got {group}, {head} and {page}"
        )
    mma = tw.make_tiled_mma(MMA_OF[dtype], (1, 1, 1), (ROWS, 16, 16))
    # A row of 64 elements is all 32 banks; its parts of 16 bytes change places with the row's number.
    swizzled = tw.ComposedLayout(tw.Swizzle(3, 3, 3), 0, tw.Layout((8, 64), (64, 1)))
    vectors = head // 8
    return Plan(
        group,
        head,
        page,
        tw.tile_to_shape(swizzled, (KEYS, head, STAGES, WARPS)),
        tw.make_tiled_copy(
            tw.atoms.CpAsync(128, cache="global"), tw.Layout((32 // vectors, vectors), (vectors, 1)), tw.Layout((1, 8))
        ),
        tw.make_tiled_copy_B(tw.atoms.SM75_U32x4_LDSM_N, mma),
        tw.make_tiled_copy_B(tw.atoms.SM75_U16x8_LDSM_T, mma),
        mma,
    )


@dataclass(frozen=True)
class Workspace:
    """What blocks leave for one another; a launch leaves `done` at zero, so that it serves any number, one by one."""

    parts: object  # (batch, heads of K, splits, heads of Q for one, head + 4) float32
    done: object  # (batch, heads of K) int32


def make_workspace(q, k_pages, block_table) -> Workspace:
    """Return what launches with arguments of these shapes need."""
    (batch, heads, head), (_, page, shared, _) = q.shape, k_pages.shape
    most = tw.ceil_div(block_table.shape[1] * page, KEYS * WARPS * 4)  # four tiles a warp at least
    splits = max(1, min(tw.ceil_div(4 * RESIDENT, batch * shared), most))
    backend: Backend = "sim" if describe(q).device == "cpu" else "cuda"
    return Workspace(
        put(np.zeros((batch, shared, splits, heads // shared, head + 4), np.float32), backend),
        put(np.zeros((batch, shared), np.int32), backend),
    )


def launch(out, q, k_pages, v_pages, block_table, lengths, workspace: Workspace | None = None) -> None:
    """Compute attention of q (batch, heads, head) over pages (pages, tokens, heads of K, head) in any order of modes.

    Token t of sequence b is token t % tokens of page block_table[b, t // tokens], for t below lengths[b]; both int32.
    """
    workspace = workspace or make_workspace(q, k_pages, block_table)
    (batch, heads, head), (_, page, shared, _) = q.shape, k_pages.shape
    plan, scale = plan_for(describe(q).dtype, heads // shared, head, page), np.float32(np.log2(np.e) / np.sqrt(head))
    decode_attention[(workspace.parts.shape[2], shared, batch), THREADS](
        out, workspace.parts, workspace.done, q, k_pages, v_pages, block_table, lengths, scale, plan
    )


def reference(q, k_pages, v_pages, block_table, lengths) -> np.ndarray:
    """Return attention in float64."""
    out = np.zeros(q.shape)
    for b, length in enumerate(lengths):
        pages = block_table[b, : -(-length // k_pages.shape[1])]
        k, v = (x[pages].reshape(-1, *x.shape[2:])[:length].astype(np.float64) for x in (k_pages, v_pages))
        k, v = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (k, v))
        scores = np.einsum("hd,khd->hk", q[b].astype(np.float64), k) / np.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(1, keepdims=True, initial=-1e30))
        out[b] = np.einsum("hk,khd->hd", weights, v) / np.maximum(weights.sum(1), 1e-30)[:, None]
    return out


def make_arguments(random, batch, heads, shared, head, page, lengths, dtype) -> tuple[np.ndarray, ...]:
    """Return q, pages of K and V, block table and lengths; pages in random order, NaN where there is no token."""
    counts = -(-np.asarray(lengths) // page)
    pool = random.permutation(int(counts.sum()) + 3)
    k_pages, v_pages = (
        random.standard_normal((pool.size, page, shared, head), dtype=np.float32).astype(dtype) for _ in "KV"
    )
    block_table = np.full((batch, int(counts.max(initial=1))), -1, np.int32)
    for b, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        block_table[b, :count], pool = pool[:count], pool[count:]
        if length % page:
            k_pages[block_table[b, count - 1], length % page :] = np.nan
            v_pages[block_table[b, count - 1], length % page :] = np.nan
    q = random.standard_normal((batch, heads, head), dtype=np.float32).astype(dtype)
    return q, k_pages, v_pages, block_table, np.asarray(lengths, np.int32)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: pages of 16 and 64 tokens, one long sequence, and several of different lengths."""
    if quick:
        shapes = [((300,), 8, 2, 128, 16), ((77, 0, 1), 3, 1, 64, 64)]
    else:
        shapes = [((8192,) * 4, 32, 8, 128, 16), ((8192,) * 4, 32, 8, 128, 64), ((50_001, 3, 0), 32, 8, 128, 16)]
    return [_case(*shape, backend) for shape in shapes]


def _case(lengths: tuple[int, ...], heads: int, shared: int, head: int, page: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        dtype = np.float16 if backend == "cuda" else ml_dtypes.bfloat16  # NumPy has no bfloat16 that goes to a GPU
        host = make_arguments(np.random.default_rng(0), len(lengths), heads, shared, head, page, lengths, dtype)
        expected = reference(*host)
        q, *others = (put(x, backend) for x in host)
        out = put(np.full_like(host[0], np.nan), backend)
        workspace = make_workspace(q, others[0], others[2])
        return Trial(
            lambda: launch(out, q, *others, workspace), lambda: fetch(out).astype(np.float64), expected, limit=0.02
        )

    kind = f"decode attention, {heads} heads of {head} over {shared}, pages of {page}"
    size = 2 * 2 * sum(lengths) * shared * head
    return Case(kind, f"{len(lengths)} x {max(lengths)}", prepare, bytes_moved=size)


def example_decode_attention():
    """Return grid, block and arguments for `tilewright show examples/kernels/decode_attention.py:...`."""
    q, pages = tw.spec(tw.bfloat16, (32, 32, 128)), tw.spec(tw.bfloat16, (16384, 16, 8, 128))
    parts, done = tw.spec(tw.float32, (32, 8, 5, 4, 132)), tw.spec(tw.int32, (32, 8))
    table, lengths = tw.spec(tw.int32, (32, 512)), tw.spec(tw.int32, (32,))
    plan = plan_for(tw.bfloat16, 4, 128, 16)
    return (5, 8, 32), THREADS, (q, parts, done, q, pages, pages, table, lengths, np.float32(0.1), plan)


if __name__ == "__main__":
    main(cases)
