"""Copying matrices so that K is contiguous; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw

TILE = 64  # rows and columns of what a block copies
THREADS = 256


def padded_tile(bits):
    """Return a padded tile: what is read along rows is written along columns, 16 bytes at a time along K."""
    return tw.Layout((TILE, TILE), (TILE + 128 // bits, 1))


@tw.kernel
def pack_tiles(target, source, across: tw.constexpr, early: tw.constexpr):
    """Copy target[r, k, l] = source[r, k, l], reading along rows (`across`) or along K, and writing along K."""
    begin(early)
    pack_tile(target, source, across, tw.block_idx.x)


@tw.kernel
def pack_tiles_of_two(
    target, source, other_target, other_source, across: tw.constexpr, other_across: tw.constexpr, early: tw.constexpr
):
    """Copy two matrices in one launch: the blocks behind those of the first have tiles of the second."""
    begin(early)
    blocks = tiles_of(target)
    if tw.block_idx.x < blocks:
        pack_tile(target, source, across, tw.block_idx.x)
    else:
        pack_tile(other_target, other_source, other_across, tw.block_idx.x - blocks)


def begin(early):
    """Let the product get ready beside the packing, and the packing beside the launch before."""
    if early:
        tw.launch_dependents()
        tw.grid_dependency_wait()


def tiles_of(target):
    """Return how many blocks copy a matrix."""
    return tw.ceil_div(target.shape[0], TILE) * tw.ceil_div(target.shape[1], TILE) * target.shape[2]


@tw.function
def pack_tile(target, source, across, number):
    """Copy the tile of a number; all of a thread's loads are under way before the first is waited for."""
    down, along = (tw.ceil_div(target.shape[mode], TILE) for mode in (0, 1))
    block, matrix = (number % down, number // down % along), number // (down * along)
    smem, tid = tw.shared(source.dtype, padded_tile(source.dtype.bits)), tw.thread_idx.x
    rows = THREADS // TILE
    reader = tw.make_tiled_copy(
        tw.atoms.UniversalCopy(source.dtype.bits),
        tw.Layout((TILE, rows), (1, TILE)) if across else tw.Layout((rows, TILE), (TILE, 1)),
        tw.Layout((1, 1)),
    )
    part = reader.get_slice(tid)
    from_matrix = part.partition_S(tw.local_tile(source[:, :, matrix], (TILE, TILE), block, guard=True))
    elements = tw.registers(source.dtype, from_matrix.shape)
    tw.copy(from_matrix, elements)
    tw.copy(elements, part.partition_D(smem))
    tw.sync_threads()
    width = 128 // source.dtype.bits
    store = tw.make_tiled_copy(
        tw.atoms.UniversalCopy(128),
        tw.Layout((THREADS * width // TILE, TILE // width), (TILE // width, 1)),
        tw.Layout((1, width)),
    )
    part = store.get_slice(tid)
    tiles = tw.local_tile(target[:, :, matrix], (TILE, TILE), block)
    places = part.partition_D(tw.local_tile(tw.identity_tensor(target.shape[:2]), (TILE, TILE), block))
    from_tile, to_tile = part.partition_S(smem), part.partition_D(tiles)
    inside = tw.registers(tw.bool_, tw.Layout((width, *to_tile.shape[1:]), (0, 1, to_tile.shape[1])))
    for i in tw.static_range(tw.size(to_tile.shape[1])):
        row, k = places[0, i, 0]
        # A row of the target has whole vectors, the last filled up with zeros.
        inside[0, i, 0] = (row < target.shape[0]) & (k < target.shape[1])
    tw.copy(store, from_tile, to_tile, pred=inside)
