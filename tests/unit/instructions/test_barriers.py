"""Named barriers, mbarriers and elections while tracing: what is refused, and where they may stand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.language import lowered

import tilewright as tw
from tilewright.instructions.barrier import NamedBarrier
from tilewright.instructions.mbarrier import MbarrierInit, MbarrierWait
from tilewright.instructions.vote import Elect
from tilewright.ir.core import Space
from tilewright.ir.ops import Allocate

OUT = tw.spec("int32", (4,))


def refused(make, text, *args, block=64):
    @tw.kernel
    def kernel(out, n):
        make(n)

    with pytest.raises(tw.LanguageError, match=text):
        kernel.lower(OUT, 3, block=block)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda n: tw.named_barrier(0, 64), "named barriers 1 to 15, not 0"),
        (lambda n: tw.named_barrier(16, 64), "named barriers 1 to 15, not 16"),
        (lambda n: tw.named_barrier(tw.thread_idx.x // 64, 64), "named barriers 1 to 15"),
        (lambda n: tw.named_barrier(1, 48), "a multiple of 32, not 48"),
        (lambda n: tw.named_barrier(1, 0), "a multiple of 32, not 0"),
        (lambda n: tw.named_barrier(1, n), "a multiple of 32"),
        (lambda n: tw.named_barrier(1, 96), "waits for 96 threads, and the block has 64"),
        (lambda n: tw.named_barrier(1.5, 64), "1.5 is a float"),
        (lambda n: tw.mbarrier(0), "counts 1 to 1048575 arrivals a phase, not 0"),
        (lambda n: tw.mbarrier(1 << 20), "counts 1 to 1048575"),
        (lambda n: tw.mbarrier(1, stages=0), "at least one stage"),
        (lambda n: tw.mbarrier(1, stages=n), "known while tracing"),
        (lambda n: tw.mbarrier(1, stages=2)[2], "stage 2 of an mbarrier with 2 stages"),
        (lambda n: tw.mbarrier(1, stages=2)[-1], "stage -1"),
        (lambda n: tw.mbarrier(1, stages=2)[n][0], "of one stage already"),
        (lambda n: tw.mbarrier(1, stages=2).arrive(), "does not say of which"),
        (lambda n: tw.mbarrier(1).wait(2), "parity of a phase is 0 or 1, not 2"),
        (lambda n: tw.mbarrier(1).test(-1), "parity of a phase is 0 or 1, not -1"),
        (lambda n: tw.mbarrier(1).arrive(0), "1 to 1048575 times at once, not 0"),
    ],
)
def test_refusals(make, text):
    refused(make, text)


def test_a_partial_warp_counts_as_a_whole_one():
    @tw.kernel
    def kernel(out):
        tw.named_barrier(1, 64).sync()

    assert [op.threads for op in lowered(kernel, OUT, block=40) if isinstance(op, NamedBarrier)] == [64]


def test_outside_of_a_kernel():
    for call in (lambda: tw.named_barrier(1, 32), lambda: tw.mbarrier(1), tw.elect_one):
        with pytest.raises(tw.LanguageError, match="only inside a kernel"):
            call()


@tw.kernel
def ring(out):
    full = tw.mbarrier(64, stages=3)
    tw.sync_threads()
    for k in range(5):
        full[k % 3].arrive()
        full[k % 3].wait(k // 3 % 2)


def test_an_mbarrier_takes_the_name_of_its_variable_and_one_place_a_stage():
    ops = lowered(ring, OUT, block=64)
    (buffer,) = [op.buffer for op in ops if isinstance(op, Allocate)]
    assert (buffer.name, buffer.size, buffer.space, buffer.dtype) == ("full", 3, Space.SHARED, tw.uint64)
    assert sum(isinstance(op, MbarrierInit) for op in ops) == 3
    assert sum(isinstance(op, MbarrierWait) for op in ops) == 1


@tw.kernel
def two_lives(out):
    first = tw.shared(tw.int32, 64)
    first[tw.thread_idx.x] = 1
    tw.sync_threads()
    out[0] = first[3]
    tw.sync_threads()
    done = tw.mbarrier(64)
    tw.sync_threads()
    done.arrive()
    tw.sync_threads()
    second = tw.shared(tw.int32, 64)
    second[tw.thread_idx.x] = 1
    tw.sync_threads()
    out[1] = second[3]


def test_nothing_takes_the_place_of_an_mbarrier():
    kernel = two_lives.lower(OUT, block=64).kernel
    places = {b.name: range(b.offset, b.offset + b.bytes) for b in kernel.buffers() if b.space is Space.SHARED}
    assert set(places) == {"first", "done", "second"}
    assert not set(places["done"]) & set(places["second"])


# --- where named barriers may stand --------------------------------------------------------------------


@tw.function
def sync_if(condition):
    if condition:
        tw.named_barrier(1, 32).sync()


@tw.kernel
def under(out, condition: tw.constexpr, n):
    sync_if(condition(out, n))


WHOLE_WARPS = [
    (lambda out, n: tw.warp_id() == 1, 64),
    (lambda out, n: tw.thread_idx.x < 32, 64),
    (lambda out, n: tw.thread_idx.x >> 5 == 1, 64),
    (lambda out, n: tw.thread_idx.y == 1, (32, 2)),
    (lambda out, n: tw.thread_idx.y // 2 == 1, (16, 4)),
    (lambda out, n: tw.thread_idx.z == 1, (8, 4, 2)),
    (lambda out, n: (tw.warp_id() < n) & (out[0] > 3), 64),
    (lambda out, n: tw.thread_idx.x < 64, 64),
    (lambda out, n: tw.vote_any(tw.thread_idx.x == 0), 64),
    (lambda out, n: out[tw.thread_idx.x] > 0, 64),
]
DIVIDED = [
    (lambda out, n: tw.lane_id() == 0, 64),
    (lambda out, n: tw.thread_idx.x < 40, 64),
    (lambda out, n: tw.thread_idx.y == 1, (16, 4)),
    (lambda out, n: tw.lane_id() < n, 64),
    (lambda out, n: (tw.lane_id() < 3) & (n > 2), 64),
    (lambda out, n: tw.elect_one(), 64),
]


@pytest.mark.parametrize(("condition", "block"), WHOLE_WARPS)
def test_conditions_that_whole_warps_share(condition, block):
    under.lower(OUT, condition, 3, block=block)


@pytest.mark.parametrize(("condition", "block"), DIVIDED)
def test_conditions_that_divide_a_warp(condition, block):
    with pytest.raises(tw.LanguageError, match="a named barrier is in a branch that only some threads of a warp run"):
        under.lower(OUT, condition, 3, block=block)


@tw.kernel
def loop(out, start: tw.constexpr, barrier: tw.constexpr):
    for k in range(start(), 100, 64):
        barrier()
        out[k] = 1


def test_loops():
    def named():
        tw.named_barrier(1, 32).sync()

    loop.lower(OUT, tw.warp_id, named, block=64)
    with pytest.raises(tw.LanguageError, match="in a loop that only some threads of a warp run"):
        loop.lower(OUT, lambda: tw.thread_idx.x, named, block=64)
    with pytest.raises(tw.LanguageError, match="tw.sync_threads is in a loop"):
        loop.lower(OUT, lambda: tw.thread_idx.x, tw.sync_threads, block=64)


@tw.kernel
def single(out, barrier: tw.constexpr):
    done = tw.mbarrier(1)
    tw.sync_threads()
    if tw.elect_one():
        if barrier:
            tw.sync_threads()
        done.arrive()


def test_mbarriers_stand_where_they_like_and_barriers_of_the_block_do_not():
    assert any(isinstance(op, Elect) for op in lowered(single, OUT, False, block=64))
    with pytest.raises(tw.LanguageError, match="tw.sync_threads is in a branch"):
        single.lower(OUT, True, block=64)


def test_threads_that_are_whole_warps_meet_in_any_branch() -> None:
    """A thread that is chosen first leaves the others of its warp, which another branch keeps away."""

    @tw.kernel
    def roles(out, x, elects: tw.constexpr):
        i, meet = tw.thread_idx.x, tw.named_barrier(1, 64)
        if tw.elect_one() if elects else i == 64:
            out[i] = 1
        elif i < 64:
            meet.sync()
            out[i] = 2

    out = np.zeros(96, np.int32)
    roles[1, 96](out, out.copy(), False)
    assert (out[:64] == 2).all() and out[64] == 1 and not out[65:].any()
    with pytest.raises(tw.LanguageError, match="in a branch that only some threads of a warp run"):
        roles[1, 96](out, out.copy(), True)

    @tw.kernel
    def divided(out):
        i, meet = tw.thread_idx.x, tw.named_barrier(1, 64)
        if i == 40:
            out[i] = 1
        elif i < 64:
            meet.sync()

    with pytest.raises(tw.LanguageError, match="in a branch that only some threads of a warp run"):
        divided[1, 96](out)
