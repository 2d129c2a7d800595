"""The meter: an observer that counts what each line of a kernel costs, and keeps the patterns of shared memory.

The narrator (`narration`) keeps what the warps of a few blocks did, step by step, for the pictures of a report;
`asynchrony` counts bulk copies and products of warpgroups.

All blocks are measured, or a sample of whole chunks where a limit is set; a sample's figures are scaled.

Two things are not seen in one access alone. NVRTC lets one lane update shared memory for its warp where all threads
name the same place (`Meter._updating`), and a copy that goes past L1 is counted by what it writes too
(`Meter._past_l1`). Both were found by `benchmarks/counters.py` on an H200, the first also in the compiler's SASS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.asynchrony import LineTrace, count_global, count_operand, count_shared, count_wait
from tilewright.backends.sim.counting import Patterns, Touched, class_of, loops_of, operations_of
from tilewright.backends.sim.machine import (
    Access,
    AccessKind,
    Arrival,
    BulkAccess,
    Machine,
    Observer,
    RegisterUse,
    Signal,
)
from tilewright.backends.sim.narration import Narrator
from tilewright.backends.sim.storage import GlobalStorage, SharedStorage
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d
from tilewright.dtypes import int32, uint32
from tilewright.figures import Compiled, Launch, Line
from tilewright.ir.core import Kernel, Op
from tilewright.ir.effects import Completion, roles_of
from tilewright.ir.ops import Atomic
from tilewright.transactions import SECTOR, fewest_sectors, sectors, wavefronts

_KINDS = {AccessKind.LOAD: "load", AccessKind.STORE: "store", AccessKind.COPY_WRITE: "copy"}
_REDUCED = (int32, uint32)  # what NVRTC reduces within a warp before an atomic update
# At which warps wait for others.
_BARRIERS = frozenset({"barrier", "named barrier", "mbarrier wait", "cluster wait"})
_PATTERN_BLOCKS = 4  # of a chunk whose blocks differ in how they use shared memory: as many are kept as patterns


class Meter(Observer):
    """Counts what the threads of a launch do."""

    def __init__(self, machine: Machine, kernel: Kernel, most_blocks: int | None) -> None:
        self._machine = machine
        self._kernel = kernel
        self._chunks = _chosen(machine.total_blocks, machine.chunk, most_blocks)
        self._on = False
        self._measured = 0
        self._lines: dict[Op, Line] = {}
        self._classes: dict[Op, str | None] = {}
        self._loops = loops_of(kernel)
        self._shared: dict[SharedStorage, Patterns] = {s: Patterns(s) for s in machine.shared}
        self._touched: dict[GlobalStorage | PointedStorage, Touched] = {}
        self._mask: tuple[Mask, int, int] | None = None
        self._narrator, self._trace = Narrator(machine), LineTrace()
        self._used = frozenset(value for op in kernel.body.walk() for value in op.operands)
        self._written: tuple[Op, SharedStorage, Lanes] | None = None  # by the copy whose read comes next

    def begin(self, machine: Machine) -> None:
        self._on = machine.first_block in self._chunks
        self._mask = None
        if self._on:
            self._measured += machine.blocks
            self._narrator.begin(machine)

    def execute(self, op: Op, mask: Mask) -> None:
        if not self._on:
            return
        loop = self._loops.get(op)
        if loop is not None:
            op = loop
        name = self._class_of(op) if loop is None else "branch"
        if name is None:
            return
        warps, threads = self._active(mask)
        line = self._line(op)
        line.instructions[name] += warps
        if name in _BARRIERS:
            line.barriers += warps
        work = operations_of(op, self._machine.warp)
        if work is not None:
            unit, count, of_warp = work
            line.operations[unit] += count * (warps if of_warp else threads)
        count_wait(line, op, mask, self._machine)
        self._narrator.execute(op, name, mask)

    def access(self, access: Access) -> Array | None:
        if not self._on:
            return None
        if access.kind is AccessKind.OPERAND_READ:
            return None  # see `read_operand`
        if access.kind is AccessKind.BARRIER:
            self._narrator.use_barrier(access)
        if access.kind is AccessKind.COPY_LAND:
            self._narrator.land(access.op)
        elif isinstance(access.storage, SharedStorage):
            self._shared_access(access, access.storage)
        elif isinstance(access.storage, PointedStorage):
            places = access.storage.places(access.index) // access.storage.buffer.dtype.bytes
            self._global_access(replace(access, index=places), access.storage)
        elif isinstance(access.storage, GlobalStorage):
            self._global_access(access, access.storage)
        return None

    def start_bulk(self, access: BulkAccess) -> bool:
        if not self._on:
            return False
        storage, line = access.storage, self._line(access.op)
        if isinstance(storage, SharedStorage):
            count_shared(line, access)
        elif isinstance(storage, (GlobalStorage, PointedStorage)):
            count_global(line, access, self._touches(storage), self._trace)
        return False

    def finish_bulk(self, access: BulkAccess, which: Array, arrival: Arrival | None) -> None:
        if not self._on or access.kind is AccessKind.COPY_READ:
            return
        self._narrator.land(access.op)
        if arrival is not None:
            self._narrator.arrive_bytes(access, which, arrival)

    def wait(self, op: Op, mask: Mask) -> None:
        if self._on and op.effects.completes is Completion.WARPGROUP:
            self._narrator.finish_products()

    def arrive(self, signal: Signal) -> None:
        if self._on:
            self._narrator.arrive(signal)

    def acquire(self, signal: Signal) -> None:
        if self._on:
            self._narrator.acquire(signal)

    def multiply(self, op: Op, registers: Sequence[RegisterUse], mask: Mask) -> None:
        if self._on:
            self._line(op).products += int(self._machine.products.active(mask).sum())

    def read_operand(self, op: Op, name: str, lines: Array, mask: Mask) -> None:
        if self._on:
            count_operand(self._line(op), name, lines, mask, self._machine)

    def _touches(self, storage: GlobalStorage | PointedStorage) -> Touched:
        found = self._touched.get(storage)
        if found is None:
            found = self._touched[storage] = Touched(storage)
        return found

    def _shared_access(self, access: Access, storage: SharedStorage) -> None:
        if access.kind is AccessKind.COPY_WRITE:
            self._written = access.op, storage, access.index
        elements, active, times = self._requests(access)
        if not len(elements):
            return
        active = self._updating(access, active)
        size = storage.buffer.dtype.bytes
        width, kind = access.lanes * size, _kind(access)
        took, least = wavefronts(storage.offset + elements * size, active, width, kind)
        line = self._line(access.op)
        line.shared_requests += len(elements) * times
        line.shared_wavefronts += int(took.sum()) * times
        line.shared_wavefronts_ideal += int(least.sum()) * times
        line.shared_bytes += int(np.count_nonzero(active)) * width * times
        found = self._shared[storage]
        most = _PATTERN_BLOCKS * -(-self._machine.threads // self._machine.warp)
        if times == 1 and len(elements) > most:
            elements, active = elements[:most], active[:most]
            found.is_complete = False
        found.add(access.op, kind, width, np.where(active, elements, -1), times)

    def _global_access(self, access: Access, storage: GlobalStorage | PointedStorage) -> None:
        size = storage.buffer.dtype.bytes
        written = self._past_l1(access)
        by_block = written is not None and len(at_least_2d(written.index)) > 1
        if by_block:
            access = replace(access, index=np.broadcast_to(access.index, (self._machine.blocks, self._machine.threads)))
        shifts = None if by_block else _shifts(access, size)
        if shifts is not None:
            access = replace(access, index=access.index[:1])
        elements, active, times = self._requests(access)
        if not len(elements):
            return
        touched = self._touches(storage)
        addresses = touched.start + elements * size
        count, requested = sectors(addresses, active, access.lanes * size)
        if written is not None:
            count = np.maximum(count, self._pieces(written, len(at_least_2d(access.index))))
        line = self._line(access.op)
        line.global_requests += len(elements) * times
        line.global_sectors += int(count.sum()) * times
        line.global_sectors_ideal += int(fewest_sectors(requested).sum()) * times
        line.global_bytes += int(requested.sum()) * times
        is_full = bool(active.all())
        touched.add(addresses if is_full else addresses[active], access.kind, shifts)
        is_write = access.kind in (AccessKind.STORE, AccessKind.ATOMIC)
        self._trace.add(touched, addresses, is_write, None if is_full else active, shifts)

    def _updating(self, access: Access, active: Array) -> Array:
        """Return the lanes that update shared memory: one a warp where the compiler lets it act for the others.

        NVRTC 13 does so for 32-bit integers where the place is the same in all threads by the way it is computed: it
        adds up the warp's values first (REDUX, from sm_80 on), or takes their minimum or maximum. Where the former
        value is used it does so for a sum only, and not in a warp that is partly idle.
        """
        op = access.op
        if not isinstance(op, Atomic) or at_least_2d(access.index).shape[1] > 1 or op.buffer.dtype not in _REDUCED:
            return active
        first = np.zeros_like(active)
        first[np.arange(len(active)), active.argmax(axis=1)] = True
        if op.result not in self._used:
            return first
        return np.where(active.all(axis=1, keepdims=True), first, active) if op.kind == "add" else active

    def _past_l1(self, access: Access) -> Access | None:
        """Return what a copy past L1 (cp.async.cg) writes of that which it reads; None for other accesses."""
        op = access.op
        if self._written is None or self._written[0] is not op:
            return None
        _, storage, index = self._written
        use = next(use for use in op.uses if use.buffer is storage.buffer and use.use.is_write)
        past_l1 = use.declaration.past_l1
        if past_l1 is None or not past_l1(op) or access.lanes != use.elements:
            return None
        return replace(access, storage=storage, index=at_least_2d(index))

    def _pieces(self, written: Access, blocks: int) -> Array:
        """Return the pieces of 32 bytes of shared memory that requests write: a copy past L1 has a sector for each.

        Rows padded to 80 bytes cross such pieces, and 64 bytes of them then take three sectors in place of two:
        the simplest rule that fits an H200's counters, told from others by that one kernel of `benchmarks/counters.py`.
        """
        at = at_least_2d(written.index)
        index = np.broadcast_to(at, (blocks, at.shape[1]))
        elements, active, _ = self._requests(replace(written, index=index))
        assert isinstance(written.storage, SharedStorage)
        size = written.storage.buffer.dtype.bytes
        return sectors(written.storage.offset + elements * size, active, written.lanes * size)[0]

    def _requests(self, access: Access) -> tuple[Array, Array, int]:
        """Return the element at which each lane begins and which lanes are active, (requests, lanes), and how often.

        What is the same in all blocks is one block's and comes as many times as there are blocks. Requests
        without active lanes are left out.
        """
        index, mask, threads = at_least_2d(access.index), access.mask, self._machine.threads
        blocks = index.shape[0] if mask is None else max(index.shape[0], mask.shape[0])
        times = self._machine.blocks if blocks == 1 else 1
        elements = _by_warps(np.broadcast_to(index, (blocks, threads)).astype(np.int64), 0, self._machine.warp)
        if mask is None and threads % self._machine.warp == 0:
            return elements, np.ones(elements.shape, np.bool_), times
        active = _by_warps(
            np.broadcast_to(np.True_ if mask is None else mask, (blocks, threads)), False, self._machine.warp
        )
        some = active.any(axis=1)
        return (elements, active, times) if some.all() else (elements[some], active[some], times)

    def _active(self, mask: Mask) -> tuple[int, int]:
        """Return how many warps and threads of the chunk are active."""
        known = self._mask
        if known is not None and known[0] is mask:
            return known[1], known[2]
        machine = self._machine
        warps = -(-machine.threads // machine.warp)
        if mask is None:
            found = warps * machine.blocks, machine.threads * machine.blocks
        else:
            times = machine.blocks if mask.shape[0] == 1 else 1
            full = np.broadcast_to(mask, (mask.shape[0], machine.threads))
            some = int(_by_warps(full, False, machine.warp).any(axis=1).sum())
            found = some * times, int(full.sum()) * times
        self._mask = (mask, *found)
        return found

    def _class_of(self, op: Op) -> str | None:
        try:
            return self._classes[op]
        except KeyError:
            return self._classes.setdefault(op, class_of(op))

    def _line(self, op: Op) -> Line:
        found = self._lines.get(op)
        if found is None:
            found = self._lines[op] = Line(location=op.location)
        return found

    def launch(
        self, arch: str, compile: Callable[[], Compiled] | None, arguments: tuple[tuple[str, str], ...] = ()
    ) -> Launch:
        """Return what was measured."""
        machine, factor = self._machine, self._machine.total_blocks / max(self._measured, 1)
        result = Launch(
            kernel=self._kernel.name,
            grid=machine.grid,
            block=machine.block,
            arch=arch,
            blocks=machine.total_blocks,
            measured_blocks=self._measured,
            shared_bytes_per_block=machine.arena_bytes if self._kernel.shared_bytes == 0 else self._kernel.shared_bytes,
            lines=[],
            buffers=[p.finish() for p in self._shared.values()],
            timelines=self._narrator.timelines,
            touched_bytes=round(factor * sum(t.bytes for t in self._touched.values())),
            compile=compile,
            arguments=arguments,
            remarks=list(self._kernel.remarks),
            cache_lines=self._trace.finish(),
        )
        held = machine.products.registers
        if held.size and held[0].any():
            result.registers_by_role = tuple(held[0].tolist())
        merged: dict[tuple[str | None, int | None], Line] = {}
        for line in self._lines.values():
            merged.setdefault((line.file, line.line), Line(location=line.location)).add(line)
        for line in sorted(merged.values(), key=lambda line: (line.file or "", line.line or 0)):
            if factor != 1:
                scaled = line.scaled(factor)
                line = Line(location=line.location)
                line.add(scaled)
            result.lines.append(line)
        return result


def _shifts(access: Access, size: int) -> Array | None:
    """Return by how many bytes each block's places differ from the first block's, where that is all that differs.

    None where blocks differ in more, or not by whole sectors: then they are looked at one by one.
    """
    index, mask = access.index, access.mask
    if np.ndim(index) != 2 or index.shape[0] == 1 or (mask is not None and mask.shape[0] > 1):
        return None
    by = index[:, :1] - index[:1, :1]
    shifts: Array = by[:, 0].astype(np.int64) * size
    if (shifts % SECTOR).any() or (index[1:] != index[:1] + by[1:]).any():
        return None
    return shifts


def _chosen(total: int, chunk: int, most: int | None) -> frozenset[int]:
    """Return the first blocks of the chunks to measure: all, or as many as a limit allows, spread evenly."""
    firsts = range(0, total, chunk)
    if most is None or total <= most:
        return frozenset(firsts)
    count = max(1, most // chunk)
    return frozenset(firsts[k * len(firsts) // count] for k in range(count))


def _by_warps(value: Array, idle: int | bool, warp: int) -> Array:
    """Return (blocks, threads) as (blocks * warps, lanes), `idle` where a last warp is partial."""
    blocks, threads = value.shape
    missing = -threads % warp
    if missing:
        value = np.concatenate([value, np.full((blocks, missing), idle, value.dtype)], axis=1)
    return value.reshape(-1, warp)


def _kind(access: Access) -> str:
    """Return how the banks serve an access."""
    if any(use.is_rows for use in roles_of(type(access.op)).uses):
        return "matrix"
    return _KINDS.get(access.kind, "atomic")
