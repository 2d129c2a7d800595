"""Products of float32 in parts on Hopper: matrices are cut into parts first, and these are multiplied by wgmma.

Device code, traced into kernels. What the parts are, and in which order products are added, `precision` says.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._hopper_kernel import matrix_of, meet, works_of
from tilewright.kernels._hopper_results_kernel import finish, results_buffer
from tilewright.kernels._packing_kernel import THREADS, TILE, padded_tile
from tilewright.kernels._parts_kernel import cut_elements
from tilewright.kernels.hopper_plan import CONSUMER_REGISTERS, CONSUMERS, PRODUCER_REGISTERS, WARPGROUP

_MASK = 32  # accumulators that are looked at together


# --- cutting -------------------------------------------------------------------------------------------------


@tw.kernel
def cut_tiles(target, source, plan: tw.constexpr):
    """Write part p of source[r, k, l] to target[r, k, count * l + p], 16 bytes at a time along K.

    A source that is contiguous along K is read `plan.vector` bytes at a time, any other by way of shared memory.
    """
    count, tid, batch = plan.parts.count, tw.thread_idx.x, tw.block_idx.z
    block = tw.block_idx.x, tw.block_idx.y
    width = 128 // plan.parts.part.storage.bits
    threads = tw.Layout((THREADS * width // TILE, TILE // width), (TILE // width, 1))
    store = tw.make_tiled_copy(tw.atoms.UniversalCopy(128), threads, tw.Layout((1, width)))
    part = store.get_slice(tid)
    places = part.partition_D(tw.local_tile(tw.identity_tensor(target.shape[:2]), (TILE, TILE), block))
    if plan.vector:
        whole = tw.local_tile(source[:, :, batch], (TILE, TILE), block)
    else:
        whole = across_tile(source, block, batch)
    read = part.partition_S(whole)
    for i in tw.static_range(tw.size(read.shape[1])):
        row, k = places[0, i, 0]
        values = tw.registers(tw.float32, (width,))
        if plan.vector:
            each = plan.vector // 4
            tw.clear(values)
            for first in tw.static_range(width // each):
                if (row < source.shape[0]) and (k + first * each < source.shape[1]):
                    some = tw.local_tile(read[:, i, 0], (each,), (first,))
                    tw.copy(tw.atoms.UniversalCopy(8 * plan.vector), some, tw.local_tile(values, (each,), (first,)))
        else:
            tw.copy(read[:, i, 0], values)
        parts = [tw.registers(plan.parts.part.storage, (width,)) for _ in range(count)]
        cut_elements(plan.parts, values, parts)
        if (row < target.shape[0]) and (k < target.shape[1]):
            for p in tw.static_range(count):
                tiles = part.partition_D(tw.local_tile(target[:, :, batch * count + p], (TILE, TILE), block))
                tw.copy(tw.atoms.UniversalCopy(128), parts[p], tiles[:, i, 0])


@tw.function
def across_tile(source, block, batch):
    """Return a tile in shared memory of a matrix that is read along its rows, zeros where it has ended."""
    smem = tw.shared(source.dtype, padded_tile(source.dtype.bits))
    row, slow = tw.thread_idx.x % TILE, tw.thread_idx.x // TILE
    first_row, first_k = block[0] * TILE, block[1] * TILE
    for i in tw.range(TILE * TILE // THREADS, unroll=4):
        k = slow + i * (THREADS // TILE)
        if (first_row + row < source.shape[0]) and (first_k + k < source.shape[1]):
            smem[row, k] = source[first_row + row, first_k + k, batch]
        else:
            smem[row, k] = 0
    tw.sync_threads()
    return smem


# --- multiplying ---------------------------------------------------------------------------------------------


@tw.kernel
def matmul_parts(D, A, B, parts_a, parts_b, alpha, beta, plan: tw.constexpr, *operands):
    """Compute tiles of D[m, n, l] = epilogue(alpha * sum over k of A[m, k, l] * B[n, k, l], operands[m, n, l]).

    `parts_a` and `parts_b` are what `cut_tiles` wrote of A and B, which themselves are read only where a sum is not
    finite. A stage holds a tile of K of all parts. Behind the operands come the numbers that the epilogue's function
    uses.
    """
    how, stages, plan = plan.parts, plan.stages, plan.product
    count = len(operands) - len(plan.epilogue.numbers)
    epilogue, operands = plan.epilogue.bind(operands[count:]), operands[:count]
    sA, sB = tw.shared(parts_a.dtype, plan.smem_a), tw.shared(parts_b.dtype, plan.smem_b)
    sD = results_buffer(plan, D)
    bytes = how.count * plan.stage_bytes
    ring = tw.pipeline(stages, consumers=4 * CONSUMERS, bytes=bytes, blocks=plan.cluster)
    meet(plan)  # the barriers are there
    rank = tw.block_rank_in_cluster() if plan.cluster > 1 else 0
    works = works_of(plan, D, A)

    if tw.warpgroup_id() == 0:
        tw.set_registers(PRODUCER_REGISTERS)
        if tw.thread_idx.x == 0:
            state = ring.producer()
            for row, column, batch, _split in works:
                for k_tile in range(works.k_tiles):
                    with state.fill() as (stage, full):
                        where = plan.cluster * row + rank, column, k_tile, batch
                        bring_parts(plan, how, (parts_a, parts_b), (sA, sB), where, (stage, full, rank))
            if plan.cluster > 1:
                state.drain()  # the other block still arrives here
    else:
        tw.set_registers(CONSUMER_REGISTERS)
        cooperate(plan, how, epilogue, works, ring, (sA, sB, sD), D, A, B, tuple(operands), alpha, beta, rank)
        if plan.stores_boxes and tw.thread_idx.x % WARPGROUP == 0:
            tw.tma_store_wait(0)  # the buffer is there until its last store has read it


@tw.function
def bring_parts(plan, how, matrices, buffers, where, slot):
    """Begin to copy a tile of K of every part of A and B to a stage; of B a block of a cluster brings its share."""
    (parts_a, parts_b), (sA, sB), (row, column, k_tile, batch), (stage, full, rank) = matrices, buffers, where, slot
    m, n, k = plan.tile
    share = n // plan.cluster
    for part in tw.static_range(how.count):
        place = stage * how.count + part
        rows = part_tile(how, parts_a, (m, k), (row, k_tile), batch, part)
        columns = part_tile(how, parts_b, (share, k), (plan.cluster * column + rank, k_tile), batch, part)
        tw.copy(tw.atoms.SM90_TMA_LOAD, rows, sA[:, :, place], barrier=full)
        if plan.cluster == 1:
            tw.copy(tw.atoms.SM90_TMA_LOAD, columns, sB[:, :, place], barrier=full)
        else:
            ours, every = tw.local_tile(sB[:, :, place], (share, k), (rank, 0)), (1 << plan.cluster) - 1
            tw.copy(tw.atoms.SM90_TMA_LOAD_MULTICAST, columns, ours, barrier=full, mask=every)


def part_tile(how, matrices, extents, place, batch, part):
    """Return a tile of a part of a matrix of the batch; one matrix may serve all of the batch."""
    first = tw.where(matrices.shape[2] == how.count, 0, batch * how.count)
    return tw.local_tile(matrices, (*extents, 1), (*place, first + part), guard=True)[:, :, 0]


@tw.function
def cooperate(plan, how, epilogue, works, ring, buffers, D, A, B, operands, alpha, beta, rank):
    """Compute tiles of which each consumer has half of the rows; each tile of K is summed up by itself."""
    consumer, (m, n, _), (sA, sB, sD) = tw.warpgroup_id() - 1, plan.tile, buffers
    thread = plan.mma.get_slice(tw.thread_idx.x - WARPGROUP)
    tA, tB = thread.partition_A(sA), thread.partition_B(sB)
    acc = tw.registers(plan.mma.atom.dtype_c, plan.mma.partition_shape((m, n), "C"))
    chunk = tw.registers(acc.dtype, acc.shape)
    state = ring.consumer(behind=0, relaxed=True)
    for row, column, batch, _split in works:
        tw.clear(acc)
        for _k_tile in range(works.k_tiles):
            with state.read() as stage:
                tw.wgmma_fence()
                for number, (i, j) in enumerate(how.products):
                    first, second = tA[:, :, :, stage * how.count + i], tB[:, :, :, stage * how.count + j]
                    tw.gemm(plan.mma, first, second, chunk, accumulate=number > 0)
                tw.wgmma_commit()
                tw.wgmma_wait(0)
                for i in tw.static_range(tw.size(acc)):
                    acc[i] += chunk[i]
        place = plan.cluster * row + rank, column
        identity = tw.identity_tensor(D.shape[:2])
        places = thread.partition_C(tw.local_tile(identity, (m, n), place))
        mend(acc, places, A[:, :, matrix_of(A, batch)], B[:, :, matrix_of(B, batch)])
        finish(plan, epilogue, acc, sD, D, operands, (*place, batch), consumer, alpha, beta)


@tw.function
def mend(acc, places, A, B):
    """Compute sums that are not finite again, by fused multiply-adds in the order of k."""
    for first in tw.static_range(0, tw.size(acc), _MASK):
        lost = tw.uint32(0)
        for i in tw.static_range(_MASK):
            lost = lost | tw.where(tw.isfinite(acc[first + i]), tw.uint32(0), tw.uint32(1 << i))
        if lost != 0:
            for i in tw.range(_MASK, unroll=1):
                m, n = places[first + i]
                if ((lost >> i.to(tw.uint32)) & 1 != 0) and (m < A.shape[0]) and (n < B.shape[0]):
                    total = tw.float32(0)
                    for k in tw.range(A.shape[1], unroll=1):
                        total = tw.fma(A[m, k], B[n, k], total)
                    for j in tw.static_range(_MASK):
                        acc[first + j] = tw.where(i == j, total, acc[first + j])
