"""The streaming kernel: few rows of A, and a B that is read once; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._weights_kernel import block_of, finish_block


@tw.kernel
def stream_matrix(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute a tile of D = epilogue(alpha * A @ B^T, operands) for a few rows of A.

    B is operand A of mma.sync, so that 8 of an instruction's columns are rows of A. K is taken in an order of its own:
    four lanes read 64 consecutive bytes of a row, 16 each, and each has what it needs for two instructions. The warps
    of a block share the rows of B and divide K; each loads its next 128 of K before it multiplies those that it has.
    Their sums are added in the warps' order. Where the epilogue takes pairs, B[n, k, pair, l] has two matrices, and
    instructions take 8 columns of each.
    """
    n_block, m_block, batch = block_of(plan, D.shape)
    end = len(operands) - len(plan.epilogue.numbers)
    D, A, *rest = (x[:, :, batch] for x in (D, A, *operands[:end]))
    halves = [B[:, :, 0, batch], B[:, :, 1, batch]] if plan.epilogue.is_gated else [B[:, :, batch]] * 2
    behind = 0 if plan.epilogue.is_gated else 8
    lane, warp = tw.thread_idx.x % 32, tw.thread_idx.x // 32
    quad, row = lane % 4, lane // 4
    chunks = tw.ceil_div(A.shape[1], 128)
    thread = plan.mma.get_slice(lane)
    acc = tw.registers(tw.float32, plan.mma.partition_shape(plan.sums.shape[:2], "C"))
    held_w, coming_w = tw.registers(B.dtype, plan.w_layout), tw.registers(B.dtype, plan.w_layout)
    held_x, coming_x = tw.registers(A.dtype, plan.x_layout), tw.registers(A.dtype, plan.x_layout)
    w, x = held_w.map_layout(lambda _: plan.w_fragments), held_x.map_layout(lambda _: plan.x_fragments)

    def load(chunk, target_w, target_x):
        for i in tw.static_range(4):
            vector = chunk * 16 + i * 4 + quad
            for half in tw.static_range(2):
                column = n_block * plan.columns + behind * half + row
                tw.copy(tw.local_tile(halves[half], (1, 8), (column, vector), guard=True)[0, :], target_w[:, i, half])
            for atom in tw.static_range(plan.tokens // 8):
                token = m_block * plan.tokens + 8 * atom + row
                tw.copy(tw.local_tile(A, (1, 8), (token, vector), guard=True)[0, :], target_x[:, i, atom])

    tw.clear(acc)
    if warp < chunks:
        load(warp, held_w, held_x)
    for chunk in tw.range(warp, chunks, plan.shares, unroll=1):
        is_last = chunk + plan.shares >= chunks
        if not is_last:
            load(chunk + plan.shares, coming_w, coming_x)
        for s in tw.static_range(8):
            tw.gemm(plan.mma, acc, w[:, :, s], x[:, :, s], acc)
        if not is_last:
            tw.copy(coming_w, held_w)
            tw.copy(coming_x, held_x)
    finish_block(plan, acc, thread, warp, D, rest, operands[end:], (m_block, n_block, batch), alpha, beta)
