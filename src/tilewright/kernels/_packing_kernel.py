"""Copying a matrix so that K is contiguous; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw

TILE = 64  # rows and columns of what a block copies
THREADS = 256


def padded_tile(bits):
    """Return a padded tile: what is read along rows is written along columns, 16 bytes at a time along K."""
    return tw.Layout((TILE, TILE), (TILE + 128 // bits, 1))


@tw.kernel
def pack_tiles(target, source, across: tw.constexpr):
    """Copy target[r, k, l] = source[r, k, l], reading along rows (`across`) or along K, and writing along K."""
    smem = tw.shared(source.dtype, padded_tile(source.dtype.bits))
    block, tid = (tw.block_idx.x, tw.block_idx.y), tw.thread_idx.x
    fast, slow = tid % TILE, tid // TILE
    first_row, first_k = tw.block_idx.x * TILE, tw.block_idx.y * TILE
    for i in tw.range(TILE * TILE // THREADS, unroll=4):
        other = slow + i * (THREADS // TILE)
        row, k = (fast, other) if across else (other, fast)
        if (first_row + row < source.shape[0]) and (first_k + k < source.shape[1]):
            smem[row, k] = source[first_row + row, first_k + k, tw.block_idx.z]
        else:
            smem[row, k] = 0
    tw.sync_threads()
    width = 128 // source.dtype.bits
    store = tw.make_tiled_copy(
        tw.atoms.UniversalCopy(128),
        tw.Layout((THREADS * width // TILE, TILE // width), (TILE // width, 1)),
        tw.Layout((1, width)),
    )
    part = store.get_slice(tid)
    tiles = tw.local_tile(target[:, :, tw.block_idx.z], (TILE, TILE), block)
    places = part.partition_D(tw.local_tile(tw.identity_tensor(target.shape[:2]), (TILE, TILE), block))
    from_tile, to_tile = part.partition_S(smem), part.partition_D(tiles)
    inside = tw.registers(tw.bool_, tw.Layout((width, *to_tile.shape[1:]), (0, 1, to_tile.shape[1])))
    for i in tw.static_range(tw.size(to_tile.shape[1])):
        row, k = places[0, i, 0]
        # A row of the target has whole vectors, the last filled up with zeros.
        inside[0, i, 0] = (row < target.shape[0]) & (k < target.shape[1])
    tw.copy(store, from_tile, to_tile, pred=inside)
