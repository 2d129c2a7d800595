"""Multiply 8-bit floats with a scale for each block: C = sum over blocks of K of scale_a scale_b A B^T, in float32.

A has a scale for each row and 128 of K, B one for each 128 x 128 (DeepSeek-V3's recipe). So sums cannot go on over K in
the tensor cores: each 128 of K has scales of its own. Each consumer multiplies 128 of K into registers that begin with
zero, waits, and adds that up in float32: sums += scale_a scale_b partial. That is called promotion. What one consumer
does there, 64 multiply-adds a thread for 64 x 128 results, runs under the products of the other one.

Promotion also keeps the sums exact. On Hopper the tensor cores keep around 14 bits of sums of 8-bit floats; over all of
K = 4096 that made an error of nearly 2 % at most for random matrices (both from the DeepSeek-V3 report, section 3.3).
Here only the four instructions of a block of 128 sum up so. The simulator sums up each instruction exactly and rounds
once to float32; it does not show the loss, and a GPU differs from it by that.

A block computes 256 x 128, a consumer 2 x (64 x 128): 128 registers for sums and 64 for what is promoted next. 256
columns would need 128 more than there are. The scales of A travel with its tile: 256 of them, by TMA, in the same
stage. Those of B are one number for a tile and 128 of K; each thread loads it before it waits for the stage.

A and B are contiguous along K, C along N. scale_a is (K / 128, M), contiguous along M, so that TMA can copy it;
scale_b is (N / 128, K / 128). M is a multiple of 256, N and K of 128.

Run it: `python examples/hopper/09_fp8_promoted.py`
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

import tilewright as tw
from tilewright.demo import Backend, Case, Trial, fetch, main, put

WARPGROUP = 128
CONSUMERS = 2  # warpgroups
THREADS = WARPGROUP * (1 + CONSUMERS)
ORDER = tw.schedulers.Grouped(rows=8)
BLOCK = 128  # of K, and of N for B, that has a scale
WAVES = 2  # of 64 rows, one after the other, for each consumer
COLUMNS = 64  # of the results that are stored at once
ROWS = 64 * CONSUMERS  # of a wave


@dataclass(frozen=True)
class Plan:
    """The tiles and how they are copied and multiplied: everything that the kernel knows at compile time."""

    tile: tuple[int, int, int]
    stages: int
    smem_a: Any  # (M, K, stages)
    smem_b: Any  # (N, K, stages)
    smem_c: Any  # (64, columns, consumers) of the buffers of results
    mma: tw.TiledMMA  # of both consumers, a wave
    part: tw.TiledMMA  # of the registers that are stored at once
    write: tw.TiledCopy  # fragments of results to such a buffer
    scheduler: tw.schedulers.Scheduler  # in which order blocks compute tiles

    @property
    def stage_bytes(self) -> int:
        """The bytes of A, of B and of the scales of A in a stage."""
        m, n, k = self.tile
        return (m + n) * k + 4 * m


@tw.kernel
def matmul_promoted(C, A, B, scale_a, scale_b, plan: tw.constexpr):
    """Compute the tiles of C that the scheduler gives this block."""
    m, n, k = plan.tile
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    sC, scales = tw.shared(C.dtype, plan.smem_c), tw.shared(tw.float32, tw.Layout((m, plan.stages)))
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
                    of_a = tw.local_tile(tw.guarded(scale_a)[k_tile, :], (m,), (row,))
                    with state.fill() as (stage, full):
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full)
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gB, sB[:, :, stage], barrier=full)
                        tw.copy(tw.atoms.SM90_TMA_LOAD, of_a, scales[:, stage], barrier=full)
    else:
        tw.set_registers(232)
        tid = tw.thread_idx.x - WARPGROUP
        thread = plan.mma.get_slice(tid)
        partial = tw.registers(tw.float32, plan.mma.partition_shape((ROWS, n), "C"))
        sums = tw.registers(tw.float32, (tw.size(partial.shape), WAVES))
        first = tid // 32 * 16 + tw.lane_id() // 4  # of the two rows of a wave that the thread has, 8 apart
        state = ring.consumer()
        for row, column in tiles:
            tw.clear(sums)
            for k_tile in range(k_tiles):
                of_b = scale_b[column, k_tile]
                with state.read() as stage:
                    tB = thread.partition_B(sB[:, :, stage])
                    for wave in tw.static_range(WAVES):
                        tA = thread.partition_A(tw.local_tile(sA[:, :, stage], (ROWS, k), (wave, 0)))
                        tw.wgmma_fence()
                        tw.gemm(plan.mma, tA, tB, partial, accumulate=False)
                        tw.wgmma_commit()
                        place_a = ROWS * wave + first
                        factors = scales[place_a, stage] * of_b, scales[place_a + 8, stage] * of_b
                        tw.wgmma_wait(0)
                        for i in tw.static_range(tw.size(partial.shape)):
                            sums[i, wave] = tw.fma(factors[i // 2 % 2], partial[i], sums[i, wave])
            store(C, sums, sC, row, column, plan)
        if tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it


@tw.function
def store(C, sums, sC, row, column, plan):
    """Store the sums of a consumer's waves, 64 x 64 at a time."""
    consumer, is_leader = tw.warpgroup_id() - 1, tw.thread_idx.x % WARPGROUP == 0
    rows, columns = plan.part.tiler_mn
    parts = plan.tile[1] // columns
    ours, buffer = tw.named_barrier(1 + consumer, WARPGROUP), sC[:, :, consumer]
    writer = plan.write.get_slice(tw.thread_idx.x % WARPGROUP)
    target = writer.partition_D(buffer)
    for wave in tw.static_range(WAVES):
        for part in tw.static_range(parts):
            out = tw.registers(C.dtype, plan.part.partition_shape((rows, columns), "C"))
            for i in range(tw.size(out.shape)):
                out[i] = sums[part * tw.size(out.shape) + i, wave].to(C.dtype)
            if is_leader:
                tw.tma_store_wait(0)  # the store before has read the buffer
            ours.sync()
            tw.copy(plan.write, writer.retile_S(out), target)
            tw.fence_proxy_async()
            ours.sync()
            if is_leader:
                where = ((row * WAVES + wave) * CONSUMERS + consumer, parts * column + part)
                tw.copy(tw.atoms.SM90_TMA_STORE, buffer, tw.local_tile(C, (rows, columns), where, guard=True))
                tw.tma_store_commit()


@cache
def plan_for(stages: int = 4, scheduler: tw.schedulers.Scheduler = ORDER) -> Plan:
    """Return the plan: tiles of 256 x 128 x 128, in layouts that TMA writes and wgmma reads."""
    tile = m, n, k = (ROWS * WAVES, 128, BLOCK)
    operand, of_result = tw.atoms.GMMA_K_SW128(tw.float8_e4m3fn), tw.atoms.GMMA_K_SW128(tw.bfloat16)
    part = tw.make_tiled_mma(tw.atoms.SM90_64x64x32_F32E4M3E4M3_SS_TN)
    return Plan(
        tile,
        stages,
        tw.tile_to_shape(operand, (m, k, stages)),
        tw.tile_to_shape(operand, (n, k, stages)),
        tw.tile_to_shape(of_result, (64, COLUMNS, CONSUMERS)),
        tw.make_tiled_mma(tw.atoms.SM90_64x128x32_F32E4M3E4M3_SS_TN, (CONSUMERS, 1, 1)),
        part,
        tw.make_tiled_copy_C(tw.atoms.SM90_U32x4_STSM_N, part),
        scheduler,
    )


def matmul(C, A, B, scale_a, scale_b, stages: int = 4, blocks: int = 132) -> None:
    """Compute C of bfloat16 from A and B of float8_e4m3fn with scales of float32, by at most so many blocks."""
    plan = plan_for(stages)
    (m, n), k = C.shape, A.shape[1]
    if m % plan.tile[0] or n % plan.tile[1] or k % plan.tile[2]:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {plan.tile}")
    wanted = (k // BLOCK, m), (n // BLOCK, k // BLOCK)
    if (tuple(scale_a.shape), tuple(scale_b.shape)) != wanted:
        raise ValueError(f"scales are {wanted[0]} and {wanted[1]}, not {scale_a.shape} and {scale_b.shape}")
    tiles = (m // plan.tile[0]) * (n // plan.tile[1])
    matmul_promoted[min(blocks, tiles), THREADS](C, A, B, scale_a, scale_b, plan)


def quantize(x: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the 8-bit floats of a matrix, and the scales (rows / `rows`, K / 128) by which they are multiplied."""
    blocks = x.reshape(x.shape[0] // rows, rows, x.shape[1] // BLOCK, BLOCK)
    scales = np.abs(blocks).max(axis=(1, 3), keepdims=True) / float(ml_dtypes.finfo(ml_dtypes.float8_e4m3fn).max)
    small = (blocks / scales).reshape(x.shape).astype(ml_dtypes.float8_e4m3fn)
    return small, np.ascontiguousarray(scales[:, 0, :, 0], np.float32)


def dequantize(small: np.ndarray, scales: np.ndarray, rows: int) -> np.ndarray:
    """Return what 8-bit floats stand for."""
    factors = np.repeat(np.repeat(scales, rows, axis=0), BLOCK, axis=1)
    return small.astype(np.float32) * factors


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: two tiles for a block; on a GPU, with torch, large products."""
    if quick:
        return [_case(1, (256, 256, 512), backend)]
    return [_case(132, (n, n, n), backend) for n in (4096, 8192)]


def _float32(C: Any) -> Any:
    """Return the results as float32, which NumPy has by itself."""
    return fetch(C.float()) if hasattr(C, "float") else fetch(C).astype(np.float32)


def _case(blocks: int, extents: tuple[int, int, int], backend: Backend) -> Case:
    m, n, k = extents

    def prepare() -> Trial:
        random = np.random.default_rng(0)
        # Rows and columns of different sizes, as they come in practice; a scale for all would lose the small ones.
        sizes = [np.exp(random.uniform(-1, 1, (rows, k // BLOCK))).repeat(BLOCK, axis=1) for rows in (m, n // BLOCK)]
        sizes[1] = sizes[1].repeat(BLOCK, axis=0)
        a, b = (random.standard_normal(each.shape, dtype=np.float32) * each.astype(np.float32) for each in sizes)
        (a8, a_scales), (b8, b_scales) = quantize(a, 1), quantize(b, BLOCK)
        expected = dequantize(a8, a_scales, 1) @ dequantize(b8, b_scales, BLOCK).T
        A, B = put(a8, backend), put(b8, backend)
        of_a, of_b = put(np.ascontiguousarray(a_scales.T), backend), put(b_scales, backend)
        C = put(np.full((m, n), np.nan, ml_dtypes.bfloat16), backend)
        limit = float(np.abs(expected).max()) * 2.0**-8  # the results are rounded to 8 bits
        return Trial(lambda: matmul(C, A, B, of_a, of_b, blocks=blocks), lambda: _float32(C), expected, limit)

    return Case(f"fp8, promoted, {blocks} blocks", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_promoted():
    """Return grid, block and arguments for `tilewright show examples/hopper/09_fp8_promoted.py:matmul_promoted`."""
    matrix, out = tw.spec(tw.float8_e4m3fn, (4096, 4096)), tw.spec(tw.bfloat16, (4096, 4096))
    scale_a, scale_b = tw.spec(tw.float32, (32, 4096)), tw.spec(tw.float32, (32, 32))
    return 132, THREADS, (out, matrix, matrix, scale_a, scale_b, plan_for())


if __name__ == "__main__":
    main(cases)
