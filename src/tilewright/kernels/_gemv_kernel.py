"""Few vectors times a matrix, by multiply-adds; device code, traced into kernels."""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._weights_kernel import finish_elements


@tw.kernel
def multiply_vectors(D, A, B, alpha, beta, plan: tw.constexpr, *operands):
    """Compute D = epilogue(alpha * A @ B^T, operands) for a few rows of A, or of B where the plan `is_turned`.

    The matrix is read once, in lines of 128 bytes by groups of lanes. Contiguous along K, a group has a column, and
    adds up what its lanes have; contiguous along the other mode, each lane has columns of its own. Groups that share
    columns take K by turns, and their sums are added in their order.
    """
    end = len(operands) - len(plan.epilogue.numbers)
    arrays = [D, A, B, *operands[:end]]
    if plan.is_turned:
        arrays = [tw.select(D, 1, 0, 2), B, A, *(tw.select(x, 1, 0, 2) for x in operands[:end])]
    columns = tw.ceil_div(arrays[2].shape[0], plan.columns)
    block, batch = tw.block_idx.x % columns, tw.block_idx.x // columns
    D, A, B, *rest = (x[:, :, batch] for x in arrays)
    sums = tw.shared(plan.accumulator, plan.sums)
    products = AlongK(plan, A, B, block) if plan.is_along_k else AlongColumns(plan, A, B, block)
    products.add_up()
    products.put(sums)
    tw.sync_threads()
    epilogue = plan.epilogue.bind(operands[end:])
    for i in tw.range(tw.thread_idx.x, plan.columns * plan.vectors, plan.threads):
        vector, column = i // plan.columns, block * plan.columns + i % plan.columns
        total = sums[i % plan.columns, vector, :].reduce("add")
        if plan.is_turned:
            write_turned(epilogue, total, D, rest, vector, column, alpha, beta, batch)
        else:
            finish_elements(epilogue, total, D, rest, (vector, column), alpha, beta, batch)


def write_turned(epilogue, total, D, operands, vector, column, alpha, beta, batch):
    """Write an element of the transpose of D."""
    D, *operands = (tw.select(x, 1, 0) for x in (D, *operands))
    finish_elements(epilogue, total, D, operands, (column, vector), alpha, beta, batch)


class Products:
    """A lane's part of the products: `add` adds a step of K, `put` writes what was added up."""

    @tw.function
    def add_steps(self, whole, steps):
        """Add up all steps of K, without guards the first `whole` ones, in which all lanes have whole vectors."""
        if whole > 0:
            for n in tw.range(whole, unroll=1):
                self.add(n, False)
        for n in tw.range(whole, steps, unroll=1):
            self.add(n, True)


class AlongK(Products):
    """A lane's part of the dot products of some columns, of a matrix that is contiguous along K."""

    @tw.function
    def __init__(self, plan, A, B, block):
        self.plan, self.A, self.B = plan, A, B
        group, self.lane = tw.thread_idx.x // plan.lanes, tw.thread_idx.x % plan.lanes
        groups = plan.columns // plan.beside
        self.group, self.share = group % groups, group // groups
        # Behind the last column that is read again.
        first, last = block * plan.columns + self.group, B.shape[0] - 1
        self.rows = [tw.minimum(first + n * groups, last) for n in range(plan.beside)]
        self.acc = tw.registers(plan.accumulator, (plan.beside, plan.vectors))
        self.held = tw.registers(B.dtype, (plan.width, plan.beside, plan.ahead))
        tw.clear(self.acc)

    @tw.function
    def add_up(self):
        """Add up all of K."""
        plan = self.plan
        step = plan.lanes * plan.shares * plan.width * plan.ahead
        whole, steps = self.A.shape[1] // step, tw.ceil_div(self.A.shape[1], step)
        self.add_steps(whole, steps)

    @tw.function
    def add(self, n, guard):
        """Add a step: some vectors of a lane, which are all asked for before the first is multiplied."""
        plan = self.plan
        first = (n * plan.ahead * plan.shares + self.share) * plan.lanes + self.lane
        for i in tw.static_range(plan.ahead):
            place = first + i * plan.shares * plan.lanes
            for column in tw.static_range(plan.beside):
                source = vector_of(self.B, (1, plan.width), (self.rows[column], place), guard)
                tw.copy(source, self.held[:, column, i])
        for i in tw.static_range(plan.ahead):
            place = first + i * plan.shares * plan.lanes
            for vector in tw.static_range(plan.vectors):
                x = tw.registers(self.A.dtype, plan.width)
                tw.copy(vector_of(self.A, (1, plan.width), (row_of(self.A, vector), place), guard), x)
                for column in tw.static_range(plan.beside):
                    for e in tw.static_range(plan.width):
                        a, b = (value.to(plan.accumulator) for value in (x[e], self.held[e, column, i]))
                        self.acc[column, vector] = tw.fma(a, b, self.acc[column, vector])

    @tw.function
    def put(self, sums):
        """Add what the lanes of a group have, and write it."""
        groups = self.plan.columns // self.plan.beside
        for column in tw.static_range(self.plan.beside):
            for vector in tw.static_range(self.plan.vectors):
                total = tw.reduce(self.acc[column, vector], "add", group=self.plan.lanes)
                if self.lane == 0:
                    sums[column * groups + self.group, vector, self.share] = total


class AlongColumns(Products):
    """A lane's columns, of a matrix that is contiguous along them."""

    @tw.function
    def __init__(self, plan, A, B, block):
        self.plan, self.A, self.B, self.block = plan, A, B, block
        self.share, self.lane = tw.thread_idx.x // plan.lanes, tw.thread_idx.x % plan.lanes
        self.acc = tw.registers(plan.accumulator, (plan.width, plan.vectors))
        self.held = tw.registers(B.dtype, (plan.width, plan.ahead))
        tw.clear(self.acc)

    @tw.function
    def add_up(self):
        """Add up all of K."""
        plan, step = self.plan, self.plan.shares * self.plan.ahead
        whole, steps = self.A.shape[1] // step, tw.ceil_div(self.A.shape[1], step)
        whole = tw.where((self.block + 1) * plan.columns <= self.B.shape[0], whole, 0)
        self.add_steps(whole, steps)

    @tw.function
    def add(self, n, guard):
        """Add a step: some rows of K, which are all asked for before the first is multiplied."""
        plan = self.plan
        for i in tw.static_range(plan.ahead):
            place = self.block * plan.lanes + self.lane, (n * plan.ahead + i) * plan.shares + self.share
            tw.copy(vector_of(self.B, (plan.width, 1), place, guard), self.held[:, i])
        for i in tw.static_range(plan.ahead):
            k = (n * plan.ahead + i) * plan.shares + self.share
            for vector in tw.static_range(plan.vectors):
                x = tw.registers(self.A.dtype, 1)
                tw.copy(vector_of(self.A, (1, 1), (row_of(self.A, vector), k), guard), x)
                for e in tw.static_range(plan.width):
                    a, b = (value.to(plan.accumulator) for value in (x[0], self.held[e, i]))
                    self.acc[e, vector] = tw.fma(a, b, self.acc[e, vector])

    @tw.function
    def put(self, sums):
        """Write the sums of a lane's columns."""
        for vector in tw.static_range(self.plan.vectors):
            target = tw.local_tile(sums[:, vector, self.share], (self.plan.width,), (self.lane,))
            tw.copy(self.acc[:, vector], target)


def vector_of(matrix, tile, place, guard):
    """Return a tile that is a vector; where it may end early only with a guard."""
    part = tw.local_tile(matrix, tile, place, guard=guard)
    return part[:, 0] if tile[0] > 1 else part[0, :]


def row_of(A, vector):
    """Return a row of A: of the last one, those that there are not."""
    return tw.minimum(vector, A.shape[0] - 1) if vector else 0
