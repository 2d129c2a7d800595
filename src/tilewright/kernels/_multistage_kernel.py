"""The multistage kernel: several tiles of K under way, fragments a step ahead of the instructions.

Device code, traced into kernels. One text serves all element types: mma.sync where the target has it for them, and
fused multiply-adds otherwise.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._blocks_kernel import BlockScales, add_scaled
from tilewright.kernels._epilogue_kernel import finish
from tilewright.kernels._parts_kernel import add_products_of_parts, mend


@tw.kernel
def matmul_tiles(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute one tile of D[m, n, l] = epilogue(alpha * sum over k of A[m, k, l] * B[n, k, l], operands[m, n, l]).

    Before the operands come the scales of blocks of A and B, by which each sum over a tile of K is multiplied, and
    behind them the numbers that the epilogue's function uses.

    Where K is split, D has a matrix for the sums of each split: matrix `batch` + `batches` * `split`.

    Where the epilogue takes pairs, B[n, k, pair, l] has two matrices, of which a tile has half of its columns each.

    Three things run at the same time: asynchronous copies bring the tiles of rounds to come into a ring of stages, the
    fragments of the next step of K are read from shared memory, and those of this one are multiplied.
    """
    m_block, n_block, matrix = block_of(plan, D.shape)
    batch, splits = matrix, None
    if plan.is_split:
        batch, splits = matrix % A.shape[2], (matrix // A.shape[2], D.shape[2] // A.shape[2])
    numbers = operands[len(operands) - len(plan.epilogue.numbers) :]
    arrays, operands = operands[: len(plan.blocks)], operands[len(plan.blocks) :]
    matrices_of_b = [B[:, :, batch]] if plan.b.parts == 1 else [B[:, :, 0, batch], B[:, :, 1, batch]]
    A, B, D, *operands = (
        A[:, :, batch], matrices_of_b[0], *(x[:, :, matrix] for x in (D, *operands[: len(operands) - len(numbers)]))
    )  # fmt: skip
    tile = Tile(plan, A, matrices_of_b, arrays, (m_block, n_block, batch), splits)
    tile.start()
    tile.add_up()
    if plan.parts is not None:
        tile.mend(A, B)
    finish(plan.epilogue.bind(numbers), tile.acc, tile.thread, D, tuple(operands), tile.block, alpha, beta, matrix)


class Tile:
    """A tile of D: its rings of shared memory, fragments of some steps of K, and its sums."""

    @tw.function
    def __init__(self, plan, A, matrices_of_b, arrays, place, splits):
        tid, type_of_b = tw.thread_idx.x, matrices_of_b[0].dtype
        self.plan, self.block = plan, place[:2]
        sA, sB = tw.shared(A.dtype, plan.a.smem), tw.shared(type_of_b, plan.b.smem)
        self.tiles_a = TileLoader(plan.a, A, sA, place[0], tid, splits)
        of_b = [TileLoader(plan.b, x, sB, place[1], tid, splits, part) for part, x in enumerate(matrices_of_b)]
        self.tiles_b, self.loaders = of_b[0], [self.tiles_a, *of_b]
        # Fragments of some steps of K; their loads see the same registers in their own order.
        self.thread, loader_a, loader_b = (part.get_slice(tid) for part in (plan.mma, plan.a.load, plan.b.load))
        held = plan.held_steps
        self.rA = tw.registers(A.dtype, (*plan.mma.partition_shape((plan.a.rows, plan.a.depth), "A")[:2], held))
        self.rB = tw.registers(type_of_b, (*plan.mma.partition_shape((plan.b.rows, plan.b.depth), "B")[:2], held))
        self.acc = tw.registers(plan.mma.atom.dtype_c, plan.mma.partition_shape(plan.tile[:2], "C"))
        tw.clear(self.acc)
        self.scales = BlockScales(plan, self.thread, arrays, place) if arrays else None
        # Products of `plan.chunk` steps of K are summed by themselves.
        self.sums = tw.registers(self.acc.dtype, self.acc.shape) if plan.chunk else self.acc
        self.tLsA, self.tLrA = loader_a.partition_S(sA), loader_a.retile_D(self.rA)
        self.tLsB, self.tLrB = loader_b.partition_S(sB), loader_b.retile_D(self.rB)
        self.k_tiles, self.steps = self.tiles_a.tiles - self.tiles_a.begin, tw.size(self.tLsA.shape[2])
        self.pipe = tw.pipeline(plan.stages)

    @tw.function
    def start(self):
        """Begin the copies of the first tiles of K, and load the first fragments."""
        for k_tile in tw.static_range(self.pipe.ahead):
            for loader in self.loaders:
                start_tile(loader, k_tile, k_tile)
            self.pipe.commit()
        self.pipe.wait()
        self.load(0, 0, 0)

    @tw.function
    def load(self, step, stage, place):
        """Load the fragments of a step."""
        tw.copy(self.plan.a.load, self.tLsA[:, :, step, stage], self.tLrA[:, :, place])
        tw.copy(self.plan.b.load, self.tLsB[:, :, step, stage], self.tLrB[:, :, place])

    @tw.function
    def add_up(self):
        """Multiply all tiles of K."""
        plan, tiles_a, first = self.plan, self.tiles_a, 0
        if plan.has_edges or plan.is_scalar:
            # As long as copies bring whole tiles of K only rows have to be guarded, and those only at the edges.
            first = tw.maximum(tiles_a.whole_tiles - tiles_a.begin - self.pipe.ahead, 0)
            if first > 0 and tiles_a.has_all_rows() and self.tiles_b.has_all_rows():
                for k_tile in range(first):
                    self.multiply(k_tile, start_whole_tile)
            elif (plan.a.guard_rows or plan.b.guard_rows) and first > 0:
                for k_tile in range(first):
                    self.multiply(k_tile, start_rows)
        for k_tile in range(first, self.k_tiles):
            self.multiply(k_tile, start_tile)
        self.pipe.drain()

    @tw.function
    def multiply(self, k_tile, start):
        """Multiply a tile of K while the copies of a later one begin."""
        plan, pipe, acc, sums = self.plan, self.pipe, self.acc, self.sums
        stage = pipe.read_stage(k_tile)
        found = None if self.scales is None else self.scales.load(self.tiles_a.begin + k_tile)
        # Guards need registers, of which more are free before the next fragments are there.
        is_early = plan.has_edges and not plan.is_scalar
        for k in tw.static_range(self.steps):
            if is_early:
                self.start_next(k_tile, k, start)
            if k == self.steps - 1:  # the next fragments are those of the next tile
                pipe.wait()
                stage = pipe.read_stage(k_tile + 1)
            self.load((k + 1) % self.steps, stage, (k + 1) % plan.held_steps)
            if not is_early:
                self.start_next(k_tile, k, start)
            if plan.chunk and k % plan.chunk == 0:
                tw.clear(sums)
            self.add_products(k % plan.held_steps)
            if self.scales is None and plan.chunk and (k + 1) % plan.chunk == 0:
                for i in tw.static_range(tw.size(acc)):
                    acc[i] += sums[i]
        if self.scales is not None:
            add_scaled(acc, sums, self.scales.factors(found, 0, tw.size(acc)))

    @tw.function
    def add_products(self, place):
        """Add the products of a step whose fragments are in a place."""
        plan, a, b = self.plan, self.rA[:, :, place], self.rB[:, :, place]
        if plan.is_scalar:
            multiply_add(self.sums, a[0, :], b[0, :])
        elif plan.parts is None:
            tw.gemm(plan.mma, self.sums, a, b, self.sums)
        else:
            add_products_of_parts(plan, self.sums, a, b)

    @tw.function
    def start_next(self, k_tile, step, start):
        """Begin the copies that belong to a step, of the tile that comes `pipe.ahead` tiles later."""
        coming, free = k_tile + self.pipe.ahead, self.pipe.write_stage(k_tile)
        for loader in self.loaders:
            if step == (0 if loader is self.tiles_a else self.plan.step_of_b):
                start(loader, coming, free)
        if step == self.plan.step_of_b:
            self.pipe.commit()

    def mend(self, A, B):
        """Compute again what parts cannot give."""
        span = self.tiles_a.begin * self.plan.a.depth, self.tiles_a.depth
        mend(self.plan, self.acc, self.thread, A, B, self.block, span)


@tw.function
def multiply_add(acc, a, b):
    """Compute acc[m, n] += a[m] * b[n], there and back along the mode that has fewer elements.

    Each multiply-add shares an operand with the one before, which the hardware's operand caches need not read again.
    """
    rows, columns = tw.size(a), tw.size(b)
    inner = min(rows, columns)
    for i in tw.range(max(rows, columns), unroll=True):
        for j in tw.range(inner, unroll=True):
            turning = tw.where(i % 2 == 0, j, inner - 1 - j)
            m, n = (i, turning) if rows > columns else (turning, i)
            acc[0, m, n] = tw.fma(a[m], b[n], acc[0, m, n])


def block_of(plan, extents):
    """Return the tile of (M, N) and the matrix of D that this block computes.

    `plan.group` tiles along M come before the next along N: blocks that run at the same time share rows of A and B.
    """
    tiles_m, tiles_n = (tw.ceil_div(extent, tile) for extent, tile in zip(extents[:2], plan.results, strict=True))
    block, batch = tw.block_idx.x, 0
    if plan.batched:
        block, batch = block % (tiles_m * tiles_n), block // (tiles_m * tiles_n)
    first = block // (plan.group * tiles_n) * plan.group
    height = tw.minimum(tiles_m - first, plan.group)
    inside = block % (plan.group * tiles_n)
    return first + inside % height, inside // height, batch


class TileLoader:
    """Copies an operand's tiles of K into the stages of shared memory, and zeros where the matrix has ended."""

    def __init__(self, plan, matrix, smem, block, thread, splits, of_parts=0):
        self.plan = plan
        self.rows, self.depth = matrix.shape
        self.begin = 0
        tile = (plan.copied_rows, plan.depth)
        if plan.parts > 1:
            smem = tw.local_tile(smem, (*tile, smem.shape[2]), (of_parts, 0, 0))
        part = plan.copy.get_slice(thread)
        self.source = part.partition_S(tw.local_tile(matrix, tile, (block, None)))  # (values, rows, K, tiles of K)
        self.target = part.partition_D(smem)
        # Where the thread's first vector stands in the matrix, and how far behind it the others do.
        places = tw.local_tile(tw.identity_tensor(matrix.shape), tile, (block, 0))
        self.first = part.partition_S(places)[0]
        self.steps = plan.copy.get_slice(0).partition_S(tw.identity_tensor(tile))
        self.tiles = tw.size(self.source.shape[3])
        if splits is not None:  # for this loader, the matrix begins and ends with the split
            each = tw.ceil_div(self.tiles, splits[1])
            self.begin = tw.minimum(splits[0] * each, self.tiles)
            self.tiles = tw.minimum(self.begin + each, self.tiles)
            self.depth = tw.minimum(self.tiles * plan.depth, self.depth)
        self.whole_tiles = self.depth // plan.depth
        self.rows_end = block * plan.copied_rows + plan.copied_rows

    def has_all_rows(self):
        """Say whether the matrix has all rows of the block's tiles."""
        return self.rows_end <= self.rows if self.plan.guard_rows else True

    def copy(self, k_tile, stage, **guards):
        """Begin to copy a tile, under a predicate or count."""
        tw.copy(self.plan.copy, self.source[:, :, :, self.begin + k_tile], self.target[:, :, :, stage], **guards)


def start_whole_tile(loader, k_tile, stage):
    """Begin to copy tile `k_tile`, all of which is there, into a stage."""
    loader.copy(k_tile, stage)


@tw.function
def start_rows(loader, k_tile, stage):
    """Begin to copy the rows that are there of tile `k_tile`, all of whose K is there, into a stage."""
    plan = loader.plan
    if not plan.guard_rows:
        loader.copy(k_tile, stage)
    elif plan.guard_parts and not plan.along_k:
        counts = guards_of(loader, tw.int32, None)
        loader.copy(k_tile, stage, count=counts)
    else:
        inside = guards_of(loader, tw.bool_, None)
        loader.copy(k_tile, stage, pred=inside)


@tw.function
def start_tile(loader, k_tile, stage):
    """Begin to copy tile `k_tile` into a stage as far as it is there; past the last tile come zeros."""
    plan = loader.plan
    if not plan.guard_rows and not plan.guard_k:
        loader.copy(k_tile, stage, pred=loader.begin + k_tile < loader.tiles)
    elif plan.guard_parts:
        counts = guards_of(loader, tw.int32, k_tile)
        loader.copy(k_tile, stage, count=counts)
    else:
        inside = guards_of(loader, tw.bool_, k_tile)
        loader.copy(k_tile, stage, pred=inside)


@tw.function
def guards_of(loader, dtype, k_tile):
    """Return how many elements of each vector are there (int32), or whether it is there (bool).

    Without `k_tile` all of the tile's K is there.
    """
    plan = loader.plan
    values, *rest = loader.source.shape[:3]
    guards = tw.registers(dtype, tw.Layout((tw.size(values), *rest), (0, 1, rest[0])))
    row, k = loader.first
    rows_left = loader.rows - row
    k_left = plan.depth if k_tile is None else loader.depth - k - (loader.begin + k_tile) * plan.depth
    for i in tw.static_range(rest[0]):
        for j in tw.static_range(rest[1]):
            down, along = loader.steps[0, i, j]
            rows, depth = rows_left - down, k_left - along
            if k_tile is None:
                guards[0, i, j] = rows > 0 if dtype is tw.bool_ else rows
            elif dtype is tw.bool_:
                guards[0, i, j] = (rows > 0) & (depth > 0)
            elif plan.along_k:
                guards[0, i, j] = tw.where(rows > 0, depth, 0)
            else:
                guards[0, i, j] = tw.where(depth > 0, rows, 0)
    return guards
