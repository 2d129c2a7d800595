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

    def load(self, k_tile):
        """Return the scales of a tile of K, for each array those that its accumulators need."""
        block = k_tile * self.depth // BLOCK
        found = []
        for reads, array, first in zip(self.reads, self.arrays, self.firsts, strict=True):
            # rows that the matrix does not have are multiplied by any scale
            rows = [tw.minimum((first + offset) // reads.span, array.shape[0] - 1) for offset in reads.firsts]
            found.append([array[row, block] for row in rows])
        return found

    def factors(self, found, first, count):
        """Return what multiplies each of `count` accumulators from the first on, by the scales of a tile of K."""
        groups = [reads.groups[first : first + count] for reads in self.reads]
        if len(found) == 1:
            return [found[0][group] for group in groups[0]]
        products = {}
        for pair in zip(*groups, strict=True):
            if pair not in products:
                products[pair] = found[0][pair[0]] * found[1][pair[1]]
        return [products[pair] for pair in zip(*groups, strict=True)]


class ScalesAhead:
    """The scales of a tile of K in registers, loaded long before they are used."""

    def __init__(self, scales, k_tile, last):
        self.scales, self.last = scales, last
        pairs = zip(scales.arrays, scales.reads, strict=True)
        self.held = [tw.registers(x.dtype, len(reads.firsts)) for x, reads in pairs]
        self.fetch(k_tile)

    def fetch(self, k_tile):
        """Begin to load the scales of a tile of K, or of the last one."""
        found = self.scales.load(tw.minimum(k_tile, self.last))
        for held, values in zip(self.held, found, strict=True):
            for i, value in enumerate(values):
                held[i] = value

    def factors(self, count, following):
        """Return what multiplies the accumulators, by waves of `count`, and begin to load the scales that follow."""
        found = [[held[i] for i in range(tw.size(held))] for held in self.held]
        total = len(self.scales.reads[0].groups)
        factors = [self.scales.factors(found, first, count) for first in range(0, total, count)]
        self.fetch(following)
        return factors


@tw.function
def add_scaled(acc, partial, factors):
    """Add the sums of a tile of K to the accumulators."""
    for i in tw.static_range(tw.size(acc)):
        acc[i] = tw.fma(partial[i], factors[i], acc[i])
