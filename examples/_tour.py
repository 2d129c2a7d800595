"""The kernel that `tilewright demo` shows: it runs it, leaves out its barrier, and looks for a better layout."""

import tilewright as tw


@tw.kernel
def transpose(dst, src, layout: tw.constexpr, waits: tw.constexpr = True):
    """Compute dst = src^T: each block of 32 x 8 threads moves a tile of 32 x 32 by way of shared memory."""
    tile = tw.shared(src.dtype, layout)
    x, y = tw.thread_idx.x, tw.thread_idx.y
    row, column = 32 * tw.block_idx.y, 32 * tw.block_idx.x
    for k in range(0, 32, 8):
        tile[y + k, x] = src[row + y + k, column + x]
    if waits:
        tw.sync_threads()
    for k in range(0, 32, 8):
        dst[column + y + k, row + x] = tile[x, y + k]
