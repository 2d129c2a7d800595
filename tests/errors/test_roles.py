"""Roles that do not cover a block, roles of nobody, and roles that split a warpgroup, with whole texts."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from tests.helpers.refusals import refused

import tilewright as tw
from tilewright.errors import CheckError, LanguageError

T, TILES = 32, 5
LOAD = tw.atoms.SM90_TMA_LOAD


@tw.function
def produce(ring, x, smem):
    if tw.warp_id() == 0 and tw.elect_one():
        state = ring.producer()
        for k in range(TILES):
            with state.fill() as (stage, full):
                tw.copy(
                    LOAD,
                    tw.local_tile(tw.guarded(x), (1, T), (k, 0)),
                    tw.local_tile(smem, (1, T), (stage, 0)),
                    barrier=full,
                )


@tw.function
def consume(ring, out, smem):
    state = ring.consumer()
    for k in range(TILES):
        with state.read() as stage:
            out[k, tw.warp_id(), tw.lane_id()] = smem[stage, tw.lane_id()]


@tw.kernel
def one_consumer(out, x, consumers: tw.constexpr):
    smem = tw.shared(tw.int32, tw.row_major((2, T)))
    ring = tw.pipeline(2, consumers=consumers, bytes=T * 4)
    tw.sync_threads()
    if tw.warpgroup_id() == 0:
        produce(ring, x, smem)
    elif tw.warpgroup_id() == 1:
        consume(ring, out, smem)


@tw.kernel
def two_consumers(out, x, consumers: tw.constexpr):
    smem = tw.shared(tw.int32, tw.row_major((2, T)))
    ring = tw.pipeline(2, consumers=consumers, bytes=T * 4)
    tw.sync_threads()
    if tw.warpgroup_id() == 0:
        produce(ring, x, smem)
    elif tw.warpgroup_id() == 1:
        consume(ring, out, smem)
    elif tw.warpgroup_id() == 2:
        consume(ring, out, smem)


def launch(kernel, threads, consumers):
    out, x = np.zeros((TILES, 16, T), np.int32), np.arange(TILES * T, dtype=np.int32).reshape(TILES, T)
    kernel[1, threads](out, x, consumers)
    return out, x


# Of entering a block, Python 3.13 knows the expression; before, it knew the whole line.
CARETS = "     ^^^^^^^^^^^^" if sys.version_info >= (3, 13) else "^" * 35


@refused(
    CheckError,
    f"""
    deadlock: 129 threads of a block wait for what no thread will do
      thread 0 waits for mbarrier empty[0], phase 0 (parity 0): 4 of 8 arrivals have come
        since test_roles.py:21
          with state.fill() as (stage, full):
      warps 4 to 7 wait for mbarrier full[0], phase 1 (parity 1): 0 of 1 arrivals have come
        since test_roles.py:29
          with state.read() as stage:
      the other 255 threads of the block have run to their end
      no role takes warps 8 to 11; these branches leave them out:
        test_roles.py:38
          if tw.warpgroup_id() == 0:
        test_roles.py:40
          elif tw.warpgroup_id() == 1:
      block (0, 0, 0), thread (0, 0, 0), and 128 more
      test_roles.py:21, in produce:
        with state.fill() as (stage, full):
        {CARETS}
      called from test_roles.py:39, in one_consumer:
        produce(ring, x, smem)
        ^^^^^^^^^^^^^^^^^^^^^^
      help: give them a role, or launch blocks without them and count those that come; roles cover the block where the last one is an `else`
    out may hold partial or wrong results; tw.simulate(rollback=True) or TILEWRIGHT_SIM_ROLLBACK=1 puts arrays back
    """,
)
def test_a_warpgroup_without_a_role():
    """The ring counts eight warps, and the third warpgroup, which would have four of them, has no role."""
    launch(one_consumer, 384, 8)


@refused(
    CheckError,
    f"""
    deadlock: 129 threads of a block wait for what no thread will do
      thread 0 waits for mbarrier empty[0], phase 0 (parity 0): 4 of 8 arrivals have come
        since test_roles.py:21
          with state.fill() as (stage, full):
      warps 4 to 7 wait for mbarrier full[0], phase 1 (parity 1): 0 of 1 arrivals have come
        since test_roles.py:29
          with state.read() as stage:
      the other 127 threads of the block have run to their end
      none of the 256 threads of a block takes this role:
        test_roles.py:53
          elif tw.warpgroup_id() == 2:
      block (0, 0, 0), thread (0, 0, 0), and 128 more
      test_roles.py:21, in produce:
        with state.fill() as (stage, full):
        {CARETS}
      called from test_roles.py:50, in two_consumers:
        produce(ring, x, smem)
        ^^^^^^^^^^^^^^^^^^^^^^
      help: launch blocks with threads for each role, or count without those that do not come; roles cover the block where the last one is an `else`
    out may hold partial or wrong results; tw.simulate(rollback=True) or TILEWRIGHT_SIM_ROLLBACK=1 puts arrays back
    """,
)
def test_a_role_without_a_warpgroup():
    launch(two_consumers, 256, 8)


@pytest.mark.parametrize(("kernel", "threads", "consumers"), [(one_consumer, 384, 4), (two_consumers, 512, 8)])
def test_a_warpgroup_that_only_returns_is_legal(kernel, threads, consumers):
    out, x = launch(kernel, threads, consumers)
    assert (out[:, 4 : 4 + consumers] == x[:, None]).all() and not out[:, 4 + consumers :].any()


@tw.kernel
def wrong_count(out):
    full = tw.mbarrier(3)
    tw.sync_threads()
    if tw.warpgroup_id() == 0:
        if tw.lane_id() == 0 and tw.warp_id() < 2:
            full.arrive()
        for k in range(out.shape[0]):
            full.wait(k % 2)


def test_idle_threads_are_not_named_where_others_are_missing():
    """An arrival is missing, and the warpgroup that returns has 128 threads, in four warps: it may be no cause."""
    with pytest.raises((CheckError, LanguageError)) as caught:
        wrong_count[1, 384](np.zeros(2, np.int32))
    assert "warps 4 to 11" not in str(caught.value)


@tw.kernel
def named(out):
    if tw.warpgroup_id() == 0:
        tw.named_barrier(1, 384).sync()
    elif tw.warpgroup_id() == 2:
        tw.named_barrier(1, 384).sync()
    out[tw.thread_idx.x] = 1


@refused(
    LanguageError,
    """
    named barrier 1 takes 384 arrivals a phase, and at most 256 come: this wait never ends
      they arrive at test_roles.py:129
      they arrive at test_roles.py:131
      no role takes warps 4 to 7; these branches leave them out:
        test_roles.py:128
          if tw.warpgroup_id() == 0:
        test_roles.py:130
          elif tw.warpgroup_id() == 2:
      test_roles.py:129, in named:
        tw.named_barrier(1, 384).sync()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: give them a role, or launch blocks without them and count those that come; roles cover the block where the last one is an `else`
    """,
)
def test_a_named_barrier_of_all():
    named[1, 384](np.zeros(384, np.int32))


@tw.kernel
def nobody(out):
    ready = tw.mbarrier(32)
    tw.sync_threads()
    if tw.warpgroup_id() == 2:
        if tw.warp_id() == 8:
            ready.arrive()
    if tw.warpgroup_id() < 2:
        ready.wait(0)
        out[tw.thread_idx.x] = 1


@refused(
    LanguageError,
    """
    mbarrier ready takes 32 arrivals a phase, and at most 0 come: this wait never ends
      none of the 256 threads of a block takes this role:
        test_roles.py:160
          if tw.warpgroup_id() == 2:
      test_roles.py:164, in nobody:
        ready.wait(0)
        ^^^^^^^^^^^^^
      help: launch blocks with threads for each role, or count without those that do not come; roles cover the block where the last one is an `else`
    """,
)
def test_a_producer_that_is_not_there():
    nobody[1, 256](np.zeros(256, np.int32))


@tw.kernel
def part_of_a_warp(out):
    done = tw.mbarrier(256)
    tw.sync_threads()
    if tw.thread_idx.x < 200:
        done.arrive()
        done.wait(0)
        out[tw.thread_idx.x] = 1


@refused(
    LanguageError,
    """
    mbarrier done takes 256 arrivals a phase, and at most 200 come: this wait never ends
      they arrive at test_roles.py:190
      no role takes threads 200 to 255; these branches leave them out:
        test_roles.py:189
          if tw.thread_idx.x < 200:
      test_roles.py:191, in part_of_a_warp:
        done.wait(0)
        ^^^^^^^^^^^^
      help: give them a role, or launch blocks without them and count those that come; roles cover the block where the last one is an `else`
    """,
)
def test_a_role_of_some_threads():
    part_of_a_warp[1, 256](np.zeros(256, np.int32))


@tw.kernel
def half_of_a_warpgroup(out):
    if tw.warp_id() < 2:
        tw.set_registers(40)
    else:
        tw.set_registers(232)


@refused(
    LanguageError,
    """
    tw.set_registers is in a branch that only some threads of a warpgroup run
      the branch at test_roles.py:215 differs between the threads of a warpgroup:
        if tw.warp_id() < 2:
      test_roles.py:216, in half_of_a_warpgroup:
        tw.set_registers(40)
        ^^^^^^^^^^^^^^^^^^^^
      help: whole warpgroups arrive at tw.set_registers: let the condition depend on tw.warpgroup_id(), or move the barrier out; a single thread can arrive at a tw.mbarrier
    """,
)
def test_registers_of_half_a_warpgroup():
    half_of_a_warpgroup[1, 256](np.zeros(256, np.int32))


@tw.kernel
def across_two_warpgroups(out):
    if tw.warp_id() >= 2:
        if tw.warp_id() < 6:
            tw.wgmma_fence()


@refused(
    LanguageError,
    """
    tw.wgmma_fence is in a branch that only some threads of a warpgroup run
      the branch at test_roles.py:240 differs between the threads of a warpgroup:
        if tw.warp_id() < 6:
      test_roles.py:241, in across_two_warpgroups:
        tw.wgmma_fence()
        ^^^^^^^^^^^^^^^^
      help: whole warpgroups arrive at tw.wgmma_fence: let the condition depend on tw.warpgroup_id(), or move the barrier out; a single thread can arrive at a tw.mbarrier
    """,
)
def test_a_warpgroup_of_two_halves():
    across_two_warpgroups.lower(tw.spec("float32", (256,)), block=256, arch="sm_90a")
