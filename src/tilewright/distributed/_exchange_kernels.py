"""Device code of exchanges between ranks: push to peers, tell them, wait for what they tell, add up what came.

Flags belong to the rank that waits for them, (rank that tells, part of what it sends). Their number is that of the call
and only grows, so that nothing has to be set back. Each store of a number releases, at the scope of the system, what
the rank's earlier launches have done, and the load that finds it acquires that for the launches that follow.

Rows travel to experts and back: bound offsets, announce counts, send rows, take rows. What is sent to a rank is known
on the device alone: `ends` has the end of each expert's rows, and those of rank r are the experts from r * experts on.
Rows are copied in vectors of `unit` elements, which divide a row.
"""

import tilewright as tw

THREADS = 256
TILE = 4096  # elements of a block, where there are so few


@tw.kernel
def push(targets, x):
    """Copy x[i] to target[i] for each target; all are of one extent."""
    width = 16 // x.dtype.bytes
    thread, threads = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x, tw.grid_dim.x * tw.block_dim.x
    for i in range(thread, x.shape[0] // width, threads):
        for target in targets:
            tw.copy(vectors(x, width)[:, i], vectors(target, width)[:, i])
    i = x.shape[0] // width * width + thread
    if i < x.shape[0]:
        for target in targets:
            target[i] = x[i]


def vectors(x, width):
    """Return the whole vectors of an array, (element, vector)."""
    return tw.Tensor(x.engine, tw.Layout((width, x.shape[0] // width), (1, width)))


@tw.kernel
def tell(flags, rank, number):
    """Let each of the ranks whose flags these are know that this one is over with all parts of call `number`."""
    for flag in flags:
        for part in range(flag.shape[1]):
            tw.store(flag, (rank, part), number, sem="release", scope="sys")


@tw.kernel
def await_ranks(flag, first, count, parts, number):
    """Wait until `count` ranks from `first` on, and from 0 on behind the last, have told of all parts of a call."""
    for n in range(count):
        rank = (first + n) % flag.shape[0]
        for part in range(parts):
            while tw.load(flag, (rank, part), sem="acquire", scope="sys") < number:
                pass


@tw.kernel
def add(targets, parts, more):
    """Compute target[i] = sum over r of parts[r, i] + those of `more`, in this order and at least in float32."""
    sums = parts.dtype if parts.dtype.bits >= 32 else tw.float32
    for i in range(tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x, parts.shape[1], tw.grid_dim.x * tw.block_dim.x):
        total = parts[0, i].to(sums)
        for rank in range(1, parts.shape[0]):
            total += parts[rank, i].to(sums)
        for one in more:
            total += one[i].to(sums)
        for target in targets:
            target[i] = total.to(target.dtype)


@tw.kernel
def bound_offsets(ends, faults, own, offsets, rows, experts, rank):
    """Write offsets to `ends` that neither fall nor leave 0 to `rows`, and tell all ranks what they were like.

    `faults` are the arrays of all ranks, of which `own` is this rank's: in row `rank` the most rows that were ever for
    one rank, and whether an offset had to be bounded.
    """
    thread, count = tw.thread_idx.x, offsets.shape[0]
    before, is_wrong = 0, 0
    for first in range(0, count, THREADS):
        i = first + thread
        end = 0
        if i < count:
            # Before the offset becomes 32 bits wide.
            end = tw.minimum(tw.maximum(offsets[i], 0), rows).to(tw.int32)
        end, last = tw.scan(tw.maximum(end, before), "max", with_total=True)
        if i < count:
            ends[i] = end
            if offsets[i] != end:
                is_wrong = 1
        before = last
    is_wrong = tw.reduce(is_wrong, "max")
    tw.sync_threads()
    most = 0
    for reader in range(thread, count // experts, THREADS):
        most = tw.maximum(most, rows_for(ends, reader, experts)[1])
    most = tw.reduce(most, "max")
    if thread == 0:
        most, is_wrong = tw.maximum(own[rank, 0], most), tw.maximum(own[rank, 1], is_wrong)
        for fault in faults:
            fault[rank, 0] = most
            fault[rank, 1] = is_wrong


@tw.function
def rows_for(ends, reader, experts):
    """Return where the rows for a rank begin, and how many there are."""
    begin = 0
    if reader > 0:
        begin = ends[reader * experts - 1]
    return begin, ends[(reader + 1) * experts - 1] - begin


@tw.kernel
def announce_ends(targets, ends, capacity):
    """Tell each rank where the rows of its experts end among those that it gets: no more of them than the capacity."""
    experts = targets[0].shape[0]
    for reader in tw.static_range(len(targets)):
        begin, _ = rows_for(ends, reader, experts)
        for e in range(tw.thread_idx.x, experts, THREADS):
            targets[reader][e] = tw.minimum(ends[reader * experts + e] - begin, capacity)


@tw.kernel
def copy_ends(arrived, announced):
    """Copy what the ranks have announced."""
    experts = arrived.shape[1]
    for i in range(tw.thread_idx.x, arrived.shape[0] * experts, THREADS):
        arrived[i // experts, i % experts] = announced[i // experts, i % experts]


@tw.kernel
def announce_counts(targets, arrived, capacity):
    """Tell each rank how many of its rows come back: what `arrived` has for its last expert, bounded."""
    experts = arrived.shape[1]
    for reader in tw.static_range(len(targets)):
        most = 0
        for e in range(tw.thread_idx.x, experts, THREADS):
            most = tw.maximum(most, arrived[reader, e])
        most = tw.reduce(most, "max")
        if tw.thread_idx.x == 0:
            targets[reader][experts - 1] = tw.minimum(most, capacity)


@tw.kernel
def send_rows(target, x, ends, reader, experts, columns, unit: tw.constexpr):
    """Copy the rows of x for a rank to its memory, as many of them as it has room for."""
    thread, threads = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x, tw.grid_dim.x * tw.block_dim.x
    begin, count = rows_for(ends, reader, experts)
    vectors = columns // unit
    size = tw.minimum(count * vectors, target.shape[0] // unit)
    for i in range(thread, size, threads):
        tw.copy(tw.local_tile(x, (unit,), (begin * vectors + i,)), tw.local_tile(target, (unit,), (i,)))


@tw.kernel
def take_rows(out, part, told, ends, faults, sender, columns, unit: tw.constexpr):
    """Copy the rows that a rank sent back to their places in `out`.

    Rows that did not come are NaN, and `faults` says that there are such. Those behind the last expert's are 0.
    """
    thread, threads = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x, tw.grid_dim.x * tw.block_dim.x
    experts = told.shape[0]
    begin, count = rows_for(ends, sender, experts)
    came = told[experts - 1]
    vectors = columns // unit
    for i in range(thread, tw.minimum(came, count) * vectors, threads):
        tw.copy(tw.local_tile(part, (unit,), (i,)), tw.local_tile(out, (unit,), (begin * vectors + i,)))
    for i in range(came * columns + thread, count * columns, threads):
        out[begin * columns + i] = tw.float32(float("nan")).to(out.dtype)
    if came != count and thread == 0:
        faults[sender, 2] = 1
    last = ends.shape[0]
    if (sender + 1) * experts == last:
        for i in range(ends[last - 1] * columns + thread, out.shape[0], threads):
            out[i] = tw.float32(0).to(out.dtype)
