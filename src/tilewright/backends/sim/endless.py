"""Loops that never end: found where a thread is again as it was at an earlier iteration.

What the next iterations of a `while` do, where it does not wait for memory (see `spinning`), follows from what it
carries, from registers, and from memory that nobody writes. So a thread whose state comes again stays in the loop for
ever. The states of iterations 1024, 2048, 4096, ... are kept, and later ones compared with the last of them (Brent's
way of finding a cycle): a cycle is found within about three times its length and start.

A loop whose state does not come again (a counter that wraps after 2^32 iterations) runs as long as it does on a GPU.
"""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.compiler import Compiler
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.storage import RegisterStorage
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask, at_least_2d
from tilewright.ir.core import Op, Space
from tilewright.ir.effects import Scope, Waits
from tilewright.ir.ops import While

_FIRST = 1024  # the iteration that is kept first: loops are seldom as long, and those that are cost little more


class Watch:
    """The watch over one loop. The kept state is in slots of the frame, `live` ones where threads may part."""

    def __init__(self, op: While, compiler: Compiler) -> None:
        self._op, self._machine = op, compiler.machine
        self._carried = compiler.slots(op.body.arguments)
        inner = [each for block in (op.condition, op.body) for each in block.walk()]
        written = {b: None for each in inner for b in each.buffers_written if b.space is Space.REGISTER}
        storages = [compiler.machine.storages[buffer] for buffer in written]
        # Threads that exchange values go by each other's state, too; those that test a barrier, by anyone's.
        self._is_joint = any(each.effects.together is not Scope.THREAD for each in inner)
        self._is_off = any(each.effects.waits is Waits.SOME and each.results for each in inner)
        self._registers = [each for each in storages if isinstance(each, RegisterStorage)]
        elements = sum(len(storage.pieces) for storage in self._registers)
        self.live: tuple[int, ...] = tuple(compiler.hidden_slot() for _ in range(len(self._carried) + elements))

    def begin(self, frame: Frame) -> None:
        """Give the slots values, at the loop's start."""
        self._keep(frame)

    def stuck(self, iteration: int, frame: Frame, mask: Mask) -> Array | None:
        """Return the threads of the mask that can never leave the loop, and report them; None if there are none.

        `iteration` counts from 0; those who are stuck are not asked about again.
        """
        if iteration < _FIRST or self._is_off:
            return None
        found = None
        if iteration > _FIRST:
            same = np.ones((1, 1), np.bool_) if mask is None else mask
            for now, slot in zip(self._state(frame), self.live, strict=True):
                same = same & _equal_bits(now, frame.values[slot])
                if not same.any():
                    break
            is_whole = not self._is_joint or not (~same if mask is None else mask & ~same).any()
            found = same if is_whole and same.any() else None
        if iteration & (iteration - 1) == 0:
            self._keep(frame)
        if found is not None:
            self._report(found)
        return found

    def _state(self, frame: Frame) -> list[Lanes]:
        return [frame.values[s] for s in self._carried] + [e for r in self._registers for e in r.pieces]

    def _keep(self, frame: Frame) -> None:
        for slot, value in zip(self.live, self._state(frame), strict=True):
            frame.values[slot] = value.copy() if isinstance(value, np.ndarray) else value

    def _report(self, threads: Array) -> None:
        machine = self._machine
        full = np.broadcast_to(threads, (machine.blocks, machine.threads))
        row, thread = (int(n) for n in np.argwhere(full)[0])
        at = machine.block_coordinate(row), machine.thread_coordinate(thread)
        summary = "endless loop: all that the condition goes by comes again, so it never becomes false"
        help = "change in the loop what its condition reads; a wait for other threads reads memory that they write"
        fault = Fault(_placed(self._op), "endless-loop", summary, *at, help=help, count=int(full.sum()))
        machine.collector.report(fault)


def _placed(op: While) -> Op:
    """Return the loop, or where it has no line the first of its ops that has one."""
    if op.location is not None:
        return op
    return next((each for block in (op.condition, op.body) for each in block.walk() if each.location is not None), op)


def _equal_bits(a: Lanes, b: Lanes) -> Array:
    one, two = (at_least_2d(np.asarray(x)) for x in (a, b))
    words = np.dtype(f"u{one.dtype.itemsize}")
    same = np.equal(np.ascontiguousarray(one).view(words), np.ascontiguousarray(two).view(words))
    return np.asarray(same.all(axis=-1) if same.ndim == 3 else same)
