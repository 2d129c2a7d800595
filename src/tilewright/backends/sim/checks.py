"""The checker of single accesses: bounds, alignment, uninitialised memory, and barriers in divergent code.

It is an observer: it sees each access before it happens and refuses the threads whose access is wrong. Which bytes of
shared memory have been written since the life of their buffer began is kept in `InitialisedBytes`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.findings import Fault, name_place
from tilewright.backends.sim.machine import Access, AccessKind, BulkAccess, Machine, Observer
from tilewright.backends.sim.ranked import RankedStorage
from tilewright.backends.sim.storage import (
    FlatStorage,
    GlobalStorage,
    RegisterStorage,
    RemoteStorage,
    SharedStorage,
    Storage,
)
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d, both, by_warps, fill
from tilewright.ir.core import Op
from tilewright.ir.effects import WARPS_OF, Scope
from tilewright.ir.ops import Inside

_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class InitialisedBytes:
    """A byte for each byte of the arena of shared memory: 1 when written.

    Threads of different blocks mostly write the same places. As long as they do, one row stands for all blocks, and
    checking costs as much as for a single block.
    """

    def __init__(self, arena_bytes: int) -> None:
        self._blocks = 0
        self._bytes = np.zeros((1, arena_bytes), np.uint8)

    def begin(self, blocks: int) -> None:
        """Forget everything; `blocks` blocks begin."""
        self._blocks = blocks
        self._bytes = np.zeros((1, self._bytes.shape[1]), np.uint8)

    def forget(self, storage: SharedStorage, mask: Mask) -> None:
        """Take a buffer's bytes as unwritten in the blocks of the mask."""
        piece = slice(storage.offset, storage.offset + storage.bytes)
        if mask is None or mask.shape[0] == 1:
            self._bytes[:, piece] = 0
        else:
            self._separate()
            self._bytes[mask.any(axis=1), piece] = 0

    def mark(self, storage: SharedStorage, index: Lanes, lanes: int, mask: Mask) -> None:
        """Take elements as written by the threads of the mask."""
        if self._differs(index, mask) or isinstance(storage, RemoteStorage):
            self._separate()
        cells, position, mask = self._cells(storage, index, lanes, mask)
        full = _full(storage, cells)
        if mask is None:
            cells[position.ravel()] = full
        else:
            position, mask = np.broadcast_arrays(position, mask)
            cells[position[mask]] = full

    def missing(self, storage: SharedStorage, index: Lanes, lanes: int, mask: Mask) -> Array | None:
        """Return the threads of the mask that read something unwritten, None if there are none."""
        if storage.bytes == 0:  # all of it is out of bounds
            return None
        if isinstance(storage, RemoteStorage):
            self._separate()
        if len(self._bytes) == 1 and np.ndim(index) == 2 and index.shape[0] > 1:
            piece = self._bytes[0, storage.offset : storage.offset + storage.bytes]
            if (piece == storage.mark).all():
                return None
            self._separate()
        cells, position, spread = self._cells(storage, index, lanes, mask)
        if spread is not None:
            position = np.where(spread, position, storage.offset // cells.itemsize)
        full = _full(storage, cells)
        unwritten: Array = cells.take(position) != full
        if not unwritten.any():
            return None
        # np.asarray only for the types: with a wide access there are lanes to reduce, so the result is an array.
        found = both(mask, np.asarray(unwritten.any(axis=-1)) if lanes > 1 else unwritten)
        assert found is not None
        return found if found.any() else None

    def mark_elements(self, storage: SharedStorage, rows: Array, index: Array) -> None:
        """Take elements (n, elements) of the blocks that rows names as written."""
        cells, position = self._elements(storage, rows, index)
        cells[position] = _full(storage, cells)

    def missing_elements(self, storage: SharedStorage, rows: Array, index: Array) -> Array:
        """Return which elements (n, elements) of blocks have not been written."""
        cells, position = self._elements(storage, rows, index)
        return np.asarray(cells.take(position) != _full(storage, cells))

    def _elements(self, storage: SharedStorage, rows: Array, index: Array) -> tuple[Array, Array]:
        if len(self._bytes) == 1 and not (len(rows) == self._blocks and (index == index[0]).all()):
            self._separate()
        cells = self._bytes.view(_UNSIGNED[storage.buffer.dtype.bytes])
        first = storage.offset // storage.buffer.dtype.bytes
        position = index + first + (rows[:, None] * cells.shape[1] if len(cells) > 1 else 0)
        return cells.reshape(-1), position

    def _differs(self, index: Lanes, mask: Mask) -> bool:
        return (np.ndim(index) == 2 and index.shape[0] > 1) or (mask is not None and mask.shape[0] > 1)

    def _separate(self) -> None:
        """Give each block a row of its own."""
        if len(self._bytes) != self._blocks:
            self._bytes = np.repeat(self._bytes, self._blocks, axis=0)

    def _cells(self, storage: SharedStorage, index: Lanes, lanes: int, mask: Mask) -> tuple[Array, Array, Mask]:
        """Return the bytes as cells of the buffer's element size, the cells accessed, and the mask in their shape."""
        size = storage.buffer.dtype.bytes
        cells = self._bytes.view(_UNSIGNED[size])
        rows, pitch = cells.shape
        position = at_least_2d(index).astype(np.intp) + storage.offset // size
        if isinstance(storage, RemoteStorage):
            position = position + storage.targets * pitch
        elif rows > 1:
            position = position + (np.arange(rows, dtype=np.intp) * pitch)[:, None]
        if lanes > 1:
            position = position[..., None] + np.arange(lanes)
            mask = None if mask is None else mask[..., None]
        return cells.reshape(-1), position, mask


def _full(storage: SharedStorage, cells: Array) -> Any:
    """Return a cell of which all bytes were written through a buffer's family."""
    return cells.dtype.type(int.from_bytes(bytes([storage.mark]) * cells.itemsize, "little"))


_READS = (AccessKind.LOAD, AccessKind.ATOMIC, AccessKind.OPERAND_READ, AccessKind.ACCUMULATE)
# An asynchronous copy's result that is read too early is a missing wait, which the race checker tells of.
_WRITES = (AccessKind.STORE, AccessKind.ATOMIC, AccessKind.COPY_WRITE)


_BULK = {AccessKind.COPY_READ: "bulk copy from", AccessKind.COPY_WRITE: "bulk copy to"}


# What is said of an access behind an address, and of one to an array of several ranks.
_OUTSIDE = (
    (
        "which no array of the launch covers",
        "pass the array as an argument, or its address by tw.addresses; check the index against its extent",
    ),
    (
        "which lies beyond the array of its rank",
        "guard the access with a predicate, or check the tile against the shape",
    ),
)


class AccessChecker(Observer):
    """Checks each access by itself; knows nothing of other threads."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._initialised = InitialisedBytes(machine.arena_bytes)
        self._leaving: list[_Leaving] = []  # coordinates outside of a tensor, for the access to come

    def begin(self, machine: Machine) -> None:
        self._initialised.begin(machine.blocks)

    def allocate(self, op: Op, storage: Storage, mask: Mask) -> None:
        if isinstance(storage, SharedStorage):
            self._initialised.forget(storage, mask)

    def leave(self, op: Op, outside: Array, coordinate: Lanes, extent: Lanes) -> None:
        assert isinstance(op, Inside)
        self._leaving.append(_Leaving(op, outside, coordinate, extent))

    def access(self, access: Access) -> Array | None:
        refused = self._check(access)
        if self._leaving:
            leaving, self._leaving = self._leaving, []
            for each in leaving:
                if each.op.buffer is access.storage.buffer:
                    self._report_leaving(access, each, refused)
        return refused

    def _report_leaving(self, access: Access, leaving: _Leaving, refused: Array | None) -> None:
        """Report an access beyond its tensor that is not beyond the buffer, which was reported as that."""
        bad = both(access.mask, leaving.outside if refused is None else leaving.outside & ~refused)
        assert bad is not None
        if not bad.any():
            return
        name, mode = access.storage.buffer.name, leaving.op.mode
        shape = self._machine.blocks, self._machine.threads
        where = int(np.argmax(np.broadcast_to(bad, shape)))
        coordinate, extent = (int(fill(x, *shape).flat[where]) for x in (leaving.coordinate, leaving.extent))
        at = int(fill(access.index, *shape).flat[where])
        self._report(
            access, bad, "out-of-bounds",
            f"out of bounds: {access.kind.value} {name} at coordinate {coordinate} of mode {mode}, "
            f"whose extent is {extent}",
            at, name_place(access.storage, at)[1], (f"element {at} of the buffer lies there, beyond the tensor",),
            "guard the access with a predicate, or check the tile against the shape",
        )  # fmt: skip

    def _check(self, access: Access) -> Array | None:
        storage = access.storage
        if isinstance(storage, RegisterStorage) and _is_plain(storage, access):
            return None
        if isinstance(storage, PointedStorage):
            return self._pointed(access, storage)
        if access.kind is AccessKind.COPY_LAND:
            refused = None  # checked when the copy was issued
        else:
            refused = self._bounds(access)
            if access.lanes > 1 and isinstance(storage, FlatStorage):
                refused = _either(refused, self._alignment(access, storage, refused))
        if isinstance(storage, GlobalStorage):
            return refused
        mask = access.mask if refused is None else both(access.mask, ~refused)
        if access.kind in _READS:
            self._read(access, mask)
        if access.kind in _WRITES and isinstance(storage, SharedStorage):
            self._initialised.mark(storage, access.index, access.lanes, mask)
        return refused

    def start_bulk(self, access: BulkAccess) -> bool:
        storage = access.storage
        if access.there is not None and not isinstance(storage, SharedStorage):
            return False  # a tensor map keeps copies inside of its tensor
        outside = (access.index < storage.low) | (access.index >= storage.high)
        if isinstance(storage, GlobalStorage):
            return self._bulk_global(access, storage, outside)
        if isinstance(storage, PointedStorage):
            return self._bulk_pointed(access, storage)
        assert isinstance(storage, SharedStorage), storage
        if outside.any():
            self._report_bulk(
                access, outside, "out-of-bounds",
                f"out of bounds: {_BULK[access.kind]} {{}}, which has {storage.high} elements",
                "let the tile lie inside of the tensor in shared memory: check the number of its stage",
            )  # fmt: skip
            return True
        if access.kind is not AccessKind.COPY_READ:
            rows = access.rows if access.targets is None else access.targets
            self._initialised.mark_elements(storage, rows, access.index)
            return False
        missing = self._initialised.missing_elements(storage, access.rows, access.index)
        if missing.any():
            self._report_bulk(
                access, missing, "uninitialised-read",
                f"uninitialised read: {_BULK[access.kind]} {{}}, which nothing has written",
                "write it first",
            )  # fmt: skip
        return False

    def _bulk_global(self, access: BulkAccess, storage: GlobalStorage, outside: Array) -> bool:
        """Report a run of global memory that lies outside of its array, in part or between its rows."""
        if storage.present is not None:
            outside = outside | ~storage.present[np.where(outside, storage.low, access.index) - storage.low]
        if not outside.any():
            return False
        self._report_bulk(
            access, outside, "out-of-bounds",
            f"out of bounds: {_BULK[access.kind]} {{}} of an array with shape {storage.shape}, strides "
            f"{storage.strides}",
            "check the tile against the shape; SM90_TMA_LOAD and SM90_TMA_STORE clip a tile that overhangs",
        )  # fmt: skip
        return True

    def _bulk_pointed(self, access: BulkAccess, storage: PointedStorage) -> bool:
        """Report a run of global memory, counted in the record of accesses, that no array covers."""
        item = storage.flat.itemsize
        outside = ~storage.space.covers_places(access.index * item, item)
        if not outside.any():
            return False
        self._report_bulk(
            access, outside, "out-of-bounds", f"out of bounds: {_BULK[access.kind]} {{}}, which no array covers",
            "check the tile against the shape; SM90_TMA_LOAD and SM90_TMA_STORE clip a tile that overhangs",
        )  # fmt: skip
        return True

    def _report_bulk(self, access: BulkAccess, bad: Array, kind: str, summary: str, help: str) -> None:
        n, element = (int(x) for x in np.argwhere(bad)[0])
        name, at = access.storage.buffer.name, int(access.index[n, element])
        fault = Fault(
            access.op, kind, summary.format(f"{name}[{at}]"), self._machine.block_coordinate(int(access.rows[n])),
            self._machine.thread_coordinate(int(access.threads[n])), name, at, None, (), help,
            int(bad.any(axis=1).sum()),
        )  # fmt: skip
        self._machine.collector.report(fault)

    def barrier(self, op: Op, mask: Mask) -> None:
        if mask is not None and op.effects.together is Scope.GRID and not mask.any(axis=1).all():
            self._missing_blocks(op, mask)
            return
        if mask is None or mask.shape[1] == 1:
            return
        groups, what = mask, "block"
        size = 0
        if op.effects.together in WARPS_OF:
            size, what = self._machine.warp * WARPS_OF[op.effects.together], op.effects.together.name.lower()
            groups = by_warps(mask, mask.shape[1], size)
        split = groups.any(axis=-1) & ~groups.all(axis=-1)
        if not split.any():
            return
        row = np.argwhere(split)[0]
        missing = np.argwhere(~groups[tuple(row)])[0][0] + (size * row[1] if size else 0)
        here = int(groups[tuple(row)].sum())
        fault = Fault(
            op,
            "barrier-divergence",
            f"a barrier of the {what} is reached by {here} of its {groups.shape[-1]} threads",
            self._machine.block_coordinate(int(row[0])),
            self._machine.thread_coordinate(int(missing)),
            notes=("the first thread that is not there:",),
            help="move the barrier out of the branch or loop that only some threads run",
            count=int(split.sum()) * (self._machine.blocks if split.shape[0] == 1 else 1),
        )
        self._machine.collector.report(fault)

    def _missing_blocks(self, op: Op, mask: Array) -> None:
        here = np.asarray(mask.any(axis=1))
        if not here.any():
            return
        fault = Fault(
            op,
            "barrier-divergence",
            f"a barrier of the grid is reached by {int(here.sum())} of its {len(here)} blocks",
            self._machine.block_coordinate(int(np.argmin(here))),
            notes=("the first block that is not there:",),
            help="let all blocks reach it: move it out of the branch or loop, and let no block return before",
            count=int((~here).sum()),
        )
        self._machine.collector.report(fault)

    def _bounds(self, access: Access) -> Array | None:
        storage, index = access.storage, access.index
        low, high = storage.low, storage.high - access.lanes
        present = storage.present if isinstance(storage, GlobalStorage) else None
        if present is None:
            uniform = not isinstance(index, np.ndarray)
            least, greatest = (int(index), int(index)) if uniform else (int(index.min()), int(index.max()))
            if low <= least and greatest <= high:
                return None
        index = at_least_2d(index).astype(np.int64)
        bad = (index < low) | (index > high)
        if present is not None:
            inside = np.where(bad, low, index) - low
            for k in range(min(access.lanes, present.size)):  # an array shorter than a vector: all is bad already
                bad |= ~present[inside + k]
        found = both(access.mask, bad)
        assert found is not None
        if not found.any():
            return None
        self._report_bounds(access, index, found)
        return found

    def _pointed(self, access: Access, storage: PointedStorage) -> Array | None:
        """Check an access through an address: it has to lie in an array, be aligned, and write no read-only array."""
        lanes, name = access.lanes, storage.buffer.name
        size = lanes * storage.buffer.dtype.bytes
        addresses, refused = storage.addresses(access.index), None
        is_write = access.kind not in (AccessKind.LOAD, AccessKind.COPY_READ)
        for kind, bad, reason, help in (
            ("out-of-bounds", storage.outside(access.index, lanes), *_OUTSIDE[isinstance(storage, RankedStorage)]),
            ("out-of-bounds", storage.space.read_only(addresses) if is_write else None,
             "in an array that is read-only", "pass a writable array"),
            ("misaligned", storage.misaligned(access.index, lanes), f"which is not a multiple of {size}",
             "give tw.pointer the alignment that the addresses have (align=), or copy with a narrower vector"),
        ):  # fmt: skip
            if bad is None:
                continue
            found = both(access.mask, bad if refused is None else bad & ~refused)
            assert found is not None
            if not found.any():
                continue
            at, address = self._first(at_least_2d(access.index), found), self._first(addresses, found)
            what = f"{name}[{at}]" if lanes == 1 else f"{name}[{at}:{at + lanes}]"
            summary = f"{kind.replace('-', ' ')}: {access.kind.value} {what} at address {address:#x}, "
            refused = _either(refused, found)
            self._report(access, found, kind, summary + reason, at, None, (), help)
        return refused

    def _report_bounds(self, access: Access, index: Array, bad: Array) -> None:
        storage, name = access.storage, access.storage.buffer.name
        at = self._first(index, bad)
        what = f"{name}[{at}]" if access.lanes == 1 else f"{name}[{at}:{at + access.lanes}]"
        size = f"{storage.high - storage.low} elements"
        notes, coordinate = [], None
        if isinstance(storage, GlobalStorage):
            coordinate = storage.coordinate(at)
            extent = "x".join(map(str, storage.shape)) or "no"
            size = "no elements" if storage.empty else f"shape {storage.shape}, strides {storage.strides}"
            if coordinate is not None and len(coordinate) > 1:
                notes.append(f"that is coordinate {coordinate} of {extent} elements")
        self._report(
            access, bad, "out-of-bounds",
            f"out of bounds: {access.kind.value} {what}, which has {size}",
            at, coordinate, notes,
            "guard the access with a predicate, or check the tile against the shape",
        )  # fmt: skip

    def _alignment(self, access: Access, storage: FlatStorage, outside: Array | None) -> Array | None:
        lanes, phase = access.lanes, storage.phase(access.lanes)
        index = access.index
        start = storage.low + (phase or 0)
        if phase is not None and not np.bitwise_and(index - index.dtype.type(start % lanes), lanes - 1).any():
            return None
        index = at_least_2d(index).astype(np.int64)
        bad = ((index - start) % lanes != 0) if phase is not None else np.ones(index.shape, np.bool_)
        bad = bad if outside is None else bad & ~outside
        found = both(access.mask, bad)
        assert found is not None
        if not found.any():
            return None
        size = lanes * storage.buffer.dtype.bytes
        at = self._first(index, found)
        self._report(
            access, found, "misaligned",
            f"misaligned: {access.kind.value} {storage.buffer.name}[{at}:{at + lanes}] takes {size} bytes at once, "
            f"from an address that is not a multiple of {size}",
            at, storage.coordinate(at) if isinstance(storage, GlobalStorage) else None, (),
            f"make the index a multiple of {lanes} (pad rows to one), or copy with a narrower vector",
        )  # fmt: skip
        return found

    def _read(self, access: Access, mask: Mask) -> None:
        storage = access.storage
        if isinstance(storage, RegisterStorage):
            missing = _unwritten(storage, access, mask)
        else:
            assert isinstance(storage, SharedStorage)
            missing = self._initialised.missing(storage, access.index, access.lanes, mask)
        if missing is None or not missing.any():
            return
        at = self._first(at_least_2d(access.index), missing)
        what = (
            f"{storage.buffer.name}[{at}]" if access.lanes == 1 else f"{storage.buffer.name}[{at}:{at + access.lanes}]"
        )
        shares = storage.buffer.family.is_member
        self._report(
            access, missing, "uninitialised-read",
            f"uninitialised read: {access.kind.value} {what}, which nothing has written"
            + (" since another tensor over the same bytes" if shares else ""),
            at, None, (),
            "write it through this tensor first; t.recast(dtype) sees the same bits" if shares else "write it first",
        )  # fmt: skip

    def _report(
        self, access: Access, bad: Array, kind: str, summary: str, index: int,
        coordinate: tuple[int, ...] | None, notes: list[str] | tuple[str, ...], help: str,
    ) -> None:  # fmt: skip
        machine = self._machine
        full = np.broadcast_to(bad, (machine.blocks, machine.threads))
        row, thread = (int(n) for n in np.unravel_index(int(np.argmax(full)), full.shape))
        fault = Fault(
            access.op, kind, summary, machine.block_coordinate(row), machine.thread_coordinate(thread),
            access.storage.buffer.name, index, coordinate, notes, help, int(full.sum()),
        )  # fmt: skip
        machine.collector.report(fault)

    def _first(self, index: Array, bad: Array) -> int:
        """Return the index in the first bad thread."""
        index, bad = np.broadcast_arrays(index, bad)
        return int(index.ravel()[int(np.argmax(bad))])


@dataclass
class _Leaving:
    """Threads whose coordinate lies outside of the tensor that they are about to access."""

    op: Inside
    outside: Array
    coordinate: Lanes
    extent: Lanes


def _either(a: Array | None, b: Array | None) -> Array | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b


def _is_plain(storage: RegisterStorage, access: Access) -> bool:
    """Return whether all threads reach the same existing register, and no thread reads what was not written."""
    if isinstance(access.index, np.ndarray):
        return False
    index = int(access.index)
    if not 0 <= index <= storage.high - access.lanes:
        return False
    return access.kind is AccessKind.STORE or all(w is True for w in storage.written[index : index + access.lanes])


def _unwritten(storage: RegisterStorage, access: Access, mask: Mask) -> Array | None:
    """Return the threads that read a register they have not written, None if all have."""
    missing: Array | None = None
    for k in range(access.lanes):
        index: Lanes = access.index + access.index.dtype.type(k)
        reached = np.clip(index, 0, storage.high - 1) if isinstance(index, np.ndarray) else None
        for position in [min(max(int(index), 0), storage.high - 1)] if reached is None else np.unique(reached).tolist():
            written = storage.written[position]
            if written is True:
                continue
            unwritten = at_least_2d(np.True_) if written is None else ~np.asarray(written)
            here = both(mask, unwritten & (at_least_2d(index) == position))
            missing = _either(missing, here)
    return missing
