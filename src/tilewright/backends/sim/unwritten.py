"""Outputs of which a launch wrote the beginning only, as one with too few blocks or threads does.

Who writes only part of an array mostly means to: single results, the interior of a stencil, what passes a test, the
first n of a buffer. What is told of is the rest: an array that the kernel writes and never reads; whose places and
conditions depend on indices and extents only, not on data, nor on numbers that the caller gives; of which the elements
written are a box at its beginning (or a run, in the order of rows or columns), and the last is not among them. And they
are as many as the threads, or more, or one for each block or warp: no guard left any of those out.

The record of the race checker says what was written.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Machine
from tilewright.backends.sim.shadow import Region
from tilewright.backends.sim.storage import GlobalStorage
from tilewright.backends.sim.values import Array
from tilewright.ir.core import Block, Buffer, Kernel, Op, Space, Value
from tilewright.ir.effects import Use
from tilewright.ir.ops import For, If, While, Yield


def report_unwritten(kernel: Kernel, machine: Machine, regions: Mapping[Buffer, Region]) -> None:
    """Report the outputs of a launch that is over of which it wrote the beginning only."""
    writers: dict[Buffer, Op] | None = None
    for buffer, storage in machine.storages.items():
        region = regions.get(buffer)
        if region is None or not isinstance(storage, GlobalStorage) or not region.is_alone:
            continue
        if storage.high - storage.low < 2 or _is_written(region, storage, np.array([storage.high - 1]))[0]:
            continue  # most launches write the last element, and cost no more than this
        if writers is None:
            writers = _outputs(kernel)
        if buffer in writers:
            _report(machine, storage, region, writers[buffer])


def _is_written(region: Region, storage: GlobalStorage, index: Array) -> Array:
    return np.asarray(region.cells.writes[region.cell_of(storage.buffer, index)] != 0)


def _report(machine: Machine, storage: GlobalStorage, region: Region, op: Op) -> None:
    written = _is_written(region, storage, np.arange(storage.low, storage.high))
    if any(s < 0 for s in storage.strides) or 0 in storage.strides:
        return
    elements = np.lib.stride_tricks.as_strided(written, storage.shape, storage.strides)
    count = int(elements.sum())
    threads = machine.total_blocks * machine.threads
    warps = machine.total_blocks * -(-machine.threads // machine.warp)
    by_all = count >= threads or count in (machine.total_blocks, warps)
    if count < 2 or count == elements.size or not by_all or not (_is_box(elements, count) or _is_run(elements, count)):
        return
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
            inside = any(v in self.values for v in _yielded(op.condition))
        for inner in op.blocks:
            self._block(inner, chosen or inside)
        ends = [v for inner in op.blocks for v in _yielded(inner)]
        if inside or any(v in self.values for v in (*op.operands, *ends)):
            self.values.update(op.results)
            for inner in op.blocks:
                self.values.update(inner.arguments[1:] if isinstance(op, For) and not inside else inner.arguments)


def _yielded(block: Block) -> tuple[Value, ...]:
    last = block.ops[-1] if block.ops else None
    return last.values if isinstance(last, Yield) else ()
