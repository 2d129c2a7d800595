"""Multiply bfloat16 activations by 4-bit weights (W4A16), unpacked in registers on the way to the tensor cores.

    C[m, n] = sum over k of A[m, k] * (W[n, k] - zeros[n, k // 128]) * scales[n, k // 128]

W holds whole numbers from 0 to 15, eight to an int32. With few rows of A, the time is that of reading W once, so W
has to come in by wide accesses, and nothing may be done with it but what is needed. Three things help:

- W is operand A of mma.sync (16 rows of W, 16 of k), and the product is C transposed. Then a thread multiplies the rows
  of W whose sums it holds, and needs one zero and one scale for each. Four lanes share four rows: each lane reads zero
  and scale of one of them, and they exchange these by shuffles.
- `pack` orders W so that a thread reads 16 bytes for a row and a group, the 32 weights that it multiplies: lane q of
  four takes of each 16 of k those at 2q, 2q + 1, 2q + 8 and 2q + 9, as the instruction wants them.
- 0x4300 is 128 in bfloat16, and its last bit counts 1, so that 0x4300 | w is 128 + w. `(word >> 4i) & 0x000f000f |
  0x43004300`, a shift and a lop3, makes two weights of nibbles i and i + 4 of a word, and one packed subtraction of
  128 + zero makes both exact. The scale is multiplied to the sums of a group, in float32.

Tiles of A and W come through a ring of stages in shared memory by cp.async. The warps of a block share the rows of W,
the rows of A and, what keeps enough warps busy with few rows, K: each stage holds as many groups as K has warps. Their
sums are added at the end. Zeros and scales are read one iteration ahead, into registers.

Any M, N and K; the rows of A begin at multiples of 16 bytes. `scales` (bfloat16) and `zeros` (uint8, below 128) have
any strides; they are read fastest where N is contiguous.

Run it: `tilewright demo examples/kernels/int4_matmul.py`, or `python examples/kernels/int4_matmul.py`
"""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put


@dataclass(frozen=True)
class Plan:
    """Everything that the kernel knows at compile time."""

    rows: int  # of W in a block
    tokens: int  # rows of A in a block
    groups: int  # in a stage: one for each of the warps that share K
    stages: int
    smem_a: tw.ComposedLayout  # (tokens, K, stages)
    smem_w: tw.Layout  # (rows, (word, lane of four, group), stages)
    fill_a: tw.TiledCopy  # global to shared memory
    fill_w: tw.TiledCopy
    load_a: tw.TiledCopy  # shared memory to fragments
    mma: tw.TiledMMA  # of the warps of one group

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.mma.size * self.groups


@tw.kernel
def int4_matmul(C, A, W, scales, zeros, plan: tw.constexpr):
    """Compute `plan.rows` columns of C for `plan.tokens` rows of A."""
    tid, n, m = tw.thread_idx.x, tw.block_idx.x, tw.block_idx.y
    group, lane = tid // plan.mma.size, tid % 4
    filler_a, filler_w = plan.fill_a.get_slice(tid), plan.fill_w.get_slice(tid)
    thread, loader = plan.mma.get_slice(tid % plan.mma.size), plan.load_a.get_slice(tid % plan.mma.size)
    sA, sW = tw.shared(A.dtype, plan.smem_a), tw.shared(W.dtype, plan.smem_w)
    pipe, steps = tw.pipeline(plan.stages), tw.ceil_div(A.shape[1], GROUP * plan.groups)

    def fill(k, stage):
        if k < steps:
            a = tw.local_tile(A, (plan.tokens, GROUP * plan.groups), (m, k), guard=True)
            w = tw.local_tile(W, (plan.rows, GROUP // 8 * plan.groups), (n, k), guard=True)
            tw.copy(plan.fill_a, filler_a.partition_S(a), filler_a.partition_D(sA[:, :, stage]))
            tw.copy(plan.fill_w, filler_w.partition_S(w), filler_w.partition_D(sW[:, :, stage]))
        pipe.commit()

    w = tw.registers(A.dtype, plan.mma.partition_shape((plan.rows, 16), "A"))
    a = tw.registers(A.dtype, plan.mma.partition_shape((plan.tokens, 16), "B"))
    acc, part = (tw.registers(tw.float32, plan.mma.partition_shape((plan.rows, plan.tokens), "C")) for _ in range(2))
    sums, part_sums = tw.accumulator_rows(plan.mma, acc), tw.accumulator_rows(plan.mma, part)
    places = tw.accumulator_rows(plan.mma, thread.partition_C(tw.identity_tensor((plan.rows, plan.tokens))))
    rows = [places[r, 0][0] for r in range(4)]

    def read(k):  # scale and zero of one of the four rows that lanes 0 to 3 have in common: that of the lane's number
        row = n * plan.rows + rows[0] + lane % 2 * 8 + lane // 2 * plan.mma.tile_size(0)
        return tuple(tw.guarded(matrix)[row, k * plan.groups + group] for matrix in (scales, zeros))

    tw.clear(acc)
    for k in tw.static_range(pipe.ahead):
        fill(k, k)
    scale, zero = read(0)
    for k in tw.range(steps, unroll=1):
        pipe.wait()
        fill(k + pipe.ahead, pipe.write_stage(k))
        following = read(k + 1)
        stage = pipe.read_stage(k)
        tile = tw.local_tile(sA[:, :, stage], (plan.tokens, GROUP), (0, group))
        words = [+sW[row, (None, lane, group), stage] for row in rows]
        pair = scale.bitcast(tw.uint16).to(tw.uint32) << 16 | 0x4300 | zero.to(tw.uint32)  # scale, 128 + zero
        pairs = [tw.shuffle(pair, r, width=4) for r in range(4)]
        tw.clear(part)
        for i in tw.static_range(GROUP // 16):
            unpack(w, words, pairs, i)
            tw.copy(plan.load_a, loader.partition_S(tile)[:, :, i], loader.retile_D(a)[:, :, 0])
            tw.gemm(plan.mma, part, w[:, :, 0], a[:, :, 0], part)
        for r in tw.static_range(4):  # a bfloat16 is the upper half of a float32
            sums[r, :] = tw.fma(part_sums[r, :], (pairs[r] & 0xFFFF0000).bitcast(tw.float32), sums[r, :])
        scale, zero = following

    pipe.drain()
    height = plan.rows + 4  # so that what half of a warp writes lies in different banks
    shape, strides = (plan.rows, plan.tokens, plan.groups), (1, height, height * plan.tokens)
    parts = tw.shared(tw.float32, tw.Layout(shape, strides))
    tw.copy(acc, thread.partition_C(parts[:, :, group]))
    tw.sync_threads()
    out = tw.local_tile(C, (plan.tokens, plan.rows), (m, n), guard=True)
    for i in range(tid, plan.rows * plan.tokens, plan.threads):
        row, token = i % plan.rows, i // plan.rows
        out[token, row] = parts[row, token, :].reduce("add").to(C.dtype)


def unpack(w, words, pairs, i):
    """Write the weights of 16 of k, the i-th of a group, to a fragment of operand A."""
    bits = w.recast(tw.uint32)
    for r, (word, pair) in enumerate(zip(words, pairs, strict=True)):
        for half in range(2):  # of k
            nibbles = word[i // 2] >> (i % 2 * 8 + half * 4)
            bits[(0, r % 2, half), r // 2, 0] = tw.lop3(nibbles, 0x000F000F, 0x43004300, lambda a, b, c: (a & b) | c)
        w[(None, r % 2, None), r // 2, 0] -= pair.to(tw.uint16).bitcast(w.dtype)  # both are 128 + something: exact


GROUP = 128


@cache
def plan_for(tokens: int) -> Plan:
    """Return the plan for a number of rows of A."""
    # Rows of A, warps along (W, A, K), stages.
    tile, (warps_w, warps_a, groups), stages = next(
        candidate
        for candidate in (
            (8, (2, 1, 8), 3),
            (16, (2, 1, 8), 3),
            (64, (2, 2, 2), 4),
            (128, (2, 2, 2), 3),
        )
        if candidate[0] >= min(tokens, 128)
    )
    rows, threads = 64, 32 * warps_w * warps_a * groups
    # ldmatrix fills two atoms of 8 rows of A at a time, where there are as many.
    atom, wide = (tw.atoms.SM75_U32x2_LDSM_N, 8) if tile == 8 else (tw.atoms.SM75_U32x4_LDSM_N, 16)
    mma = tw.make_tiled_mma(
        tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN, (warps_w, warps_a, 1), (16 * warps_w, wide * warps_a, 16)
    )
    # A row of 64 elements of A is all 32 banks; its parts of 16 bytes change places with the row's number.
    swizzled = tw.ComposedLayout(tw.Swizzle(3, 3, 3), 0, tw.Layout((8, 64), (64, 1)))
    words = GROUP // 8

    def fill(vectors: int, elements: int) -> tw.TiledCopy:
        layout = tw.Layout((threads // vectors, vectors), (vectors, 1))
        return tw.make_tiled_copy(tw.atoms.CpAsync(128, cache="global"), layout, tw.Layout((1, elements)))

    return Plan(
        rows,
        tile,
        groups,
        stages,
        tw.tile_to_shape(swizzled, (tile, GROUP * groups, stages)),
        tw.Layout((rows, (4, 4, groups), stages), (words, (1, 4, words * rows), words * rows * groups)),
        fill(16 * groups, 8),
        fill(4 * groups, 4),
        tw.make_tiled_copy_B(atom, mma),
        mma,
    )


def pack(weights: np.ndarray) -> np.ndarray:
    """Pack weights (N, K) from 0 to 15 into int32 (N, K / 8), K filled up to a multiple of 128.

    Word q * 4 + j of a group holds, for each 16 of k from 32 * j on (step), for both halves and both neighbours, the
    weight at k = 32 * j + 16 * step + 8 * half + 2 * q + neighbour, as nibble 2 * step + half + 4 * neighbour.
    """
    n, k = weights.shape
    if weights.size and not 0 <= weights.min() <= weights.max() <= 15:
        raise tw.ArgumentError(f"pack: expected weights from 0 to 15, got {weights.min()} to {weights.max()}")
    filled = np.pad(weights, ((0, 0), (0, -k % GROUP))).astype(np.uint32)
    parts = filled.reshape(n, -1, 4, 2, 2, 4, 2)  # group, j, step, half, q, neighbour
    nibbles = parts.transpose(0, 1, 5, 2, 6, 3, 4).reshape(n, -1, 8)  # (group, q, j), (neighbour, step, half)
    return (nibbles << (4 * np.arange(8, dtype=np.uint32))).sum(2, dtype=np.uint32).view(np.int32)


def launch(C, A, packed, scales, zeros) -> None:
    """Compute C (M, N) from A (M, K), `pack`'s weights (N, K / 8), and scales and zeros (N, K / 128)."""
    (m, n), k, plan = C.shape, A.shape[1], plan_for(C.shape[0])
    groups = tw.ceil_div(k, GROUP)
    expected = {"A": (m, k), "packed": (n, groups * GROUP // 8), "scales": (n, groups), "zeros": (n, groups)}
    for (name, shape), array in zip(expected.items(), (A, packed, scales, zeros), strict=True):
        if tuple(array.shape) != shape:
            raise tw.ArgumentError(f"launch: expected {name} of {shape} for C of {(m, n)}, got {tuple(array.shape)}")
    grid = (tw.ceil_div(n, plan.rows), tw.ceil_div(m, plan.tokens))
    int4_matmul.configure(min_blocks=1)[grid, plan.threads](C, A, packed, scales, zeros, plan)


def random_weights(random: np.random.Generator, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights (N, K), scales and zeros (N, K / 128), the last two with N contiguous."""
    groups = tw.ceil_div(k, GROUP)
    weights = random.integers(0, 16, (n, k), np.uint8)
    scales = random.uniform(0.5, 1.5, (groups, n)).astype(ml_dtypes.bfloat16).T
    return weights, scales, random.integers(0, 16, (groups, n), np.uint8).T


def dequantised(weights: np.ndarray, scales: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Return the weights as float32 numbers (N, K)."""
    scale, zero = (np.repeat(x.astype(np.float32), GROUP, 1)[:, : weights.shape[1]] for x in (scales, zeros))
    return (weights.astype(np.float32) - zero) * scale


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: few rows, more rows, and extents that no tile divides."""
    shapes = [(1, 72, 1024), (13, 64, 712), (70, 100, 384)]
    return [_case(*shape, backend) for shape in (shapes if quick else [(m, 8192, 8192) for m in (1, 16, 128)])]


def _case(m: int, n: int, k: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        weights, scales, zeros = random_weights(random, n, k)
        a = random.standard_normal((m, k), dtype=np.float32).astype(ml_dtypes.bfloat16)
        A, packed, C = (put(x, backend) for x in (a, pack(weights), np.full((m, n), np.nan, ml_dtypes.bfloat16)))
        S, Z = (put(np.ascontiguousarray(x.T), backend).T for x in (scales, zeros))
        full = dequantised(weights, scales, zeros)
        library = None
        if backend == "cuda":
            W = put(full.astype(ml_dtypes.bfloat16), backend)
            library = lambda: A @ W.T  # noqa: E731
        return Trial(
            lambda: launch(C, A, packed, S, Z),
            lambda: _rounded(C),
            a.astype(np.float32) @ full.T,
            # Results are below 6 standard deviations of sqrt(49 k), and rounded by up to half an eps of that.
            limit=float(25 * k**0.5 * ml_dtypes.finfo(ml_dtypes.bfloat16).eps),
            library=library,
        )

    return Case("4-bit weights", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def _rounded(C) -> np.ndarray:
    return fetch(C.float() if hasattr(C, "float") else C).astype(np.float32)


def example_int4_matmul():
    """Return grid, block and arguments for `tilewright show examples/kernels/int4_matmul.py:int4_matmul`."""
    return _example(16)


def _example(m: int):
    plan = plan_for(m)
    matrix, out = tw.spec(tw.bfloat16, (m, 8192)), tw.spec(tw.bfloat16, (m, 8192))
    packed = tw.spec(tw.int32, (8192, 1024))
    scales, zeros = (tw.spec(dtype, (8192, 64), (1, 8192)) for dtype in (tw.bfloat16, tw.uint8))
    return (128, tw.ceil_div(m, plan.tokens)), plan.threads, (out, matrix, packed, scales, zeros, plan)


if __name__ == "__main__":
    main(cases)
