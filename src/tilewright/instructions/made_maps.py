"""Tensor maps that threads make: for tensors whose place, extents or strides only the device knows.

    MakeTensorMap   tensormap.replace, tensormap.cp_fenceproxy, fence.proxy.tensormap       a warp makes a map
    MadeLoad, MadeStore                                     copies of boxes by such a map, see `tensor_copies`

A grouped product takes the addresses of its matrices from an array, and their extents from others. A map of the launch
is the pattern: type, box, swizzle. The warp copies it to shared memory, replaces place, extents and strides, copies it
to global memory, and makes it visible to copies that the warp starts from there on.

Source: PTX ISA, "tensormap.replace", "tensormap.cp_fenceproxy", "membar / fence"; CUTLASS,
include/cute/arch/copy_sm90_desc.hpp and sm90_mma_array_tma_gmma_ss_warpspecialized.hpp.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from tilewright.arguments import shown
from tilewright.atoms.copy import CacheHints
from tilewright.backends.cpp.arithmetic import exact
from tilewright.backends.cpp.memory import address
from tilewright.backends.cpp.prelude import FUNCTION
from tilewright.backends.sim.aliases import PointedStorage
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Access, AccessKind, Machine, MadeMaps, demand_whole_warps
from tilewright.backends.sim.storage import GlobalStorage
from tilewright.backends.sim.values import Array, Frame, Lanes, at_least_2d
from tilewright.dtypes import int32, int64, uint64
from tilewright.errors import LanguageError
from tilewright.instructions.bulk_copies import print_call, refuse_old
from tilewright.instructions.tensor_copies import TensorLoad, TensorStore, load_function, store_function
from tilewright.ir.core import Buffer, Space, TensorMap, Value
from tilewright.ir.effects import Effects, Scope, attribute, names, operand, operands, writes
from tilewright.ir.instruction import Instruction
from tilewright.layout import Layout
from tilewright.layout.layouts import flat_modes
from tilewright.tensors import GuardedTensor, Tensor
from tilewright.tensors.guarded import guarded
from tilewright.trace.boxes import BoxRefusal, MappedEngine, is_nan, map_of, plan_boxes
from tilewright.trace.engine import BufferEngine, allocate
from tilewright.trace.scalar import as_scalar
from tilewright.trace.threads import warp_id
from tilewright.trace.tracer import current

if TYPE_CHECKING:
    from tilewright.backends.cpp.printer import Printer
    from tilewright.backends.sim.compiler import Compiler, Step
    from tilewright.instructions.mbarrier import MBarrier

_WORDS = 16  # uint64 of a map
_EACH = 2  # of them that a lane writes
_WHAT = "tw.make_tensor_map"
_WAY_OUT = "pass the arrays themselves, whose maps the launch makes, or copy with tw.copy(src, dst)"


def make_tensor_map(tile: Tensor, smem: Tensor, room: Tensor, slot: Any = 0) -> GuardedTensor:  # Any: a number
    """Return the tensor that a tile was cut from, with a tensor map that the warp creates here (sm_90a).

    It is for tensors whose address (`tw.pointer`), extents or strides the device computes. All threads of a warp call
    this together, and threads of this warp start the copies of tiles of the result. `tile` is a guarded tile of the
    tensor and `smem` the shared memory that such tiles are copied to: they determine the boxes of the map. The map is
    stored in elements 16 * slot to 16 * slot + 15 of `room`, an array of uint64 with a slot for each map that is in use
    at a time; nothing else may write there. Before a slot is reused, wait for the copies by its old map.

    Raises `LanguageError` for tensors that no box fits, and for a `room` of another type or size.
    """
    tracer = current(_WHAT)
    if tracer.arch.is_amd or tracer.arch.number < 90:
        raise LanguageError(f"{_WHAT}: {tracer.arch} has no tensor maps; they need sm_90 or later", help=_WAY_OUT)
    if tracer.arch.name != "sm_90a":
        raise LanguageError(f"{_WHAT}: tensormap.replace needs sm_90a, and the target is {tracer.arch}", help=_WAY_OUT)
    given: tuple[object, ...] = (tile, smem, room)
    if not all(isinstance(each, Tensor) for each in given) or not isinstance(tile, GuardedTensor):
        raise LanguageError(
            f"{_WHAT}: it takes a guarded tile, a tensor of shared memory and an array of uint64, got "
            f"{', '.join(map(shown, given))}",
            help="tw.make_tensor_map(tw.local_tile(tw.guarded(x), tile, coord), smem, room, slot)",
        )
    refuse = BoxRefusal("it", tile, smem, caller=_WHAT)
    _demand_room(room, refuse)
    origin = tile.edge.origin
    if type(origin) is not BufferEngine or not all(type(b) is int and b == 0 for b in tile.edge.begin):
        raise refuse("describes the tensor that was guarded, once", "tile tw.guarded(x) of the tensor itself")
    plan = plan_boxes(tile, smem, refuse)
    pattern, key = _pattern(tile, plan, room, refuse), MadeKey()
    warps = -(-math.prod(tracer.block_shape or (1024,)) // tracer.arch.warp_size)
    scratch = allocate(Space.SHARED, uint64, _WORDS * warps, 128).buffer
    scratch.name = f"{room.engine.name or 'map'}_scratch"
    numbers = [as_scalar(number).to(int64).value for k in plan.order for number in (tile.edge.shape[k],)]
    strides = [as_scalar(tile.edge.stride[k]).to(int64).value for k in plan.order]
    place, own = room.engine.index(slot * _WORDS), as_scalar(warp_id() * _WORDS).to(int32).value
    tracer.emit(
        MakeTensorMap(
            room.engine.buffer, scratch, origin.buffer, pattern, key, place, own,
            as_scalar(origin.start).value, tuple(numbers), tuple(strides),
        )
    )  # fmt: skip
    fields = {f.name: getattr(origin, f.name) for f in dataclasses.fields(BufferEngine)}
    engine = MappedEngine(
        **fields, plan=plan, map=pattern, copies=Copies(origin.buffer, room.engine.buffer, place, pattern, key)
    )
    found: GuardedTensor = guarded(Tensor(engine, Layout(tile.edge.shape, tile.edge.stride)), tile.edge.fill)
    return found


def _demand_room(room: Tensor, refuse: BoxRefusal) -> None:
    engine, layout = room.engine, room.layout
    is_array = isinstance(engine, BufferEngine) and engine.buffer.space is Space.GLOBAL and engine.buffer.base is None
    stride = flat_modes(layout)[1] if isinstance(layout, Layout) else ()
    is_whole = len(stride) == 1 and type(stride[0]) is int and stride[0] == 1
    starts = is_array and type(engine.start) is int and engine.start == 0 and not engine.buffer.is_pointed
    if room.dtype is not uint64 or not is_whole or not starts:
        raise refuse(
            f"keeps maps in an array of uint64 with one mode, 16 elements a map, and room is {room.title}",
            "pass an array of its own: an empty array of 16 * maps elements",
        )


def _pattern(tile: GuardedTensor, plan: Any, room: Tensor, refuse: BoxRefusal) -> TensorMap:  # Any: a BoxPlan
    """Return the map from which maps are made: boxes of the tile, of a tensor of one box."""
    tracer, size = current(_WHAT), tile.dtype.bytes
    extents = [max(extent, -(-16 // size)) for extent in plan.box]
    strides, stride = [1], -(-extents[0] * size // 16) * 16 // size
    for extent in extents[1:]:
        strides.append(stride)
        stride *= extent
    nan = is_nan(tile.edge.fill, tile.dtype, refuse)
    return map_of(
        tracer, room.engine, extents, strides, refuse, box=plan.box, swizzle=plan.swizzle, nan=nan, steps=plan.steps,
        element=tile.dtype,
    )  # fmt: skip


class MadeKey:
    """What the simulator keeps the maps of one call by: copies by them name the same."""


@dataclass(frozen=True)
class Copies:
    """Emits copies by a map that threads have made: of `tensor`, at an element of `room`."""

    tensor: Buffer
    room: Buffer
    place: Value
    map: TensorMap
    key: MadeKey

    def emit(
        self,
        memory: Buffer,
        index: Value,
        coordinates: tuple[Value, ...],
        hints: CacheHints | None,
        barrier: MBarrier | None,
    ) -> None:
        """Emit the copy of a box."""
        tracer = current("tw.copy")
        if barrier is None:
            where = self.tensor, memory, self.map, index, coordinates
            tracer.emit(MadeStore(*where, self.room, self.key, self.place, hints=hints))
        else:
            at = barrier.element("tw.copy").value
            to = memory, self.tensor, barrier.buffer, self.map, index, at, coordinates
            tracer.emit(MadeLoad(*to, self.room, self.key, self.place, hints=hints))


# --- the ops ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class MakeTensorMap(Instruction):
    """Make a tensor map of `described`, from its element `start` on, in 128 bytes of `room`; the warp works together.

    `extents` and `strides` (in elements) are in the order of the map. `scratch` is 128 bytes of shared memory a warp.
    """

    room: Buffer = writes("room_index", elements=lambda op: _EACH, lanes=lambda op: _WORDS // _EACH)
    scratch: Buffer = writes("scratch_index", elements=lambda op: _EACH, lanes=lambda op: _WORDS // _EACH)
    described: Buffer = names()
    map: TensorMap = attribute()
    key: MadeKey = attribute()
    room_index: Value = operand()
    scratch_index: Value = operand()
    start: Value = operand()
    extents: tuple[Value, ...] = operands()
    strides: tuple[Value, ...] = operands()

    CALLED: ClassVar[str | None] = _WHAT
    RESULTS: ClassVar[int | None] = 0
    EFFECTS: ClassVar[Effects] = Effects(removable=False, together=Scope.WARP, refused_apart=True)
    COUNTED: ClassVar[str | None] = "tensor map"
    RESERVED: ClassVar[str] = r"make_tensor_map_\w+|CUtensorMap"
    ON_AMD: ClassVar[tuple[str, str] | None] = ("bulk copy of tensors", _WAY_OUT)

    def verify(self, expect: Callable[[bool, str], None]) -> None:
        expect(self.room is self.map.buffer and self.room.dtype is uint64, "maps lie in an array of uint64")
        expect(len(self.extents) == len(self.strides) == self.map.rank, "an extent and a stride for each mode")
        expect(all(v.type is int64 for v in (*self.extents, *self.strides)), "extents and strides are int64")

    def simulate(self, compiler: Compiler) -> Step:
        """Keep what the map describes, for copies by the threads of the warp."""
        machine = compiler.machine
        room, described = machine.storages[self.room], machine.storages[self.described]
        assert isinstance(room, GlobalStorage) and isinstance(described, (GlobalStorage, PointedStorage)), self
        at, start = compiler.slots((self.room_index, self.start))
        extents, strides = compiler.slots(self.extents), compiler.slots(self.strides)
        lane = np.arange(machine.threads)[None, :] % machine.warp
        few = lane < _WORDS // _EACH

        def run(frame: Frame) -> None:
            values, mask = frame.values, frame.mask
            demand_whole_warps(self, _WHAT, mask, machine, True)
            writing, index = few if mask is None else few & mask, at_least_2d(values[at]) + lane * _EACH
            machine.observe(Access(self, AccessKind.STORE, room, index, _EACH, writing))
            shape = machine.blocks, machine.threads
            here = np.broadcast_to(np.True_ if mask is None else mask, shape)
            made = machine.made_maps.get(self.key)
            if made is None:
                none = np.full(shape, -1, np.int64)
                lists = [[none.copy() for _ in self.extents] for _ in range(2)]
                made = machine.made_maps[self.key] = MadeMaps(none, *lists)
            begin = np.broadcast_to(_begin(described, values[start]), shape)
            numbers = [[_full(values[n], shape) for n in slots] for slots in (extents, strides)]
            good = here & ~self._refused(machine, here, begin, *numbers)
            made.address = np.where(here, np.where(good, begin, -1), made.address)
            for old, new in zip((made.extents, made.strides), numbers, strict=True):
                old[:] = [np.where(good, n, o) for n, o in zip(new, old, strict=True)]

        return run

    def _refused(
        self, machine: Machine, here: Array, begin: Array, extents: list[Array], strides: list[Array]
    ) -> Array:
        """Report what no tensor map describes, and return whose map that is."""
        size = self.map.dtype.bytes
        storage = machine.storages[self.described]
        places = begin if isinstance(storage, PointedStorage) else _address(storage, begin)
        refused = np.zeros_like(here)
        checks = [("begins at address", places, places % 16 != 0, "a multiple of 16")]
        checks += [
            (f"has in mode {k} extent", n, (n < 1) | (n > 1 << 32), "from 1 to 2**32") for k, n in enumerate(extents)
        ]
        checks += [(f"has in mode {k} a stride of bytes", n * size, (n * size % 16 != 0) | (n < 0), "a multiple of 16")
                   for k, n in enumerate(strides) if k]  # fmt: skip
        for what, number, wrong, expected in checks:
            bad = here & wrong
            if bad.any():
                row, thread = (int(n) for n in np.argwhere(bad)[0])
                fault = Fault(
                    self, "misaligned", f"misaligned: the tensor of {_WHAT} {what} {int(number[row, thread])}; it "
                    f"takes {expected}", machine.block_coordinate(row), machine.thread_coordinate(thread),
                    self.described.name, help="pad the arrays, or copy this one with tw.copy(src, dst)",
                    count=int(bad.sum()),
                )  # fmt: skip
                machine.collector.report(fault)
                refused = refused | bad
        reach: Any = sum((n - 1) * d for n, d in zip(extents, strides, strict=True))
        bad = here & ~refused & ~(_covered(storage, begin, 0, size) & _covered(storage, begin, reach, size))
        if bad.any():
            row, thread = (int(n) for n in np.argwhere(bad)[0])
            shape = tuple(int(n[row, thread]) for n in extents)
            fault = Fault(
                self, "out-of-bounds", f"out of bounds: the tensor of {_WHAT}, of extents {shape} from the "
                "contiguous mode on, does not lie in an array of the launch", machine.block_coordinate(row),
                machine.thread_coordinate(thread), self.described.name,
                help="check its address, extents and strides", count=int(bad.sum()),
            )  # fmt: skip
            machine.collector.report(fault)
        return refused | bad

    def cuda(self, printer: Printer) -> None:
        if printer.arch.name != "sm_90a":
            raise printer.refuse(self, f"tensormap.replace needs sm_90a, and the target is {printer.arch}", _WAY_OUT)
        name, definition = _make_function(self.map.rank)
        printer.prelude.need(definition)
        size = self.map.dtype.bytes
        given = [
            address(printer, self.room, self.room_index).text,
            address(printer, self.scratch, self.scratch_index).text,
            f"&{printer.map_names[self.map]}",
            address(printer, self.described, self.start).text,
            *(exact(printer, n).text for n in self.extents),
            *(_bytes(exact(printer, n).text, size) for n in self.strides[1:]),
        ]
        print_call(printer, self, name, given)


def _bytes(elements: str, size: int) -> str:
    """Return the C++ of so many elements in bytes."""
    return elements if size == 1 else f"{elements} * {size}" if elements.isidentifier() else f"({elements}) * {size}"


def _full(value: Lanes, shape: tuple[int, int]) -> Array:
    return np.broadcast_to(at_least_2d(value), shape).astype(np.int64)


def _begin(storage: GlobalStorage | PointedStorage, start: Lanes) -> Array:
    """Return the address of an element, of an array argument its index."""
    if isinstance(storage, PointedStorage):
        return storage.addresses(start)
    return np.asarray(at_least_2d(start)).astype(np.int64)


def _covered(storage: Any, begin: Array, reach: Any, size: int) -> Array:  # Any: a storage; an array, or 0
    """Say whether the element so many behind the first one lies in an array."""
    if isinstance(storage, PointedStorage):
        return storage.space.covered(begin + reach * size, size)
    return np.asarray((begin + reach >= storage.low) & (begin + reach < storage.high))


def _address(storage: Any, index: Array) -> Array:  # Any: a GlobalStorage
    return np.asarray(storage.address + (index - storage.low) * storage.flat.itemsize)


@dataclass(eq=False)
class MadeLoad(TensorLoad):
    """As `TensorLoad`, by the map in `room`."""

    room: Buffer = names()
    key: MadeKey = attribute()
    room_index: Value = operand()

    COUNTED: ClassVar[str | None] = "tma load"

    def simulate(self, compiler: Compiler) -> Step:
        return _by_makers(self, compiler, super().simulate(compiler))

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        name, definition = load_function(len(self.coordinates), self.hints)
        printer.prelude.need(definition)
        given = [
            address(printer, self.destination, self.destination_index).text,
            f"(const CUtensorMap*){address(printer, self.room, self.room_index).text}",
            address(printer, self.barrier, self.barrier_index).text,
            *(exact(printer, c).text for c in self.coordinates),
        ]
        print_call(printer, self, name, given)


@dataclass(eq=False)
class MadeStore(TensorStore):
    """As `TensorStore`, by the map in `room`."""

    room: Buffer = names()
    key: MadeKey = attribute()
    room_index: Value = operand()

    COUNTED: ClassVar[str | None] = "tma store"

    def simulate(self, compiler: Compiler) -> Step:
        return _by_makers(self, compiler, super().simulate(compiler))

    def cuda(self, printer: Printer) -> None:
        refuse_old(printer, self)
        name, definition = store_function(len(self.coordinates), None, self.hints)
        printer.prelude.need(definition)
        given = [
            f"(const CUtensorMap*){address(printer, self.room, self.room_index).text}",
            address(printer, self.source, self.source_index).text,
            *(exact(printer, c).text for c in self.coordinates),
        ]
        print_call(printer, self, name, given)


def _by_makers(op: MadeLoad | MadeStore, compiler: Compiler, copy: Step) -> Step:
    """Return a copy that reports the threads whose warp has not made the map."""
    machine = compiler.machine

    def run(frame: Frame) -> None:
        made = machine.made_maps.get(op.key)
        shape = machine.blocks, machine.threads
        here = np.broadcast_to(np.True_ if frame.mask is None else frame.mask, shape)
        bad = here if made is None else here & (made.address < 0)
        if bad.any():
            row, thread = (int(n) for n in np.argwhere(bad)[0])
            fault = Fault(
                op, "missing-fence", "missing fence: a copy by a tensor map that its warp has not made",
                machine.block_coordinate(row), machine.thread_coordinate(thread), op.room.name,
                help="let the warp that starts the copies call tw.make_tensor_map before them, all threads together",
                count=int(bad.sum()),
            )  # fmt: skip
            machine.collector.report(fault)
        copy(frame)

    return run


# --- how it is written -----------------------------------------------------------------------------------


def _make_function(rank: int) -> tuple[str, str]:
    name = f"make_tensor_map_{rank}d"
    extents = "".join(f", long long e{n}" for n in range(rank))
    strides = "".join(f", long long s{n}" for n in range(1, rank))
    replace = "tensormap.replace.tile."
    lines = [
        f'asm volatile("{replace}global_address.shared::cta.b1024.b64 [%0], %1;" '
        ':: "r"(place), "l"(tensor) : "memory");'
    ]
    lines += [
        f'asm volatile("{replace}global_dim.shared::cta.b1024.b32 [%0], {n}, %1;" '
        f':: "r"(place), "r"((unsigned int)e{n}) : "memory");'
        for n in range(rank)
    ]  # fmt: skip
    lines += [
        f'asm volatile("{replace}global_stride.shared::cta.b1024.b64 [%0], {n - 1}, %1;" '
        f':: "r"(place), "l"(s{n} >> unit) : "memory");'
        for n in range(1, rank)
    ]
    body = "\n".join(f"        {line}" for line in lines)
    unit = """\
#if __CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ < 5
    const int unit = 4;  // strides go without their last four bits
#else
    const int unit = 0;
#endif
""" if rank > 1 else ""  # fmt: skip
    definition = f"""\
// Makes a tensor map in `room`, a pattern with another tensor, extents and strides in bytes; a whole warp together.
// Behind it, copies that threads of the warp start go by the map.
{FUNCTION} void {name}(
    void* room, void* scratch, const CUtensorMap* pattern, const void* tensor{extents}{strides}) {{
    const unsigned int place = (unsigned int)__cvta_generic_to_shared(scratch);
    unsigned int lane;
    asm volatile("mov.u32 %0, %laneid;" : "=r"(lane));
{unit}    __syncwarp();
    ((unsigned int*)scratch)[lane] = ((const unsigned int*)pattern)[lane];
    __syncwarp();
    if (lane == 0) {{
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;" ::: "memory");
{body}
    }}
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
                 " [%0], [%1], 128;" :: "l"(room), "r"(place) : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(room) : "memory");
}}"""
    return name, definition
