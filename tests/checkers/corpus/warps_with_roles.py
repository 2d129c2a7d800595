"""Named barriers and mbarriers between warps with different work: counts, parities, and orders that do not fit."""

from __future__ import annotations

from tests.checkers.entry import numbers, wrong, zeros

import tilewright as tw

# --- waits that never end -------------------------------------------------------------------------------


@wrong(1, 64, zeros(32), numbers(32))
@tw.kernel
def opposite_orders(out, x):
    """Each warp waits at the barrier to which the other comes next."""
    first, second = tw.named_barrier(1, 64), tw.named_barrier(2, 64)
    if tw.warp_id() == 0:
        first.sync()  # finds: deadlock
        second.sync()
    else:
        second.sync()
        first.sync()
    if tw.warp_id() == 0:
        out[tw.lane_id()] = x[tw.lane_id()]


@opposite_orders.mended
@tw.kernel
def _(out, x):
    first, second = tw.named_barrier(1, 64), tw.named_barrier(2, 64)
    if tw.warp_id() == 0:
        first.sync()
        second.sync()
    else:
        first.sync()
        second.sync()
    if tw.warp_id() == 0:
        out[tw.lane_id()] = x[tw.lane_id()]


@wrong(1, 96, zeros(32), numbers(32))
@tw.kernel
def barrier_for_a_warp_that_does_not_come(out, x):
    """Two of three warps meet, and the barrier counts all three."""
    smem = tw.shared(tw.float32, 32)
    lane, full = tw.lane_id(), tw.named_barrier(1, 96)
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        full.arrive()
    elif tw.warp_id() == 1 or x[0] > 1000.0:  # which the third one never takes
        full.sync()  # finds: deadlock
        out[lane] = smem[31 - lane]


@barrier_for_a_warp_that_does_not_come.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, 32)
    lane, full = tw.lane_id(), tw.named_barrier(1, 64)
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        full.arrive()
    elif tw.warp_id() == 1:
        full.sync()
        out[lane] = smem[31 - lane]


@wrong(1, 64, zeros(32), numbers(32))
@tw.kernel
def numbers_that_differ(out, x):
    """The producer arrives at barrier 1, the consumer waits at barrier 2."""
    smem = tw.shared(tw.float32, 32)
    lane = tw.lane_id()
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        tw.named_barrier(1, 64).arrive()
    else:
        tw.named_barrier(tw.where(x[0] > 1000.0, 1, 2), 64).sync()  # finds: deadlock
        out[lane] = smem[31 - lane]


@numbers_that_differ.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, 32)
    lane = tw.lane_id()
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        tw.named_barrier(1, 64).arrive()
    else:
        tw.named_barrier(1, 64).sync()
        out[lane] = smem[31 - lane]


@wrong(1, 64, zeros(32), numbers(32, low=-3, high=4))
@tw.kernel
def arrival_left_out_by_some(out, x):
    """Only threads with something to write arrive; the phase waits for all of the warp."""
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(32), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        smem[lane] = 0.0
        if x[lane] > 0:
            smem[lane] = x[lane]
            full.arrive()
    else:
        full.wait(0)  # finds: deadlock
        out[lane] = smem[31 - lane]


@arrival_left_out_by_some.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(32), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        smem[lane] = 0.0
        if x[lane] > 0:
            smem[lane] = x[lane]
        full.arrive()
    else:
        full.wait(0)
        out[lane] = smem[31 - lane]


@wrong(1, 64, zeros(4, 32), numbers(4, 32))
@tw.kernel
def both_wait_for_the_other(out, x):
    """In the first round the stage is empty already: the wait for it has to pass, with parity 1."""
    smem = tw.shared(tw.float32, 32)
    full, empty, lane = tw.mbarrier(32), tw.mbarrier(32), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        for k in range(4):
            empty.wait(k % 2)  # finds: deadlock
            smem[lane] = x[k, lane]
            full.arrive()
    else:
        for k in range(4):
            full.wait(k % 2)
            out[k, lane] = smem[31 - lane]
            empty.arrive()


@both_wait_for_the_other.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, 32)
    full, empty, lane = tw.mbarrier(32), tw.mbarrier(32), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        for k in range(4):
            empty.wait((k + 1) % 2)
            smem[lane] = x[k, lane]
            full.arrive()
    else:
        for k in range(4):
            full.wait(k % 2)
            out[k, lane] = smem[31 - lane]
            empty.arrive()


# --- barriers that let pass too early -------------------------------------------------------------------


@wrong(1, 64, zeros(32), numbers(32))
@tw.kernel
def barrier_of_one_warp_for_two(out, x):
    """Each warp is enough to end the phase, so nobody waits."""
    smem = tw.shared(tw.float32, 32)
    lane, full = tw.lane_id(), tw.named_barrier(1, 32)
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        full.arrive()
    else:
        full.sync()
        out[lane] = smem[31 - lane]  # finds: race


@barrier_of_one_warp_for_two.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, 32)
    lane, full = tw.lane_id(), tw.named_barrier(1, 64)
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        full.arrive()
    else:
        full.sync()
        out[lane] = smem[31 - lane]


@wrong(1, 64, zeros(32), numbers(32))
@tw.kernel
def wait_for_the_phase_before(out, x):
    """Parity 1 passes at once where the producer is slow, and where it was fast waits for a phase that never comes."""
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(32), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        full.arrive()
    else:
        full.wait(1)  # finds: deadlock
        out[lane] = smem[31 - lane]


@wait_for_the_phase_before.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(32), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        full.arrive()
    else:
        full.wait(0)
        out[lane] = smem[31 - lane]


@wrong(1, 64, zeros(32), numbers(2, 32))
@tw.kernel
def stage_refilled_without_asking(out, x):
    """The consumer waits for the first tile; the producer goes on to the second in the same memory."""
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(32, 2), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        for k in range(2):
            smem[lane] = x[k, lane]
            full[k].arrive()
    else:
        full[0].wait(0)
        out[lane] = smem[31 - lane]  # finds: race


@stage_refilled_without_asking.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, (32, 2))
    full, lane = tw.mbarrier(32, 2), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        for k in range(2):
            smem[lane, k] = x[k, lane]
            full[k].arrive()
    else:
        full[0].wait(0)
        out[lane] = smem[31 - lane, 0]


@wrong(1, 64, zeros(32), numbers(32))
@tw.kernel
def mbarrier_used_before_it_is_made(out, x):
    """The first thread initialises it, and nothing orders the others after that."""
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(32), tw.lane_id()
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        full.arrive()  # finds: race
    else:
        full.wait(0)  # finds: race
        out[lane] = smem[31 - lane]


@mbarrier_used_before_it_is_made.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(32), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        full.arrive()
    else:
        full.wait(0)
        out[lane] = smem[31 - lane]


@wrong(1, 64, zeros(32), numbers(32))
@tw.kernel
def every_lane_arrives_for_one(out, x):
    """One arrival a phase was counted, and 32 come."""
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(1), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        tw.sync_warp()
        full.arrive()  # finds: barrier-divergence
    else:
        full.wait(0)  # finds: deadlock
        out[lane] = smem[31 - lane]


@every_lane_arrives_for_one.mended
@tw.kernel
def _(out, x):
    smem = tw.shared(tw.float32, 32)
    full, lane = tw.mbarrier(1), tw.lane_id()
    tw.sync_threads()
    if tw.warp_id() == 0:
        smem[lane] = x[lane]
        tw.sync_warp()
        if tw.elect_one():
            full.arrive()
    else:
        full.wait(0)
        out[lane] = smem[31 - lane]
