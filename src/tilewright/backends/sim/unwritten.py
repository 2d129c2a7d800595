"""Outputs of which a launch wrote the beginning only, as one with too few blocks or threads does.

Who writes only part of an array mostly means to: single results, the interior of a stencil, what passes a test, the
first n of a buffer. What is told of is the rest: an array that the kernel writes and never reads; whose places and
conditions depend on indices and extents only, not on data, nor on numbers that the caller gives; of which the elements
written are a box at its beginning (or a run, in the order of rows or columns), and the last is not among them. And they
are as many as the threads, or more, or one for each block or warp: no guard left any of those out.

Last, another block or another thread would have gone on: the kernel is evaluated for the first one behind the launch,
along each axis, as far as its integers follow from extents and indices. It has to store, to elements that were left
out and to no others, and every access on the way has to stay inside. So a constant index, a mask and an input that ends
there are meant.

The record of the race checker says what was written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.shadow import Region
from tilewright.backends.sim.storage import GlobalStorage
from tilewright.backends.sim.values import Array, Lanes
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, Value
from tilewright.ir.effects import BufferUse, Use
from tilewright.ir.evaluate import evaluate_further
from tilewright.ir.ops import SPECIAL_GROUPS, For, If, Inside, Special, While, yielded


def report_unwritten(
    kernel: Kernel, machine: Machine, regions: Mapping[Buffer, Region], scalars: Mapping[Value, Lanes]
) -> None:
    """Report the outputs of a launch that is over of which it wrote the beginning only.

    `scalars` are the numbers that the kernel was given, extents and strides among them.
    """
    writers: dict[Buffer, Op] | None = None
    for buffer, storage in machine.storages.items():
        region = regions.get(buffer)
        if region is None or not isinstance(storage, GlobalStorage) or not region.is_alone:
            continue
        if storage.high - storage.low < 2 or _is_written(region, storage, np.array([storage.high - 1]))[0]:
            continue  # most launches write the last element, and cost no more than this
        if writers is None:
            writers = _outputs(kernel)
        if (
            buffer in writers
            and _is_beginning(machine, storage, region)
            and any(_Beyond(machine, storage, region, scalars, known).writes(kernel) for known in _beyond(machine))
        ):
            _report(machine, storage, region, writers[buffer])


def _is_written(region: Region, storage: GlobalStorage, index: Array) -> Array:
    return np.asarray(region.cells.writes[region.cell_of(storage.buffer, index)] != 0)


def _elements(region: Region, storage: GlobalStorage) -> Array:
    """Return which elements of an array were written, in its shape."""
    written = _is_written(region, storage, np.arange(storage.low, storage.high))
    return np.lib.stride_tricks.as_strided(written, storage.shape, storage.strides)


def _is_beginning(machine: Machine, storage: GlobalStorage, region: Region) -> bool:
    """Return whether the elements written are an array's beginning, of which no guard left a thread out."""
    if any(s <= 0 for s in storage.strides):
        return False
    elements = _elements(region, storage)
    count = int(elements.sum())
    warps = machine.total_blocks * -(-machine.threads // machine.warp)
    by_all = count >= machine.total_blocks * machine.threads or count in (machine.total_blocks, warps)
    return 2 <= count < elements.size and by_all and (_is_box(elements, count) or _is_run(elements, count))


def _report(machine: Machine, storage: GlobalStorage, region: Region, op: Op) -> None:
    elements = _elements(region, storage)
    count = int(elements.sum())
    first = tuple(int(n) for n in np.argwhere(~elements)[0])
    at = sum(n * s for n, s in zip(first, storage.strides, strict=True))
    name, blocks = storage.buffer.name, " x ".join(str(n) for n in machine.grid if n > 1) or "1"
    place = f"{name}[{', '.join(map(str, first))}]"
    fault = Fault(
        op,
        "unwritten-output",
        f"unwritten output: {elements.size - count} of {elements.size} elements of {name} were not written, "
        f"from {place} on",
        machine.block_coordinate(machine.total_blocks - 1 - machine.first_block),
        buffer=name,
        index=at,
        coordinate=first,
        notes=(f"the grid of {blocks} blocks of {machine.threads} threads wrote the first {count}; the last block:",),
        help="launch more blocks (tw.ceil_div(extent, tile) along each axis), or let a block's threads cover its tile; "
        "if that is meant, tw.simulate(unwritten=False) does not tell of it",
        is_warning=True,
    )
    machine.collector.report(fault)


def _is_box(elements: Array, count: int) -> bool:
    """Return whether the elements written are all of a box that begins at the array's first element."""
    modes = range(elements.ndim)
    extents = [int(elements.any(axis=tuple(m for m in modes if m != mode)).sum()) for mode in modes]
    return int(np.prod(extents)) == count and bool(elements[tuple(slice(n) for n in extents)].all())


def _is_run(elements: Array, count: int) -> bool:
    """Return whether the elements written come first, in the order of rows or of columns."""
    return any(bool(elements.ravel(order)[:count].all()) for order in ("C", "F"))


# --- what the next block or thread would do -----------------------------------------------------------------


def _beyond(machine: Machine) -> Iterator[dict[str, int]]:
    """Return the special registers of the first and the last thread of the next block, and of the next thread."""
    block = machine.block
    for axis in range(3):
        for thread in ((0, 0, 0), tuple(n - 1 for n in block)):
            yield _registers(machine.grid, block, _along(machine.grid, axis), thread)
        yield _registers(machine.grid, block, (0, 0, 0), _along(block, axis))


def _along(extents: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return the coordinate behind the last one of an axis, 0 along the others."""
    return tuple(n if a == axis else 0 for a, n in enumerate(extents))


def _registers(grid: Sequence[int], block: Sequence[int], at: Sequence[int], thread: Sequence[int]) -> dict[str, int]:
    """Return the special registers of a thread, of a launch that is just large enough to have it."""
    block_dim = [max(n, i + 1) for n, i in zip(block, thread, strict=True)]
    grid_dim = [max(n, i + 1) for n, i in zip(grid, at, strict=True)]
    groups = zip(SPECIAL_GROUPS, (thread, at, block_dim, grid_dim), strict=True)
    return {f"{group}.{axis}": n for group, numbers in groups for axis, n in zip("xyz", numbers, strict=True)}


class _Meant(Exception):
    """An access of the thread is outside of its array, or a store is to an element that the launch wrote."""


class _Beyond:
    """One thread behind the launch: its branches, the first iterations of its loops, and the places of its accesses.

    What does not follow from extents and indices is not known. Branches by it are not entered.
    """

    def __init__(
        self,
        machine: Machine,
        storage: GlobalStorage,
        region: Region,
        scalars: Mapping[Value, Lanes],
        registers: dict[str, int],
    ) -> None:
        self._machine, self._storage, self._region = machine, storage, region
        self._registers, self._has_written = registers, False
        self._known: dict[Value, int] = {v: int(n) for v, n in scalars.items() if v.dtype.kind != "float"}

    def writes(self, kernel: Kernel) -> bool:
        """Return whether the thread writes elements that the launch left out only, and stays inside of all arrays."""
        try:
            self._block(kernel.body)
        except _Meant:
            return False
        return self._has_written

    def _block(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, If):
                self._branch(op)
            elif isinstance(op, For):
                self._loop(op)
            elif isinstance(op, Inside):
                coordinate, extent = self._value(op.coordinate), self._value(op.extent)
                if coordinate is not None and extent is not None and not 0 <= coordinate < extent:
                    raise _Meant
            else:
                if isinstance(op, Special):
                    self._known[op.result] = self._registers[op.name]
                for use in op.uses:
                    self._access(use)
                for result in op.results:
                    self._value(result)  # now, so that the next op finds it: chains are longer than Python's stack

    def _branch(self, op: If) -> None:
        condition = self._value(op.condition)
        if condition is None:
            return
        chosen = op.then if condition else op.otherwise
        self._block(chosen)
        self._bind(op.results, yielded(chosen))

    def _loop(self, op: For) -> None:
        start, stop, step = self._value(op.start), self._value(op.stop), self._value(op.step)
        if start is None or stop is None or step is None:
            return
        if step and (start < stop) == (step > 0) and start != stop:
            self._bind(op.body.arguments, (op.start, *op.init))
            self._block(op.body)
        else:
            self._bind(op.results, op.init)

    def _access(self, use: BufferUse) -> None:
        index = None if use.index is None else self._value(use.index)
        storage = self._machine.storages.get(use.buffer)
        if index is None or use.use is Use.NAME or not isinstance(storage, GlobalStorage):
            return
        if index < storage.low or index + use.elements > storage.high:
            raise _Meant
        if storage is self._storage and use.use is Use.WRITE:
            if _is_written(self._region, storage, np.array([index]))[0]:
                raise _Meant
            self._has_written = True

    def _bind(self, targets: Sequence[Value], values: Sequence[Value]) -> None:
        for target, value in zip(targets, values, strict=True):
            number = self._value(value)
            if number is not None:
                self._known[target] = number

    def _value(self, value: Value) -> int | None:
        try:
            return evaluate_further(value, self._known)
        except KeyError:
            return None


# --- outputs whose places follow from indices and extents alone ------------------------------------------


def _outputs(kernel: Kernel) -> dict[Buffer, Op]:
    """Return the arrays that are written and not read, each with an op that writes it."""
    found: dict[Buffer, Op] = {}
    left_out: set[Buffer] = set()
    given = {p.target for p in kernel.parameters if isinstance(p.target, Value) and p.part == "value"}
    chosen = _Chosen(given)
    chosen.settle(kernel.body)
    for op in kernel.body.walk():
        for use in op.uses:
            if use.buffer.space is not Space.GLOBAL or use.use is Use.NAME:
                continue
            if (
                use.use is not Use.WRITE
                or op.effects.scope is not None
                or use.index is None
                or use.index in chosen.values
                or op in chosen.ops
            ):
                left_out.add(use.buffer)
            found.setdefault(use.buffer, op)
    return {buffer: op for buffer, op in found.items() if buffer not in left_out}


class _Chosen:
    """Which values depend on data or on what the caller gives, and which ops run by such a condition."""

    def __init__(self, values: set[Value]) -> None:
        self.values, self.ops = values, set[Op]()

    def settle(self, body: Block) -> None:
        size = -1
        while size != len(self.values) + len(self.ops):
            size = len(self.values) + len(self.ops)
            self._block(body, False)

    def _block(self, block: Block, chosen: bool) -> None:
        for op in block.ops:
            if chosen:
                self.ops.add(op)
            depends = any(v in self.values for v in op.operands)
            if isinstance(op, (If, For, While)):
                self._structured(op, chosen)
            elif depends or any(use.use.is_read for use in op.uses) or not (op.is_pure or op.uses or not op.operands):
                self.values.update(op.results)

    def _structured(self, op: If | For | While, chosen: bool) -> None:
        if isinstance(op, If):
            inside = op.condition in self.values
        elif isinstance(op, For):
            inside = any(v in self.values for v in (op.start, op.stop, op.step))
        else:
            inside = any(v in self.values for v in yielded(op.condition))
        for inner in op.blocks:
            self._block(inner, chosen or inside)
        ends = [v for inner in op.blocks for v in yielded(inner)]
        if inside or any(v in self.values for v in (*op.operands, *ends)):
            self.values.update(op.results)
            for inner in op.blocks:
                self.values.update(inner.arguments[1:] if isinstance(op, For) and not inside else inner.arguments)
