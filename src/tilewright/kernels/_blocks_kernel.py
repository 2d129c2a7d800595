"""Scales of blocks of A and B, by which the sums of a block of K are multiplied; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels.problem import BLOCK


class BlockScales:
    """What multiplies the sums of a tile of K: the scales of the blocks of A and of B, for each accumulator.

    `arrays` are (rows or columns, K, L) in blocks, and `place` is the tile's: row and column, counted in tiles, and the
    matrix of the batch.
    """

    def __init__(self, plan, thread, arrays, place):
        self.reads, self.depth = plan.blocks, plan.tile[2]
        self.arrays = [x[:, :, place[2]] for x in arrays]
        first = thread.partition_C(tw.identity_tensor(plan.tile[:2]))[0]
        self.firsts = [place[x.mode] * plan.tile[x.mode] + first[x.mode] for x in self.reads]

    def read(self, k_tile):
        """Return what multiplies each accumulator."""
        block = k_tile * self.depth // BLOCK
        found = []
        for reads, array, first in zip(self.reads, self.arrays, self.firsts, strict=True):
            # rows that the matrix does not have are multiplied by any scale
            rows = [tw.minimum((first + offset) // reads.span, array.shape[0] - 1) for offset in reads.firsts]
            found.append([array[row, block] for row in rows])
        if len(found) == 1:
            return [found[0][group] for group in self.reads[0].groups]
        products = {}
        for pair in zip(*(reads.groups for reads in self.reads), strict=True):
            if pair not in products:
                products[pair] = found[0][pair[0]] * found[1][pair[1]]
        return [products[pair] for pair in zip(*(reads.groups for reads in self.reads), strict=True)]


@tw.function
def add_scaled(acc, partial, factors):
    """Add the sums of a tile of K to the accumulators."""
    for i in tw.static_range(tw.size(acc)):
        acc[i] = tw.fma(partial[i], factors[i], acc[i])
