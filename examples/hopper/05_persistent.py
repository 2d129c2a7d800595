"""Multiply matrices by blocks that stay: C[m, n] = alpha sum A[m, k] B[n, k], a block for each multiprocessor.

As in 04, a producer fills a ring of stages by TMA and two consumers multiply 64 x 256 each. Here a block computes many
tiles of C, one after another, and the ring goes on from tile to tile: while the consumers store a tile, the producer
already brings what the next one needs. `tw.pipeline` keeps the two mbarriers of each stage, and a state for each role
knows the stage and the parity. A consumer is one tile of K behind when it hands a stage back (`behind=1`), because one
group of products stays under way.

The results leave through shared memory. A consumer rounds half of its sums to bfloat16, writes them by stmatrix to a
buffer of its own (64 x 128), and one of its threads stores that by TMA, in whole rows of 128 bytes. The store goes on
while the consumer multiplies the next tile; before the buffer is written again, that thread waits until the store has
read it, and a barrier of the 128 threads tells the others. Results of 4 bytes leave in quarters, 64 x 64, and threads
write them two at a time, because stmatrix moves elements of 2 bytes; that takes twice as many accesses as it could.

`tw.schedulers.Grouped` gives each block its tiles: in groups of eight rows, column by column, so that blocks that run
at the same time share rows of A and of B in the second-level cache. Of float32 groups of sixteen took 0.2 to 0.9 %
less. Another scheduler is another argument of the plan.

The plan says what is multiplied, the kernel is one. A tile is 128 x 256 and 128 bytes of K, whatever an element has:

    A and B         atom of a consumer, 64 x 256 x      K of a tile     C
    bfloat16        16                                  64              bfloat16
    float16         16                                  64              float16
    float32         8, as tf32                          32              float32
    float8 (both)   32                                  128             bfloat16, scaled by alpha

tf32 reads the upper 19 bits of a float32 and cuts the others. Sums of products of 8-bit floats keep around 14 bits on
Hopper, and the error grows with K: nearly 2 % at most for K = 4096 (both from the DeepSeek-V3 report, section 3.3). The
simulator sums up each instruction exactly, so it does not show that loss. 09 avoids it.

A and B are contiguous along K, C along N; M and N are multiples of the tile, K of 128 bytes.

Run it: `python examples/hopper/05_persistent.py`
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put
from tilewright.runtime.arrays import describe

WARPGROUP = 128
CONSUMERS = 2  # warpgroups
THREADS = WARPGROUP * (1 + CONSUMERS)
ORDER = tw.schedulers.Grouped(rows=8)
ORDER_OF_FLOAT32 = tw.schedulers.Grouped(rows=16)
COLUMNS = 256  # of a consumer's results
PART_BYTES = 256  # of a row of the results that are stored at once

# Of each type of A and B the atom of a consumer, and the type of C.
ATOMS = {
    tw.bfloat16: ("SM90_64x256x16_F32BF16BF16_SS", tw.bfloat16),
    tw.float16: ("SM90_64x256x16_F32F16F16_SS", tw.float16),
    tw.float32: ("SM90_64x256x8_F32TF32TF32_SS_TN", tw.float32),
    tw.float8_e4m3fn: ("SM90_64x256x32_F32E4M3E4M3_SS_TN", tw.bfloat16),
    tw.float8_e5m2: ("SM90_64x256x32_F32E5M2E5M2_SS_TN", tw.bfloat16),
}


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem_a: Any  # (M, K, stages)
    smem_b: Any  # (N, K, stages)
    smem_c: Any  # (M, N, consumers) of the buffers of results
    mma: tw.TiledMMA
    part: tw.TiledMMA  # of the registers that hold a part of a consumer's results
    write: tw.TiledCopy  # fragments of results to such a buffer
    scheduler: tw.schedulers.Scheduler  # in which order blocks compute tiles

    @property
    def stage_bytes(self) -> int:
        """The bytes of A and B in a stage."""
        m, n, k = self.tile
        return (m + n) * k * self.mma.atom.dtype_a.bits // 8


@tw.kernel
def matmul_persistent(C, A, B, plan: tw.constexpr, alpha=None):
    """Compute the tiles of C = alpha A B^T that the scheduler gives this block; None is 1."""
    m, n, k = plan.tile
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    sC = tw.shared(C.dtype, plan.smem_c)
    ring = tw.pipeline(plan.stages, consumers=4 * CONSUMERS, bytes=plan.stage_bytes)
    tw.sync_threads()  # the barriers are there
    tiles = plan.scheduler(C.shape[0] // m, C.shape[1] // n)
    k_tiles = A.shape[1] // k

    if tw.warpgroup_id() == 0:
        tw.set_registers(40)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column in tiles:
                for k_tile in range(k_tiles):
                    gA = tw.local_tile(A, (m, k), (row, k_tile), guard=True)
                    gB = tw.local_tile(B, (n, k), (column, k_tile), guard=True)
                    with state.fill() as (stage, full):
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full)
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gB, sB[:, :, stage], barrier=full)
    else:
        tw.set_registers(232)
        thread = plan.mma.get_slice(tw.thread_idx.x - WARPGROUP)
        tA, tB = thread.partition_A(sA), thread.partition_B(sB)
        acc = tw.registers(tw.float32, plan.mma.partition_shape((m, n), "C"))
        state = ring.consumer(behind=1)
        for row, column in tiles:
            for k_tile in range(k_tiles):
                with state.read() as stage:
                    tw.wgmma_fence()
                    tw.gemm(plan.mma, tA[:, :, :, stage], tB[:, :, :, stage], acc, accumulate=k_tile > 0)
                    tw.wgmma_commit()
                    tw.wgmma_wait(1)
            tw.wgmma_wait(0)
            state.release()
            store(C, acc, sC, row, column, plan, alpha)
        if tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it


@tw.function
def store(C, acc, sC, row, column, plan, alpha):
    """Store the sums of a consumer's 64 x 256, a part at a time."""
    consumer, is_leader = tw.warpgroup_id() - 1, tw.thread_idx.x % WARPGROUP == 0
    rows, columns = plan.part.tiler_mn
    parts = plan.mma.tile_size(1) // columns
    ours, buffer = tw.named_barrier(1 + consumer, WARPGROUP), sC[:, :, consumer]
    writer = plan.write.get_slice(tw.thread_idx.x % WARPGROUP)
    target = writer.partition_D(buffer)
    for part in tw.static_range(parts):
        out = tw.registers(C.dtype, plan.part.partition_shape((rows, columns), "C"))
        for i in range(tw.size(out.shape)):
            value = acc[part * tw.size(out.shape) + i]
            out[i] = (value if alpha is None else alpha * value).to(C.dtype)
        if is_leader:
            tw.tma_store_wait(0)  # the store before has read the buffer
        ours.sync()
        tw.copy(plan.write, writer.retile_S(out), target)
        tw.fence_proxy_async()
        ours.sync()
        if is_leader:
            where = (CONSUMERS * row + consumer, parts * column + part)
            tw.copy(tw.atoms.SM90_TMA_STORE, buffer, tw.local_tile(C, (rows, columns), where, guard=True))
            tw.tma_store_commit()


@cache
def plan_for(dtype: tw.DType = tw.bfloat16, stages: int = 4, scheduler: tw.schedulers.Scheduler | None = None) -> Plan:
    """Return the plan for a type of A and B: tiles of 128 x 256, in layouts that TMA writes and wgmma reads."""
    if dtype not in ATOMS:
        raise ValueError(f"the plan multiplies {', '.join(map(str, ATOMS))}, not {dtype}")
    name, result = ATOMS[dtype]
    tile = m, n, k = (128, COLUMNS, 128 // dtype.bytes)
    rows, columns = m // CONSUMERS, PART_BYTES // result.bytes
    operand, of_result = tw.atoms.GMMA_K_SW128(dtype), tw.atoms.GMMA_K_SW128(result)
    part = tw.make_tiled_mma(getattr(tw.atoms, name.replace(f"x{COLUMNS}x", f"x{columns}x")))
    write = tw.atoms.SM90_U32x4_STSM_N if result.bytes == 2 else tw.atoms.UniversalCopy(64)
    return Plan(
        tile,
        stages,
        tw.tile_to_shape(operand, (m, k, stages)),
        tw.tile_to_shape(operand, (n, k, stages)),
        tw.tile_to_shape(of_result, (rows, columns, CONSUMERS)),
        tw.make_tiled_mma(getattr(tw.atoms, name), (CONSUMERS, 1, 1)),
        part,
        tw.make_tiled_copy_C(write, part),
        scheduler or (ORDER_OF_FLOAT32 if dtype.bytes == 4 else ORDER),
    )


def matmul(
    C, A, B, stages: int = 4, blocks: int = 132, alpha: float | None = None,
    scheduler: tw.schedulers.Scheduler | None = None,
) -> None:  # fmt: skip
    """Compute C = alpha A B^T of extents that are multiples of the tile, by at most so many blocks."""
    plan = plan_for(describe(A).dtype, stages, scheduler)
    (m, n), k = C.shape, A.shape[1]
    if m % plan.tile[0] or n % plan.tile[1] or k % plan.tile[2]:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {plan.tile}")
    tiles = (m // plan.tile[0]) * (n // plan.tile[1])
    matmul_persistent[min(blocks, tiles), THREADS](C, A, B, plan, alpha)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: few blocks for many tiles, and each type; on a GPU, with torch, large products."""
    types = [tw.float16, tw.float32, tw.float8_e4m3fn, tw.float8_e5m2]
    if quick:
        small = [_case(tw.bfloat16, blocks, (384, 512, 320), backend, quick) for blocks in (1, 4)]
        return [*small, *(_case(dtype, 1, (256, 256, 256), backend, quick) for dtype in types)]
    large = [_case(tw.bfloat16, 132, (n, n, n), backend, quick) for n in (4096, 8192)]
    return [*large, *(_case(dtype, 132, (4096, 4096, 4096), backend, quick) for dtype in types)]


def _float32(C: Any) -> Any:
    """Return the results as float32, which NumPy has by itself."""
    return fetch(C.float()) if hasattr(C, "float") else fetch(C).astype(np.float32)


def _case(dtype: tw.DType, blocks: int, extents: tuple[int, int, int], backend: Backend, quick: bool) -> Case:
    m, n, k = extents
    result = ATOMS[dtype][1]

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        a, b = (random.standard_normal((rows, k), dtype=np.float32).astype(dtype.numpy) for rows in (m, n))
        A, B = put(a, backend), put(b, backend)
        C = put(np.full((m, n), np.nan, result.numpy), backend)
        alpha = 0.5 if dtype.bits == 8 else None
        expected = (alpha or 1) * (a.astype(np.float32) @ b.astype(np.float32).T)
        # The results are rounded to 8 bits; of a float32, tf32 cuts what 10 bits of fraction do not hold.
        limit = float(np.abs(expected).max()) * 2.0**-8
        library = (lambda: A @ B.T) if backend == "cuda" and dtype.bits == 16 else None
        stages = 3 if quick else 4
        return Trial(lambda: matmul(C, A, B, stages, blocks, alpha), lambda: _float32(C), expected, limit, library)

    return Case(f"persistent, {dtype}, {blocks} blocks", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_persistent(dtype: tw.DType = tw.bfloat16):
    """Return grid, block and arguments for `tilewright show ...05_persistent.py:matmul_persistent`."""
    matrix, out = tw.spec(dtype, (4096, 4096)), tw.spec(ATOMS[dtype][1], (4096, 4096))
    return 132, THREADS, (out, matrix, matrix, plan_for(dtype), 1.0 if dtype.bits == 8 else None)


if __name__ == "__main__":
    main(cases)
