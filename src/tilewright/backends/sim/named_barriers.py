"""The named barriers of the blocks that run: how many threads have arrived, and which phase it is."""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.observers import Signal
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d, by_warps, over_warps, warps_of
from tilewright.ir.core import Op
from tilewright.ir.effects import Scope

NUMBERS = 16  # of a block's barriers; 0 is that of sync_threads
BLOCK_BARRIER = 0


class NamedBarriers:
    """The barriers of a chunk of blocks: arrays (blocks, 16).

    `arrived` and `expected` count threads of the phase under way, both 0 before its first arrival, and `phase` is
    how many phases are over. The hardware counts whole warps, so a partial last warp counts in full.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.version = 0  # counts arrivals, so that others see whether anything has changed
        self.clear()

    def clear(self) -> None:
        """Begin with empty barriers."""
        self.arrived, self.expected, self.phase = (
            np.zeros((self._machine.blocks, NUMBERS), np.int64) for _ in range(3)
        )

    def arrive(self, op: Op, number: Lanes, threads: int, mask: Mask) -> tuple[Array, Array]:
        """Let the warps of the mask arrive, and return the barrier and the phase that each thread arrives at."""
        machine = self._machine
        active, split = warps_of(mask, machine.threads, machine.warp)
        if (active & split).any():
            block, warp = (int(n) for n in np.argwhere(active & split)[0])
            self._report(
                op, block,
                f"a named barrier is reached by part of warp {warp} only",
                "whole warps arrive at a barrier: move it out of the branch or loop that only some lanes run",
            )  # fmt: skip
        of_warps = self._numbers(op, number, mask)
        numbers = over_warps(of_warps, machine.threads, machine.warp) if of_warps.shape[1] > 1 else of_warps
        phase = self.phase_of(numbers)
        of_warps, active = np.broadcast_arrays(of_warps, active)
        for each in np.unique(of_warps[active]).tolist():
            come = (active & (of_warps == each)).sum(axis=1) * machine.warp
            self._count(op, each, np.broadcast_to(come, machine.blocks), threads)
        self.version += 1
        for observer in machine.observers if op.effects.together < Scope.BLOCK else ():
            observer.arrive(Signal(op, None, numbers, phase, mask))
        return numbers, phase

    def phase_of(self, numbers: Array) -> Array:
        """Return the phase under way at the barrier of each thread."""
        if numbers.shape == (1, 1):
            return self.phase[:, numbers[0]]
        return np.take_along_axis(self.phase, np.broadcast_to(numbers, (len(self.phase), numbers.shape[1])), axis=1)

    def _count(self, op: Op, number: int, come: Array, threads: int) -> None:
        """Count arrivals at one barrier in each block, and end phases."""
        arrived, expected = self.arrived[:, number], self.expected[:, number]
        other = (come > 0) & (expected > 0) & (expected != threads)
        if other.any():
            block = int(np.argmax(other))
            self._report(
                op, block,
                f"barrier {number} is met with {threads} threads, while {arrived[block]} of {expected[block]} threads "
                "have arrived there",
                "all that meet at a barrier in one phase give the same number of threads",
            )  # fmt: skip
        expected[(come > 0) & (expected == 0)] = threads
        total = arrived + come
        if (over := total > np.maximum(expected, 1)).any():
            block = int(np.argmax(over))
            self._report(
                op, block,
                f"{come[block]} threads come to barrier {number} at once, which waits for "
                f"{expected[block] - arrived[block]} more of {expected[block]}",
                "count all threads that meet there, or give each group of warps a barrier of its own",
            )  # fmt: skip
        ended = total // np.maximum(expected, 1)
        self.phase[:, number] += ended
        arrived[:] = total - ended * expected
        expected[arrived == 0] = 0

    def _numbers(self, op: Op, number: Lanes, mask: Mask) -> Array:
        """Return the number that each warp names, (blocks or 1, warps), or (1, 1) where all name the same."""
        numbers = at_least_2d(number).astype(np.intp)
        if numbers.shape[1] == 1:
            least = greatest = numbers
            active = np.ones((1, 1), np.bool_) if mask is None else mask.any(axis=1, keepdims=True)
        else:
            here = np.ones_like(numbers, np.bool_) if mask is None else mask
            least = by_warps(np.where(here, numbers, NUMBERS), self._machine.threads, self._machine.warp).min(axis=2)
            greatest = by_warps(np.where(here, numbers, -1), self._machine.threads, self._machine.warp).max(axis=2)
            active = warps_of(mask, self._machine.threads, self._machine.warp)[0]
        if (differ := active & (least != greatest)).any():
            block, warp = (int(n) for n in np.argwhere(differ)[0])
            self._report(
                op, block,
                f"threads of warp {warp} name different barriers: {least[block, warp]} and {greatest[block, warp]}",
                "a warp arrives as a whole: make the number of the barrier depend on tw.warp_id() only",
            )  # fmt: skip
        lowest = BLOCK_BARRIER if op.effects.together is Scope.BLOCK else 1
        if (wrong := active & ((least < lowest) | (greatest >= NUMBERS))).any():
            numbers, wrong = np.broadcast_arrays(np.where(least < lowest, least, greatest), wrong)
            block, summary = int(np.argwhere(wrong)[0][0]), f"there is no named barrier {numbers[wrong][0]}"
            self._report(op, block, summary, f"a block has named barriers 1 to {NUMBERS - 1}")
        return np.asarray(greatest.clip(0, NUMBERS - 1))

    def _report(self, op: Op, block: int, summary: str, help: str) -> None:
        at = self._machine.block_coordinate(block)
        self._machine.collector.report(Fault(op, "barrier-divergence", summary, at, help=help))
