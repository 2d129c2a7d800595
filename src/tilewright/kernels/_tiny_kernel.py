"""Batches of tiny matrices: a block multiplies several of them; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._places_kernel import Places


@tw.kernel
def multiply_tiny(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute D[:, :, l] = epilogue(alpha * A[:, :, l] @ B[:, :, l]^T, operands) for a block's matrices l.

    A depth of K of all of them is brought to shared memory at once, and that of the next iteration to registers while
    this one is multiplied. Each thread has a few rows and columns of one matrix.
    """
    end = len(operands) - len(plan.epilogue.numbers)
    first, tid = tw.block_idx.x * plan.matrices, tw.thread_idx.x
    own = tw.minimum(tid // plan.a.threads // plan.b.threads, plan.matrices - 1)  # threads too many repeat the last
    row, column = tid // plan.b.threads % plan.a.threads, tid % plan.b.threads
    sides = [Side(plan, side, x, first) for side, x in ((plan.a, A), (plan.b, B))]
    acc = tw.registers(plan.accumulator, tw.Layout((plan.a.each, plan.b.each), (plan.b.each, 1)))
    tw.clear(acc)
    chunks = tw.ceil_div(A.shape[1], plan.depth) if plan.has_chunks else 1
    for side in sides:
        side.load(0)
    for chunk in tw.range(chunks, unroll=1):
        for side in sides:
            side.store()
        tw.sync_threads()
        if plan.has_chunks:
            for side in sides:
                side.load(chunk + 1)
        for step in tw.range(plan.depth // plan.step, unroll=2):
            tw.gemm(sides[0].fragment(row, own, step), sides[1].fragment(column, own, step), acc)
        tw.sync_threads()

    sums = tw.shared(acc.dtype, plan.sums)
    if tid < plan.matrices * plan.a.threads * plan.b.threads:
        tw.copy(acc, part(plan.b, part(plan.a, sums[:, :, own], row, 0), column, 1))
    tw.sync_threads()
    finish(plan, sums, D, operands[:end], operands[end:], first, alpha, beta)


class Side:
    """A or B: what of it is under way to the block's shared memory, and what is there."""

    @tw.function
    def __init__(self, plan, side, x, first):
        self.plan, self.side, self.x, self.first = plan, side, x, first
        self.smem = tw.shared(x.dtype, side.smem)
        self.coming = tw.registers(x.dtype, (side.width, -(-side.vectors * plan.matrices // plan.threads)))

    @tw.function
    def place(self, i):
        """Return the row, the place in K and the matrix of the thread's vector i, and whether the block has it."""
        number, side = tw.thread_idx.x + i * self.plan.threads, self.side
        inner, outer = number % side.inner, number // side.inner % side.outer
        matrix = number // side.vectors
        row, k = (outer, inner * side.width) if side.along_k else (inner * side.width, outer)
        return row, k, matrix, (i + 1) * self.plan.threads <= side.vectors * self.plan.matrices or matrix < self.plan.matrices

    @tw.function
    def load(self, chunk):
        """Begin to load a depth of K of the block's matrices, with zeros behind their ends."""
        tw.clear(self.coming)
        extents = self.x.shape
        for i in tw.static_range(self.coming.shape[1]):
            row, k, matrix, is_own = self.place(i)
            k, matrix = k + chunk * self.plan.depth, matrix + self.first
            if is_own & (row < extents[0]) & (k < extents[1]) & (matrix < extents[2]):
                tw.copy(self.vector(self.x, row, k, matrix), self.coming[:, i])

    @tw.function
    def store(self):
        """Write what was loaded to shared memory."""
        for i in tw.static_range(self.coming.shape[1]):
            row, k, matrix, is_own = self.place(i)
            if is_own:
                tw.copy(self.coming[:, i], self.vector(self.smem, row, k, matrix))

    @tw.function
    def vector(self, x, row, k, matrix):
        if self.side.along_k:
            return tw.local_tile(x[row, :, matrix], (self.side.width,), (k // self.side.width,))
        return tw.local_tile(x[:, k, matrix], (self.side.width,), (row // self.side.width,))

    @tw.function
    def fragment(self, thread, matrix, step):
        """Return the thread's rows and a step of K, in the accumulators' type."""
        side, depth = self.side, self.plan.step
        shape = (side.each, depth)
        held = tw.registers(self.x.dtype, tw.Layout(shape, (depth, 1) if side.along_k else (1, side.each)))
        tw.copy(tw.local_tile(part(side, self.smem[:, :, matrix], thread, 0), shape, (0, step)), held)
        if held.dtype is self.plan.accumulator:
            return held
        found = tw.registers(self.plan.accumulator, held.shape)
        for i in tw.static_range(tw.size(held)):
            found[i] = held[i].to(found.dtype)
        return found


def part(side, x, thread, mode):
    """Return a thread's rows, or columns, of a matrix."""
    one = [1, 1]
    one[mode] = side.threads
    if side.along_k:
        return tw.local_partition(x, tw.Layout(tuple(one)), thread)
    shape, place = list(x.shape), [0, 0]
    shape[mode], place[mode] = side.each, thread
    return tw.local_tile(x, tuple(shape), tuple(place))


@tw.function
def finish(plan, sums, D, operands, numbers, first, alpha, beta):
    """Write the block's matrices of D, a vector of a row after another, from their sums."""
    epilogue, width = plan.epilogue.bind(numbers), plan.width
    for i in tw.range(tw.thread_idx.x, tw.size(plan.sums) // width, plan.threads, unroll=1):
        across = plan.sums.shape[1] // width
        vector, row, matrix = i % across, i // across % plan.sums.shape[0], i // (across * plan.sums.shape[0])
        column, batch = vector * width, first + matrix
        if (row < D.shape[0]) & (column < D.shape[1]) & (batch < D.shape[2]):
            totals, *elements = [loaded(x, width, row, vector, at) for x, at in ((sums, matrix), *[(x, batch) for x in operands])]
            results, places = tw.registers(D.dtype, (width,)), Places(row, column, batch, zeros=width - 1)
            for n in tw.static_range(width):
                found = epilogue.apply(totals[n], alpha, beta, [x[n] for x in elements], places.at(0, n))
                results[n] = found.to(D.dtype)
            tw.copy(results, tw.local_tile(D[row, :, batch], (width,), (vector,)))


def loaded(x, width, row, vector, matrix):
    """Return a vector of a row in registers."""
    found = tw.registers(x.dtype, (width,))
    tw.copy(tw.local_tile(x[row, :, matrix], (width,), (vector,)), found)
    return found
