"""Waits at mbarriers that may hold two phases early.

A wait tells phases apart by their parity alone. Who waits for phase k goes on while the barrier is in phase k - 1, too:
phase k - 2 is over then, and has the same parity. So a thread may wait for phase k only where it knows that phase k - 1
is over. It does where, before it waits,

- it has waited for phase k - 1, or knows of a thread that has; or
- it knows of as many arrivals as the phases up to k - 1 take, whichever of them came first, and of all bytes of bulk
  copies that came to these phases.

In the order that the simulator runs, the wait may well hold for phase k; on a GPU the thread may come earlier. So for a
thread that does not know, a wait orders nothing, and what relies on it races. It happens at the first wait: an mbarrier
in phase 0 lets a wait with parity 1 through, as a producer wants it that finds all stages empty.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier.test_wait".
"""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.order import Order
from tilewright.backends.sim.values import Array
from tilewright.ir.core import Buffer, Op

_KEPT = 4  # phases: who goes on after phase k looks at those from k - 2 on, and arrivals may be in phase k + 1


class EarlyWaits:
    """What threads know of the phases of mbarriers when they wait: threads and barriers of a cluster, by numbers."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._unsure: dict[tuple[int, int], tuple[Op, Buffer, int, int]] = {}  # the last such wait of each thread
        self._phases: dict[tuple[Buffer, int], _Phases] = {}

    def begin(self) -> None:
        """Forget the blocks that are over."""
        self._phases.clear()
        self._unsure.clear()

    def arrive(self, buffer: Buffer | None, number: int, phase: Array, here: Array, by_agents: bool) -> None:
        """Take note of arrivals of threads, or of their copies, in a phase of a barrier, a number a block (rows, 1)."""
        if buffer is not None:
            threads = self._order.threads
            first = threads if by_agents else 0
            columns = np.zeros((len(here), self._order.columns), np.bool_)
            columns[:, first : first + threads] = here
            self._of(buffer, number).arrive(phase, columns, self._order.tick())

    def deliver(self, buffer: Buffer, number: int, phase: Array, copies: int) -> None:
        """Take note of bytes that come to a phase of a barrier, which `Order` knows by the number `copies`."""
        columns = np.zeros((1, self._order.columns), np.bool_)
        columns[0, 2 * self._order.threads + copies] = True
        self._of(buffer, number).arrive(phase, columns, self._order.tick())

    def acquire(self, op: Op, buffer: Buffer | None, number: int, phase: Array, here: Array) -> Array:
        """Return the threads, of those that go on after a phase, that knew that the one before was over."""
        if buffer is None:
            return here
        phases = self._of(buffer, number)
        unsure = phases.unsure(phase, here)
        if unsure is not None:
            rows, threads = np.nonzero(unsure)
            known = self._order.known
            known = known[rows if len(known) > 1 else 0, threads]
            known[np.arange(len(rows)), threads] = self._order.next  # its own arrivals
            of_each = phase[rows if len(phase) > 1 else np.zeros_like(rows), 0]
            unknown = ~phases.are_known(of_each, rows, known, 2 * self._order.threads)
            if unknown.any():
                rows, threads, of_each = rows[unknown], threads[unknown], of_each[unknown]
                here = np.array(np.broadcast_to(here, unsure.shape))
                here[rows, threads] = False
                waits = ((op, buffer, number, k) for k in of_each.tolist())
                self._unsure.update(zip(zip(rows.tolist(), threads.tolist(), strict=True), waits, strict=True))
        phases.go_on(phase, here, self._order.tick())
        return here

    def told(self, *threads: tuple[int, int]) -> str:
        """Return what is told of a race of threads (row, thread), one of which has gone on after such a wait."""
        found = next((self._unsure[each] for each in threads if each in self._unsure), None)
        if found is None:
            return ""
        op, buffer, number, phase = found
        assert buffer.size is not None
        name = buffer.name if buffer.size == 1 else f"{buffer.name}[{number % buffer.size}]"
        line = "" if op.location is None else f" in line {op.location.line}"
        return (
            f"nothing tells the thread that phase {phase - 1} of {name} is over, so that its wait{line} for phase "
            f"{phase} may hold before: let it wait for each phase, or meet those who have; an arrival that only marks "
            "a stage as free can be left out, as a wait with parity 1 holds before phase 0 is over"
        )

    def _of(self, buffer: Buffer, number: int) -> _Phases:
        found = self._phases.get((buffer, number))
        if found is None:
            found = self._phases[buffer, number] = _Phases(self._order.threads, self._order.columns)
        return found


class _Phases:
    """Who came to the last phases of a barrier and who went on: rows are blocks, one row stands for all.

    `_came[phase % 4]` is, for each of those `Order` knows, the event of the last arrival in the phases up to that one,
    `_number` how often they arrived in it, and `_went` for each thread the event at which it went on after it; 0 for
    none. `_last` is the last phase that each thread has waited for.
    """

    def __init__(self, threads: int, columns: int) -> None:
        self._newest: Array = np.full((1, 1), -1, np.int64)
        self._came, self._number = (np.zeros((_KEPT, 1, columns), np.int64) for _ in range(2))
        self._went: Array = np.zeros((_KEPT, 1, threads), np.int64)
        self._last: Array = np.full((1, threads), -1, np.int64)

    def arrive(self, phase: Array, columns: Array, event: int) -> None:
        """Note arrivals of a mask (rows, columns) in a phase, a number a block, -1 without any."""
        self._separate(max(len(phase), len(columns)))
        phase = np.broadcast_to(phase, self._newest.shape)
        new = np.flatnonzero(phase[:, 0] > self._newest[:, 0])
        if new.size:
            slots = phase[new, 0] % _KEPT
            self._came[slots, new] = self._came[self._newest[new, 0] % _KEPT, new]
            self._number[slots, new] = self._went[slots, new] = 0
            self._newest[new] = phase[new]
        rows, those = np.nonzero(columns & (phase >= 0))
        slots = phase[rows, 0] % _KEPT
        self._came[slots, rows, those] = event
        self._number[slots, rows, those] += 1

    def unsure(self, phase: Array, here: Array) -> Array | None:
        """Return which threads have not waited for the phase before one themselves, None for none."""
        self._separate(max(len(phase), len(here)))
        found = here & (phase > 0) & (self._last < phase - 1)
        return found if found.any() else None

    def are_known(self, phase: Array, rows: Array, known: Array, bytes: int) -> Array:
        """Say of threads in blocks `rows` whether they know that the phase before one has ended.

        `known` are the events that they know of, (threads, columns): from column `bytes` on, those of bulk copies.
        """
        rows = rows if len(self._newest) > 1 else np.zeros_like(rows)
        went = np.stack([self._went[n % _KEPT, rows] for n in (phase - 1, phase)])
        heard = (went > 0) & (known[:, : went.shape[2]] > went)
        before, ended = (self._came[n % _KEPT, rows] for n in (phase - 2, phase - 1))
        knows_all = ((phase < 2)[:, None] | (known > before)).all(axis=1) & (known > ended)[:, bytes:].all(axis=1)
        needed = self._number[(phase - 1) % _KEPT, rows, :bytes].sum(axis=1)
        for n in (phase - 1, phase, phase + 1):
            is_known = (known > self._came[n % _KEPT, rows]) & (n <= self._newest[rows, 0])[:, None]
            needed -= np.where(is_known, self._number[n % _KEPT, rows], 0)[:, :bytes].sum(axis=1)
        return np.asarray(heard.any(axis=(0, 2)) | (knows_all & (needed <= 0)))

    def go_on(self, phase: Array, here: Array, event: int) -> None:
        """Note that threads go on after a phase."""
        self._separate(max(len(phase), len(here)))
        phase, here = np.broadcast_to(phase, self._newest.shape), np.broadcast_to(here, self._last.shape)
        rows, threads = np.nonzero(here & (phase >= 0))
        self._last[rows, threads] = phase[rows, 0]
        self._went[phase[rows, 0] % _KEPT, rows, threads] = event

    def _separate(self, rows: int) -> None:
        """Tell blocks apart from now on, if there are several rows."""
        if rows > len(self._newest):
            self._newest, self._last = (np.repeat(x, rows, axis=0) for x in (self._newest, self._last))
            self._came, self._number, self._went = (
                np.repeat(x, rows, axis=1) for x in (self._came, self._number, self._went)
            )
