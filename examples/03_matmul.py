"""Multiply matrices by tiles: C[m, n] = sum over k of A[m, k] * B[n, k], in float32.

The kernels compute the same with the same tiles, 128 x 128 of C and 8 of K for 32 x 8 threads, and differ in what
runs at the same time:

- `matmul_simple`: copy a tile to shared memory, wait, multiply, and again.
- `matmul_overlapped`: while a tile is multiplied, the next one is on its way into registers.
- `matmul_double_buffered`: two tiles in shared memory, filled by asynchronous copies, and two steps of K in
  registers, so that neither memory is waited for.
- `matmul_row_major`: the same for matrices whose rows are contiguous. They are read 16 bytes at a time along K and
  stored in shared memory across it, which asynchronous copies cannot do, so the next tile waits in registers.

A TiledCopy says which thread copies what, a TiledMMA which thread multiplies what. Both are built of an atom: here
an asynchronous copy of 8 bytes and a fused multiply-add. A tensor core would only be another atom.

The first three also take row-major matrices, with other tiled copies; the last one is faster there.

Run it: `python examples/03_matmul.py`
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe

TILE_M, TILE_N, TILE_K = 128, 128, 8


@tw.kernel
def matmul_simple(C, A, B, smem_layout: tw.constexpr, copy_a: tw.constexpr, copy_b: tw.constexpr, mma: tw.constexpr):
    """Copy a tile, wait, multiply."""
    sA, sB = tw.shared(A.dtype, smem_layout), tw.shared(B.dtype, smem_layout)
    tile, block = (TILE_M, TILE_N, TILE_K), (tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, tile, block, proj=(1, None, 1))  # (TILE_M, TILE_K, tiles of K)
    gB = tw.local_tile(B, tile, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, tile, block, proj=(1, 1, None))

    tid = tw.thread_idx.x
    copier_a, copier_b, thread = copy_a.get_slice(tid), copy_b.get_slice(tid), mma.get_slice(tid)
    tAgA, tAsA = copier_a.partition_S(gA), copier_a.partition_D(sA)
    tBgB, tBsB = copier_b.partition_S(gB), copier_b.partition_D(sB)
    tCsA, tCsB, tCgC = thread.partition_A(sA), thread.partition_B(sB), thread.partition_C(gC)
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)

    for k_tile in range(tw.size(gA.shape[2])):
        tw.copy(copy_a, tAgA[:, :, :, k_tile], tAsA)
        tw.copy(copy_b, tBgB[:, :, :, k_tile], tBsB)
        tw.cp_async_wait()
        tw.sync_threads()
        tw.gemm(mma, acc, tCsA, tCsB, acc)
        tw.sync_threads()
    tw.copy(acc, tCgC)


@tw.kernel
def matmul_overlapped(
    C, A, B, smem_layout: tw.constexpr, copy_a: tw.constexpr, copy_b: tw.constexpr, mma: tw.constexpr
):
    """Load the next tile into registers while this one is multiplied."""
    sA, sB = tw.shared(A.dtype, smem_layout), tw.shared(B.dtype, smem_layout)
    tile, block = (TILE_M, TILE_N, TILE_K), (tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, tile, block, proj=(1, None, 1))
    gB = tw.local_tile(B, tile, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, tile, block, proj=(1, 1, None))

    tid = tw.thread_idx.x
    copier_a, copier_b, thread = copy_a.get_slice(tid), copy_b.get_slice(tid), mma.get_slice(tid)
    tAgA, tAsA = copier_a.partition_S(gA), copier_a.partition_D(sA)
    tBgB, tBsB = copier_b.partition_S(gB), copier_b.partition_D(sB)
    tCsA, tCsB, tCgC = thread.partition_A(sA), thread.partition_B(sB), thread.partition_C(gC)
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)

    next_a, next_b = tw.fragment_like(tAsA), tw.fragment_like(tBsB)
    tw.copy(tAgA[:, :, :, 0], next_a)
    tw.copy(tBgB[:, :, :, 0], next_b)
    k_tiles = tw.size(gA.shape[2])
    for k_tile in range(k_tiles):
        tw.sync_threads()  # nobody reads the previous tile any more
        tw.copy(next_a, tAsA)
        tw.copy(next_b, tBsB)
        tw.sync_threads()
        if k_tile + 1 < k_tiles:
            tw.copy(tAgA[:, :, :, k_tile + 1], next_a)
            tw.copy(tBgB[:, :, :, k_tile + 1], next_b)
        tw.gemm(mma, acc, tCsA, tCsB, acc)
    tw.copy(acc, tCgC)


@tw.kernel
def matmul_double_buffered(
    C, A, B, smem_layout: tw.constexpr, copy_a: tw.constexpr, copy_b: tw.constexpr, mma: tw.constexpr
):
    """Keep two tiles in shared memory and two steps of K in registers."""
    sA, sB = tw.shared(A.dtype, smem_layout), tw.shared(B.dtype, smem_layout)  # (TILE, TILE_K, 2)
    tile, block = (TILE_M, TILE_N, TILE_K), (tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, tile, block, proj=(1, None, 1))
    gB = tw.local_tile(B, tile, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, tile, block, proj=(1, 1, None))

    tid = tw.thread_idx.x
    copier_a, copier_b, thread = copy_a.get_slice(tid), copy_b.get_slice(tid), mma.get_slice(tid)
    tAgA, tAsA = copier_a.partition_S(gA), copier_a.partition_D(sA)
    tBgB, tBsB = copier_b.partition_S(gB), copier_b.partition_D(sB)
    tCsA, tCsB, tCgC = thread.partition_A(sA), thread.partition_B(sB), thread.partition_C(gC)
    rA, rB = tw.registers(A.dtype, (*tCsA.shape[:2], 2)), tw.registers(B.dtype, (*tCsB.shape[:2], 2))
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)

    # Fill the first stage, and the registers of the first step.
    tw.copy(copy_a, tAgA[:, :, :, 0], tAsA[:, :, :, 0])
    tw.copy(copy_b, tBgB[:, :, :, 0], tBsB[:, :, :, 0])
    tw.cp_async_commit()
    tw.cp_async_wait(0)
    tw.sync_threads()
    tw.copy(tCsA[:, :, 0, 0], rA[:, :, 0])
    tw.copy(tCsB[:, :, 0, 0], rB[:, :, 0])

    k_tiles = tw.size(gA.shape[2])
    for k_tile in range(k_tiles):
        stage = k_tile % 2
        more = k_tile + 1 < k_tiles
        if more:
            tw.copy(copy_a, tAgA[:, :, :, k_tile + 1], tAsA[:, :, :, 1 - stage])
            tw.copy(copy_b, tBgB[:, :, :, k_tile + 1], tBsB[:, :, :, 1 - stage])
            tw.cp_async_commit()
        for k in tw.range(TILE_K, unroll=True):
            if k + 1 < TILE_K:
                tw.copy(tCsA[:, :, k + 1, stage], rA[:, :, (k + 1) % 2])
                tw.copy(tCsB[:, :, k + 1, stage], rB[:, :, (k + 1) % 2])
            tw.gemm(mma, acc, rA[:, :, k % 2], rB[:, :, k % 2], acc)
        if more:
            tw.cp_async_wait(0)
            tw.sync_threads()
            tw.copy(tCsA[:, :, 0, 1 - stage], rA[:, :, 0])
            tw.copy(tCsB[:, :, 0, 1 - stage], rB[:, :, 0])
    tw.copy(acc, tCgC)


@tw.kernel
def matmul_row_major(C, A, B, smem_layout: tw.constexpr, copy_a: tw.constexpr, copy_b: tw.constexpr, mma: tw.constexpr):
    """Keep two tiles in shared memory; the next one passes through registers, which turn rows into columns."""
    sA, sB = tw.shared(A.dtype, smem_layout), tw.shared(B.dtype, smem_layout)
    tile, block = (TILE_M, TILE_N, TILE_K), (tw.block_idx.x, tw.block_idx.y, None)
    gA = tw.local_tile(A, tile, block, proj=(1, None, 1))
    gB = tw.local_tile(B, tile, block, proj=(None, 1, 1))
    gC = tw.local_tile(C, tile, block, proj=(1, 1, None))

    tid = tw.thread_idx.x
    copier_a, copier_b, thread = copy_a.get_slice(tid), copy_b.get_slice(tid), mma.get_slice(tid)
    tAgA, tAsA = copier_a.partition_S(gA), copier_a.partition_D(sA)
    tBgB, tBsB = copier_b.partition_S(gB), copier_b.partition_D(sB)
    tCsA, tCsB, tCgC = thread.partition_A(sA), thread.partition_B(sB), thread.partition_C(gC)
    rA, rB = tw.registers(A.dtype, (*tCsA.shape[:2], 2)), tw.registers(B.dtype, (*tCsB.shape[:2], 2))
    next_a, next_b = tw.fragment_like(tAgA[:, :, :, 0]), tw.fragment_like(tBgB[:, :, :, 0])
    acc = thread.make_fragment_C(tCgC)
    tw.clear(acc)

    tw.copy(tAgA[:, :, :, 0], next_a)
    tw.copy(tBgB[:, :, :, 0], next_b)
    tw.copy(next_a, tAsA[:, :, :, 0])
    tw.copy(next_b, tBsB[:, :, :, 0])
    tw.sync_threads()
    tw.copy(tCsA[:, :, 0, 0], rA[:, :, 0])
    tw.copy(tCsB[:, :, 0, 0], rB[:, :, 0])

    k_tiles = tw.size(gA.shape[2])
    for k_tile in range(k_tiles):
        stage = k_tile % 2
        more = k_tile + 1 < k_tiles
        if more:
            tw.copy(tAgA[:, :, :, k_tile + 1], next_a)
            tw.copy(tBgB[:, :, :, k_tile + 1], next_b)
        for k in tw.range(TILE_K, unroll=True):
            if k + 1 < TILE_K:
                tw.copy(tCsA[:, :, k + 1, stage], rA[:, :, (k + 1) % 2])
                tw.copy(tCsB[:, :, k + 1, stage], rB[:, :, (k + 1) % 2])
            tw.gemm(mma, acc, rA[:, :, k % 2], rB[:, :, k % 2], acc)
        if more:
            tw.copy(next_a, tAsA[:, :, :, 1 - stage])
            tw.copy(next_b, tBsB[:, :, :, 1 - stage])
            tw.sync_threads()
            tw.copy(tCsA[:, :, 0, 1 - stage], rA[:, :, 0])
            tw.copy(tCsB[:, :, 0, 1 - stage], rB[:, :, 0])
    tw.copy(acc, tCgC)


@dataclass(frozen=True)
class Plan:
    """How the tiles are copied and multiplied: everything that a kernel knows at compile time."""

    smem_layout: tw.Layout
    copy_a: tw.TiledCopy
    copy_b: tw.TiledCopy
    mma: tw.TiledMMA


# Multiplying: 32 x 8 threads, and each computes 4 x 16 elements of C, in pairs of neighbours so that shared memory
# is read 8 bytes at a time. 16 x 16 threads with 8 x 8 elements each read less of it, and are faster.
FMA = tw.atoms.UniversalFMA(tw.float32)
MMA = tw.make_tiled_mma(FMA, (32, 8, 1), (tw.Layout((32, 2), (2, 1)), tw.Layout((8, 2), (2, 1)), None))
MMA_SQUARE = tw.make_tiled_mma(FMA, (16, 16, 1), (tw.Layout((16, 2), (2, 1)), tw.Layout((16, 2), (2, 1)), None))

# Copying from memory where M (or N) is contiguous: 32 x 8 threads, 2 neighbours each. Where K is contiguous, 8
# neighbouring threads read one row of the tile, and only 4 bytes go to the same place in shared memory.
COPY_M_MAJOR = tw.make_tiled_copy(tw.atoms.CpAsync(64), tw.Layout((32, 8)), tw.Layout((2, 1)))
COPY_K_MAJOR = tw.make_tiled_copy(tw.atoms.CpAsync(32), tw.Layout((32, 8), (8, 1)), tw.Layout((1, 1)))
# For `matmul_row_major`: two threads share a row of 8, with 16 bytes each.
COPY_ROWS = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((128, 2), (2, 1)), tw.Layout((1, 4)))

# Columns of K are padded by two floats, which keeps pairs on 8 bytes. The second layout has two stages. Threads that
# store across K need a padding of four: then the two halves of a warp go to different banks.
SMEM = tw.Layout((TILE_M, TILE_K), (1, 130))
SMEM_STAGES = tw.Layout((TILE_M, TILE_K, 2), (1, 130, 1040))
SMEM_ROWS = tw.Layout((TILE_M, TILE_K, 2), (1, 132, 1056))


# Two blocks on a multiprocessor hide each other's waits. The compiler would take 137 registers a thread, which leaves
# room for one; asked for two blocks, it gets by with 128.
TWO_BLOCKS = matmul_row_major.configure(min_blocks=2)


def plan_for(A, B, stages: int = 1, mma: tw.TiledMMA = MMA) -> Plan:
    """Return the plan for how A and B are stored."""
    copies = [COPY_M_MAJOR if _is_first_contiguous(x) else COPY_K_MAJOR for x in (A, B)]
    return Plan(SMEM_STAGES if stages == 2 else SMEM, *copies, mma)


def _is_first_contiguous(x) -> bool:
    """Say whether neighbours along the first dimension are neighbours in memory."""
    info = describe(x)
    return info.strides[0] == 1


def _launch(kernel: tw.Kernel, C, A, B, plan: Plan) -> None:
    m, n = C.shape
    grid = (m // TILE_M, n // TILE_N)
    kernel[grid, plan.mma.size](C, A, B, plan.smem_layout, plan.copy_a, plan.copy_b, plan.mma)


def simple(C, A, B) -> None:
    """Compute C = A B^T for extents that are multiples of the tile."""
    _launch(matmul_simple, C, A, B, plan_for(A, B))


def overlapped(C, A, B) -> None:
    """Compute C = A B^T, loading ahead into registers."""
    _launch(matmul_overlapped, C, A, B, plan_for(A, B))


def double_buffered(C, A, B, mma: tw.TiledMMA = MMA) -> None:
    """Compute C = A B^T, double-buffered in shared memory and registers."""
    _launch(matmul_double_buffered, C, A, B, plan_for(A, B, stages=2, mma=mma))


def square(C, A, B) -> None:
    """Compute C = A B^T, double-buffered, with 16 x 16 threads for the product."""
    double_buffered(C, A, B, MMA_SQUARE)


def row_major(C, A, B) -> None:
    """Compute C = A B^T for row-major A and B."""
    _launch(TWO_BLOCKS, C, A, B, Plan(SMEM_ROWS, COPY_ROWS, COPY_ROWS, MMA_SQUARE))


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the demo's cases: the three kernels, and the last one on row-major matrices."""
    m, n, k = (256, 256, 64) if quick else (2048, 2048, 256)
    variants: list[tuple[str, Callable[..., None], str]] = [
        ("matmul, simple", simple, "F"),
        ("matmul, overlapped", overlapped, "F"),
        ("matmul, double-buffered", double_buffered, "F"),
        ("matmul, double-buffered, 16 x 16 threads", square, "F"),
        ("matmul, double-buffered, rows", double_buffered, "C"),
        ("matmul, row-major", row_major, "C"),
    ]
    return [_case(name, function, (m, n, k), order, backend) for name, function, order in variants]


def _case(
    name: str, function: Callable[..., None], extents: tuple[int, int, int], order: str, backend: Backend
) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a = np.array(random.standard_normal((m, k), dtype=np.float32), order=order)
        b = np.array(random.standard_normal((n, k), dtype=np.float32), order=order)
        A, B, C = put(a, backend), put(b, backend), put(np.full((m, n), np.nan, np.float32, order=order), backend)
        expected = a.astype(np.float64) @ b.astype(np.float64).T
        # k products of size 1 and as many roundings; normal sums stay far below.
        limit = k * 2.0**-23 * 4
        library = (lambda: A @ B.T) if hasattr(A, "data_ptr") else None
        return Trial(lambda: function(C, A, B), lambda: fetch(C), expected, limit, library)

    return Case(name, f"{m} x {n} x {k} float32", prepare, flops=2 * m * n * k)


def _example(stages: int):
    matrix = tw.spec(tw.float32, (2048, 2048), stride=(1, 2048))
    plan = Plan(SMEM_STAGES if stages == 2 else SMEM, COPY_M_MAJOR, COPY_M_MAJOR, MMA)
    return (16, 16), MMA.size, (matrix, matrix, matrix, plan.smem_layout, plan.copy_a, plan.copy_b, plan.mma)


def example_matmul_simple():
    """Return grid, block and arguments for `tilewright show examples/03_matmul.py:matmul_simple`."""
    return _example(1)


def example_matmul_overlapped():
    """Return grid, block and arguments for `tilewright show examples/03_matmul.py:matmul_overlapped`."""
    return _example(1)


def example_matmul_double_buffered():
    """Return grid, block and arguments for `tilewright show examples/03_matmul.py:matmul_double_buffered`."""
    return _example(2)


def example_matmul_row_major():
    """Return grid, block and arguments for `tilewright show examples/03_matmul.py:matmul_row_major`."""
    matrix = tw.spec(tw.float32, (2048, 2048))
    return (16, 16), MMA.size, (matrix, matrix, matrix, SMEM_ROWS, COPY_ROWS, COPY_ROWS, MMA_SQUARE)


if __name__ == "__main__":
    main(cases)
