"""cp.async.bulk: copies of runs of memory by one thread, without a tensor map; and what all bulk copies demand.

    BulkLoad        cp.async.bulk, global to shared          its bytes arrive at an mbarrier
    BulkStore       cp.async.bulk, shared to global          belongs to a bulk group of the thread (`bulk_groups`)
    BulkPrefetch    cp.async.bulk.prefetch                   global memory to L2

A run begins at a multiple of 16 bytes on both sides and has a multiple of 16 bytes: nothing lies outside of it, and
nothing is filled in. What tensor maps describe is copied by `tensor_copies`.

Source: PTX ISA, "cp.async.bulk", "cp.async.bulk.prefetch"; CUTLASS, include/cute/arch/copy_sm90_tma.hpp
(`SM90_BULK_COPY_G2S`, `SM90_BULK_COPY_S2G`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.arguments import shown
from tilewright.atoms.copy import POLICIES, CacheHints, CopyAtom, one_thread
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cuda.cache_hints import hinted_name, policy_statement, second_level
from tilewright.backends.sim.bulk import active, lanes_of
from tilewright.backends.sim.machine import AccessKind, BulkAccess
from tilewright.backends.sim.storage import FlatStorage
from tilewright.backends.sim.values import Array, Frame
from tilewright.dtypes import int32, uint64
from tilewright.errors import LanguageError
from tilewright.ir.core import Buffer, Op, Space, TensorMap, Value
from tilewright.ir.effects import Completion, Effects, Proxy, attribute, names, operand, reads, updates, writes
from tilewright.ir.instruction import Instruction
from tilewright.layout import Layout
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.trace.boxes import BoxRefusal
from tilewright.trace.scalar import Scalar
from tilewright.trace.tracer import Tracer, current
from tilewright.trace.walks import Walk, common_walk, each_step, place

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step
    from tilewright.instructions.mbarrier import MBarrier

NAMES = ("SM90_BULK_COPY_G2S", "SM90_BULK_COPY_S2G")
UNIT = 16  # bytes
PLAIN = "copy with tw.copy(src, dst), which all threads do together"
RESERVED_NAMES = r"bulk_(load|store|prefetch|send)\w*"
_LONGEST_CALL = 90


# --- atoms -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BulkAtom(CopyAtom):
    """A bulk copy as an atom: to shared memory where `is_load`, else from there."""

    is_load: bool = False

    @property
    def is_asynchronous(self) -> bool:
        """True: a load is complete when its mbarrier's phase is over, a store after `tw.tma_store_wait`."""
        return True

    @property
    def is_bulk(self) -> bool:
        """True: one thread starts the copy of a whole tile."""
        return True

    def with_policy(self, policy: str) -> CopyAtom:
        """Return the atom with a cache policy: what becomes of the lines that it reaches in L2.

        `policy` is "evict_first", "evict_last", "evict_normal" or "evict_unchanged", as of `tw.atoms.UniversalCopy`.
        Hints change how fast data comes, never what comes. Raises `LanguageError` for another policy.

        >>> print(bulk_copy("SM90_BULK_COPY_G2S").with_policy("evict_first"))
        SM90_BULK_COPY_G2S.with_policy('evict_first')
        """
        given: object = policy
        if not isinstance(given, str) or given not in POLICIES:
            raise LanguageError(
                f"{self.name}.with_policy: a policy is one of {', '.join(map(repr, POLICIES))}, got {shown(given)}"
            )
        name = f"{self.name.partition('.')[0]}.with_policy({given!r})"
        return replace(self, name=name, hints=CacheHints(policy=given))

    def prefetch_bulk(self, src: Tensor, dst: Tensor | None) -> None:
        """Emit the prefetch of what a copy reads to L2."""
        raise LanguageError(
            f"tw.prefetch: {self.name} reads shared memory, and what is prefetched is global memory",
            help="prefetch what a load will read: tw.prefetch(tw.atoms.SM90_TMA_LOAD, tile, smem)",
        )

    def map_of(self, tracer: Tracer, src: Tensor, dst: Tensor, refuse: BoxRefusal) -> TensorMap:
        """Return the tensor map by which a tile is copied."""
        raise refuse("uses no tensor map", "leave tw.prefetch_tensor_map out")

    def demand(
        self, tracer: Tracer, spaces: tuple[str, str], barrier: MBarrier | None, refuse: Callable[[str, str], Exception]
    ) -> None:
        """Refuse targets, threads, barriers and directions (`spaces`, from and to) that bulk copies do not have."""
        self.demand_start(tracer, refuse)
        ways = ("global", "shared") if self.is_load else ("shared", "global")
        if spaces != ways:
            raise refuse(f"copies from {ways[0]} to {ways[1]} memory, not from {spaces[0]} to {spaces[1]}", PLAIN)
        if (barrier is None) == self.is_load:
            raise refuse(
                "tells an mbarrier of its bytes: give it as barrier="
                if self.is_load
                else "tells no mbarrier: it belongs to a group of the thread",
                "barrier=full[stage], of a tw.mbarrier whose phase announces the bytes: full[stage].arrive_expect_tx(n)"
                if self.is_load
                else "tw.tma_store_commit() behind it, and tw.tma_store_wait(0) before shared memory changes",
            )

    def demand_one_block(self, mask: Any, refuse: Callable[[str, str], Exception]) -> None:  # Any: what was given
        """Refuse a mask of the blocks of a cluster."""
        if mask is not None:
            raise refuse("goes to one block, and has no mask", "SM90_TMA_LOAD_MULTICAST takes mask=")

    def demand_start(self, tracer: Tracer, refuse: Callable[[str, str], Exception]) -> None:
        """Refuse targets without bulk copies, and a copy that all threads of a block would start."""
        if tracer.arch.is_amd or tracer.arch.number < 90:
            raise refuse(f"needs sm_90 or later, and the target is {tracer.arch}", PLAIN)
        if tracer.block_shape not in (None, (1, 1, 1)) and not tracer.branch_depth:
            raise refuse(
                "is started by one thread, and here all threads of the block would start it",
                "write `if tw.thread_idx.x == 0:`, or `if tw.warp_id() == 0 and tw.elect_one():` around it",
            )


def space_of(tensor: Tensor) -> str:
    """Return the memory that a tensor lies in, "no" where it has none."""
    buffer = getattr(tensor.engine, "buffer", None)
    return "no" if buffer is None else str(buffer.space.value)


@dataclass(frozen=True)
class BulkCopyAtom(BulkAtom):
    """A bulk copy of runs as an atom."""

    def copy_bulk(self, src: Tensor, dst: Tensor, barrier: MBarrier | None, mask: Any = None) -> None:
        """Emit the runs of a tensor; refuse tensors, layouts and targets that the instruction does not have."""
        tracer = current("tw.copy")
        refuse = BoxRefusal(self.name, src, dst, ("from", "to"))
        self.demand(tracer, (space_of(src), space_of(dst)), barrier, refuse)
        self.demand_one_block(mask, refuse)
        run, walk = runs_of((src, dst), refuse)

        def copy(steps: tuple[Any, ...]) -> None:
            at = [t.engine.index(place(t, s)) for t, s in zip((src, dst), steps, strict=True)]
            buffers = src.engine.buffer, dst.engine.buffer
            if barrier is None:
                tracer.emit(BulkStore(buffers[1], buffers[0], run, at[1], at[0], self.hints))
            else:
                signal = barrier.element("tw.copy").value
                tracer.emit(BulkLoad(buffers[1], buffers[0], barrier.buffer, run, at[1], at[0], signal, self.hints))

        each_step(walk, copy)

    def prefetch_bulk(self, src: Tensor, dst: Tensor | None) -> None:
        """Emit the prefetch of the runs of a tensor."""
        if not self.is_load:
            super().prefetch_bulk(src, dst)
        tracer = current("tw.prefetch")
        refuse = BoxRefusal(self.name, src, src if dst is None else dst, ("from", "to"), "tw.prefetch")
        self.demand_start(tracer, refuse)
        if space_of(src) != "global":
            raise refuse(f"brings global memory to L2, and this is {space_of(src)} memory", PLAIN)
        run, walk = runs_of((src,), refuse)

        def fetch(steps: tuple[Any, ...]) -> None:
            index = src.engine.index(place(src, steps[0]))
            tracer.emit(BulkPrefetch(src.engine.buffer, run, index, self.hints))

        each_step(walk, fetch)


def runs_of(tensors: tuple[Tensor, ...], refuse: BoxRefusal) -> tuple[int, Walk]:
    """Return the elements of one run, and the walk from run to run; refuse what is not whole runs of 16 bytes."""
    size = tensors[0].dtype.bytes
    for tensor in tensors:
        if isinstance(tensor, GuardedTensor):
            raise refuse(
                "copies whole runs, and of a guarded tile a part may lie outside",
                "copy it by SM90_TMA_LOAD or SM90_TMA_STORE, which clip, or leave guard=True out",
            )
        if not isinstance(tensor.layout, Layout):
            raise refuse(
                f"copies runs as they lie, and {tensor.layout} swizzles them",
                "copy by SM90_TMA_LOAD or SM90_TMA_STORE, which swizzle, or make the layout plain",
            )
        if tensor.engine.buffer.root.is_pointed:
            raise refuse("copies arrays of the launch, and this tensor is reached by an address", PLAIN)
        tensor.engine.demand_whole(tensor.layout)
    walk = common_walk(tensors, "tw.copy")
    steps = [strides[0] for strides in walk.strides] if walk.extents else []
    if not walk.extents or type(walk.extents[0]) is not int or any(type(d) is not int or d != 1 for d in steps):
        what = f"adjacent elements are {' and '.join(map(str, steps))} apart" if steps else "one element makes no run"
        raise refuse(
            f"copies runs that are contiguous on both sides and whose length is known while tracing, and {what}",
            "give both sides the contiguous mode of the array with stride 1, or copy by SM90_TMA_LOAD",
        )
    run: int = walk.extents[0]
    if run * size % UNIT:
        raise refuse(
            f"copies runs of a multiple of 16 bytes, and a run has {run} {tensors[0].dtype}: {run * size} bytes",
            f"make it a multiple of {UNIT // size} elements, or copy the rest by threads",
        )
    for tensor, strides in zip(tensors, walk.strides, strict=True):
        _demand_aligned(tensor, strides[1:], size, refuse)
    return run, Walk(walk.extents[1:], tuple(strides[1:] for strides in walk.strides))


def _demand_aligned(tensor: Tensor, strides: tuple[Any, ...], size: int, refuse: BoxRefusal) -> None:
    """Refuse runs that are not known to begin at multiples of 16 bytes; shared memory is made to."""
    engine = tensor.engine
    if engine.buffer.space is Space.SHARED and engine.buffer.root.size is not None:
        for buffer in (engine.buffer.root, engine.buffer):
            buffer.alignment = max(buffer.alignment, UNIT)
    if engine.alignment % UNIT:
        raise refuse(
            f"copies runs that begin at multiples of 16 bytes, and {engine.space} memory is known to begin at a "
            f"multiple of {engine.alignment}",
            "pass an array that is aligned, compute the index as a product by 16 bytes' elements, or "
            "tw.shared(..., alignment=16)",
        )
    for stride in strides:
        divisor = stride.facts.divisor if isinstance(stride, Scalar) else abs(stride)
        if divisor * size % UNIT:
            raise refuse(
                f"copies runs that begin at multiples of 16 bytes, and runs of {engine.space} memory are {stride} "
                f"elements of {size} bytes apart",
                "pad the rows to multiples of 16 bytes",
            )


@cache
def bulk_copy(name: str) -> BulkCopyAtom:
    """Return the atom of a name in `NAMES`.

    >>> bulk_copy("SM90_BULK_COPY_G2S").is_load, bulk_copy("SM90_BULK_COPY_S2G").is_load
    (True, False)
    """
    layout = one_thread(None)
    return BulkCopyAtom(name, "sm_90", None, Layout(1), layout, layout, is_load=name.endswith("G2S"))


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class BulkLoad(Instruction):
    """Start the copy of `elements` elements of global `source` to shared `destination`.

    Its bytes arrive at the mbarrier `barrier[barrier_index]`.
    """

    destination: Buffer = writes("destination_index", elements=lambda op: op.elements)
    source: Buffer = reads("source_index", elements=lambda op: op.elements)
    barrier: Buffer = updates("barrier_index")
    elements: int = attribute()
    destination_index: Value = operand()
    source_index: Value = operand()
    barrier_index: Value = operand()
    hints: CacheHints | None = attribute(None)

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, asynchronous=Completion.BARRIER, proxy=Proxy.ASYNC)
    COUNTED: ClassVar[str | None] = "bulk load"
    RESERVED: ClassVar[str] = RESERVED_NAMES
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copies; they need sm_90 or later", PLAIN)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        _verify(self, self.source, self.destination, expect)
        expect(self.barrier.space is Space.SHARED and self.barrier.dtype is uint64, "its bytes arrive at an mbarrier")
        expect(self.barrier_index.type is int32, "indices are int32")

    def simulate(self, compiler: Compiler) -> Step:
        """Read the run now; its elements land, and its bytes arrive, when somebody waits for the mbarrier."""
        machine, mbarriers = compiler.machine, compiler.mbarriers(self.barrier)
        runs = Runs(self, self.elements, self.source, self.destination, compiler)
        at, target, origin = compiler.slots((self.barrier_index, self.destination_index, self.source_index))
        bytes = self.elements * self.source.dtype.bytes

        def run(frame: Frame) -> None:
            values = frame.values
            mask = mbarriers.admit(self, values[at], frame.mask)
            rows, threads = active(machine, mask)
            if not rows.size:
                return
            read = runs.access(AccessKind.COPY_READ, runs.tensor, values[origin], rows, threads)
            write = runs.access(AccessKind.COPY_WRITE, runs.memory, values[target], rows, threads)
            read.told = rows
            land = runs.landing(self.barrier, read, write, rows)
            elements = lanes_of(machine, values[at], rows, threads)
            mbarriers.deliver_later(self, elements, rows, threads, bytes, land)

        return run

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        name, definition = _load_function(self.hints)
        printer.prelude.need(definition)
        given = [
            address(printer, self.destination, self.destination_index).text,
            address(printer, self.source, self.source_index).text,
            str(self.elements * self.source.dtype.bytes),
            address(printer, self.barrier, self.barrier_index).text,
        ]
        print_call(printer, self, name, given)


@dataclass(eq=False)
class BulkStore(Instruction):
    """Start the copy of `elements` elements of shared `source` to global `destination`, in the thread's open group."""

    destination: Buffer = writes("destination_index", elements=lambda op: op.elements)
    source: Buffer = reads("source_index", elements=lambda op: op.elements)
    elements: int = attribute()
    destination_index: Value = operand()
    source_index: Value = operand()
    hints: CacheHints | None = attribute(None)

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, asynchronous=Completion.BULK_GROUP, proxy=Proxy.ASYNC)
    COUNTED: ClassVar[str | None] = "bulk store"
    RESERVED: ClassVar[str] = RESERVED_NAMES
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copies; they need sm_90 or later", PLAIN)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        _verify(self, self.destination, self.source, expect)

    def simulate(self, compiler: Compiler) -> Step:
        """Read shared memory now; the run lands when the thread waits for the group, or its block ends."""
        machine, groups = compiler.machine, compiler.bulk_groups
        runs = Runs(self, self.elements, self.destination, self.source, compiler)
        target, origin = compiler.slots((self.destination_index, self.source_index))

        def run(frame: Frame) -> None:
            values = frame.values
            rows, threads = active(machine, frame.mask)
            read = runs.access(AccessKind.COPY_READ, runs.memory, values[origin], rows, threads)
            write = runs.access(AccessKind.COPY_WRITE, runs.tensor, values[target], rows, threads)
            if machine.start_bulk(read, write):
                return
            found = runs.gather(read)

            def land(which: Array) -> None:
                runs.tensor.scatter(rows[which], write.index[which], found[which])

            groups.add(read, write, land)

        return run

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        name, definition = _store_function(self.hints)
        printer.prelude.need(definition)
        given = [
            address(printer, self.destination, self.destination_index).text,
            address(printer, self.source, self.source_index).text,
            str(self.elements * self.source.dtype.bytes),
        ]
        print_call(printer, self, name, given)


@dataclass(eq=False)
class BulkPrefetch(Instruction):
    """Bring `elements` elements of global memory from `index` on to L2. Nothing is read that anyone could miss."""

    buffer: Buffer = names()
    elements: int = attribute()
    index: Value = operand()
    hints: CacheHints | None = attribute(None)

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False)
    COUNTED: ClassVar[str | None] = "prefetch"
    RESERVED: ClassVar[str] = RESERVED_NAMES
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copies; they need sm_90 or later", "leave tw.prefetch out")

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.buffer.space is Space.GLOBAL, "global memory is prefetched")
        expect(self.elements * self.buffer.dtype.bytes % UNIT == 0, "runs are multiples of 16 bytes")

    def simulate(self, compiler: Compiler) -> Step:
        """Do nothing: there are no caches here."""
        return lambda frame: None

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        name, definition = _prefetch_function(self.hints)
        printer.prelude.need(definition)
        run = str(self.elements * self.buffer.dtype.bytes)
        print_call(printer, self, name, [address(printer, self.buffer, self.index).text, run])


def _verify(op: BulkLoad | BulkStore, tensor: Buffer, memory: Buffer, expect: Callable[[bool, str], None]) -> None:
    expect((tensor.space, memory.space) == (Space.GLOBAL, Space.SHARED), "copies between global and shared memory")
    expect(tensor.dtype is memory.dtype, "the element types differ")
    expect(op.elements * tensor.dtype.bytes % UNIT == 0, "runs are multiples of 16 bytes")


Landing = Callable[[Array, Array, Array], None]  # which threads' copies, their elements of the mbarrier, its phases


class Runs:
    """The runs of an op: the array `tensor`, or the memory of another block, and the shared memory `memory`."""

    def __init__(self, op: Op, elements: int, tensor: Buffer, memory: Buffer, compiler: Compiler) -> None:
        self._op, self._machine = op, compiler.machine
        found, shared = compiler.machine.storages[tensor], compiler.machine.storages[memory]
        assert isinstance(found, FlatStorage) and isinstance(shared, FlatStorage), op
        self.tensor: FlatStorage = found
        self.memory: FlatStorage = shared
        self._steps = np.arange(elements)

    def access(self, kind: AccessKind, storage: FlatStorage, start: Any, rows: Array, threads: Array) -> BulkAccess:
        """Return the access to the runs that begin at indices of threads."""
        index = lanes_of(self._machine, start, rows, threads)[:, None] + self._steps
        index = storage.counted(rows, index)
        return BulkAccess(self._op, kind, storage, rows, threads, index, None)

    def gather(self, access: BulkAccess) -> Array:
        """Return the elements that an access reads."""
        assert isinstance(access.storage, FlatStorage)
        try:
            return access.storage.gather(access.rows, access.index)
        except IndexError as error:
            raise self._machine.outside(self._op, access.storage.buffer, error) from None

    def landing(self, barrier: Buffer, read: BulkAccess, write: BulkAccess, to: Array) -> Landing:
        """Start a copy to the memory of the blocks `to`; return what lands its elements when their bytes arrive."""
        assert isinstance(write.storage, FlatStorage)
        machine, storage = self._machine, write.storage
        found = None if machine.start_bulk(read, write) else self.gather(read)

        def land(which: Array, element: Array, phase: Array) -> None:
            if found is None:
                return  # its bytes come nevertheless
            arrival = barrier, element, phase
            machine.finish_bulk(read, which, arrival)
            storage.scatter(to[which], write.index[which], found[which])
            machine.finish_bulk(write, which, arrival)

        return land


# --- how they are written --------------------------------------------------------------------------------


def refuse_old(printer: Printer, op: Instruction) -> None:
    """Refuse to print an op for a target without bulk copies."""
    if printer.arch.number < 90:
        raise printer.refuse(op, f"bulk copies need sm_90 or later, and the target is {printer.arch}", PLAIN)


def print_call(printer: Printer, op: Instruction, name: str, given: list[str]) -> None:
    """Print a call as a statement, an argument a line where it is long."""
    text = f"{name}({', '.join(given)});"
    if len(text) > _LONGEST_CALL:
        text = f"{name}(\n    " + ",\n    ".join(given) + ");"
    printer.statement(text, op)


def hinted(hints: CacheHints | None, operands: int) -> tuple[str, str, str, str]:
    """Return what a cache policy adds to an instruction of so many operands.

    The line that makes it, the qualifier, the operand and the input of the assembly: empty without one.
    """
    if hints is None:
        return "", "", "", ""
    return policy_statement(hints), second_level(hints), f", %{operands}", ', "l"(l2_policy)'


def _load_function(hints: CacheHints | None) -> tuple[str, str]:
    name, (line, qualifier, operand, value) = hinted_name("bulk_load", hints), hinted(hints, 4)
    definition = f"""\
// Starts the copy of a run of global memory to shared memory; its bytes arrive at the barrier.
{FUNCTION} void {name}(void* destination, const void* source, unsigned int bytes, unsigned long long* barrier) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
    const unsigned int signal = (unsigned int)__cvta_generic_to_shared(barrier);
{line}    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{qualifier}"
                 " [%0], [%1], %2, [%3]{operand};"
                 :: "r"(address), "l"(source), "r"(bytes), "r"(signal){value} : "memory");
}}"""
    return name, definition


def _store_function(hints: CacheHints | None) -> tuple[str, str]:
    name, (line, qualifier, operand, value) = hinted_name("bulk_store", hints), hinted(hints, 3)
    definition = f"""\
// Starts the copy of a run of shared memory to global memory; it belongs to the thread's open group.
{FUNCTION} void {name}(void* destination, const void* source, unsigned int bytes) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(source);
{line}    asm volatile("cp.async.bulk.global.shared::cta.bulk_group{qualifier} [%0], [%1], %2{operand};"
                 :: "l"(destination), "r"(address), "r"(bytes){value} : "memory");
}}"""
    return name, definition


def _prefetch_function(hints: CacheHints | None) -> tuple[str, str]:
    name, (line, qualifier, operand, value) = hinted_name("bulk_prefetch", hints), hinted(hints, 2)
    definition = f"""\
// Brings a run of global memory to L2.
{FUNCTION} void {name}(const void* source, unsigned int bytes) {{
{line}    asm volatile("cp.async.bulk.prefetch.L2.global{qualifier} [%0], %1{operand};"
                 :: "l"(source), "r"(bytes){value} : "memory");
}}"""
    return name, definition
