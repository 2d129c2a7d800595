"""cp.async.bulk.tensor: copies of boxes of a tensor by the tensor memory accelerator (TMA); one thread starts them.

    TensorLoad      cp.async.bulk.tensor, global to shared      its bytes arrive at an mbarrier
    TensorMulticast the same with .multicast::cluster           to several blocks of the cluster
    TensorStore     cp.async.bulk.tensor, shared to global      belongs to a bulk group of the thread (`bulk_groups`)
    TensorReduce    cp.reduce.async.bulk.tensor                 the same, combined with what is there

The kernel names a tile by its coordinates; where the tensor lies, and how far it reaches, stands in a tensor map that
the host encodes at the launch (`ir.core.TensorMap`). What lies outside reads as zeros and is not written.

Source: PTX ISA, "cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"; CUTLASS, include/cute/arch/copy_sm90_tma.hpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.atoms.copy import CacheHints, one_thread
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.cuda.cache_hints import hinted_name
from tilewright.backends.sim.bulk import active, boxes_of, look_at_ends, look_before
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import AccessKind, BulkAccess, Machine
from tilewright.backends.sim.values import Array, Frame, Lanes, Mask
from tilewright.dtypes import DType, dtype, int32, uint64
from tilewright.instructions.bulk_copies import PLAIN, UNIT, BulkAtom, hinted, print_call, refuse_old, space_of
from tilewright.instructions.tensor_prefetch import TensorPrefetch
from tilewright.ir.core import Buffer, Space, TensorMap, Value
from tilewright.ir.effects import (
    AS_ATTRIBUTE,
    Completion,
    Effects,
    Proxy,
    attribute,
    operand,
    operands,
    reads,
    updates,
    writes,
)
from tilewright.ir.instruction import Instruction
from tilewright.layout import Layout
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.trace.boxes import BoxPlan, BoxRefusal, describe_tensor, first_coordinates, plan_boxes, start_in_memory
from tilewright.trace.scalar import as_scalar, narrowed
from tilewright.trace.tracer import Tracer, current
from tilewright.trace.walks import Walk, each_step

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.barriers import Mbarriers
    from tilewright.backends.sim.compiler import Compiler, Step
    from tilewright.instructions.mbarrier import MBarrier

_FLOATS = tuple(map(dtype, ("float16", "bfloat16")))
_INTEGERS = tuple(map(dtype, ("int32", "uint32", "int64", "uint64")))
_BITWISE = ("and", "or", "xor")
# The element types of each reduction (PTX ISA, "cp.reduce.async.bulk").
_REDUCTIONS: dict[str, tuple[DType, ...]] = {
    "add": (*_FLOATS, *map(dtype, ("float32", "float64", "int32", "uint32", "uint64"))),
    "min": (*_FLOATS, *_INTEGERS),
    "max": (*_FLOATS, *_INTEGERS),
    "inc": (dtype("uint32"),),
    "dec": (dtype("uint32"),),
    **dict.fromkeys(_BITWISE, _INTEGERS),
}
_COMBINE: dict[str, Any] = {  # Any: NumPy's functions
    "add": np.add,
    "min": np.fmin,
    "max": np.fmax,
    "inc": lambda old, given: np.where(old >= given, 0, old + 1),
    "dec": lambda old, given: np.where((old == 0) | (old > given), given, old - 1),
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
NAMES = (
    "SM90_TMA_LOAD",
    "SM90_TMA_LOAD_MULTICAST",
    "SM90_TMA_STORE",
    *(f"SM90_TMA_REDUCE_{kind.upper()}" for kind in _REDUCTIONS),
)


# --- the atoms -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TensorCopyAtom(BulkAtom):
    """A bulk copy of boxes as an atom; `reduction` is what a store combines with."""

    is_multicast: bool = False
    reduction: str | None = None

    def copy_bulk(self, src: Tensor, dst: Tensor, barrier: MBarrier | None, mask: Any = None) -> None:
        """Emit the boxes of a tile; refuse tensors, layouts and targets that the instruction does not have."""
        tracer, tile, memory, refuse, ranks = self._begin(src, dst, barrier, mask)
        made = copies_of(tile)
        if made is not None and (ranks is not None or self.reduction is not None):
            raise refuse("takes no tensor map that threads have made", "SM90_TMA_LOAD and SM90_TMA_STORE take one")

        def copy(map: TensorMap, index: Value, coordinates: tuple[Value, ...]) -> None:
            buffer, hints = memory.engine.buffer, self.hints
            if made is not None:
                made.emit(buffer, index, coordinates, hints, barrier)
            elif barrier is not None:
                at = barrier.element("tw.copy").value
                given = buffer, map.buffer, barrier.buffer, map, index, at, coordinates
                load = TensorLoad(*given, hints=hints)
                tracer.emit(load if ranks is None else TensorMulticast(*given, ranks, hints=hints))
            elif self.reduction is None:
                tracer.emit(TensorStore(map.buffer, buffer, map, index, coordinates, hints=hints))
            else:
                tracer.emit(TensorReduce(map.buffer, buffer, map, index, coordinates, self.reduction, hints=hints))

        self._each_box(tracer, tile, memory, refuse, copy)

    def _begin(
        self, src: Tensor, dst: Tensor, barrier: MBarrier | None, mask: Any
    ) -> tuple[Tracer, Tensor, Tensor, BoxRefusal, Value | None]:
        """Return the trace of a copy, its tile and shared memory, what refuses it, and the blocks of a multicast."""
        tracer = current("tw.copy")
        tile, memory = (src, dst) if self.is_load else (dst, src)
        refuse = BoxRefusal(self.name, tile, memory)
        self.demand(tracer, (space_of(src), space_of(dst)), barrier, refuse)
        ranks = ranks_of(tracer, mask, refuse) if self.is_multicast else None
        if ranks is None:
            self.demand_one_block(mask, refuse)
        return tracer, tile, memory, refuse, ranks

    def _begin_prefetch(self, src: Tensor, dst: Tensor | None) -> tuple[Tracer, BoxRefusal]:
        if not self.is_load:
            super().prefetch_bulk(src, dst)
        tracer = current("tw.prefetch")
        refuse = BoxRefusal(self.name, src, src if dst is None else dst, caller="tw.prefetch")
        self.demand_start(tracer, refuse)
        return tracer, refuse

    def prefetch_bulk(self, src: Tensor, dst: Tensor | None) -> None:
        """Emit the prefetch of a tile's boxes, by the map with which they will be copied to `dst`."""
        tracer, refuse = self._begin_prefetch(src, dst)
        if dst is None or (space_of(src), space_of(dst)) != ("global", "shared"):
            raise refuse(
                "brings a tile of global memory to L2 by the tensor map with which it will be copied to shared memory",
                "give both: tw.prefetch(tw.atoms.SM90_TMA_LOAD, tile, smem)",
            )

        if copies_of(src) is not None:
            raise refuse("prefetches by maps of the launch", "leave tw.prefetch out")

        def fetch(map: TensorMap, index: Value, coordinates: tuple[Value, ...]) -> None:
            tracer.emit(TensorPrefetch(map.buffer, map, coordinates, self.hints))

        self._each_box(tracer, src, dst, refuse, fetch)

    def map_of(self, tracer: Tracer, src: Tensor, dst: Tensor, refuse: BoxRefusal) -> TensorMap:
        """Return the tensor map by which a tile is copied."""
        tile, memory = (src, dst) if self.is_load else (dst, src)
        self._demand_tile(tile, refuse)
        assert isinstance(tile, GuardedTensor)
        plan = plan_boxes(tile, memory, refuse)
        return self.describe(tracer, tile, plan, refuse)

    def _each_box(
        self,
        tracer: Tracer,
        tile: Tensor,
        memory: Tensor,
        refuse: BoxRefusal,
        emit: Callable[[TensorMap, Value, tuple[Value, ...]], None],
    ) -> None:
        """Emit something for each box of a tile: its map, its element in shared memory, and its coordinates."""
        self._demand_tile(tile, refuse)
        assert isinstance(tile, GuardedTensor)
        plan = plan_boxes(tile, memory, refuse)
        start = start_in_memory(memory, plan, refuse)
        map = self.describe(tracer, tile, plan, refuse)
        first = first_coordinates(tile, plan)
        steps = [tuple(loop.step if loop.leaf == k else 0 for loop in plan.loops) for k in plan.order]
        walk = Walk(tuple(loop.count for loop in plan.loops), (*steps, tuple(loop.elements for loop in plan.loops)))
        memory.engine.demand_guards()

        def copy(moved: tuple[Any, ...]) -> None:
            index = as_scalar(start + moved[-1] if not _is_zero(moved[-1]) else start, int32).value
            places = [c + m if not _is_zero(m) else c for c, m in zip(first, moved[:-1], strict=True)]
            emit(map, index, tuple([narrowed(place).value for place in places]))

        each_step(walk, copy)

    def describe(self, tracer: Tracer, tile: GuardedTensor, plan: BoxPlan, refuse: BoxRefusal) -> TensorMap:
        """Return the tensor map of a tile that is planned."""
        is_bits = self.reduction in _BITWISE
        return describe_tensor(tracer, tile, plan, refuse, is_load=self.is_load, is_bits=is_bits)

    def _demand_tile(self, tile: Tensor, refuse: BoxRefusal) -> None:
        if not isinstance(tile, GuardedTensor):
            raise refuse(
                "takes a guarded tile, which knows its coordinates in the tensor",
                "tile a guarded tensor: tw.local_tile(tw.guarded(x), tile, coord), or guard=True where the extents are "
                "dynamic",
            )
        if self.reduction is not None and tile.dtype not in _REDUCTIONS[self.reduction]:
            legal = ", ".join(map(str, _REDUCTIONS[self.reduction]))
            raise refuse(f"reduces {legal}, not {tile.dtype}", "convert the tile, or store it and combine by atomics")
        if tile.dtype.kind == "bool":
            raise refuse("copies numbers, and tensor maps have no bool", "use uint8")


def ranks_of(tracer: Tracer, mask: Any, refuse: BoxRefusal) -> Value:
    """Return a mask of the blocks of the cluster that get a box; refuse one that names none or others."""
    blocks = math.prod(tracer.cluster_shape)
    every = (1 << blocks) - 1
    if mask is None:
        raise refuse(
            "is told by mask= which blocks of the cluster get the tile",
            f"bit r of it is the block of rank r: {every:#b} for all {blocks} of this cluster",
        )
    if isinstance(mask, int) and not 0 < mask <= every:
        raise refuse(
            f"goes to blocks 0 to {blocks - 1} of the cluster, and the mask is {mask:#b}",
            "launch with clusters, @tw.kernel(cluster=2), and name blocks that they have",
        )
    return as_scalar(mask, int32).value


def copies_of(tile: Tensor) -> Any:  # Any: a `made_maps.Copies`
    """Return what emits copies of a tensor whose map threads have made, None for other tensors."""
    return getattr(tile.edge.origin, "copies", None) if isinstance(tile, GuardedTensor) else None


def _is_zero(x: object) -> bool:
    return isinstance(x, int) and x == 0


@cache
def tensor_copy(name: str) -> TensorCopyAtom:
    """Return the atom of a name in `NAMES`.

    >>> tensor_copy("SM90_TMA_LOAD").is_load, tensor_copy("SM90_TMA_REDUCE_MIN").reduction
    (True, 'min')
    """
    layout = one_thread(None)
    reduction = name.rpartition("_")[2].lower() if "REDUCE" in name else None
    return TensorCopyAtom(
        name, "sm_90", None, Layout(1), layout, layout, is_load="LOAD" in name,
        is_multicast=name.endswith("MULTICAST"), reduction=reduction,
    )  # fmt: skip


# --- the ops ---------------------------------------------------------------------------------------------


def _elements(op: Any) -> int:  # Any: a TensorLoad or TensorStore
    count: int = op.map.elements
    return count


@dataclass(eq=False)
class TensorLoad(Instruction):
    """Start the copy of a box of `source`, at `coordinates` of its tensor map, to shared `destination`.

    The box is compact there, the map's first mode contiguous, and swizzled as the map says; what lies outside of the
    tensor comes as the map's fill. Its bytes, those included, arrive at the mbarrier `barrier[barrier_index]`.
    """

    destination: Buffer = writes("destination_index", elements=_elements)
    source: Buffer = reads(None, elements=_elements)
    barrier: Buffer = updates("barrier_index")
    map: TensorMap = attribute()
    destination_index: Value = operand()
    barrier_index: Value = operand()
    coordinates: tuple[Value, ...] = operands()
    hints: CacheHints | None = field(default=None, kw_only=True, metadata=AS_ATTRIBUTE)

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, asynchronous=Completion.BARRIER, proxy=Proxy.ASYNC)
    COUNTED: ClassVar[str | None] = "tma load"
    RESERVED: ClassVar[str] = r"tma_\w+|CUtensorMap|prefetch_tensor_map"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copy of tensors", PLAIN)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        _verify(self, self.source, self.destination, expect)
        expect(self.barrier.space is Space.SHARED and self.barrier.dtype is uint64, "its bytes arrive at an mbarrier")
        expect(self.barrier_index.type is int32, "indices are int32")

    def simulate(self, compiler: Compiler) -> Step:
        """Read the box now; its elements land, and its bytes arrive, when somebody waits for the mbarrier."""
        machine, mbarriers = compiler.machine, compiler.mbarriers(self.barrier)
        boxes = boxes_of(self.map, machine, self.source, self.destination, getattr(self, "key", None))
        at, start, *coordinates = compiler.slots((self.barrier_index, self.destination_index, *self.coordinates))
        admit = self._admission(compiler, mbarriers)

        def run(frame: Frame) -> None:
            values = frame.values
            mask, targets = admit(frame, values[at])
            rows, threads = active(machine, mask)
            if not rows.size:
                return
            _look_at_beginning(self, machine, self.map, values[coordinates[0]], rows, threads)
            index, there = boxes.elements([values[c] for c in coordinates], rows, threads)
            place = boxes.places(values[start], rows, threads)
            box = boxes.read(index, there)
            read = BulkAccess(self, AccessKind.COPY_READ, boxes.tensor, rows, threads, index, there)
            read.told = rows if targets is None else None  # of several blocks, none knows for all
            reading = np.ones(len(rows), np.bool_)
            # Of each box a copy for each block that gets it: which box, and the row of the block.
            of, to = (np.arange(len(rows)), rows) if targets is None else targets(rows, threads)
            rows, threads, place = rows[of], threads[of], place[of]
            write = BulkAccess(
                self, AccessKind.COPY_WRITE, boxes.memory, rows, threads, place, None, None if targets is None else to
            )
            refused = machine.start_bulk(read, write)

            def land(which: Array, element: Array, phase: Array) -> None:
                if refused:
                    return  # its bytes come nevertheless
                begun = np.zeros_like(reading)
                begun[of[which]] = True
                arrival = self.barrier, element, phase
                machine.finish_bulk(read, begun & reading, arrival if targets is None else None)
                reading[begun] = False
                boxes.memory.scatter(to[which], place[which], box[of[which]])
                machine.finish_bulk(write, which, arrival)

            elements = np.broadcast_to(values[at], (machine.blocks, machine.threads))[rows, threads]
            mbarriers.deliver_later(self, elements, to, threads, self.map.bytes, land)

        return run

    def _admission(self, compiler: Compiler, mbarriers: Mbarriers) -> Admission:
        """Return what gives the threads whose mbarriers are there, and for boxes of several blocks what tells which."""
        return lambda frame, at: (mbarriers.admit(self, at, frame.mask), None)

    def cuda(self, printer: Printer) -> None:
        self._print(printer, *load_function(len(self.coordinates), self.hints))

    def _print(self, printer: Printer, name: str, definition: str, *more: str) -> None:
        place = address(printer, self.destination, self.destination_index).text
        barrier = address(printer, self.barrier, self.barrier_index).text
        _print(printer, self, name, definition, [place, f"&{printer.map_names[self.map]}", barrier, *more])


def _look_at_beginning(
    op: Instruction, machine: Machine, map: TensorMap, first: Any, rows: Array, threads: Array
) -> None:
    """Report boxes that do not begin at a multiple of 16 bytes: on an H200 they are an illegal instruction.

    All else in the address is a multiple already: the tensor's beginning, and the strides of its other modes.
    """
    size = map.dtype.bytes
    given = np.broadcast_to(first, (machine.blocks, machine.threads))[rows, threads].astype(np.int64)
    wrong = np.flatnonzero(given * size % UNIT)
    if not wrong.size:
        return
    row, thread, at = int(rows[wrong[0]]), int(threads[wrong[0]]), int(given[wrong[0]])
    fault = Fault(
        op, "misaligned", f"misaligned: a box of {map.buffer.name} begins at element {at} of its contiguous mode, "
        f"{at * size} bytes in; TMA takes boxes that begin at multiples of {UNIT} bytes",
        machine.block_coordinate(row), machine.thread_coordinate(thread),
        help="begin boxes at multiples of 16 bytes along the contiguous mode, or copy by threads: tw.copy(src, dst)",
        count=int(wrong.size),
    )  # fmt: skip
    machine.collector.report(fault)


# From the rows and threads that start boxes: which of them, and the row, for each block that gets a box.
Targets = Callable[[Array, Array], tuple[Array, Array]]
Admission = Callable[[Frame, Lanes], "tuple[Mask, Targets | None]"]


@dataclass(eq=False)
class TensorMulticast(TensorLoad):
    """As `TensorLoad`, to every block of the cluster that `ranks` has the bit of.

    The box lands at one place in each of them, and its bytes arrive at the mbarrier that each has at one place.
    """

    ranks: Value = operand()

    COUNTED: ClassVar[str | None] = "tma load"

    def _admission(self, compiler: Compiler, mbarriers: Mbarriers) -> Admission:
        machine, given = compiler.machine, compiler.slot(self.ranks)
        size = machine.cluster_size

        def admit(frame: Frame, at: Lanes) -> tuple[Mask, Targets | None]:
            shape = machine.blocks, machine.threads
            chosen = np.broadcast_to(frame.values[given], shape).astype(np.int64)
            here = self._within(chosen, np.broadcast_to(np.True_ if frame.mask is None else frame.mask, shape), machine)
            for rank in range(size):
                those = here & (chosen >> rank & 1 != 0)
                if those.any():
                    admitted = mbarriers.admit(self, at, those, np.int32(rank))
                    here = here & ~(those if admitted is None else those & ~admitted)

            def targets(rows: Array, threads: Array) -> tuple[Array, Array]:
                which, rank = np.nonzero(chosen[rows, threads][:, None] >> np.arange(size) & 1)
                return which, rows[which] // size * size + rank

            return here, targets

        return admit

    def _within(self, chosen: Array, here: Array, machine: Machine) -> Array:
        """Return the threads of a mask that name blocks of their cluster; report the others."""
        size = machine.cluster_size
        wrong = here & ((chosen <= 0) | (chosen >> size != 0))
        if wrong.any():
            row, thread = (int(n) for n in np.argwhere(wrong)[0])
            fault = Fault(
                self, "out-of-bounds", f"multicast to the blocks {int(chosen[row, thread]):#b} of a cluster of {size}",
                machine.block_coordinate(row), machine.thread_coordinate(thread),
                help="bit r of the mask is the block of rank r; name one or more that the cluster has",
                count=int(wrong.sum()),
            )  # fmt: skip
            machine.collector.report(fault)
        return np.asarray(here & ~wrong)

    def cuda(self, printer: Printer) -> None:
        name, definition = _multicast_function(len(self.coordinates), self.hints)
        self._print(printer, name, definition, exact(printer, self.ranks).text)


@dataclass(eq=False)
class TensorStore(Instruction):
    """Start the copy of a box in shared `source` to `coordinates` of the tensor of `destination`, clipped at its end.

    The copy belongs to the thread's open bulk group.
    """

    destination: Buffer = writes(None, elements=_elements)
    source: Buffer = reads("source_index", elements=_elements)
    map: TensorMap = attribute()
    source_index: Value = operand()
    coordinates: tuple[Value, ...] = operands()
    hints: CacheHints | None = field(default=None, kw_only=True, metadata=AS_ATTRIBUTE)

    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, asynchronous=Completion.BULK_GROUP, proxy=Proxy.ASYNC)
    COUNTED: ClassVar[str | None] = "tma store"
    RESERVED: ClassVar[str] = r"tma_\w+|CUtensorMap|prefetch_tensor_map"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copy of tensors", PLAIN)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        _verify(self, self.destination, self.source, expect)

    @property
    def combined(self) -> str | None:
        """What elements are combined with those there by, None where they take their place."""
        return None

    def simulate(self, compiler: Compiler) -> Step:
        """Read shared memory now; the box lands when the thread waits for the group, or its block ends."""
        machine, groups = compiler.machine, compiler.bulk_groups
        boxes = boxes_of(self.map, machine, self.destination, self.source, getattr(self, "key", None))
        start, *coordinates = compiler.slots((self.source_index, *self.coordinates))
        combine = None if self.combined is None else _COMBINE[self.combined]
        kind = AccessKind.COPY_WRITE if combine is None else AccessKind.ATOMIC

        def run(frame: Frame) -> None:
            values = frame.values
            rows, threads = active(machine, frame.mask)
            _look_at_beginning(self, machine, self.map, values[coordinates[0]], rows, threads)
            look_before(self, machine, [values[c] for c in coordinates], rows, threads)
            index, there = boxes.elements([values[c] for c in coordinates], rows, threads)
            if self.map.is_pattern:  # of other maps the launch knows the extents
                look_at_ends(self, self.map, machine, there, rows, threads)
            place = boxes.places(values[start], rows, threads)
            read = BulkAccess(self, AccessKind.COPY_READ, boxes.memory, rows, threads, place, None)
            write = BulkAccess(self, kind, boxes.tensor, rows, threads, index, there)
            if machine.start_bulk(read, write):
                return
            box = boxes.memory.gather(rows, place)

            def land(which: Array) -> None:
                given, some = box[which], there[which]
                if combine is not None:
                    for n in range(len(given)):  # one box after another: two may meet at an element
                        one = slice(n, n + 1)
                        old = boxes.tensor.gather(rows[which][one], index[which][one], some[one])
                        new = combine(old, given[one]).astype(given.dtype)
                        boxes.tensor.scatter(rows[which][one], index[which][one], new, some[one])
                    return
                boxes.tensor.scatter(rows[which], index[which], given, some)

            groups.add(read, write, land)

        return run

    def cuda(self, printer: Printer) -> None:
        name, definition = store_function(len(self.coordinates), self.combined, self.hints)
        place = address(printer, self.source, self.source_index).text
        _print(printer, self, name, definition, [f"&{printer.map_names[self.map]}", place])


@dataclass(eq=False)
class TensorReduce(TensorStore):
    """As `TensorStore`; each element becomes what `reduction` gives of the one there and the box's, indivisibly."""

    destination: Buffer = updates(None, elements=_elements)
    reduction: str = attribute()

    COUNTED: ClassVar[str | None] = "tma reduce"

    @property
    def combined(self) -> str | None:
        return self.reduction

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        super().verify(expect)
        expect(self.reduction in _REDUCTIONS, f"no reduction {self.reduction}")
        expect(self.source.dtype in _REDUCTIONS[self.reduction], f"{self.source.dtype} is not reduced so")


def _verify(op: TensorLoad | TensorStore, tensor: Buffer, memory: Buffer, expect: Callable[[bool, str], None]) -> None:
    expect((tensor.space, memory.space) == (Space.GLOBAL, Space.SHARED), "copies between global and shared memory")
    expect(op.map.is_pattern or tensor is op.map.buffer, "the map is of another array")
    expect(tensor.dtype is memory.dtype, "the element types differ")
    expect(len(op.coordinates) == op.map.coordinates and op.map.rank <= 5, "a coordinate for each of 1 to 5 modes")
    expect(all(v.type is int32 for v in op.operands), "indices and coordinates are int32")


# --- how they are written --------------------------------------------------------------------------------


def _print(printer: Printer, op: TensorLoad | TensorStore, name: str, definition: str, given: list[str]) -> None:
    refuse_old(printer, op)
    printer.prelude.need(definition)
    print_call(printer, op, name, [*given, *(exact(printer, c).text for c in op.coordinates)])


def load_function(rank: int, hints: CacheHints | None) -> tuple[str, str]:
    """Return the name and the definition of a load of boxes of a rank."""
    parameters, operands, braces = _coordinates(rank, 3)
    name, (line, qualifier, operand, value) = hinted_name(f"tma_load_{rank}d", hints), hinted(hints, 3 + rank)
    definition = f"""\
// Starts the copy of a box of a tensor to shared memory; its bytes arrive at the barrier.
{FUNCTION} void {name}(
    void* destination, const CUtensorMap* map, unsigned long long* barrier, {parameters}) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
    const unsigned int signal = (unsigned int)__cvta_generic_to_shared(barrier);
{line}    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 "{qualifier} [%0], [%1, {{{braces}}}], [%2]{operand};"
                 :: "r"(address), "l"(map), "r"(signal), {operands}{value} : "memory");
}}"""
    return name, definition


def _multicast_function(rank: int, hints: CacheHints | None) -> tuple[str, str]:
    parameters, operands, braces = _coordinates(rank, 4)
    name = hinted_name(f"tma_load_multicast_{rank}d", hints)
    line, qualifier, operand, value = hinted(hints, 4 + rank)
    definition = f"""\
// Starts the copy of a box of a tensor to the same place in the blocks of the cluster whose bits `ranks` has; its bytes
// arrive at the barrier of each.
{FUNCTION} void {name}(
    void* destination, const CUtensorMap* map, unsigned long long* barrier, int ranks, {parameters}) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(destination);
    const unsigned int signal = (unsigned int)__cvta_generic_to_shared(barrier);
{line}    asm volatile("cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster{qualifier} [%0], [%1, {{{braces}}}], [%2], %3{operand};"
                 :: "r"(address), "l"(map), "r"(signal), "h"((unsigned short)ranks), {operands}{value} : "memory");
}}"""
    return name, definition


def store_function(rank: int, reduction: str | None, hints: CacheHints | None) -> tuple[str, str]:
    """Return the name and the definition of a store or reduction of boxes of a rank."""
    parameters, operands, braces = _coordinates(rank, 2)
    name = hinted_name(f"tma_store_{rank}d" if reduction is None else f"tma_reduce_{reduction}_{rank}d", hints)
    line, qualifier, operand, value = hinted(hints, 2 + rank)
    what = "Starts the copy of a box in shared memory to a tensor"
    instruction = f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    if reduction is not None:
        what = "Starts the reduction of a tensor's elements with a box in shared memory"
        instruction = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{reduction}.tile.bulk_group"
    definition = f"""\
// {what}; it belongs to the thread's open group.
{FUNCTION} void {name}(const CUtensorMap* map, const void* source, {parameters}) {{
    const unsigned int address = (unsigned int)__cvta_generic_to_shared(source);
{line}    asm volatile("{instruction}{qualifier}"
                 " [%0, {{{braces}}}], [%1]{operand};"
                 :: "l"(map), "r"(address), {operands}{value} : "memory");
}}"""
    return name, definition


def _coordinates(rank: int, first: int) -> tuple[str, str, str]:
    """Return the parameters, the operands of the assembly and their numbers, for so many coordinates."""
    names = [f"c{n}" for n in range(rank)]
    braces = ", ".join(f"%{first + n}" for n in range(rank))
    return ", ".join(f"int {name}" for name in names), ", ".join(f'"r"({name})' for name in names), braces
