"""Waits that can never end, and bytes that nothing brings: refused while tracing, where that is certain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw

SPEC = tw.spec(tw.float32, (64, 64))
THREADS = 384


def lowered(body: Any, cluster: int = 1) -> None:
    @tw.kernel
    def kernel(x):
        full, smem = tw.mbarrier(1, stages=2), tw.shared(tw.float32, 16)
        bar = tw.named_barrier(1, THREADS)
        tw.sync_threads()
        body(x, full, smem, bar)

    kernel.configure(cluster=cluster).lower(tw.static(SPEC), block=THREADS, arch="sm_90a")


@tw.function
def two_of_three_roles(x, full, smem, bar):
    if tw.warpgroup_id() == 0:
        bar.sync()
    elif tw.warpgroup_id() == 1:
        for k in range(x[0, 0].to(tw.int32)):
            bar.sync()


@tw.function
def one_that_goes_on(x, full, smem, bar):
    if tw.warp_id() < 4:
        bar.arrive()
    elif tw.warp_id() < 8:
        bar.sync()


@tw.function
def too_few_arrivals(x, full, smem, bar):
    count = tw.mbarrier(256)
    tw.sync_threads()
    if tw.thread_idx.x >= 256:
        count.arrive()
    else:
        count.wait(0)


@tw.function
def no_arrival(x, full, smem, bar):
    full[0].wait(0)


@tw.function
def bytes_of_nobody(x, full, smem, bar):
    if tw.thread_idx.x == 0:
        full[1].arrive_expect_tx(64)
    full[1].wait(0)


@tw.function
def bytes_for_another(x, full, smem, bar):
    other = tw.mbarrier(1)
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        full[0].expect_tx(64)
        tw.copy(tw.atoms.SM90_BULK_COPY_G2S, x[0, 0:16], smem, barrier=other)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (two_of_three_roles, "named barrier 1 takes 384 arrivals a phase, and at most 256 come: this wait never ends"),
        (one_that_goes_on, "named barrier 1 takes 384 arrivals a phase, and at most 256 come"),
        (too_few_arrivals, "mbarrier count takes 256 arrivals a phase, and at most 128 come"),
        (no_arrival, "mbarrier full takes 1 arrivals a phase, and at most 0 come"),
        (bytes_of_nobody, "full is told to expect bytes of bulk copies, and no copy of the kernel brings bytes to it"),
        (bytes_for_another, "full is told to expect bytes of bulk copies"),
    ],
    ids=lambda x: getattr(x, "__name__", None),
)
def test_what_is_refused(body: Any, text: str) -> None:
    with pytest.raises(tw.LanguageError) as caught:
        lowered(body)
    assert text in str(caught.value)
    assert "test_arrivals.py" in str(caught.value)


@tw.function
def a_role_by_data(x, full, smem, bar):
    if tw.warpgroup_id() == 0:
        bar.sync()
    elif x[0, 0] > 0:
        bar.sync()


@tw.function
def arrivals_in_a_loop(x, full, smem, bar):
    count = tw.mbarrier(256)
    tw.sync_threads()
    if tw.thread_idx.x >= 256:
        for k in range(2):
            count.arrive()
    else:
        count.wait(0)


@tw.function
def arrivals_at_any(x, full, smem, bar):
    other = tw.named_barrier(tw.where(x[0, 0] > 0, 1, 2), THREADS)
    if tw.warp_id() < 4:
        bar.sync()
    else:
        other.arrive()


@tw.function
def in_nobodys_branch(x, full, smem, bar):
    if tw.warp_id() == 12:
        full[0].wait(0)
        bar.sync()


@tw.function
def the_phase_before(x, full, smem, bar):
    full[0].wait(1)


@tw.function
def counts_of_its_own(x, full, smem, bar):
    many = tw.mbarrier(x[0, 0].to(tw.int32))
    tw.sync_threads()
    many.wait(0)


@tw.function
def whole_warps(x, full, smem, bar):
    half = tw.named_barrier(2, 64)
    if tw.thread_idx.x < 64:
        half.sync()


@tw.function
def from_other_blocks(x, full, smem, bar):
    if tw.thread_idx.x == 0:
        full[0].at_rank(1 - tw.block_rank_in_cluster()).arrive()
    full[0].wait(0)


@tw.function
def bytes_from_other_blocks(x, full, smem, bar):
    to = 1 - tw.block_rank_in_cluster()
    if tw.thread_idx.x == 0:
        full[0].arrive_expect_tx(64)
        tw.copy(tw.atoms.SM90_BULK_COPY_S2S, smem, smem.at_rank(to), barrier=full[0].at_rank(to))
    full[0].wait(0)


@pytest.mark.parametrize(
    "body",
    [
        a_role_by_data, arrivals_in_a_loop, arrivals_at_any, in_nobodys_branch, the_phase_before, counts_of_its_own,
        whole_warps, from_other_blocks, bytes_from_other_blocks,
    ],
    ids=lambda x: x.__name__,
)  # fmt: skip
def test_what_is_not_certain_is_left_to_the_simulator(body: Any) -> None:
    lowered(body, cluster=2 if "blocks" in body.__name__ else 1)


def test_roles_that_miss_a_warpgroup_are_refused_at_their_line() -> None:
    @tw.kernel
    def roles(out):
        meet = tw.named_barrier(1, THREADS)
        if tw.warpgroup_id() == 0:
            meet.sync()
        elif tw.warpgroup_id() == 1:
            meet.sync()
        out[tw.thread_idx.x] = 1

    with pytest.raises(tw.LanguageError) as caught:
        roles[1, THREADS](np.zeros(THREADS, np.int32))
    text = str(caught.value)
    assert text.count("they arrive at test_arrivals.py") == 2 and "roles cover the block" in text
    out = np.zeros(256, np.int32)
    with pytest.raises(tw.LanguageError, match="the block has 256"):
        roles[1, 256](out)
