"""What kernels of several ranks share: tiles in the order of the ring, and the parts in which matrices travel.

Device code, traced into kernels.
"""

import tilewright as tw
from tilewright.kernels._hopper_kernel import Works

MOST_PARTS = 8  # of what one rank sends to another


class RingWorks(Works):
    """The tiles of a block, whose matrices of the batch are those of ranks, beginning with the `first` of them."""

    def part(self, rest):
        return (self.first + rest) % self.batches, 0


def works_in_ring(plan, extents, depth, first):
    """Return the tiles of this block, of products of K = `depth`; `extents` are those of D and the number of ranks."""
    block, blocks = tw.block_idx.x, tw.grid_dim.x
    if tw.cluster_dim.x > 1:
        block, blocks = tw.cluster_idx.x, blocks // tw.cluster_dim.x
    found = RingWorks(plan, extents, tw.ceil_div(depth, plan.tile[2]), block, blocks)
    found.first = first
    return found


class Parts:
    """The parts of a matrix, in the order in which they are sent: along its columns first, then along its rows.

    The rows of a tile lie in one part, because parts have as many of them as several tiles, or as the matrix.
    """

    def __init__(self, shape, extent):
        self.extent = extent
        self.down, self.across = tw.ceil_div(shape[0], extent[0]), tw.ceil_div(shape[1], extent[1])

    def of(self, row, column):
        """Return the number of the part that an element belongs to, of the last one for those below the matrix."""
        return tw.minimum(row // self.extent[0], self.down - 1) * self.across + column // self.extent[1]


@tw.function
def count_arrival(counters, place, goal, flags, target, where, number):
    """Count that one of `goal` contributions to a part has been written; the last one tells the reader of it.

    `counters` is zero again then. `flags` are those of all readers, of which `target` is meant, or all where that is
    None, and `where` the place in it.
    """
    before = tw.atomic_add(counters, place, 1, sem="acq_rel", scope="sys")
    if before == goal - 1:
        tw.store(counters, place, 0)
        for n in tw.static_range(len(flags)):
            if target is None or n == target:
                tw.store(flags[n], where, number, sem="release", scope="sys")
