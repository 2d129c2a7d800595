"""The checker of registers that products of warpgroups use: who touches them before the wait, or without a fence.

A product reads and writes its accumulator, and reads A where that is in registers, at some time between its issue and
the wait for its group. Until then no other op may touch the accumulator, or change A. What other ops did before with
these registers is ordered before the product by a fence of the warpgroup (wgmma.fence); products of one shape that sum
up in the same registers need none between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.backends.sim.findings import Fault, place_of
from tilewright.backends.sim.machine import Access, AccessKind, Machine, Observer, RegisterUse
from tilewright.backends.sim.storage import RegisterStorage, Storage
from tilewright.backends.sim.values import Array, Mask
from tilewright.ir.core import Buffer, Kernel, Op, Space
from tilewright.ir.effects import Completion


@dataclass(eq=False)
class _Registers:
    """The record of one buffer: for each warpgroup and byte, the group of the product that last sums up or reads there.

    `touched` says where another op has been since the last fence, `shapes` which shape sums up there since then.
    """

    sums: Array  # (blocks, warpgroups, bytes)
    reads: Array
    touched: Array
    shapes: Array


class RegisterChecker(Observer):
    """Finds uses of a product's registers that are not ordered with the product."""

    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self._machine = machine
        products = [op for op in kernel.body.walk() if op.effects.asynchronous is Completion.WARPGROUP]
        self._buffers = {u.buffer.root for op in products for u in op.uses if u.buffer.space is Space.REGISTER}
        self._known: dict[Buffer, _Registers] = {}
        self._last: dict[Buffer, Op] = {}
        self._fenced = np.zeros((0, 0), np.bool_)
        self._shapes: list[object] = [None]
        self._useful: set[object] = set()  # lines with waits that ended a group
        self._useless: dict[object, Op] = {}

    def begin(self, machine: Machine) -> None:
        shape = machine.blocks, machine.products.count
        self._fenced = np.zeros(shape, np.bool_)
        for buffer in self._buffers:
            sums, reads, shapes = (np.zeros((*shape, buffer.bytes), np.int64) for _ in range(3))
            self._known[buffer] = _Registers(sums, reads, np.zeros((*shape, buffer.bytes), np.bool_), shapes)

    def fence_registers(self, op: Op, mask: Mask) -> None:
        active = self._machine.products.active(mask)
        self._fenced |= active
        for registers in self._known.values():
            registers.touched[active] = False
            registers.shapes[active] = 0

    def multiply(self, op: Op, registers: Sequence[RegisterUse], mask: Mask) -> None:
        groups = self._machine.products
        active = groups.active(mask)
        shape = getattr(op, "shape", None)
        if shape not in self._shapes:
            self._shapes.append(shape)
        number = self._shapes.index(shape)
        for use in registers:
            known, part = self._part(use.storage, use.index, use.lanes)
            assert known is not None, use
            touched = known.touched[..., part].any(axis=2) & active
            other = known.shapes[..., part]
            differs = ((other != 0) & (other != number)).any(axis=2) & active & use.is_sum
            if not (self._fenced | ~active).all():
                self._unfenced(op, use, active & ~self._fenced, "is the first of its warpgroup")
            elif touched.any():
                self._unfenced(op, use, touched, "was touched by another operation")
            elif differs.any():
                self._unfenced(op, use, differs, "takes part in a product of another shape")
            issued = np.where(active, groups.committed + 1, 0)[..., None]
            kept = known.sums if use.is_sum else known.reads
            kept[..., part] = np.maximum(kept[..., part], issued)
            if use.is_sum:
                known.shapes[..., part][active] = number
            self._last[use.storage.buffer.root] = op

    def wait(self, op: Op, mask: Mask) -> None:
        if op.effects.completes is Completion.WARPGROUP:
            if self._machine.products.is_useful:
                self._useful.add(place_of(op))
            elif self._machine.products.is_useless:
                self._useless.setdefault(place_of(op), op)

    def end(self) -> None:
        for line, op in self._useless.items():
            if line not in self._useful:
                fault = Fault(
                    op, "needless-wait",
                    f"needless wait: all products that tw.wgmma_wait({op.effects.pending}) is for have ended before, "
                    "each time in this launch",
                    self._machine.block_coordinate(-self._machine.first_block),
                    help="leave it out, where no other launch needs it: a wait before it is for the same groups",
                    is_warning=True,
                )  # fmt: skip
                self._machine.collector.report(fault)

    def access(self, access: Access) -> Array | None:
        storage = access.storage
        if not isinstance(storage, RegisterStorage) or access.kind is AccessKind.OPERAND_READ:
            return None
        if access.kind is AccessKind.ACCUMULATE:
            return None
        index = None if isinstance(access.index, np.ndarray) and access.index.ndim else int(access.index)
        known, part = self._part(storage, index, access.lanes)
        if known is None:
            return None
        groups = self._machine.products
        active = groups.active(access.mask)
        early = (known.sums[..., part].max(axis=2) > groups.completed) & active
        if early.any():
            self._early(access, early, "sums up there", index)
        elif access.kind is AccessKind.STORE:
            read = (known.reads[..., part].max(axis=2) > groups.completed) & active
            if read.any():
                self._early(access, read, "reads them", index)
        known.touched[..., part] |= active[..., None]
        return None

    def _part(self, storage: RegisterStorage, index: int | None, lanes: int) -> tuple[_Registers | None, slice]:
        """Return the record of a buffer, None where products use none of it, and the bytes of elements; None: all."""
        known, size = self._known.get(storage.buffer.root), storage.buffer.dtype.bytes
        return known, slice(None) if index is None else slice(index * size, (index + lanes) * size)

    # --- telling ---------------------------------------------------------------------------------------------

    def _early(self, access: Access, where: Array, does: str, index: int | None) -> None:
        product = self._last[access.storage.buffer.root]
        verb = "read" if access.kind is AccessKind.LOAD else "written"
        notes = ["the product:"]
        if product.location is not None:
            notes += [f"  {line}" for line in product.location.excerpt()]
        self._report(
            access.op, access.storage.buffer, "missing-wait", index, where,
            f"missing wait: registers of {self._name(access.storage)} are {verb} while a wgmma under way {does}",
            "commit the product's group and wait for it (tw.wgmma_commit, tw.wgmma_wait) before this line",
            notes, product,
        )  # fmt: skip

    def _unfenced(self, op: Op, use: RegisterUse, where: Array, why: str) -> None:
        name = self._name(use.storage)
        what = "this wgmma" if why.startswith("is the first") else name
        self._report(
            op, use.storage.buffer, "missing-fence", use.index, where,
            f"missing fence: {what} {why}, and no tw.wgmma_fence() orders that before the product"
            if what == name else
            f"missing fence: {what} {why}, and no tw.wgmma_fence() comes before it",
            "put tw.wgmma_fence() before the first product that follows",
        )  # fmt: skip

    def _name(self, storage: Storage) -> str:
        return storage.buffer.root.name or "a fragment"

    def _report(
        self, op: Op, buffer: Buffer, kind: str, index: int | None, where: Array, summary: str, help: str,
        notes: Sequence[str] = (), other: Op | None = None,
    ) -> None:  # fmt: skip
        machine = self._machine
        row, group = (int(n) for n in np.argwhere(where)[0])
        machine.collector.report(
            Fault(
                op, kind, summary, machine.block_coordinate(row),
                machine.thread_coordinate(group * machine.products.size), buffer.root.name, index, None, notes, help,
                int(where.sum()) * machine.products.size, other=other,
            )
        )  # fmt: skip
