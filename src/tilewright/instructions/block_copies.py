"""cp.async.bulk between blocks of a cluster: runs of shared memory, copied to the shared memory of another block.

    BulkSend        cp.async.bulk, shared::cta to shared::cluster      its bytes arrive at an mbarrier of that block

The block that gets the bytes announces them and waits for them; the one that sends them knows that its memory has been
read when it is told that they have come. CUTLASS has no atom for it: the name follows its `SM90_BULK_COPY_G2S` and
`SM90_BULK_COPY_S2G`.

Source: PTX ISA, "cp.async.bulk", "cvta", "mapa".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.atoms.copy import CopyAtom, one_thread
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.bulk import active, lanes_of
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import AccessKind, Machine
from tilewright.backends.sim.storage import RemoteStorage
from tilewright.backends.sim.values import Frame, Lanes, Mask, without
from tilewright.dtypes import int32, uint64
from tilewright.errors import LanguageError
from tilewright.instructions.bulk_copies import (
    PLAIN,
    RESERVED_NAMES,
    UNIT,
    BulkAtom,
    Runs,
    print_call,
    refuse_old,
    runs_of,
    space_of,
)
from tilewright.ir.core import Buffer, Space, Value
from tilewright.ir.effects import Completion, Effects, Proxy, attribute, operand, reads, updates, writes
from tilewright.ir.evaluate import facts_of
from tilewright.ir.instruction import Instruction
from tilewright.layout import Layout
from tilewright.tensors import Tensor
from tilewright.trace.boxes import BoxRefusal
from tilewright.trace.tracer import current
from tilewright.trace.walks import each_step, place

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step
    from tilewright.instructions.mbarrier import MBarrier

NAMES = ("SM90_BULK_COPY_S2S",)
_HOW = "tw.copy(tw.atoms.SM90_BULK_COPY_S2S, smem, other.at_rank(rank), barrier=full[stage].at_rank(rank))"


# --- the atom --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockCopyAtom(BulkAtom):
    """A bulk copy of runs to another block of the cluster as an atom."""

    def with_policy(self, policy: str) -> CopyAtom:
        """Refuse a cache policy: no cache lies between the memories of blocks."""
        raise LanguageError(f"{self.name} reaches no cache, and has no policy", help="leave with_policy out")

    def copy_bulk(self, src: Tensor, dst: Tensor, barrier: MBarrier | None, mask: Any = None) -> None:
        """Emit the runs of a tensor; refuse tensors, layouts, barriers and targets that the instruction does not have.

        Law: behind the wait for the phase in the block `rank`, its dst[c] is what src[c] was in this block.
        """
        tracer = current("tw.copy")
        refuse = BoxRefusal(self.name, src, dst, ("from", "to"))
        self.demand_start(tracer, refuse)
        self.demand_one_block(mask, refuse)
        spaces = space_of(src), space_of(dst)
        if spaces != ("shared", "shared") or src.engine.buffer.is_remote or not dst.engine.buffer.is_remote:
            what = f"{spaces[0]} to {spaces[1]} memory"
            if spaces == ("shared", "shared"):
                from_other, to_other = src.engine.buffer.is_remote, dst.engine.buffer.is_remote
                what = f"{'another' if from_other else 'a'} block to {'another' if to_other else 'the same'} one"
            raise refuse(f"copies from shared memory of this block to that of another one, not from {what}", _HOW)
        if barrier is None or barrier.rank is None:
            raise refuse("tells an mbarrier of the block that gets the bytes", _HOW)
        rank, other = (facts_of(x.value) for x in (dst.engine.rank, barrier.rank))
        if rank.high < other.low or other.high < rank.low:
            at = [str(f.low) if f.low == f.high else f"{f.low} to {f.high}" for f in (rank, other)]
            raise refuse(
                f"brings bytes to the block of rank {at[0]} and tells the mbarrier of that of rank {at[1]}",
                "the mbarrier lies in the block that gets the bytes: give at_rank the same rank",
            )
        run, walk = runs_of((src, dst), refuse)
        signal, of = barrier.element("arrive").value, barrier.rank.value

        def copy(steps: tuple[Any, ...]) -> None:
            origin, target = (t.engine.index(place(t, s)) for t, s in zip((src, dst), steps, strict=True))
            buffers = dst.engine.buffer, src.engine.buffer, barrier.buffer
            tracer.emit(BulkSend(*buffers, run, target, origin, signal, of))

        each_step(walk, copy)


@cache
def block_copy(name: str) -> BlockCopyAtom:
    """Return the atom of a name in `NAMES`.

    >>> print(block_copy("SM90_BULK_COPY_S2S"))
    SM90_BULK_COPY_S2S
    """
    layout = one_thread(None)
    return BlockCopyAtom(name, "sm_90", None, Layout(1), layout, layout)


# --- the op ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class BulkSend(Instruction):
    """Start the copy of `elements` elements of shared `source` to `destination`, memory of another block.

    Its bytes arrive at the mbarrier `barrier[barrier_index]` of the block `rank`, which is that of `destination`.
    """

    destination: Buffer = writes("destination_index", elements=lambda op: op.elements)
    source: Buffer = reads("source_index", elements=lambda op: op.elements)
    barrier: Buffer = updates("barrier_index")
    elements: int = attribute()
    destination_index: Value = operand()
    source_index: Value = operand()
    barrier_index: Value = operand()
    rank: Value = operand()

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(
        removable=False, asynchronous=Completion.BARRIER, proxy=Proxy.ASYNC, reaches_blocks=True
    )
    COUNTED: ClassVar[str | None] = "bulk copy"
    RESERVED: ClassVar[str] = RESERVED_NAMES
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copies; they need sm_90 or later", PLAIN)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        source, destination = self.source, self.destination
        expect(source.space is destination.space is Space.SHARED, "copies between shared memories")
        expect(destination.is_remote and not source.is_remote, "copies from this block to another one")
        expect(source.dtype is destination.dtype, "the element types differ")
        expect(self.elements * source.dtype.bytes % UNIT == 0, "runs are multiples of 16 bytes")
        expect(self.barrier.space is Space.SHARED and self.barrier.dtype is uint64, "its bytes arrive at an mbarrier")
        expect(all(v.type is int32 for v in self.operands), "indices and ranks are int32")

    def simulate(self, compiler: Compiler) -> Step:
        """Read the run now; it lands, and its bytes arrive, when somebody waits for the mbarrier of the other block."""
        machine, mbarriers = compiler.machine, compiler.mbarriers(self.barrier)
        runs = Runs(self, self.elements, self.destination, self.source, compiler)
        remote, size = runs.tensor, self.elements * self.source.dtype.bytes
        assert isinstance(remote, RemoteStorage), self.destination
        at, target, origin, rank = compiler.slots(
            (self.barrier_index, self.destination_index, self.source_index, self.rank)
        )

        def run(frame: Frame) -> None:
            values = frame.values
            mask = self._at_one_rank(values[rank], remote, frame.mask, machine)
            mask = mbarriers.admit(self, values[at], mask, values[rank])
            rows, threads = active(machine, mask)
            if not rows.size:
                return
            to = rows // machine.cluster_size * machine.cluster_size + lanes_of(machine, values[rank], rows, threads)
            read = runs.access(AccessKind.COPY_READ, runs.memory, values[origin], rows, threads)
            write = runs.access(AccessKind.COPY_WRITE, remote, values[target], rows, threads)
            read.told = write.targets = to
            land = runs.landing(self.barrier, read, write, to)
            mbarriers.deliver_later(self, lanes_of(machine, values[at], rows, threads), to, threads, size, land)

        return run

    def _at_one_rank(self, ranks: Lanes, remote: RemoteStorage, mask: Mask, machine: Machine) -> Mask:
        """Report threads whose mbarrier is in another block than the memory, and return the others."""
        shape = machine.blocks, machine.threads
        differ = np.broadcast_to(np.asarray(ranks), shape) != np.broadcast_to(np.asarray(remote.ranks), shape)
        bad = differ & np.broadcast_to(np.True_ if mask is None else mask, shape)
        if not bad.any():
            return mask
        row, thread = (int(n) for n in np.argwhere(bad)[0])
        given = [int(np.broadcast_to(np.asarray(r), shape)[row, thread]) for r in (remote.ranks, ranks)]
        fault = Fault(
            self, "transaction-bytes",
            f"bytes go to block {given[0]} of the cluster, and the mbarrier of block {given[1]} is told of them",
            machine.block_coordinate(row), machine.thread_coordinate(thread), self.barrier.name,
            help="the mbarrier lies in the block that gets the bytes: give at_rank the same rank",
            count=int(bad.sum()),
        )  # fmt: skip
        machine.collector.report(fault)
        return without(mask, bad)

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        printer.prelude.need(_SEND)
        given = [
            address(printer, self.destination, self.destination_index).text,
            address(printer, self.source, self.source_index).text,
            str(self.elements * self.source.dtype.bytes),
            address(printer, self.barrier, self.barrier_index).text,
            exact(printer, self.rank).text,
        ]
        print_call(printer, self, "bulk_send", given)


# The destination is an address of another block, from `at_rank`; the barrier one of this block, which has the same
# place in the other one.
_SEND = f"""\
// Starts the copy of a run of shared memory to another block of the cluster; its bytes arrive at the barrier there.
{FUNCTION} void bulk_send(
    void* destination, const void* source, unsigned int bytes, unsigned long long* barrier, int rank) {{
    const unsigned int origin = (unsigned int)__cvta_generic_to_shared(source);
    const unsigned int signal = (unsigned int)__cvta_generic_to_shared(barrier);
    asm volatile("{{ .reg .b64 wide; .reg .b32 there, told;"
                 " cvta.to.shared::cluster.u64 wide, %0; cvt.u32.u64 there, wide;"
                 " mapa.shared::cluster.u32 told, %3, %4;"
                 " cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%1], %2, [told]; }}"
                 :: "l"(destination), "r"(origin), "r"(bytes), "r"(signal), "r"(rank) : "memory");
}}"""
