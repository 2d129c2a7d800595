"""Whole texts of what is said about barriers that part of a block meets at."""

from __future__ import annotations

import numpy as np
from tests.helpers.refusals import refused

import tilewright as tw
from tilewright.errors import CheckError, LanguageError

OUT = tw.spec("int32", (4,))


@tw.kernel
def divided(out):
    if tw.lane_id() < 4:
        tw.named_barrier(1, 64).sync()


@refused(
    LanguageError,
    """
    a named barrier is in a branch that only some threads of a warp run
      the branch at test_barriers.py:N differs between the threads of a warp:
        if tw.lane_id() < 4:
      test_barriers.py:N, in divided:
        tw.named_barrier(1, 64).sync()
        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
      help: whole warps arrive at a named barrier: let the condition depend on tw.warp_id(), or move the barrier out; \
a single thread can arrive at a tw.mbarrier
    """,
)
def test_divided_warp():
    divided.lower(OUT, block=64)


@tw.kernel
def which(out):
    full = tw.mbarrier(1, stages=2)
    full.wait(0)


@refused(
    LanguageError,
    """
    wait of an mbarrier with 2 stages does not say of which
      test_barriers.py:N, in which:
        full.wait(0)
        ^^^^^^^^^^^^
      help: write full[stage].wait(...)
    """,
)
def test_stage():
    which.lower(OUT, block=64)


@tw.kernel
def deadlock(out):
    full = tw.mbarrier(2)
    tw.sync_threads()
    if tw.warp_id() == 1:
        full.wait(0)
        tw.named_barrier(4, 32).sync()
    elif tw.elect_one():
        full.arrive()


@refused(
    CheckError,
    """
    deadlock: 32 threads of a block wait for what no thread will do
      warp 1 waits for mbarrier full, phase 0 (parity 0): 1 of 2 arrivals have come
        since test_barriers.py:N
          full.wait(0)
      the other 32 threads of the block have run to their end
      block (0, 0, 0), thread (32, 0, 0), and 31 more
      test_barriers.py:N, in deadlock:
        full.wait(0)
        ^^^^^^^^^^^^
      help: count the arrivals that each phase takes and the threads that make them, and follow the parity of each \
wait: phase n has parity n % 2
    """,
)
def test_deadlock():
    deadlock[1, 64](np.zeros(1, np.int32))
