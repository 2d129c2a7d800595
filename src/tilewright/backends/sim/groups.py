"""Several ranks in one process: each runs a function of the user's, and their launches wait for one another.

A rank has a thread of Python, and one thread runs at a time, so that a program of ranks does the same each time. A rank
runs until it launches a kernel, meets the others or ends; when all have come to such a place, what they launch runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.arguments import integer
from tilewright.backends.sim.aliases import Reachable, reachable
from tilewright.backends.sim.values import Array
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.ir.core import Buffer, Kernel, Parameter, TensorMap
from tilewright.ir.maps import MapValues

_ALIGNMENT = 256  # bytes, of symmetric buffers, as of a GPU's allocations

_current: ContextVar[Rank | None] = ContextVar("tilewright_rank", default=None)


def current_rank() -> Rank | None:
    """Return the rank that runs, None outside of `tw.simulate(ranks=...).run(...)`."""
    return _current.get()


@dataclass(frozen=True, eq=False)
class RankLaunch:
    """What one rank launches, as `execute` takes it."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: Mapping[Parameter, Any]  # Any: arrays and numbers
    addresses: Sequence[Reachable]
    sized: Mapping[Buffer, tuple[int, int]] | None
    maps: Mapping[TensorMap, MapValues]


@dataclass(frozen=True)
class _Meeting:
    """What a rank waits for together with the others: a barrier, or the making of a symmetric buffer."""

    what: str
    shape: tuple[int, ...] = ()
    dtype: Any = None  # of NumPy


class _Cancelled(BaseException):
    """Ends the thread of a rank because another one has failed; no `Exception`, so that no `except` keeps it."""


class Symmetric:
    """A buffer of which every rank has one of the same shape, and which kernels of all ranks reach.

    `local` is the rank's own array, `at(rank)` that of another, and `peers` the list of all, in the order of ranks: a
    kernel takes `peers` as one argument, and `peers[r]` in it is the tensor of rank r.
    """

    def __init__(self, arrays: Sequence[Array], rank: int) -> None:
        self.peers: list[Array] = list(arrays)
        self.local: Array = self.peers[rank]

    def at(self, rank: int) -> Array:
        """Return the array of a rank. Raises `ArgumentError` for a rank that the group does not have."""
        return self.peers[integer("Symmetric.at", "rank", rank, minimum=0, maximum=len(self.peers) - 1)]


class Rank:
    """One rank of a group, as the function that `run` calls gets it: `rank` of `size`."""

    def __init__(self, rank: int, group: Group) -> None:
        self.rank: int = rank
        self.size: int = group.size
        self._group = group
        self._go, self._parked = threading.Semaphore(0), threading.Semaphore(0)
        self.request: RankLaunch | _Meeting | None = None
        self.answer: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = self._is_cancelled = False

    def symmetric(self, shape: int | tuple[int, ...], dtype: object) -> Symmetric:
        """Return a buffer of zeros that all ranks see; all of them call this, with the same shape and type.

        It stands for torch's `symm_mem.empty` and `rendezvous`. Raises `ArgumentError` where the ranks disagree.
        """
        shape = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
        for extent in shape:
            integer("symmetric", "an extent", extent, minimum=0)
        arrays = self._park(_Meeting("symmetric", shape, as_dtype(dtype).numpy))
        return Symmetric(arrays, self.rank)

    def barrier(self) -> None:
        """Wait until all ranks are here and their launches are over, as `dist.barrier` behind a synchronize."""
        self._park(_Meeting("barrier"))

    def launch(self, launch: RankLaunch) -> None:
        """Launch a kernel, together with the other ranks."""
        self._park(launch)

    def _park(self, request: RankLaunch | _Meeting) -> Any:  # Any: what the group answers
        if self.is_over:
            raise ArgumentError(f"{self!r} is used after its function has ended")
        if not self._is_cancelled:  # else whoever kept the exception, or cleans up, gets it again
            self.request = request
            self._parked.release()
            self._go.acquire()
        if self._is_cancelled:
            raise _Cancelled
        answer, self.answer = self.answer, None
        return answer

    def start(self, main: Callable[[Rank], Any]) -> threading.Thread:
        """Return the thread of the rank, which waits to be resumed."""
        context = copy_context()

        def body() -> None:
            self._go.acquire()
            _current.set(self)
            try:
                if not self._is_cancelled:
                    self.result = main(self)
            except _Cancelled:
                pass
            except BaseException as error:  # told by the group
                self.error = error
            finally:
                self.is_over = True
                self._parked.release()

        thread = threading.Thread(target=lambda: context.run(body), name=f"rank {self.rank}", daemon=True)
        thread.start()
        return thread

    def resume(self, *, cancel: bool = False) -> None:
        """Let the rank run to its next launch or meeting, or to its end."""
        self.request, self._is_cancelled = None, cancel
        self._go.release()
        self._parked.acquire()

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"


# Runs launches of ranks together: the ranks, by number, and what each launches.
Perform = Callable[[Sequence[int], Sequence[RankLaunch], Sequence[Reachable]], None]


@dataclass
class Group:
    """The ranks of one run. `perform` runs launches, `meet` is told when all ranks wait for each other."""

    size: int
    perform: Perform
    waits: Callable[[Kernel], bool]
    meet: Callable[[], None]
    symmetric: list[Reachable] = field(default_factory=list)

    def run(self, main: Callable[[Rank], Any]) -> list[Any]:
        """Call `main` with each rank and return what the calls return."""
        ranks = [Rank(n, self) for n in range(self.size)]
        threads = [rank.start(main) for rank in ranks]
        try:
            runnable = ranks
            while runnable:
                for rank in runnable:
                    rank.resume()
                    if rank.error is not None:
                        raise rank.error
                runnable = self._serve([rank for rank in ranks if not rank.is_over])
        finally:
            for rank, thread in zip(ranks, threads, strict=True):
                if not rank.is_over:
                    rank.resume(cancel=True)
                thread.join()
        return [rank.result for rank in ranks]

    def _serve(self, waiting: list[Rank]) -> list[Rank]:
        """Do what ranks wait for, as far as it can be done, and return those that may go on."""
        groups: dict[Kernel, list[Rank]] = {}
        for rank in waiting:
            if isinstance(rank.request, RankLaunch):
                groups.setdefault(rank.request.kernel, []).append(rank)
        if not groups:
            return self._meet(waiting)
        # Kernels that wait for nobody run first: others may wait for what they write. Then what one kernel waits for is
        # there, or never comes: who has ended, or waits to meet, writes no more.
        free = [kernel for kernel in groups if not self.waits(kernel)]
        if not free and len(groups) > 1:
            self._refuse(waiting)
        done: list[Rank] = []
        for kernel in free or list(groups):
            ranks = groups[kernel]
            launches = [rank.request for rank in ranks if isinstance(rank.request, RankLaunch)]
            self.perform([rank.rank for rank in ranks], launches, self.symmetric)
            done += ranks
        return done

    def _meet(self, waiting: list[Rank]) -> list[Rank]:
        """Let all ranks meet."""
        if not waiting:
            return []
        first = waiting[0].request
        assert isinstance(first, _Meeting), first
        if len(waiting) < self.size or any(rank.request != first for rank in waiting):
            self._refuse(waiting)
        self.meet()
        if first.what == "symmetric":
            arrays = [_aligned(first.shape, first.dtype) for _ in waiting]
            number = len(self.symmetric) // self.size
            self.symmetric += [
                reachable(array, f"symmetric buffer {number} of rank {n}") for n, array in enumerate(arrays)
            ]
            for rank in waiting:
                rank.answer = arrays
        return waiting

    def _refuse(self, waiting: list[Rank]) -> None:
        """Raise `ArgumentError`: the ranks wait for different things."""
        does = {rank.rank: _said(rank.request) for rank in waiting}
        lines = [f"rank {n} {does.get(n, 'has ended')}" for n in range(self.size)]
        raise ArgumentError(
            "the ranks do not come to the same place",
            details=lines,
            help="let all ranks make the same symmetric buffers, barriers and launches of kernels that wait for "
            "memory, in the same order, and pass what differs between ranks as numbers and arrays: a compile-time "
            "argument, or an array of another alignment or with other fixed strides, makes another kernel",
        )


def _said(request: object) -> str:
    if isinstance(request, RankLaunch):
        return f"launches {request.kernel.name}, which waits for memory"
    assert isinstance(request, _Meeting), request
    if request.what == "barrier":
        return "waits at rank.barrier()"
    return f"makes a symmetric buffer of shape {request.shape} of {request.dtype}"


def _aligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array of zeros that begins where a GPU's allocation would."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    found: Array = memory[start : start + size].view(dtype).reshape(shape)
    return found
