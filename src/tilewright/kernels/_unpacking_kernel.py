"""Packed weights of 4 or 8 bits as a matrix of floats; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw


@tw.kernel
def unpack_weights(W, packed, scales, zeros, weights: tw.constexpr):
    """Write W[n, k] = (q - zero) * scale, rounded once, where `weights.py` says that q, zero and scale lie.

    A block writes 16 columns of the weights by 128 of K, and a thread the 16 of K of one step.
    """
    tile, chunk = tw.block_idx.x, tw.block_idx.y
    column, step = tw.thread_idx.x // 8, tw.thread_idx.x % 8
    half, row = column // 8, column % 8
    words = packed.recast(tw.uint32)
    group = (128 * chunk + 16 * step) // weights.group
    place = tile, group, 2 * row + half
    scale = scales[place].to(tw.float32)
    zero = tw.int32(weights.zero) if weights.zero is not None else zeros[place].to(tw.int32)
    values = tw.registers(W.dtype, (16,))
    for quad in tw.static_range(4):
        lane = 4 * row + quad
        if weights.bits == 4:
            word = words[tile, chunk, 128 * half + 4 * lane + step // 2] >> (8 * (step % 2))
        else:
            word = words[tile, chunk, 256 * half + 128 * (step // 4) + 4 * lane + step % 4]
        for h in tw.static_range(2):
            for e in tw.static_range(2):
                code = (word >> (weights.bits * h + 16 * e)) & (2**weights.bits - 1)
                values[8 * h + 2 * quad + e] = ((code.to(tw.int32) - zero).to(tw.float32) * scale).to(W.dtype)
    tw.copy(values, tw.local_tile(W, (1, 16), (16 * tile + column, 8 * chunk + step), guard=True)[0, :])
