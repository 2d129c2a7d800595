"""Which threads of a block take a branch, where that follows from the thread's index alone."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewright.ir.core import Kernel, Value
from tilewright.ir.evaluate import evaluate
from tilewright.ir.ops import Special

Threads = npt.NDArray[np.bool_]


class ThreadSets:
    """The threads of a kernel's block for which conditions hold; `everybody` is None where the block is not known."""

    def __init__(self, kernel: Kernel) -> None:
        self._block = kernel.block
        specials = (op for op in kernel.body.walk() if isinstance(op, Special) and op.name.startswith("thread_idx"))
        self._axes = {op.result: "xyz".index(op.name[-1]) for op in specials}
        self._found: dict[Value, Threads | None] = {}

    @property
    def everybody(self) -> Threads | None:
        """All threads of the block."""
        return None if self._block is None else np.ones(self._block[0] * self._block[1] * self._block[2], np.bool_)

    def where(self, condition: Value) -> Threads | None:
        """Return for which threads a condition holds, None where more than the index of the thread is in it."""
        if condition not in self._found:
            self._found[condition] = self._evaluate(condition)
        return self._found[condition]

    def _evaluate(self, condition: Value) -> Threads | None:
        found = self.everybody
        if found is None or self._block is None:
            return None
        x, y, _ = self._block
        try:
            for thread in range(len(found)):
                index = thread % x, thread // x % y, thread // (x * y)
                found[thread] = bool(evaluate(condition, {axis: index[n] for axis, n in self._axes.items()}))
        except KeyError:
            return None
        return found


def are_whole_groups(threads: Threads, size: int) -> bool:
    """Say whether threads are whole groups of so many neighbours; the last group of a block may have fewer."""
    starts = np.arange(0, len(threads), size)
    return bool((np.logical_or.reduceat(threads, starts) == np.logical_and.reduceat(threads, starts)).all())
