"""Scales of blocks of A and B, by which the sums of a block of K are multiplied; device code, traced into kernels."""

import math

import tilewright as tw
from tilewright.kernels.problem import BLOCK


class BlockScales:
    """What multiplies the sums of a tile of K: the scales of the blocks of A and of B, for each accumulator.

    `arrays` are (rows or columns, K, L) in blocks, and `place` is the tile's: row and column, counted in tiles, and the
    matrix of the batch.
    """

    def __init__(self, plan, thread, arrays, place, boxes=()):
        self.reads, self.depth, self.boxes = plan.blocks, plan.tile[2], boxes
        self.arrays = [x[:, :, place[2]] for x in arrays]
        first = thread.partition_C(tw.identity_tensor(plan.tile[:2]))[0]
        self.inside = [first[x.mode] for x in self.reads]
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

    def ahead(self, k_tile, last, count, steps=1):
        """Return the scales of `steps` tiles of K at a time, for waves of `count` accumulators."""
        if any(x.boxed for x in self.reads):
            return ScalesOfStages(self, k_tile, last, count)
        are_of_quad = all(x.mode == 0 or x.span > 1 for x in self.reads)
        are_of_quad = are_of_quad and math.prod(x.held for x in self.reads) * steps <= 4
        return (ScalesOfQuad if are_of_quad else ScalesAhead)(self, k_tile, last, count, steps)

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
    """The scales of `steps` tiles of K in registers, loaded long before they are used."""

    def __init__(self, scales, k_tile, last, count, steps):
        self.scales, self.last, self.count, self.steps = scales, last, count, steps
        pairs = list(zip(scales.arrays, scales.reads, strict=True))
        self.held = [[tw.registers(x.dtype, len(reads.firsts)) for x, reads in pairs] for _ in range(steps)]
        self.fetch(k_tile)

    def fetch(self, k_tile):
        """Begin to load the scales of a tile of K and those behind it, or of the last one."""
        for step, held in enumerate(self.held):
            for to, values in zip(held, self.scales.load(tw.minimum(k_tile + step, self.last)), strict=True):
                for i, value in enumerate(values):
                    to[i] = value

    def take(self, following, _stages):
        """Return for each tile of K what multiplies accumulators, by waves of `count`; begin to load what follows."""
        found = [[[x[i] for i in range(tw.size(x))] for x in held] for held in self.held]
        total = len(self.scales.reads[0].groups)
        waves = range(0, total, self.count)
        factors = [[self.scales.factors(each, first, self.count) for first in waves] for each in found]
        self.fetch(following)
        return factors


class ScalesOfQuad:
    """The same, where a quad of lanes has one set of rows and columns: each lane loads what one factor is made of."""

    def __init__(self, scales, k_tile, last, count, steps):
        self.scales, self.last, self.count, self.steps = scales, last, count, steps
        slot = tw.lane_id() % 4
        self.rows, self.numbers, self.lanes = [], [], 1
        for first, reads, array in zip(scales.firsts, scales.reads, scales.arrays, strict=True):
            held = reads.held
            number = slot // self.lanes % held  # of the scales that a tile needs, the one that this lane loads
            if reads.span == 1:
                row, numbers = first + reads.firsts[0], range(held)
                for n in range(1, held):
                    row = tw.where(number == n, first + reads.firsts[n], row)
            else:
                row = first // reads.span + number
                numbers = [(first + x) // reads.span - first // reads.span if held > 1 else 0 for x in reads.firsts]
            self.rows.append(tw.minimum(row, array.shape[0] - 1))
            self.numbers.append([n * self.lanes for n in numbers])
            self.lanes *= held
        self.step = slot // self.lanes % steps
        self.held = [tw.registers(x.dtype, 1) for x in scales.arrays]
        self.fetch(k_tile)

    def fetch(self, k_tile):
        """Begin to load the scales of a tile of K and those behind it, or of the last one."""
        block = tw.minimum(k_tile + self.step, self.last) * self.scales.depth // BLOCK
        for held, array, row in zip(self.held, self.scales.arrays, self.rows, strict=True):
            held[0] = array[row, block]

    def take(self, following, _stages):
        """Return for each tile of K what multiplies accumulators, by waves of `count`; begin to load what follows."""
        factor = self.held[0][0] if len(self.held) == 1 else self.held[0][0] * self.held[1][0]
        groups = list(zip(*(reads.groups for reads in self.scales.reads), strict=True))
        found = []
        for step in range(self.steps):
            of = {}
            for place in dict.fromkeys(groups):
                lane = sum((n[g] for n, g in zip(self.numbers, place, strict=True)), step * self.lanes)
                of[place] = tw.shuffle(factor, lane, 4)
            found.append([[of[g] for g in groups[i : i + self.count]] for i in range(0, len(groups), self.count)])
        self.fetch(following)
        return found


class ScalesOfStages:
    """Scales that TMA brought to a stage beside the tiles; of 128 rows that share one, lanes hold those of 32 tiles.

    A load of global memory passes through shared memory's banks, from which products read, and through the queue of
    what TMA asked for: those of the next 32 tiles are on their way meanwhile.
    """

    tiles = 32

    def __init__(self, scales, k_tile, last, count):
        self.scales, self.begin, self.last, self.count = scales, k_tile, last, count
        shared = [not x.boxed for x in scales.reads]
        self.held = [tw.registers(x.dtype, 2) if one else None for x, one in zip(scales.arrays, shared, strict=True)]
        self.fetch(k_tile)

    def fetch(self, k_tile):
        """Begin to load a scale for each lane: those of a tile of K and of the 31 behind it, or of the last one."""
        block = tw.minimum(k_tile + tw.lane_id(), self.last) * self.scales.depth // BLOCK
        for held, array, reads, first in zip(
            self.held, self.scales.arrays, self.scales.reads, self.scales.firsts, strict=True
        ):
            if held is not None:
                held[1] = array[tw.minimum(first // reads.span, array.shape[0] - 1), block]

    @tw.function
    def advance(self, k_tile):
        """Go on to the scales of a tile of K and of those behind it, which were loaded last."""
        for held in self.held:
            if held is not None:
                held[0] = held[1]
        if k_tile + self.tiles <= self.last:
            self.fetch(k_tile + self.tiles)

    def take(self, following, stages):
        """Return for each tile of K what multiplies accumulators, by waves of `count`; they are in these `stages`."""
        scales, number = self.scales, following - len(stages) - self.begin
        found = []
        for step, stage in enumerate(stages):
            values = [
                [box[inside + offset, 0, stage] for offset in reads.firsts]
                if reads.boxed
                else [tw.shuffle(held[0], (number + step) % self.tiles)]
                for box, held, reads, inside in zip(scales.boxes, self.held, scales.reads, scales.inside, strict=True)
            ]
            waves = range(0, len(scales.reads[0].groups), self.count)
            found.append([scales.factors(values, first, self.count) for first in waves])
        return found


@tw.function
def add_scaled(acc, partial, factors):
    """Add the sums of a tile of K to the accumulators."""
    for i in tw.static_range(tw.size(acc)):
        acc[i] = tw.fma(partial[i], factors[i], acc[i])
