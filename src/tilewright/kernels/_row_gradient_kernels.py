"""Gradients of functions of rows; device code, traced into kernels.

With x^ = (x - mean) * scale and g = dy * weight, where scale is 1 / sqrt(variance + eps), the gradients of a norm are

    dx = scale * (g - mean(g) - x^ * mean(g * x^)),    dweight = sum over rows of dy * x^,    dbias = sum of dy,

those of RMS norm the same without means of x and g. Sums over rows are taken in an order of their own, by blocks and
then over blocks, so that they have the same bits each time.
"""

from __future__ import annotations

import tilewright as tw
from tilewright.kernels._row_kernels import exponential, held_part, long_parts, row_number, row_of, wide

COLUMNS = 32  # of a block that adds up partial sums
GROUPS = 16  # of threads that take rows of their own there
PLACES = 12  # of the numbers that blocks of a cluster send each other in a step


@tw.kernel
def softmax_gradient_held(dx, dy, y, tiles: tw.constexpr, columns: tw.constexpr, is_log: tw.constexpr):
    """Compute y * (dy - sum(dy * y)), or for the logarithm dy - exp(y) * sum(dy), of rows that threads hold."""
    at, kind = row_number(), wide(y.dtype)
    gradient, values = (held_part(row_of(t, at), tiles, columns).to(kind) for t in (dy, y))
    part = held_part(row_of(dx, at), tiles, columns)
    if is_log:
        part[...] = gradient - exponential(values, dx.dtype) * tw.reduce(gradient, "add", tiles.size)
    else:
        part[...] = values * (gradient - tw.reduce(gradient * values, "add", tiles.size))


@tw.kernel
def softmax_gradient_long(dx, dy, y, tiles: tw.constexpr, columns: tw.constexpr, is_log: tw.constexpr):
    """Compute the same of a row in a block."""
    at, kind = tw.block_idx.x, wide(y.dtype)
    target, gradients, results = (long_parts(row_of(t, at), tiles, columns) for t in (dx, dy, y))
    count, total = tw.ceil_div(y.shape[-1], columns), kind(0)
    for i in range(count):
        gradient = gradients[..., i].to(kind)
        if is_log:
            total = total + gradient.reduce("add")
        else:
            total = total + (gradient * results[..., i].to(kind)).reduce("add")
    total = tw.reduce(total, "add")
    for i in range(count - 1, -1, -1):
        gradient, values = gradients[..., i].to(kind), results[..., i].to(kind)
        if is_log:
            target[..., i] = gradient - exponential(values, dx.dtype) * total
        else:
            target[..., i] = values * (gradient - total)


@tw.kernel
def norm_gradient_held(
    dx, weight_sums, bias_sums, dy, x, mean, scale, weight,
    tiles: tw.constexpr, columns: tw.constexpr, beside: tw.constexpr, stages: tw.constexpr,
):  # fmt: skip
    """Compute dx of every row, and for each block a row of weight_sums and of bias_sums.

    What is None of these, of mean and of weight is left out.

    A block goes through many rows, `beside` at a time, and keeps sums in registers. The rows of the next steps come
    into shared memory meanwhile, where a thread reads nothing but what it has copied itself. The blocks of a cluster
    have `columns` columns of the same row each, and store a step later what they need each other's sums for. With two
    stages a step waits for its rows before it asks for others, and loads its numbers then: more under way is slower.
    """
    rows, blocks = scale.shape[0], tw.cluster_dim.x
    step, first = tw.grid_dim.x // blocks * beside, tw.block_idx.x // blocks * beside
    held = HeldRows((dy, x), (mean, scale), tiles, columns, beside, stages)
    late = blocks > 1  # what other blocks have summed up is waited for a step later
    ahead = stages - 1 - late
    for n in tw.static_range(ahead):
        held.bring(first + n * step + tw.thread_idx.y, n)
    held.begin(weight, weight_sums is not None, bias_sums is not None, first)
    exchange = Exchange(held.kind) if late else None
    stage, numbers = 0, held.numbers_of(first + tw.thread_idx.y)
    before = numbers
    for start in range(first, rows + late * step, step):
        at = start + tw.thread_idx.y
        if stages == 2:
            tw.cp_async_wait(0)
        held.bring(at + ahead * step, (stage + ahead) % stages)
        if stages == 2:
            numbers = held.numbers_of(at)
        else:
            coming = held.numbers_of(at + step)
            tw.cp_async_wait(ahead)
        both = tw.reduce(held.add(stage, numbers), "add", tiles.size)
        if late:
            n = (start - first) // step
            if start < rows:
                exchange.send(both, n)
            if start > first:
                held.store(dx, at - step, (stage + stages - 1) % stages, before, exchange.sums(len(both), n - 1))
            before = numbers
        else:
            held.store(dx, at, stage, numbers, both)
        stage, numbers = (stage + 1) % stages, numbers if stages == 2 else coming
    if beside > 1:
        tw.cp_async_wait(0)  # sums take the place of the ring
    if late:
        tw.cluster_sync()  # what this block sent has arrived
    for out, total in zip((weight_sums, bias_sums), held.sums, strict=True):
        if out is not None:
            put_sums(held.own(row_of(out, first // beside)), total, held.thread, columns, beside)


class HeldRows:
    """A thread's part of rows of dy and x: rings of those to come, and sums of weights and biases over all rows."""

    def __init__(self, arrays, numbers, tiles, columns, beside, stages):
        self.arrays, self.numbers, self.tiles, self.columns, self.beside = arrays, numbers, tiles, columns, beside
        self.x, (self.mean, _) = arrays[1], numbers
        self.kind = wide(self.x.dtype)
        self.rank = tw.block_rank_in_cluster() if tw.cluster_dim.x > 1 else 0
        self.thread = tiles.get_slice(tw.thread_idx.x)
        self.rings = [tw.shared(t.dtype, (columns, beside, stages)) for t in arrays]

    def own(self, row):
        """Return the thread's part of a row, or of the block's columns of it."""
        return held_part(row, self.tiles, self.columns, self.rank)

    def bring(self, at, stage):
        """Begin to copy a row of both to a stage."""
        for t, ring in zip(self.arrays, self.rings, strict=True):
            tw.copy(self.own(row_of(t, at)), self.thread.partition_D(ring[:, tw.thread_idx.y, stage]))
        tw.cp_async_commit()

    def numbers_of(self, at):
        """Return the mean and the scale of a row."""
        return tuple(None if t is None else tw.guarded(t)[at] for t in self.numbers)

    @tw.function
    def begin(self, weight, has_weight_sums, has_bias_sums, first):
        """Take the thread's part of the weight, and clear the sums."""
        self.inverse = 1 / self.kind(self.x.shape[-1])
        self.like, self.w = self.own(row_of(self.x, first)), None if weight is None else self.own(tw.guarded(weight))
        if weight is not None and self.beside == 1 and weight.dtype.bits <= self.x.dtype.bits:
            # Three stages leave less of L1 than the weight takes.
            held = self.thread.partition_D(tw.shared(weight.dtype, self.columns))
            held[...] = self.w
            self.w = held
        of_row = self.like.to(self.kind)
        self.sums = [tw.fragment_like(of_row) if has else None for has in (has_weight_sums, has_bias_sums)]
        for total in self.sums:
            if total is not None:
                tw.clear(total)

    def parts_of(self, stage):
        """Return the thread's part of both rows of a stage."""
        return [self.thread.partition_D(ring[:, tw.thread_idx.y, stage]) for ring in self.rings]

    @tw.function
    def add(self, stage, numbers):
        """Add a row to the sums, and return the thread's sums of g * x^ and g."""
        parts, slope, middle = self.parts_of(stage), self.kind(0), self.kind(0)
        for i in tw.static_range(tw.size(self.like.shape[1])):
            gradient, values = gradient_and_values(*parts, None, i, *numbers, self.kind)
            if self.sums[0] is not None:
                self.sums[0][:, i] += gradient * values
            if self.sums[1] is not None:
                self.sums[1][:, i] += gradient
            if self.w is not None:
                gradient = gradient * self.w[:, i].to(self.kind)
            for n in tw.static_range(tw.size(gradient)):
                slope = slope + gradient[n] * values[n]
            if self.mean is not None:
                middle = middle + gradient.reduce("add")
        return (slope,) if self.mean is None else (slope, middle)

    @tw.function
    def store(self, dx, at, stage, numbers, both):
        """Store dx = scale * g - scale * mean(g) - scale^2 * mean(g * x^) * (x - mean)."""
        parts, part, (shift, factor) = self.parts_of(stage), self.own(row_of(dx, at)), numbers
        steep = both[0] * self.inverse * (factor * factor)
        middle = None if self.mean is None else both[1] * self.inverse * factor
        for i in tw.static_range(tw.size(self.like.shape[1])):
            gradient, values = gradient_and_values(*parts, self.w, i, shift, None, self.kind)
            part[:, i] = gradient * factor - (values * steep if self.mean is None else middle + values * steep)


@tw.function
def put_sums(part, total, thread, columns, beside):
    """Store the sums of a block's rows: those that threads along y have are added up in shared memory."""
    if beside == 1:
        part[...] = total
    else:
        box = tw.shared(total.dtype, (columns, beside))
        tw.sync_threads()  # what the memory held before has been read
        thread.partition_D(box[:, tw.thread_idx.y])[...] = total
        tw.sync_threads()
        if tw.thread_idx.y == 0:
            for other in range(1, beside):
                total += thread.partition_S(box[:, other])
            part[...] = total


class Exchange:
    """What the blocks of a cluster tell each other in each step: two numbers of each block.

    Numbers travel by bulk copies, whose bytes an mbarrier counts: a `cluster_sync` in each step would wait for the
    stores of dx. There are places for some steps, and all blocks meet before one that is read may be written again.
    """

    def __init__(self, kind):
        self.blocks, self.rank, self.each = tw.cluster_dim.x, tw.block_rank_in_cluster(), 16 // kind.bytes
        self.sent, self.found = (tw.shared(kind, (self.each, n, PLACES)) for n in (1, self.blocks))
        self.full = tw.mbarrier(1, stages=PLACES)
        tw.cluster_sync()  # all blocks have begun, and have mbarriers

    @tw.function
    def send(self, numbers, step):
        """Send numbers of a step to all blocks; those of the step before are read later in this one."""
        if step > 0 and step % (PLACES - 1) == 0:
            tw.cluster_sync()
        if tw.thread_idx.x == 0:
            place = step % PLACES
            for n in tw.static_range(self.each):
                self.sent[n, 0, place] = numbers[n % len(numbers)]
            tw.fence_proxy_async()
            full = self.full[place]
            full.arrive_expect_tx(16 * self.blocks)
            for other in tw.static_range(self.blocks):
                there = self.found[:, self.rank, place].at_rank(other)
                tw.copy(tw.atoms.SM90_BULK_COPY_S2S, self.sent[:, 0, place], there, barrier=full.at_rank(other))

    def sums(self, count, step):
        """Return the sums of what all blocks have sent in a step."""
        place = step % PLACES
        self.full[place].wait(step // PLACES % 2)
        totals = [self.found[n, 0, place] for n in range(count)]
        for other in tw.static_range(1, self.blocks):
            for n in tw.static_range(count):
                totals[n] = totals[n] + self.found[n, other, place]
        return totals


@tw.kernel
def norm_gradient_long(dx, dy, x, mean, scale, weight, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute dx of a row in a block; mean and weight may be None."""
    at, kind, extent = tw.block_idx.x, wide(x.dtype), x.shape[-1]
    target, gradients, parts = (long_parts(row_of(t, at), tiles, columns) for t in (dx, dy, x))
    w = None if weight is None else long_parts(tw.guarded(weight), tiles, columns)
    count, slope, shift, factor = tw.ceil_div(extent, columns), kind(0), kind(0), scale[at]
    middle = None if mean is None else mean[at]
    for i in range(count):
        gradient, values = gradient_and_values(gradients, parts, w, i, middle, factor, kind)
        slope = slope + (gradient * values).reduce("add")
        if mean is not None:
            shift = shift + gradient.reduce("add")
    slope, shift = (total / extent for total in tw.reduce((slope, shift), "add"))
    for i in range(count - 1, -1, -1):
        gradient, values = gradient_and_values(gradients, parts, w, i, middle, factor, kind)
        target[..., i] = (gradient - (values * slope if mean is None else shift + values * slope)) * factor


def gradient_and_values(gradients, parts, w, i, mean, factor, kind):
    """Return dy * weight and x^ of a part of a row; without a factor x - mean."""
    gradient, values = gradients[..., i].to(kind), parts[..., i].to(kind)
    if w is not None:
        gradient = gradient * w[..., i].to(kind)
    values = values if mean is None else values - mean
    return gradient, values if factor is None else values * factor


@tw.kernel
def weight_gradient_long(weight_sums, bias_sums, dy, x, mean, scale, tiles: tw.constexpr, columns: tw.constexpr):
    """Compute rows of weight_sums and bias_sums: a block takes `columns` columns of every so many rows."""
    kind, column = wide(x.dtype), tw.block_idx.x
    sums = [tw.fragment_like(tiles_part(x, 0, column, tiles, columns).to(kind)) for _ in range(2)]
    for total in sums:
        tw.clear(total)
    for at in tw.range(tw.block_idx.y, scale.shape[0], tw.grid_dim.y, unroll=4):
        gradient, values = (tiles_part(t, at, column, tiles, columns).to(kind) for t in (dy, x))
        values = (values if mean is None else values - mean[at]) * scale[at]
        sums[0] += gradient * values
        sums[1] += gradient
    for out, total in zip((weight_sums, bias_sums), sums, strict=True):
        if out is not None:
            tiles_part(out, tw.block_idx.y, column, tiles, columns)[...] = total


def tiles_part(x, at, column, tiles, columns):
    """Return a thread's elements of tile `column` of row `at`."""
    return tiles.get_slice(tw.thread_idx.x).partition_S(tw.local_tile(row_of(x, at), (columns,), column))


@tw.kernel
def add_rows(out, partial, further, further_partial):
    """Add up the rows of partial sums; the second ones, by blocks behind along y, may be None."""
    if further is None or tw.block_idx.y == 0:
        add_rows_of(out, partial)
    elif further is not None:
        add_rows_of(further, further_partial)


@tw.function
def add_rows_of(out, partial):
    """Add up rows of partial sums: threads along y take rows of their own, whose sums meet in shared memory."""
    column, group = tw.block_idx.x * COLUMNS + tw.thread_idx.x, tw.thread_idx.y
    sums, numbers, total = tw.shared(partial.dtype, (GROUPS, COLUMNS)), tw.guarded(partial), partial.dtype(0)
    for row in tw.range(group, partial.shape[0], GROUPS, unroll=8):
        total = total + numbers[row, column]
    sums[group, tw.thread_idx.x] = total
    tw.sync_threads()
    if group == 0:
        for n in tw.static_range(1, GROUPS):
            total = total + sums[n, tw.thread_idx.x]
        tw.guarded(out)[column] = total
