"""What the meter counts of asynchronous work: boxes of bulk copies, operands of warpgroups' products, waits for these.

Bulk copies reach global memory through the second-level cache alone, a box at a time; in shared memory a box is
compact, so that it takes a pass of all banks for each 128 bytes. `LineTrace` keeps the lines of that cache that
requests reach, in the simulator's order.
"""

from __future__ import annotations

import numpy as np

from tilewright.backends.sim.counting import Touched
from tilewright.backends.sim.machine import AccessKind, BulkAccess, Machine
from tilewright.backends.sim.values import Array, Mask
from tilewright.figures import CacheLines, Line, Requests
from tilewright.ir.core import Op
from tilewright.ir.effects import Completion
from tilewright.transactions import LINE, ROW, SECTOR, core_wavefronts

_MOST_ADDRESSES = 1 << 22
_WHAT = {AccessKind.COPY_READ: "load", AccessKind.COPY_WRITE: "store"}


class LineTrace:
    """The requests that reach global memory, one after another, as long as they are not too many."""

    def __init__(self) -> None:
        self._bases: dict[Touched, int] = {}
        self._end = 0  # of the bytes of the arrays known so far
        self._found: list[Requests] = []
        self._count = 0
        self._is_cut = False

    def add(
        self, touched: Touched, addresses: Array, is_write: bool, active: Array | None = None,
        shifts: Array | None = None,
    ) -> None:  # fmt: skip
        """Add requests (requests, lanes) of addresses in an array, and again of each as far away as shifts say."""
        if self._is_cut or not addresses.size:
            return
        start = self._bases.get(touched)
        if start is None:
            start = self._bases[touched] = self._end - touched.first_line * LINE
            self._end += touched.lines * LINE
        self._found.append(Requests(addresses, active, shifts, start, is_write))
        self._count += self._found[-1].count
        self._is_cut = self._count > _MOST_ADDRESSES

    def finish(self) -> CacheLines | None:
        """Return what was kept, None where nothing was reached."""
        return CacheLines(self._found, self._is_cut) if self._found else None


def count_shared(line: Line, access: BulkAccess) -> None:
    """Count what bulk copies write and read of shared memory."""
    size = access.storage.buffer.dtype.bytes
    moved = access.index.size * size
    passes = -(-moved // ROW)
    line.shared_requests += len(access.rows)
    line.shared_wavefronts += passes
    line.shared_wavefronts_ideal += passes
    line.shared_bytes += moved
    line.bulk_shared["read" if access.kind is AccessKind.COPY_READ else "written"] += moved
    line.bulk_passes += passes


def count_global(line: Line, access: BulkAccess, touched: Touched, trace: LineTrace) -> None:
    """Count what bulk copies reach of global memory, box by box."""
    size = access.storage.buffer.dtype.bytes
    what, is_write = _WHAT.get(access.kind, "reduce"), access.kind is not AccessKind.COPY_READ
    there = np.broadcast_to(True if access.there is None else access.there, access.index.shape)
    for index, some in zip(access.index, there, strict=True):
        addresses = touched.start + index[some] * size
        count, moved = len(np.unique(addresses // SECTOR)), len(addresses) * size
        lines = np.unique(addresses // LINE)
        line.global_requests += 1
        line.global_sectors += count
        line.global_sectors_ideal += count
        line.global_bytes += moved
        line.bulk_bytes += moved
        line.bulk_boxes[what] += 1
        line.bulk_moved[what] += moved
        line.bulk_outside[what] += index.size * size - moved
        line.bulk_sectors += count
        line.bulk_lines += len(lines)
        kind = AccessKind.STORE if access.kind is AccessKind.COPY_WRITE else access.kind
        touched.add(addresses, kind, None)
        trace.add(touched, lines[None, :] * LINE, is_write)


def count_operand(line: Line, name: str, lines: Array, mask: Mask, machine: Machine) -> None:
    """Count an operand's core matrices, of each warpgroup that reads them."""
    active = machine.products.active(mask)
    groups = np.flatnonzero(active.any(axis=0))
    reading = active[:, groups]
    passes = core_wavefronts(lines).sum(axis=-1)
    readers = int(reading.sum())
    line.operand_bytes[name] += readers * lines.shape[2] * ROW
    line.operand_wavefronts += int((np.broadcast_to(passes, reading.shape) * reading).sum())
    line.operand_wavefronts_ideal += readers * lines.shape[2]


def count_wait(line: Line, op: Op, mask: Mask, machine: Machine) -> None:
    """Count a wait for products, of each warpgroup: the groups under way before, and those that it leaves."""
    if op.effects.completes is not Completion.WARPGROUP:
        return
    groups = machine.products
    before = (groups.committed - groups.completed)[groups.active(mask)]
    left = np.minimum(before, 0 if op.effects.pending is None else op.effects.pending)
    for pair, times in zip(*np.unique(np.stack([before, left], axis=1), axis=0, return_counts=True), strict=True):
        line.product_waits[f"{pair[0]} to {pair[1]}"] += int(times)
