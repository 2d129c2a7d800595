"""Batches of tiny matrices: a block multiplies several of them; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._places_kernel import Places


@tw.kernel
def multiply_tiny(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute D[:, :, l] = epilogue(alpha * A[:, :, l] @ B[:, :, l]^T, operands) for a block's matrices l.

    A depth of K of all of them is brought to shared memory at once: all vectors of a thread are under way before the
    first is waited for. Then each thread multiplies a few rows and columns of one matrix.
    """
    end = len(operands) - len(plan.epilogue.numbers)
    first, tid = tw.block_idx.x * plan.matrices, tw.thread_idx.x
    own = tw.minimum(tid // plan.a.threads // plan.b.threads, plan.matrices - 1)  # threads too many repeat the last
    row, column = tid // plan.b.threads % plan.a.threads, tid % plan.b.threads
    sides = [Side(plan, side, x, first) for side, x in ((plan.a, A), (plan.b, B))]
    acc = tw.registers(plan.accumulator, tw.Layout((plan.a.each, plan.b.each), (plan.b.each, 1)))
    tw.clear(acc)
    chunks = tw.ceil_div(A.shape[1], plan.depth) if plan.has_chunks else 1
    for chunk in tw.range(chunks, unroll=1):
        for side in sides:
            side.load(chunk)
        if plan.has_chunks:
            tw.sync_threads()  # what the memory had was read
        for side in sides:
            side.store()
        tw.sync_threads()
        for step in tw.range(plan.depth // plan.step, unroll=2):
            tw.gemm(sides[0].fragment(row, own, step), sides[1].fragment(column, own, step), acc)

    tw.sync_threads()
    sums = tw.shared(acc.dtype, plan.sums)
    if tid < plan.matrices * plan.a.threads * plan.b.threads:
        tw.copy(acc, part(plan.b, part(plan.a, sums[:, :, own], row, 0), column, 1))
    tw.sync_threads()
    finish(plan, sums, D, operands[:end], operands[end:], first, alpha, beta)


class Side:
    """A or B: what of it is under way to the block's shared memory, and what is there, in the accumulators' type."""

    @tw.function
    def __init__(self, plan, side, x, first):
        self.plan, self.side, self.x, self.first = plan, side, x, first
        self.smem = tw.shared(plan.accumulator, side.smem)
        self.walk = Walk(plan, side.across, side.down)
        words = side.width * x.dtype.bits // 32 if x.dtype.bits < 32 else 0
        vectors = tw.Layout((side.width, self.walk.count), (1, side.width))
        self.words = tw.registers(tw.uint32, tw.Layout((words * self.walk.count,), (1,))) if words else None
        held = self.words.recast(x.dtype) if words else tw.registers(x.dtype, vectors)
        self.coming = held.map_layout(lambda _: vectors)

    @tw.function
    def load(self, chunk):
        """Begin to load a depth of K of the block's matrices, with zeros behind their ends."""
        side, extents, depth = self.side, self.x.shape, self.plan.depth
        tw.clear(self.coming)
        for i in tw.static_range(self.walk.count):
            vector, line, matrix, is_own = self.walk.place(i)
            matrix = matrix + self.first
            if side.along_k:
                vector, is_own = vector + chunk * (depth // side.width), is_own & (line < extents[0])
                is_own = is_own & (vector * side.width < extents[1])
            else:
                line, is_own = line + chunk * depth, is_own & (vector * side.width < extents[0])
                is_own = is_own & (line < extents[1])
            if is_own & (matrix < extents[2]):
                tw.copy(self.vector(self.x, vector, line, matrix), self.coming[:, i])

    @tw.function
    def store(self):
        """Write what was loaded to shared memory."""
        for i in tw.static_range(self.walk.count):
            vector, line, matrix, is_own = self.walk.place(i)
            if is_own:
                converted = tw.registers(self.smem.dtype, (self.side.width,))
                for n in tw.static_range(self.side.width):
                    converted[n] = self.element(n, i).to(converted.dtype)
                tw.copy(converted, self.vector(self.smem, vector, line, matrix))

    @tw.function
    def element(self, n, i):
        """Return an element of vector i; small ones of their word, which stays whole until it is converted."""
        dtype = self.x.dtype
        if self.words is None:
            return self.coming[n, i]
        word = self.words[(i * self.side.width + n) * dtype.bits // 32] >> n * dtype.bits % 32
        return word.to(tw.uint8 if dtype.bits == 8 else tw.uint16).bitcast(dtype)

    @tw.function
    def vector(self, x, vector, line, matrix):
        """Return a vector of a line: a row where K is contiguous, and otherwise a column."""
        x = x[line, :, matrix] if self.side.along_k else x[:, line, matrix]
        return tw.local_tile(x, (self.side.width,), (vector,))

    @tw.function
    def fragment(self, thread, matrix, step):
        """Return the thread's rows and a step of K."""
        side, depth = self.side, self.plan.step
        shape = (side.each, depth)
        found = tw.registers(self.smem.dtype, tw.Layout(shape, (depth, 1) if side.along_k else (1, side.each)))
        tw.copy(tw.local_tile(part(side, self.smem[:, :, matrix], thread, 0), shape, (0, step)), found)
        return found


class Walk:
    """A thread's way through the vectors of the block's matrices, whole lines of `across` vectors at a time.

    A thread stays at its place of the line, so that what it computes of its address changes by whole lines.
    """

    @tw.function
    def __init__(self, plan, across, down):
        self.plan, self.across, self.down = plan, across, down
        self.lines = plan.threads // across
        self.count = -(-down * plan.matrices // self.lines)

    @tw.function
    def place(self, i):
        """Return vector, line and matrix of the thread's vector i, and whether the block has it."""
        matrices, lines, tid = self.plan.matrices, self.lines, tw.thread_idx.x
        line, is_own = tid // self.across + i * lines, True
        if lines * self.across < self.plan.threads:
            is_own = tid < lines * self.across
        if self.count * lines > self.down * matrices:
            is_own = is_own & (line < self.down * matrices)
        if matrices == 1:
            return tid % self.across, line, 0, is_own
        return tid % self.across, line % self.down, line // self.down, is_own


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
    walk = Walk(plan, sums.shape[1] // width, sums.shape[0])
    for i in tw.range(walk.count, unroll=plan.unroll):
        vector, row, matrix, is_own = walk.place(i)
        column, batch = vector * width, first + matrix
        if is_own & (row < D.shape[0]) & (column < D.shape[1]) & (batch < D.shape[2]):
            totals, *elements = [
                loaded(x, width, row, vector, at) for x, at in ((sums, matrix), *[(x, batch) for x in operands])
            ]
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
