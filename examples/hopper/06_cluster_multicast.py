"""Multiply matrices by clusters: two blocks share the tile of B that both multiply with.

As in 05, blocks stay and compute many tiles of C, one after another. Here two of them form a cluster, which computes
256 x 256 of C: each block 128 rows of its own, and both the same columns. So both need the same tile of B. Each brings
half of it and sends that to both (`SM90_TMA_LOAD_MULTICAST`): it lands at the same place in the shared memory of each,
and its bytes arrive at the mbarrier that each has at the same place. Of B a block reads half as much from the
second-level cache.

A stage now belongs to two producers. Before either sends its half of B there, the consumers of both blocks have to be
done with the stage, so with `blocks=2` each consumer warp gives it back to both: it arrives at the `empty` mbarriers of
both blocks, which count twice as many warps. `full` waits in each block for the bytes that come to it, from wherever:
its tile of A and both halves of B.

No block may send anything before the other one has made its mbarriers, and none may leave while the other one arrives
at them: `tw.cluster_sync()` stands at the beginning, `state.drain()` at the end.

The types are those of 05, and a tile has 128 bytes of K here too. What the clusters save is reading from the cache, and
that is power: it matters where the clock falls for want of it, for 8-bit floats at 8192 cubed most.

A and B are contiguous along K, C along N; M is a multiple of 256, N of 256 and K of 128 bytes.

Run it: `python examples/hopper/06_cluster_multicast.py`
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
BLOCKS = 2  # of a cluster, one above the other
EVERY = (1 << BLOCKS) - 1  # a bit for each of them
ORDER = tw.schedulers.Grouped(rows=4)  # of the clusters' tiles
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

    tile: tuple[int, int, int]  # of a block
    stages: int
    scheduler: tw.schedulers.Scheduler  # in which order clusters compute tiles
    smem_a: Any  # (M, K, stages)
    smem_b: Any  # (N, K, stages)
    smem_c: Any  # (M, N, consumers) of the buffers of results
    mma: tw.TiledMMA
    part: tw.TiledMMA  # of the registers that hold a part of a consumer's results
    write: tw.TiledCopy  # fragments of results to such a buffer

    @property
    def stage_bytes(self) -> int:
        """The bytes of A and B that come to a stage of a block."""
        m, n, k = self.tile
        return (m + n) * k * self.mma.atom.dtype_a.bits // 8


@tw.kernel(cluster=BLOCKS)
def matmul_cluster(C, A, B, plan: tw.constexpr, alpha=None):
    """Compute the tiles of C = alpha A B^T that the scheduler gives this cluster, a block the rows of its rank."""
    m, n, k = plan.tile
    sA, sB = tw.shared(A.dtype, plan.smem_a), tw.shared(B.dtype, plan.smem_b)
    sC = tw.shared(C.dtype, plan.smem_c)
    ring = tw.pipeline(plan.stages, consumers=4 * CONSUMERS, bytes=plan.stage_bytes, blocks=BLOCKS)
    tw.cluster_sync()  # the barriers of both are there
    rank, clusters = tw.block_rank_in_cluster(), tw.grid_dim.x // BLOCKS
    tiles = plan.scheduler(C.shape[0] // (m * BLOCKS), C.shape[1] // n, block=tw.cluster_idx.x, blocks=clusters)
    k_tiles = A.shape[1] // k

    if tw.warpgroup_id() == 0:
        tw.set_registers(40)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column in tiles:
                for k_tile in range(k_tiles):
                    gA = tw.local_tile(A, (m, k), (BLOCKS * row + rank, k_tile), guard=True)
                    gB = tw.local_tile(B, (n // BLOCKS, k), (BLOCKS * column + rank, k_tile), guard=True)
                    with state.fill() as (stage, full):
                        ours = tw.local_tile(sB[:, :, stage], (n // BLOCKS, k), (rank, 0))
                        tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full)
                        tw.copy(tw.atoms.SM90_TMA_LOAD_MULTICAST, gB, ours, barrier=full, mask=EVERY)
            state.drain()  # the other block still arrives here
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
            store(C, acc, sC, BLOCKS * row + rank, column, plan, alpha)
        if tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it


@tw.function
def store(C, acc, sC, row, column, plan, alpha):
    """Store the sums of a consumer's 64 x 256, a part at a time, as 05 does."""
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
def plan_for(dtype: tw.DType = tw.bfloat16, stages: int = 4, scheduler: tw.schedulers.Scheduler = ORDER) -> Plan:
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
        scheduler,
        tw.tile_to_shape(operand, (m, k, stages)),
        tw.tile_to_shape(operand, (n, k, stages)),
        tw.tile_to_shape(of_result, (rows, columns, CONSUMERS)),
        tw.make_tiled_mma(getattr(tw.atoms, name), (CONSUMERS, 1, 1)),
        part,
        tw.make_tiled_copy_C(write, part),
    )


def matmul(
    C, A, B, stages: int = 4, blocks: int | None = None, alpha: float | None = None,
    scheduler: tw.schedulers.Scheduler = ORDER,
) -> None:  # fmt: skip
    """Compute C = alpha A B^T of extents that are multiples of a cluster's tile, by at most so many blocks.

    Without a number it is as many as the GPU holds at once: a cluster lies on neighbouring multiprocessors, and groups
    of these may be odd.
    """
    plan = plan_for(describe(A).dtype, stages, scheduler)
    (m, n), k = C.shape, A.shape[1]
    tile = BLOCKS * plan.tile[0], plan.tile[1], plan.tile[2]
    if m % tile[0] or n % tile[1] or k % tile[2]:
        raise ValueError(f"{m} x {n} x {k} is not a multiple of the tile {tile}")
    if blocks is None:
        blocks = matmul_cluster[BLOCKS, THREADS].resident_blocks(C, A, B, plan, alpha)
    clusters = min(blocks // BLOCKS, (m // tile[0]) * (n // tile[1]))
    matmul_cluster[BLOCKS * clusters, THREADS](C, A, B, plan, alpha)


def cases(backend: Backend, quick: bool) -> list[Case]:
    """Return the cases: few clusters for many tiles, and other types; on a GPU, with torch, large products."""
    if quick:
        small = _case(tw.bfloat16, 6, (512, 512, 256), backend, quick)
        return [small, *(_case(dtype, 2, (256, 256, 256), backend, quick) for dtype in (tw.float32, tw.float8_e4m3fn))]
    large = [_case(tw.bfloat16, None, (n, n, n), backend, quick) for n in (4096, 8192)]
    others = [dtype for dtype in ATOMS if dtype is not tw.bfloat16]
    return [*large, *(_case(dtype, None, (4096, 4096, 4096), backend, quick) for dtype in others)]


def _float32(C: Any) -> Any:
    """Return the results as float32, which NumPy has by itself."""
    return fetch(C.float()) if hasattr(C, "float") else fetch(C).astype(np.float32)


def _case(dtype: tw.DType, blocks: int | None, extents: tuple[int, int, int], backend: Backend, quick: bool) -> Case:
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

    return Case(f"clusters, {dtype}, {blocks or 'all'} blocks", f"{m} x {n} x {k}", prepare, flops=2 * m * n * k)


def example_matmul_cluster(dtype: tw.DType = tw.bfloat16):
    """Return grid, block and arguments for `tilewright show ...06_cluster_multicast.py:matmul_cluster`."""
    matrix, out = tw.spec(dtype, (4096, 4096)), tw.spec(ATOMS[dtype][1], (4096, 4096))
    return 132, THREADS, (out, matrix, matrix, plan_for(dtype), 1.0 if dtype.bits == 8 else None)


if __name__ == "__main__":
    main(cases)
