"""How a block's accumulators become its tile of D; device code, traced into kernels.

The accumulators lie in registers as the instructions leave them, and pass through shared memory so that D is written in
wide stores. Without operands the results pass, in D's type. With operands the accumulators pass, and are finished row
by row on the other side, where C and the others are read as D is written: wide, and only where they are.

Of pairs of columns a thread has both accumulators: those of the second half of a tile's columns belong to the first.
"""

import tilewright as tw
from tilewright.kernels._further_kernel import reduce_tile, scale_tile
from tilewright.kernels._places_kernel import Places
from tilewright.kernels.problem import BLOCK


@tw.function
def finish(plan, acc, thread, D, operands, block, alpha, beta, batch=0):
    """Compute and write the block's tile of D, and what it has of further results, from its accumulators.

    D is matrix `batch` of the batch.
    """
    operands, further = plan.where_stored(operands)
    scales = None
    if plan.scale is not None:  # what a row of D is multiplied by, for each block of columns
        scales = tw.shared(tw.float32, tw.Layout((plan.smem.shape[0], plan.smem.shape[1] // BLOCK)))
    for n in tw.static_range(len(further)):
        if plan.further[n].operation is not None:
            finish_reduced(plan, n, acc, thread, D, operands, further[n], block, alpha, beta, scales, batch)
    if operands or further or plan.places:
        finish_rows(plan, acc, thread, D, operands, further, block, alpha, beta, scales, batch)
    else:
        finish_fragments(plan, acc, thread, D, block, alpha, beta)


@tw.function
def finish_fragments(plan, acc, thread, D, block, alpha, beta):
    """Apply the epilogue to the accumulators in registers."""
    sD = tw.shared(D.dtype, plan.smem)
    results = tw.registers(D.dtype, thread.partition_C(sD).shape)
    for i in tw.range(tw.size(results), unroll=True):
        total = (acc[i], acc[tw.size(results) + i]) if plan.is_gated else acc[i]
        results[i] = plan.apply(total, alpha, beta, []).to(D.dtype)
    tw.copy(results, thread.partition_C(sD))
    tw.sync_threads()
    storer = plan.store.get_slice(thread.thread)
    source, target = storer.partition_S(sD), storer.partition_D(tw.local_tile(D, plan.smem.shape, block))
    if not plan.guard_rows and not plan.guard_columns:
        tw.copy(plan.store, source, target)
    else:
        counts = store_counts(plan, storer, D.shape, block)
        tw.copy(plan.store, source, target, count=counts)


@tw.function
def finish_rows(plan, acc, thread, D, operands, further, block, alpha, beta, scales, batch):
    """Apply the epilogue to one vector of a row of D after another."""
    sums = staged(plan, acc, thread)
    tile = plan.smem.shape
    storer = plan.store.get_slice(thread.thread)
    sources, target = by_halves(plan, sums, thread), storer.partition_D(tw.local_tile(D, tile, block))
    addends = [by_elements(plan, tw.local_tile(x, tile, block), thread) for x in operands]
    stored = [n for n in range(len(further)) if plan.further[n].operation is None]
    stores = [by_elements(plan, tw.local_tile(further[n], tile, block), thread) for n in stored]
    row, column = storer.partition_D(tw.local_tile(tw.identity_tensor(D.shape), tile, block))[0]
    down, along = plan.store.tile_shape
    # Where vectors may end early the code for one is long, and is not repeated.
    guarded = plan.guard_rows or plan.guard_columns
    for j in tw.static_range(tw.size(target.shape[2])):
        for i in tw.range(tw.size(target.shape[1]), unroll=1 if guarded else 4):
            count = tw.where(row + i * down < D.shape[0], D.shape[1] - column - j * along, 0) if guarded else None
            elements = [load_some(x[:, i, j], count) for x in addends]
            totals, results = load_totals(sources, i, j), tw.registers(D.dtype, target[:, 0, 0].shape)
            others = [tw.registers(x.dtype, results.shape) for x in stores]
            factor = None
            if scales is not None:
                at_row, at_column = row + i * down - block[0] * tile[0], column + j * along - block[1] * tile[1]
                factor = scales[at_row, at_column // BLOCK]
            places = places_of_vector(row + i * down, column + j * along, batch, results)
            for n in tw.static_range(tw.size(results)):
                found = plan.apply_all(totals(n), alpha, beta, [x[n] for x in elements], places.at(0, n))
                results[n] = (found[0] if factor is None else found[0] * factor).to(D.dtype)
                rest = plan.further_values(found)
                for number, other in zip(stored, others, strict=True):
                    other[n] = rest[number]
            if guarded:
                tw.copy(plan.store, results, target[:, i, j], count=count)
            else:
                tw.copy(plan.store, results, target[:, i, j])
            for other, part in zip(others, stores, strict=True):
                store_some(other, part[:, i, j], count)


@tw.function
def finish_reduced(plan, n, acc, thread, D, operands, target, block, alpha, beta, scales, batch):
    """Reduce the values of further result `n` in the block's tile, through the same shared memory."""
    sums = staged(plan, acc, thread)
    tile = plan.smem.shape
    storer = plan.store.get_slice(thread.thread)
    sources, reduced = by_halves(plan, sums, thread), sums[0].recast(plan.further[n].dtype)
    source = sources[0]
    reduced_parts = by_elements(plan, reduced, thread)
    addends = [by_elements(plan, tw.local_tile(x, tile, block), thread) for x in operands]
    row, column = storer.partition_D(tw.local_tile(tw.identity_tensor(D.shape), tile, block))[0]
    down, along = plan.store.tile_shape
    guarded = plan.guard_rows or plan.guard_columns
    for j in tw.static_range(tw.size(source.shape[2])):
        for i in tw.range(tw.size(source.shape[1]), unroll=1 if guarded else 4):
            count = tw.where(row + i * down < D.shape[0], D.shape[1] - column - j * along, 0) if guarded else None
            elements = [load_some(x[:, i, j], count) for x in addends]
            totals, results = load_totals(sources, i, j), tw.registers(reduced.dtype, source[:, 0, 0].shape)
            places = places_of_vector(row + i * down, column + j * along, batch, results)
            for e in tw.static_range(tw.size(results)):
                found = plan.apply_all(totals(e), alpha, beta, [x[e] for x in elements], places.at(0, e))
                results[e] = plan.further_values(found)[n]
            tw.copy(results, reduced_parts[:, i, j])
    tw.sync_threads()
    if plan.further[n].operation == "scale":
        scale_tile(reduced, D.shape, block, thread.thread, plan.store.size, scales, target, D.dtype)
    else:
        reduce_tile(plan.further[n], reduced, D.shape, block, thread.thread, plan.store.size, target)
    tw.sync_threads()  # the memory is written again


def staged(plan, acc, thread):
    """Write accumulators to shared memory, of pairs each half of the columns by itself, and return where they are."""
    buffers = [tw.shared(acc.dtype, plan.smem) for _ in range(plan.buffers)]
    if plan.buffers == 1:
        tw.copy(acc, thread.partition_C(buffers[0]))
    else:
        for number, buffer in enumerate(buffers):
            target = thread.partition_C(buffer)
            half = tw.registers(acc.dtype, target.shape)
            for i in tw.static_range(tw.size(half)):
                half[i] = acc[number * tw.size(half) + i]
            tw.copy(half, target)
    tw.sync_threads()
    return buffers


def by_halves(plan, buffers, thread):
    """Return the thread's part of each buffer, cut as D is."""
    return [by_elements(plan, x, thread) for x in buffers]


def load_totals(sources, i, j):
    """Return what gives a vector's accumulators by their number, or the pairs of them."""
    values = [load_some(x[:, i, j], None) for x in sources]
    return lambda n: values[0][n] if len(values) == 1 else tuple([x[n] for x in values])


def places_of_vector(row, column, batch, vector):
    """Return the places of a vector of a row of D, which begins at a multiple of its length."""
    return Places(row, column, batch, zeros=tw.size(vector) - 1)


def by_elements(plan, tensor, thread):
    """Return the thread's part of a tensor, cut as D is, whatever its element type."""
    store = plan.store
    part = tw.TiledCopy(tw.atoms.UniversalCopy(tensor.dtype.bits), store.layout_tv, store.tiler)
    return part.get_slice(thread.thread).partition_S(tensor)


def load_some(tensor, count):
    """Return a vector's elements, or the first `count` of them and zeros."""
    elements = tw.registers(tensor.dtype, tensor.shape)
    if count is None:
        tw.copy(tensor, elements)
    else:
        tw.copy(tensor, elements, count=count)
    return elements


def store_some(elements, tensor, count):
    """Store a vector's elements, or the first `count` of them."""
    if count is None:
        tw.copy(elements, tensor)
    else:
        tw.copy(elements, tensor, count=count)


@tw.function
def store_counts(plan, thread, extents, block):
    """Return how many elements of each store's vector are inside of D."""
    tile = plan.smem.shape
    row, column = thread.partition_D(tw.local_tile(tw.identity_tensor(extents), tile, block))[0]
    steps = plan.store.get_slice(0).partition_D(tw.identity_tensor(tile))
    values, *rest = steps.shape
    counts = tw.registers(tw.int32, tw.Layout((tw.size(values), *rest), (0, 1, rest[0])))
    rows_left, columns_left = extents[0] - row, extents[1] - column
    for i in tw.static_range(rest[0]):
        for j in tw.static_range(rest[1]):
            down, along = steps[0, i, j]
            counts[0, i, j] = tw.where(rows_left > down, columns_left - along, 0)
    return counts
