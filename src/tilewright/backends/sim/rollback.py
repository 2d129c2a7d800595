"""The arrays that a kernel writes: what they held before a launch, and putting it back where the launch fails."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from tilewright.backends.sim.findings import ROLLBACK_VARIABLE, FindingsError, describe_outputs
from tilewright.backends.sim.storage import GlobalStorage, Storage
from tilewright.backends.sim.values import Array
from tilewright.errors import ArgumentError
from tilewright.ir.core import Buffer, Kernel, Space


def is_wanted(option: bool | None) -> bool:
    """Say whether arrays are put back: by the option of `simulate`, or without one by the environment.

    Raises `ArgumentError` where the variable is neither 1 nor 0.
    """
    if option is not None:
        return option
    value = os.environ.get(ROLLBACK_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ArgumentError(
            f"the environment variable {ROLLBACK_VARIABLE} is {value!r}",
            help="1 puts arrays back where a launch fails, 0 does not",
        )
    return value == "1"


class Outputs:
    """The arrays that a launch writes, with what they hold now if `keep`.

    `copies` are the names of arguments whose arrays are copies that nobody sees where the launch fails.
    """

    def __init__(
        self, kernel: Kernel, storages: Mapping[Buffer, Storage], keep: bool, is_checked: bool, copies: frozenset[str]
    ) -> None:
        written = dict.fromkeys(buffer for op in kernel.body.walk() for buffer in op.buffers_written)
        named = [(p.argument, p.target) for p in kernel.parameters if isinstance(p.target, Buffer)]
        outputs = [(name, buffer) for name, buffer in named if buffer in written and buffer.space is Space.GLOBAL]
        self.names = tuple(name for name, _ in outputs)
        self.are_kept = keep or all(name in copies for name in self.names)
        self._saved = [_Saved(storages[buffer], is_checked) for name, buffer in outputs if keep and name not in copies]

    def fail(self, error: BaseException) -> None:
        """Put the arrays back if they were kept, and let the error say what they hold."""
        for saved in self._saved:
            saved.restore()
        if not self.names:
            return
        if isinstance(error, FindingsError):
            error.outputs, error.rolled_back = self.names, self.are_kept
        elif hasattr(error, "add_note"):  # Python 3.10 has no notes
            error.add_note(describe_outputs(self.names, self.are_kept))


class _Saved:
    """The memory of one array, bit for bit.

    A store that is checked reaches the array's own elements only. One that is not may hit the gaps between its rows,
    where it has some, so these are kept too.
    """

    def __init__(self, storage: Storage, is_checked: bool) -> None:
        assert isinstance(storage, GlobalStorage), storage
        # Other types than integers may change on the way: NaN of some kinds, and 8-bit floats.
        self._memory: Array = storage.flat.view(f"u{storage.flat.itemsize}")
        self._own = storage.present if is_checked else None
        self._before: Array = self._memory.copy() if self._own is None else self._memory[self._own]

    def restore(self) -> None:
        if self._own is None:
            np.copyto(self._memory, self._before)
        else:
            self._memory[self._own] = self._before
