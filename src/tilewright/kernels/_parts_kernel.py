"""Products of float32 fragments in parts that tensor cores multiply; device code, traced into kernels.

What the parts are, and in which order products are added, `precision` says.
"""

import tilewright as tw


@tw.function
def add_products_of_parts(plan, sums, a, b):
    """Add the products of a step of K to the sums of a chunk."""
    parts_b = parts_of(plan.parts, b)
    for m in tw.range(tw.size(sums.shape[1]), unroll=True):
        # The instructions of a row do not wait for each other.
        parts_a, row = parts_of(plan.parts, a[:, m]), sums[:, m, :]
        for i, j in plan.parts.products:
            tw.gemm(plan.mma, row, parts_a[i], parts_b[j], row)


def parts_of(how, fragment):
    """Return the parts of a fragment of float32, the largest first."""
    parts = [tw.registers(how.part.storage, fragment.shape) for _ in range(how.count)]
    cut_elements(how, fragment, parts)
    return parts


@tw.function
def cut_elements(how, fragment, parts):
    """Write each element as a sum: into each part what the parts before it leave, rounded to the part's type."""
    for i in tw.range(tw.size(fragment), unroll=True):
        rest = fragment[i]
        for part in parts[:-1]:
            part[i] = rounded(rest, how.part)
            rest = rest - part[i].to(tw.float32)
        # A tensor core cuts what tfloat32 has no bits for.
        parts[-1][i] = rest.to(how.part.storage)


def rounded(x, dtype):
    """Return a float32 rounded to a type of parts: to nearest, and ties away from zero for tfloat32."""
    if dtype is not tw.tfloat32:
        return x.to(dtype)
    # x.to(tw.tfloat32) for finite numbers, without its care for others, which `mend` takes.
    return ((x.bitcast(tw.uint32) + (1 << 12)) & tw.uint32(0xFFFFE000)).bitcast(tw.float32)


@tw.function
def mend(plan, acc, thread, A, B, block, run):
    """Compute accumulators that are not finite again, by fused multiply-adds over a run of K, in order.

    They pass through shared memory, where each thread finds one after the other.
    """
    lost = tw.shared(tw.int32, 1)
    if tw.thread_idx.x == 0:
        lost[0] = 0
    tw.sync_threads()
    is_finite = tw.bool_(True)
    for i in tw.range(tw.size(acc), unroll=True):
        is_finite = is_finite & tw.isfinite(acc[i])
    if not is_finite:
        tw.atomic_max(lost, 0, 1)
    tw.sync_threads()
    if lost[0] != 0:
        sums = tw.shared(acc.dtype, plan.sums)
        tw.copy(acc, thread.partition_C(sums))
        tw.sync_threads()
        mend_elements(plan, sums, A, B, block, run)
        tw.sync_threads()
        tw.copy(thread.partition_C(sums), acc)
    tw.sync_threads()  # results may take this shared memory from here on


@tw.function
def mend_elements(plan, sums, A, B, block, run):
    """Compute the elements of a tile that are not finite and that D has, again."""
    rows, columns = plan.tile[:2]
    for i in range(rows * columns // plan.threads):
        place = tw.thread_idx.x + i * plan.threads
        row, column = place // columns, place % columns
        m, n = block[0] * rows + row, block[1] * columns + column
        if (not tw.isfinite(sums[row, column])) and (m < A.shape[0]) and (n < B.shape[0]):
            total = tw.float32(0)
            for k in range(run[0], run[1]):
                total = tw.fma(A[m, k], B[n, k], total)
            sums[row, column] = total
