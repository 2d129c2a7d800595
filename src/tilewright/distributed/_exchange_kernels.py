"""Device code of exchanges between ranks: push to peers, tell them, wait for what they tell, add up what came.

Flags belong to the rank that waits for them, (rank that tells, part of what it sends). Their number is that of the call
and only grows, so that nothing has to be set back. Each store of a number releases, at the scope of the system, what
the rank's earlier launches have done, and the load that finds it acquires that for the launches that follow.
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
