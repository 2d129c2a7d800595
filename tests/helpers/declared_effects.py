"""The law of declared effects: what an op does on the simulator is what its class declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tilewright.backends.sim.machine import Access, AccessKind, Arrival, BulkAccess, Machine, Observer, Signal
from tilewright.ir.effects import Completion, Order, Proxy, Use

ALLOWED = {
    AccessKind.LOAD: {Use.READ},
    AccessKind.STORE: {Use.WRITE},
    AccessKind.ATOMIC: {Use.UPDATE},
    AccessKind.COPY_READ: {Use.READ},
    AccessKind.COPY_WRITE: {Use.WRITE},
    AccessKind.COPY_LAND: {Use.WRITE},
    AccessKind.OPERAND_READ: {Use.READ},
    AccessKind.ACCUMULATE: {Use.UPDATE},
    AccessKind.BARRIER: {Use.UPDATE},
}
ASYNCHRONOUS = {AccessKind.COPY_READ, AccessKind.COPY_WRITE, AccessKind.COPY_LAND, AccessKind.OPERAND_READ,
                AccessKind.ACCUMULATE}  # fmt: skip


class Law(Observer):
    """Compares what is done with what is declared."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def access(self, access: Access) -> None:
        op = access.op
        self.seen.add(type(op).__name__)
        uses = [use for use in op.uses if use.buffer is access.storage.buffer and use.use in ALLOWED[access.kind]]
        assert uses, f"{type(op).__name__} does not declare its {access.kind.value} {access.storage.buffer.name}"
        assert any(access.lanes <= use.elements for use in uses), (type(op).__name__, access.lanes)
        if access.kind is not AccessKind.BARRIER:  # which bulk copies use at once
            assert (op.effects.asynchronous is not None) == (access.kind in ASYNCHRONOUS), type(op).__name__
        for use in uses:
            if use.lanes is not None and access.mask is not None:
                lanes = np.arange(access.mask.shape[1]) % 32
                assert not access.mask[:, lanes >= use.lanes].any(), type(op).__name__

    def start_bulk(self, access: BulkAccess) -> bool:
        op = access.op
        self.seen.add(type(op).__name__)
        assert op.effects.proxy is Proxy.ASYNC and op.effects.asynchronous is not None, type(op).__name__
        uses = [use for use in op.uses if use.buffer is access.storage.buffer and use.use in ALLOWED[access.kind]]
        assert any(access.index.shape[1] <= use.elements for use in uses), (type(op).__name__, access.kind)
        return False

    def finish_bulk(self, access: BulkAccess, which: Any, arrival: Arrival | None) -> None:
        # Who waits for the bytes of a load learns of what it has written, and that its reads are over; of one to several
        # blocks nobody waits for all bytes.
        is_told = access.op.effects.asynchronous is Completion.BARRIER
        assert arrival is None or is_told, type(access.op).__name__
        assert arrival is not None or not is_told or access.kind is AccessKind.COPY_READ, type(access.op).__name__

    def fence_proxy(self, op: Any, mask: Any) -> None:
        assert op.effects.fences_proxy, type(op).__name__

    def arrive(self, signal: Signal) -> None:
        self.seen.add(type(signal.op).__name__)
        assert Order.RELEASE in signal.op.effects.order, type(signal.op).__name__

    def acquire(self, signal: Signal) -> None:
        assert Order.ACQUIRE in signal.op.effects.order, type(signal.op).__name__

    def barrier(self, op: Any, mask: Any) -> None:
        assert op.effects.order is Order.BOTH, type(op).__name__

    def wait(self, op: Any, mask: Any) -> None:
        assert op.effects.completes is not None and Order.ACQUIRE in op.effects.order, type(op).__name__


@contextmanager
def declared_effects() -> Iterator[Law]:
    """Fail where what runs on the simulator does what no op of it declares: an access, an arrival or a wait."""
    found = Law()
    begin = Machine.begin

    def watched(self: Machine, first_block: int, blocks: int) -> None:
        if found not in self.observers:
            self.observers += (found,)
        begin(self, first_block, blocks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Machine, "begin", watched)
        yield found
    assert found.seen
