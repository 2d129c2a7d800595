"""What the meter counts and keeps: classes of instructions and operations, accesses to memory and sectors touched.

Ops are counted as the IR has them. What is free or gone in machine code (registers' loads and stores, packing,
constants, checks of coordinates) is not counted; loops that are unrolled have no branches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.machine import AccessKind
from tilewright.backends.sim.storage import GlobalStorage, SharedStorage
from tilewright.backends.sim.values import Array
from tilewright.figures import MOST_PATTERNS, Pattern, SharedBuffer
from tilewright.ir import ops
from tilewright.ir.core import Kernel, Op, Space, lanes_of
from tilewright.ir.instruction import Instruction
from tilewright.transactions import LINE, SECTOR


class Patterns:
    """The patterns of one buffer of shared memory while they are gathered."""

    def __init__(self, storage: SharedStorage) -> None:
        buffer = storage.buffer
        self._result = SharedBuffer(
            name=buffer.name,
            element=str(buffer.dtype),
            element_bytes=buffer.dtype.bytes,
            size=storage.high,
            offset=storage.offset,
            layout=buffer.layout,
            location=buffer.location,
        )
        self._found: dict[tuple[Op, bytes], Pattern] = {}
        self.is_complete: bool = True

    def add(self, op: Op, kind: str, width: int, elements: Array, times: int) -> None:
        """Count requests; the elements (requests, lanes) hold -1 for idle lanes."""
        for row in elements:
            key = op, row.tobytes()
            known = self._found.get(key)
            if known is not None:
                known.times += times
            elif len(self._found) < MOST_PATTERNS:
                self._found[key] = Pattern(op.location, kind, width, row, times)
            else:
                self.is_complete = False

    def finish(self) -> SharedBuffer:
        """Return the buffer with its patterns."""
        self._result.patterns = list(self._found.values())
        self._result.is_complete = self.is_complete
        return self._result


class Touched:
    """Which sectors of one array have been read and written.

    An array's place within a sector is its place in the allocation that it is a part of: a GPU's allocations
    begin at multiples of 256 bytes, NumPy's do not.
    """

    def __init__(self, storage: GlobalStorage | PointedStorage) -> None:
        size = storage.buffer.dtype.bytes
        if isinstance(storage, PointedStorage):  # its elements are counted from the beginning of the address space
            self.start: int = 0
            low, high = 0, storage.space.size
        else:
            self.start = storage.place_in_allocation
            low, high = self.start + storage.low * size, self.start + storage.high * size
        self._first, last = low // SECTOR, high // SECTOR
        self.first_line: int = low // LINE
        self.lines: int = high // LINE - low // LINE + 1
        self._read = np.zeros(last - self._first + 1, np.bool_)
        self._written = np.zeros_like(self._read)

    def add(self, addresses: Array, kind: AccessKind, shifts: Array | None) -> None:
        """Mark the sectors of requests, and of the same requests shifted by so many bytes."""
        places = addresses // SECTOR - self._first
        if shifts is not None:
            places = np.unique(places) + (shifts // SECTOR)[:, None]
        places = places[(places >= 0) & (places < len(self._read))]
        if kind is not AccessKind.STORE:
            self._read[places] = True
        if kind in (AccessKind.STORE, AccessKind.ATOMIC):
            self._written[places] = True

    @property
    def bytes(self) -> int:
        """The bytes of all sectors read and of all sectors written."""
        return SECTOR * int(self._read.sum() + self._written.sum())


# fmt: off
_SPECIAL_FUNCTIONS = frozenset({
    "sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin",
    "acos", "atan", "sinh", "cosh", "tanh", "erf", "pow", "atan2", "fmod", "div",
})
_UNCOUNTED = (
    ops.Constant, ops.Bitcast, ops.Pack, ops.Extract, ops.Allocate, ops.AllocateAt, ops.Point, ops.AddressOf,
    ops.Inside, ops.While, ops.Yield,
)
# fmt: on


def _arithmetic(op: Any) -> str:  # Any: a Unary or Binary
    if not op.operands[0].dtype.is_float:
        return "integer"
    return "special function" if op.kind in _SPECIAL_FUNCTIONS else "float"


def _memory(what: str) -> Callable[[Any], str | None]:
    def name(op: Any) -> str | None:  # Any: a Load, Store or Atomic
        space = op.buffer.space
        return None if space is Space.REGISTER else f"{space.value} {what}"

    return name


_CLASSES: dict[type[Op], str | Callable[[Any], str | None]] = {
    ops.Special: "integer",
    ops.AtRank: "integer",
    ops.Unary: _arithmetic,
    ops.Binary: _arithmetic,
    ops.Compare: lambda op: "float" if op.lhs.dtype.is_float else "integer",
    ops.Fma: "fma",
    ops.Select: "select",
    ops.Cast: "convert",
    ops.CastPair: "convert",
    ops.RoundToTfloat32: "convert",
    ops.Load: _memory("load"),
    ops.Store: _memory("store"),
    ops.Atomic: _memory("atomic"),
    ops.If: "branch",
    ops.For: "branch",
    ops.Print: "print",
    ops.Assert: "branch",
}


def class_of(op: Op) -> str | None:
    """Return the class that an op is counted in, None for what is not counted."""
    if isinstance(op, Instruction):
        return op.COUNTED
    if isinstance(op, _UNCOUNTED) or (isinstance(op, ops.For) and op.unroll == 0):
        return None
    found = _CLASSES[type(op)]
    return found if isinstance(found, str) else found(op)


def operations_of(op: Op, warp: int) -> tuple[str, int, bool] | None:
    """Return the unit that does an op's arithmetic, how many operations, and whether those are a warp's.

    `warp` is how many threads a warp has. A fused multiply-add is two operations. None for what does no arithmetic
    on floats and no matrix product.
    """
    if isinstance(op, Instruction):
        return op.work(warp)
    if isinstance(op, ops.Fma):
        return str(op.a.dtype), 2, False
    if isinstance(op, (ops.Unary, ops.Binary)) and op.operands[0].dtype.is_float:
        return str(op.operands[0].dtype), lanes_of(op.operands[0]), False
    return None


def loops_of(kernel: Kernel) -> dict[Op, Op]:
    """Return for the yield that ends a loop's body the loop, where an iteration costs a branch."""
    found: dict[Op, Op] = {}
    for op in kernel.body.walk():
        if (isinstance(op, ops.For) and op.unroll != 0) or isinstance(op, ops.While):
            found[op.body.ops[-1]] = op
    return found
