"""Multiply matrices with a long K and a small result, C = A B^T, with K split over blocks.

The product of 256 x 65536 and 65536 x 256 has four tiles of 128 x 128, which four blocks of a GPU would compute. Here
each tile has as many blocks as `splits` says, and each of them multiplies its own part of K. Their accumulators have to
be added, always in the same order, so that the same input gives the same bits.

CUTLASS's semaphore lets the blocks of a tile add one after the other: with 32 splits, 32 times the time to read and
write a tile. Here they add in a tree (Fenwick 1994). The parts of a tile have the numbers 1, 2, 3, ...; part 6 adds
part 5, part 8 adds parts 7, 6 and 4, and so on: from n - 1 on, each next number is the last without its lowest bit
that is set, as long as it is above n without its lowest bit. Afterwards part n has the sum of as many parts as its
lowest bit counts. The last part goes on to 0, so that it has all of them, and finishes the tile. With 32 splits, 5 sums
are waited for one after the other.

    part   1   2   3   4   5   6   7   8   9 (the last)
    adds       1       3       5       7   8
                       2               6
                                       4

Part n leaves its sum in a workspace and then sets its semaphore (release); the only part that adds it waits for that
(acquire), and clears the semaphore for the next launch. A block waits only for blocks with lower numbers, which were
started before, so that any number of splits works on any GPU.

Extents are any; the rows of A and B begin at multiples of 16 bytes (strides of multiples of 8 elements).

Run it: `tilewright demo examples/kernels/splitk_matmul.py`, or `python examples/kernels/splitk_matmul.py`
"""

from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe
from tilewright.runtime.memory import DeviceArray


@dataclass(frozen=True)
class Plan:
    """Everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem: tw.ComposedLayout  # of A and of B: (M or N, K, stages)
    fill: tw.TiledCopy  # global to shared memory
    load_a: tw.TiledCopy  # shared memory to fragments
    load_b: tw.TiledCopy
    mma: tw.TiledMMA
    leave: tw.TiledCopy  # fragments to the workspace and back


@tw.kernel
def splitk_matmul(C, A, B, alpha: tw.float32, sums, semaphores, plan: tw.constexpr):
    """Multiply one part of K for one tile of C, and add the parts before it that are this one's to add."""
    tid, splits = tw.thread_idx.x, tw.grid_dim.z
    m, n, part = tw.block_idx.x, tw.block_idx.y, tw.block_idx.z
    tile, last = n * tw.grid_dim.x + m, part == splits - 1
    acc = multiply(A, B, m, n, part, splits, plan)
    values = acc.map_layout(lambda layout: tw.Layout((4, layout.size // 4)))

    def place(number):  # where the sum of a part of this tile lies, as far as this thread has values of it
        return plan.leave.get_slice(tid).partition_D(tw.local_tile(sums[tile, number - 1, :], (SIZE,), 0))

    below = tw.where(last, 0, part & (part + 1))
    other = part  # the number of the part before this one, which has the number part + 1
    while other > below:
        if tid == 0:
            while tw.load(semaphores, (tile, other - 1), sem="acquire") == 0:
                pass
            tw.store(semaphores, (tile, other - 1), 0)
        tw.sync_threads()
        values += place(other)
        other &= other - 1
    if last:
        gC = tw.local_tile(C, plan.tile[:2], (m, n), guard=True)
        tw.copy((acc * alpha).to(C.dtype), plan.mma.get_slice(tid).partition_C(gC))
    else:
        tw.copy(values, place(part + 1))
        tw.sync_threads()
        if tid == 0:
            tw.store(semaphores, (tile, part), 1, sem="release")


@tw.function
def multiply(A, B, m, n, part, splits, plan):
    """Return the accumulator of one part of K: tiles through a ring of stages, as in examples/tensorcore."""
    tid, pipe = tw.thread_idx.x, tw.pipeline(plan.stages)
    filler, thread = plan.fill.get_slice(tid), plan.mma.get_slice(tid)
    sA, sB = (tw.shared(x.dtype, plan.smem) for x in (A, B))
    tiles = tw.ceil_div(A.shape[1], plan.tile[2])
    first, end = tiles * part // splits, tiles * (part + 1) // splits

    def fill(k, stage):  # beyond the end, tiles arrive as zeros, and are not used
        if k < end:
            for matrix, place, smem in ((A, m, sA), (B, n, sB)):
                tile = tw.local_tile(matrix, plan.tile[1:], (place, k), guard=True)
                tw.copy(plan.fill, filler.partition_S(tile), filler.partition_D(smem[:, :, stage]))
        pipe.commit()

    rA, rB = thread.partition_fragment_A(sA[:, :, 0]), thread.partition_fragment_B(sB[:, :, 0])
    acc = tw.registers(tw.float32, plan.mma.partition_shape(plan.tile[:2], "C"))
    a, b = plan.load_a.get_slice(tid), plan.load_b.get_slice(tid)
    tw.clear(acc)
    for k in tw.static_range(pipe.ahead):
        fill(first + k, k)
    for k in range(end - first):
        pipe.wait()
        fill(first + k + pipe.ahead, pipe.write_stage(k))
        stage = pipe.read_stage(k)
        for i in tw.static_range(plan.tile[2] // 16):
            tw.copy(plan.load_a, a.partition_S(sA)[:, :, i, stage], a.retile_D(rA)[:, :, i])
            tw.copy(plan.load_b, b.partition_S(sB)[:, :, i, stage], b.retile_D(rB)[:, :, i])
            tw.gemm(plan.mma, acc, rA[:, :, i], rB[:, :, i], acc)
    return acc


THREADS = 256
TILE = (128, 128, 64)
SIZE = TILE[0] * TILE[1]
MMA_OF = {tw.float16: tw.atoms.SM80_16x8x16_F32F16F16F32_TN, tw.bfloat16: tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN}


@cache
def plan_for(dtype: tw.DType, stages: int = 4) -> Plan:
    """Return the plan for an element type of A and B."""
    mma = tw.make_tiled_mma(MMA_OF[dtype], (2, 4, 1), (32, 64, 16))
    # A row of 64 elements is all 32 banks; its parts of 16 bytes change places with the row's number.
    rows = tw.ComposedLayout(tw.Swizzle(3, 3, 3), 0, tw.Layout((8, 64), (64, 1)))
    return Plan(
        TILE,
        stages,
        tw.tile_to_shape(rows, (TILE[0], TILE[2], stages)),
        tw.make_tiled_copy(
            tw.atoms.CpAsync(128, cache="global"), tw.Layout((THREADS // 8, 8), (8, 1)), tw.Layout((1, 8))
        ),
        tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, mma),
        tw.make_tiled_copy_B(tw.atoms.SM75_U32x4_LDSM_N, mma),
        mma,
        tw.make_tiled_copy(tw.atoms.UniversalCopy(128), tw.Layout(THREADS), tw.Layout(4)),
    )


def make_workspace(C, splits: int) -> tuple:
    """Return memory for the sums of the parts of C, and their semaphores, all 0.

    A launch leaves the semaphores at 0, so that launches that follow one another on a stream may share a workspace.
    """
    info = describe(C)
    tiles = tw.ceil_div(C.shape[0], TILE[0]) * tw.ceil_div(C.shape[1], TILE[1])
    sums, semaphores = (tiles, splits, SIZE), np.zeros((tiles, splits), np.int32)
    if info.device == "cpu":
        return np.empty(sums, np.float32), semaphores
    return DeviceArray(sums, ordinal=info.device), DeviceArray.from_numpy(semaphores, ordinal=info.device)


def launch(C, A, B, splits: int, alpha: float = 1.0, workspace: tuple | None = None) -> None:
    """Compute C = alpha * A B^T from float16 or bfloat16 A (M, K) and B (N, K), with K in `splits` parts."""
    if splits < 1:
        raise tw.ArgumentError(f"launch: expected at least one part of K, got splits = {splits}")
    if (*A.shape, *B.shape) != (C.shape[0], A.shape[1], C.shape[1], A.shape[1]):
        raise tw.ArgumentError(f"launch: expected C (M, N), A (M, K) and B (N, K), got {C.shape}, {A.shape}, {B.shape}")
    grid = (tw.ceil_div(C.shape[0], TILE[0]), tw.ceil_div(C.shape[1], TILE[1]), splits)
    workspace = make_workspace(C, splits) if workspace is None else workspace
    if workspace[1].shape[0] < grid[0] * grid[1] or workspace[1].shape[1] < splits:
        raise tw.ArgumentError(f"launch: expected a workspace for a grid of {grid}, got one for {workspace[1].shape}")
    splitk_matmul[grid, THREADS](C, A, B, alpha, *workspace, plan_for(describe(A).dtype))


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: a long K, and extents that no tile divides."""
    shapes = [(128, 128, 640, 5), (70, 200, 456, 3)] if quick else [(256, 256, 65536, 32), (250, 200, 65528, 32)]
    return [_case(*shape, backend) for shape in shapes]


def _case(m: int, n: int, k: int, splits: int, backend: Backend) -> Case:
    def prepare() -> Trial:
        random = np.random.default_rng(0)
        dtype = np.float16 if backend == "cuda" else ml_dtypes.bfloat16  # NumPy has no bfloat16 that goes to a GPU
        a, b = (random.standard_normal((rows, k), dtype=np.float32).astype(dtype) for rows in (m, n))
        A, B, C = (put(x, backend) for x in (a, b, np.full((m, n), np.nan, np.float32)))
        expected = a.astype(np.float32) @ b.astype(np.float32).T
        workspace = make_workspace(C, splits)
        library = (lambda: A @ B.T) if hasattr(A, "data_ptr") else None
        # float32 sums; a tensor core cuts them where a multiply-add rounds, so errors add up instead of cancelling.
        limit = k * 2.0**-23 * 32
        return Trial(lambda: launch(C, A, B, splits, workspace=workspace), lambda: fetch(C), expected, limit, library)

    return Case(f"split-K, {splits} parts", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_splitk_matmul():
    """Return grid, block and arguments for `tilewright show examples/kernels/splitk_matmul.py:splitk_matmul`."""
    matrix, result = tw.spec(tw.bfloat16, (256, 65536)), tw.spec(tw.float32, (256, 256))
    workspace = tw.spec(tw.float32, (4, 32, SIZE)), tw.spec(tw.int32, (4, 32))
    return (2, 2, 32), THREADS, (result, matrix, matrix, 1.0, *workspace, plan_for(tw.bfloat16))


if __name__ == "__main__":
    main(cases)
