"""Barriers that some threads of a block meet at: named barriers and mbarriers, for warps with different work."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import bool_, int32, uint64
from tilewright.errors import LanguageError
from tilewright.ir import ops
from tilewright.ir.core import Buffer, Space
from tilewright.ir.ops import (
    MbarrierArrive,
    MbarrierCopies,
    MbarrierExpect,
    MbarrierInit,
    MbarrierTest,
    MbarrierWait,
)
from tilewright.lang.control import branch
from tilewright.lang.engine import allocate
from tilewright.lang.scalar import Scalar, as_scalar
from tilewright.lang.special import linear_thread
from tilewright.lang.tracer import current

_MOST_NAMED = 15  # number 0 is the barrier of tw.sync_threads
_MOST_ARRIVALS = 2**20 - 1
_MBARRIER_BYTES = 8


class NamedBarrier:
    """One of a block's barriers 1 to 15, at which `threads` threads meet, whole warps each time.

    A phase of the barrier is over when `threads` threads have come, by `sync` or by `arrive`; the next one begins with
    none. A thread that leaves `sync` sees what all of them wrote before they came. The warps that meet may stand
    in different branches:

    >>> import numpy as np
    >>> import tilewright as tw
    >>> @tw.kernel
    ... def reverse(out, x):
    ...     tile, full = tw.shared(tw.int32, 32), tw.named_barrier(1, 64)
    ...     if tw.warp_id() == 0:
    ...         tile[tw.lane_id()] = x[tw.lane_id()]
    ...         full.arrive()  # the producer goes on
    ...     else:
    ...         full.sync()  # the consumer waits for it
    ...         out[tw.lane_id()] = tile[31 - tw.lane_id()]
    >>> out = np.zeros(32, np.int32)
    >>> reverse[1, 64](out, np.arange(32, dtype=np.int32))
    >>> out[:4].tolist()
    [31, 30, 29, 28]

    `number` may be a device value, the same in all threads of a warp; `threads` is known while tracing. Raises
    `LanguageError` for a number out of 1 to 15 (barrier 0 is `tw.sync_threads`), and for threads that are no whole
    warps or more than the block has. Source: PTX ISA, barrier.sync and barrier.arrive.
    """

    def __init__(self, number: Any, threads: int) -> None:
        given: object = threads
        tracer = current("tw.named_barrier")
        if tracer.arch.is_amd:
            raise LanguageError(
                f"tw.named_barrier: {tracer.arch} has one barrier, that of the whole block",
                help="let the whole block meet: tw.sync_threads()",
            )
        warp = tracer.arch.warp_size
        if not isinstance(given, int) or given <= 0 or given % warp:
            raise LanguageError(
                f"tw.named_barrier is met by whole warps: its threads are a multiple of {warp}, not {given!r}",
                help="count all threads of the warps that sync or arrive; the number must be known while tracing",
            )
        shape = tracer.block_shape
        if shape is not None and given > _whole_warps(shape[0] * shape[1] * shape[2], warp):
            raise LanguageError(
                f"tw.named_barrier waits for {given} threads, and the block has {shape[0] * shape[1] * shape[2]}",
                help="the barrier would never be complete: count the threads that come in one phase",
            )
        scalar = as_scalar(number, int32)
        facts = scalar.facts
        if facts.high < 1 or facts.low > _MOST_NAMED or (isinstance(number, int) and number not in range(1, 16)):
            raise LanguageError(
                f"a block has named barriers 1 to {_MOST_NAMED}, not {number!r}",
                help="barrier 0 is the one of tw.sync_threads()",
            )
        self.number = number
        self.threads = given

    def sync(self) -> None:
        """Arrive, and wait until all threads of the phase have (PTX barrier.sync)."""
        self._emit("sync")

    def arrive(self) -> None:
        """Arrive without waiting: what the thread wrote before is visible to those who wait (PTX barrier.arrive)."""
        self._emit("arrive")

    def _emit(self, kind: str) -> None:
        current(f"named_barrier.{kind}").emit(ops.NamedBarrier(kind, self.threads, as_scalar(self.number, int32).value))

    def __repr__(self) -> str:
        return f"named_barrier({self.number!r}, threads={self.threads})"


def _whole_warps(threads: int, warp: int) -> int:
    return -(-threads // warp) * warp


class MBarrier:
    """`stages` barriers in shared memory, each of whose phases is over after `count` arrivals.

    A phase ends by itself when its last arrival has come (and the bytes that were announced); the next one begins then.
    Phase n has parity n % 2, and `wait(parity)` returns when the phase of that parity is over::

        arrivals  0 1 ... count            0 1 ... count             0
        phase     0 (parity 0)          -> 1 (parity 1)           -> 2 (parity 0)
        wait(0)   waits                    passes                    waits
        wait(1)   passes                   waits                     passes

    So round k of a ring of stages waits for `full[k % stages]` with parity `k // stages % 2`, and whoever refills the
    ring waits for `empty[k % stages]` with the other one, which passes at once in the first round.

    >>> import numpy as np
    >>> import tilewright as tw
    >>> @tw.kernel
    ... def total(out, x):
    ...     there = tw.mbarrier(1)
    ...     tw.sync_threads()
    ...     if tw.warp_id() == 0:
    ...         if tw.elect_one():
    ...             out[0] = x[0] + x[1]
    ...             there.arrive()
    ...     else:
    ...         there.wait(0)
    ...         out[tw.thread_idx.x] = 2 * out[0]
    >>> out = np.zeros(64, np.int32)
    >>> total[1, 64](out, np.array([3, 4], np.int32))
    >>> out[0].item(), out[63].item()
    (7, 14)

    The constructor takes shared memory and lets one thread initialise it; `tw.sync_threads()` must stand between
    that and the first use. A thread that leaves `wait` sees what the arrivals' threads wrote before they arrived.

    Raises `LanguageError` for a count out of 1 to 2**20 - 1. Needs sm_80. Source: PTX ISA, mbarrier.
    """

    def __init__(self, count: Any, stages: int = 1) -> None:
        given: object = stages
        if not isinstance(given, int) or given < 1:
            raise LanguageError(
                f"tw.mbarrier has at least one stage, and the number is known while tracing, not {given!r}"
            )
        if isinstance(count, int) and not 1 <= count <= _MOST_ARRIVALS:
            raise LanguageError(f"an mbarrier counts 1 to {_MOST_ARRIVALS} arrivals a phase, not {count}")
        self.stages = given
        self._engine = allocate(Space.SHARED, uint64, given, _MBARRIER_BYTES)
        self.stage: Any = None  # of one stage: which
        self._initialise(as_scalar(count, int32))

    def _initialise(self, count: Scalar) -> None:
        """Let the first thread of the block initialise every stage."""
        tracer = current("tw.mbarrier")

        def initialise() -> None:
            for stage in range(self.stages):
                tracer.emit(MbarrierInit(self.buffer, as_scalar(stage, int32).value, count.value))

        branch(as_scalar(linear_thread(), int32) == 0, initialise)

    @property
    def buffer(self) -> Buffer:
        """The shared memory that holds the stages."""
        return self._engine.buffer

    def __getitem__(self, stage: Any) -> MBarrier:
        """Return the barrier of one stage."""
        if isinstance(stage, int) and not 0 <= stage < self.stages:
            raise LanguageError(f"stage {stage} of an mbarrier with {self.stages} stages")
        if self.stage is not None:
            raise LanguageError("this is the mbarrier of one stage already", help="index the one that has all stages")
        return self.at(stage)

    def at(self, stage: Any) -> MBarrier:
        """Return the barrier that lies at an element of the buffer."""
        one = object.__new__(MBarrier)
        one.stages, one._engine, one.stage = 1, self._engine, stage
        return one

    def arrive(self, count: Any = 1) -> None:
        """Count `count` arrivals of each thread that comes here (PTX mbarrier.arrive)."""
        if isinstance(count, int) and not 1 <= count <= _MOST_ARRIVALS:
            raise LanguageError(f"a thread arrives 1 to {_MOST_ARRIVALS} times at once, not {count}")
        index = self._place("arrive")
        current("mbarrier.arrive").emit(MbarrierArrive(self.buffer, index.value, as_scalar(count, int32).value))

    def arrive_expect_tx(self, bytes: Any) -> None:
        """Let the phase wait for so many bytes more of bulk copies, and arrive.

        Needs sm_90 (PTX mbarrier.arrive.expect_tx).
        """
        index = self._place("arrive_expect_tx")
        given = as_scalar(bytes, int32).value
        current("mbarrier.arrive_expect_tx").emit(MbarrierExpect(self.buffer, index.value, given))

    def cp_async_arrive(self) -> None:
        """Arrive when the thread's asynchronous copies issued so far have landed, without waiting for them.

        The arrival is one of the phase's `count`, in each thread (PTX cp.async.mbarrier.arrive.noinc).
        """
        index = self._place("cp_async_arrive")
        current("mbarrier.cp_async_arrive").emit(MbarrierCopies(self.buffer, index.value))

    def wait(self, parity: Any) -> None:
        """Wait until the phase of this parity, 0 or 1, is over (PTX mbarrier.try_wait.parity in a loop)."""
        index, wanted = self._place("wait"), _parity(parity)
        current("mbarrier.wait").emit(MbarrierWait(self.buffer, index.value, wanted.value))

    def test(self, parity: Any) -> Scalar:
        """Return whether the phase of this parity, 0 or 1, is over (PTX mbarrier.test_wait.parity)."""
        index, wanted = self._place("test"), _parity(parity)
        return Scalar(current("mbarrier.test").emit(MbarrierTest(self.buffer, index.value, wanted.value), bool_)[0])

    def _place(self, what: str) -> Scalar:
        if self.stage is None and self.stages > 1:
            raise LanguageError(
                f"{what} of an mbarrier with {self.stages} stages does not say of which",
                help=f"write {self.buffer.name or 'barrier'}[stage].{what}(...)",
            )
        return as_scalar(0 if self.stage is None else self.stage, int32)

    def __repr__(self) -> str:
        return f"mbarrier({self.buffer.name or self.stages})"


def _parity(given: Any) -> Scalar:
    if isinstance(given, (int, bool)) and given not in (0, 1):
        raise LanguageError(
            f"the parity of a phase is 0 or 1, not {given}",
            help="phase n has parity n % 2: a ring of stages waits in round k with parity k // stages % 2",
        )
    return as_scalar(given, int32)
