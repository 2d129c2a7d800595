"""Operands of a warpgroup's matrix instructions: from tensors to registers and descriptors, and read back.

What the simulator reads is what the descriptor says, by the rules of the hardware, and not what the layout says: that
both are the same is what `descriptors.describe` promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.atoms.mma import MMAAtom
from tilewright.backends.sim.findings import Fault
from tilewright.backends.sim.machine import Access, AccessKind, Machine
from tilewright.backends.sim.storage import SharedStorage
from tilewright.backends.sim.values import Array, Lanes, Mask, at_least_2d
from tilewright.dtypes import DType, float16, uint32
from tilewright.errors import LanguageError, LayoutError
from tilewright.instructions.descriptors import CHUNK, LINES, Major, SharedDescriptor, describe, shared_layout
from tilewright.ir.core import Buffer, Op, Space, Value
from tilewright.ir.effects import WARPS_OF, Scope
from tilewright.layout import ComposedLayout, Layout, Swizzle
from tilewright.layout.coordinates import add_offsets
from tilewright.layout.ints import DynamicInt
from tilewright.tensors import Tensor
from tilewright.trace.scalar import Scalar


class SharedOperand:
    """A tensor (V, rest, K) in shared memory that an atom takes as A or B; V is the tile (rows, k) of an instruction.

    Raises `LanguageError` for memory that no descriptor describes.
    """

    def __init__(self, name: str, tensor: Tensor, atom: MMAAtom, major: Major) -> None:
        self.name = name
        self.tensor = tensor
        self.atom = atom
        self.major = major
        buffer = tensor.engine.buffer
        if buffer.space is not Space.SHARED or buffer.root.size is None:
            where = (
                "shared memory whose size only the launch knows" if buffer.space is Space.SHARED else buffer.space.value
            )
            raise LanguageError(
                f"tw.gemm: {atom.name} reads {name} from shared memory through a descriptor, and it lies in {where}",
                details=[f"{name}: {tensor.title}"],
                help=f"copy it to shared memory of tw.tile_to_shape(tw.atoms.GMMA_{major}_SW128({tensor.dtype}), ...)",
            )
        layout: Any = tensor.layout
        swizzle: Swizzle | None = None
        self._offset: Any = 0
        if isinstance(layout, ComposedLayout) and isinstance(layout.outer, Swizzle):
            swizzle, self._offset, layout = layout.outer, layout.offset, layout.inner
        if not isinstance(layout, Layout):
            raise self._refusal(f"its layout is composed of more than a swizzle and a layout: {tensor.layout}")
        self.layout = layout
        self._demand_shape()
        try:
            self.descriptor: SharedDescriptor = describe(layout[0], swizzle, tensor.dtype, major)
        except LayoutError as error:
            raise self._refusal(error.summary) from None
        self._demand_alignment()

    def index(self, row: Any, k: Any) -> Value:  # Any: integers of host or device
        """Return the element, of the memory without its swizzle, at which the tile of a row and a step of K begins."""
        engine = self.tensor.engine
        return engine.index(add_offsets(self._offset, self.layout((0, row, k))))  # type: ignore[no-any-return]

    def _demand_shape(self) -> None:
        rows, k = self._tile
        first = self.layout[0]
        if first.rank != 2 or (first[0].size, first[1].size) != (rows, k):
            raise LanguageError(
                f"{self.name} of {self.atom} has tiles of {rows} x {k}, and the tensor's first mode is {first.shape}",
                details=[f"{self.name}: {self.tensor.title}"],
                help=f"partition the tile in shared memory by a tiled mma of this atom: partition_{self.name}(tile)",
            )

    def _demand_alignment(self) -> None:
        """Let the memory be aligned to the pattern, and refuse tiles that begin elsewhere than a descriptor can say."""
        described, size = self.descriptor, self.tensor.dtype.bytes
        buffer = self.tensor.engine.buffer
        multiple = described.pattern if described.line > CHUNK else CHUNK
        for each in {buffer, buffer.root, buffer.family}:
            each.alignment = max(each.alignment, described.pattern)
        if self.tensor.engine.alignment % multiple:
            raise self._refusal(
                f"the tensor begins at a multiple of {self.tensor.engine.alignment} bytes, and the pattern of the "
                f"layout needs one of {multiple}"
            )
        rest = self._offset
        if isinstance(rest, DynamicInt):
            rest, _ = rest.split_multiple(multiple // size)
        limit = 0 if described.line == CHUNK or described.major == "MN" else described.line - self._width()
        low, high = (rest.facts.low, rest.facts.high) if isinstance(rest, Scalar) else (rest, rest)
        if isinstance(rest, Scalar) and rest.facts.divisor * size % multiple == 0:
            low = high = 0
        if low == high:  # a place within the pattern, and whole patterns before it
            low = high = low % (multiple // size)
        starts = {s % multiple for s in self._starts()}
        last = max(starts) + (high * size if isinstance(rest, Scalar) else high * size % multiple)
        if low < 0 or last > limit or any(s % CHUNK for s in (*starts, low * size)):
            raise self._refusal(
                f"tiles begin up to {last} bytes behind the beginning of a line, which has {described.line}"
            )

    @property
    def _tile(self) -> tuple[int, int]:
        """The rows and elements along K that an instruction reads."""
        return self.atom.shape_mnk["AB".index(self.name)], self.atom.extent(self.name, 2)

    def _width(self) -> int:
        """Return the bytes of a row of the tile along K."""
        return self._tile[1] * self.tensor.dtype.bytes

    def _starts(self) -> list[int]:
        """Return where the tiles of all coordinates begin, in bytes from the first."""
        if not self.layout.is_static:
            raise self._refusal(f"its shape and strides are not known while tracing: {self.layout}")
        rows, steps = (range(self.layout[mode].size) for mode in (1, 2))  # type: ignore[arg-type]  # static
        return [self.layout((0, i, j)) * self.tensor.dtype.bytes for i in rows for j in steps]

    def _refusal(self, why: str) -> LanguageError:
        dtype, (rows, k) = self.tensor.dtype, self._tile
        return LanguageError(
            f"tw.gemm: no descriptor of {self.atom.name} describes {self.name}: {why}",
            details=[f"{self.name}: {self.tensor.title}", f"a tile of {rows} x {k}, {self.major}-major"],
            help=_fitting(self.major, dtype, rows, k) + self._other_major(),
        )

    def _other_major(self) -> str:
        """Return what to do where the other mode is contiguous, as the end of a help text."""
        tile: Layout | None = getattr(self, "layout", None)  # not known where it is composed of more
        if tile is None or tile[0].rank != 2:
            return ""
        other = tile[0][0 if self.major == "K" else 1]
        if not other.is_static or other.size == 1 or other(1) != 1:
            return ""
        if self.tensor.dtype.bits != 16:
            return f"; {self.tensor.dtype} has to be K-major: transpose the tile while it is copied"
        majors = list(getattr(self.atom, "majors", ("K", "K")))
        majors["AB".index(self.name)] = "MN" if self.major == "K" else "K"
        return f"; or take the atom for its major, atom.with_majors{tuple(majors)}"


def _fitting(major: Major, dtype: DType, rows: int, k: int) -> str:
    """Return what layouts would do, as a help text."""
    names = []
    for kind in ("SW128", "SW64", "SW32", "INTER"):
        pattern = shared_layout(f"GMMA_{major}_{kind}")(dtype)
        # Of a swizzled line the hardware does not go on to the next one along K.
        fits = kind == "INTER" or k <= pattern[1].size if major == "K" else rows % pattern[0].size == 0
        if fits:
            names.append(f"tw.atoms.GMMA_{major}_{kind}")
    others = f", or one of {', '.join(names[1:])}" if len(names) > 1 else ""
    return f"make it tw.tile_to_shape({names[0]}(tw.{dtype}), shape){others}"


class Accumulator:
    """A fragment (V, M, N) in which products sum up: V lies together in registers, as the instruction numbers it."""

    def __init__(self, atom: MMAAtom, tensor: Tensor) -> None:
        _demand_registers("C", tensor, atom)
        values = atom.layout_c[1].size
        first = tensor.layout[0]
        assert isinstance(values, int), atom
        if first.size != values or [first(v) for v in range(values)] != list(range(values)):
            raise LanguageError(
                f"C of {atom} has {values} values a thread in order, and the fragment's first mode is {first}",
                details=[f"C: {tensor.title}"],
                help="make it with mma.get_slice(thread).partition_fragment_C(tile)",
            )
        seen = tensor.recast(uint32) if tensor.dtype is float16 else tensor
        self.buffer: Any = seen.engine.buffer
        self._engine = seen.engine
        self._layout = seen.layout

    def index(self, m: Any, n: Any) -> Value:  # Any: integers of host or device
        """Return the first register of a tile."""
        return self._engine.index(self._layout((0, m, n)))  # type: ignore[no-any-return]


class FragmentA:
    """A fragment (V, M, K) of A, seen as words of 32 bits."""

    def __init__(self, atom: MMAAtom, tensor: Tensor) -> None:
        _demand_registers("A", tensor, atom)
        registers, values = atom.registers_a, atom.layout_a[1].size
        if tensor.layout[0].size != values:
            raise LanguageError(
                f"A of {atom} has {values} values a thread, and the fragment's first mode has {tensor.layout[0].size}",
                details=[f"A: {tensor.title}"],
                help="make it with mma.get_slice(thread).partition_fragment_A(tile)",
            )
        first = [tensor.layout[0](v) for v in range(registers.count * registers.lanes)]
        pairs = [first[i : i + registers.lanes] for i in range(0, len(first), registers.lanes)]
        if any(pair != list(range(pair[0], pair[0] + registers.lanes)) or pair[0] % registers.lanes for pair in pairs):
            raise LanguageError(
                f"A of {atom} is passed in words of {registers.lanes} neighbours along K, which do not adjoin in the "
                "fragment",
                details=[f"A: {tensor.title}"],
                help="copy it into a fragment with a compact first mode: tw.registers(dtype, (V, M, K))",
            )
        seen = tensor.recast(uint32)
        self.offsets: tuple[Any, ...] = tuple(pair[0] // registers.lanes for pair in pairs)
        self.buffer: Any = seen.engine.buffer
        self._engine = seen.engine
        self._layout = seen.layout

    def index(self, m: Any, k: Any) -> Value:  # Any: as above
        """Return the word from which `offsets` count."""
        return self._engine.index(self._layout((0, m, k)))  # type: ignore[no-any-return]


def _demand_registers(name: str, tensor: Tensor, atom: MMAAtom) -> None:
    layout = tensor.layout
    if not isinstance(layout, Layout) or not layout.is_static or tensor.engine.buffer.space is not Space.REGISTER:
        raise LanguageError(
            f"{name} of {atom} lives in registers, with a static layout, not in {tensor.title}",
            help=f"make a fragment first: mma.get_slice(thread).partition_fragment_{name}(tile)",
        )


# --- how the simulator reads operands --------------------------------------------------------------------


class OperandReader:
    """Reads the tiles of all warpgroups of a chunk by descriptors, and tells the observers."""

    def __init__(
        self, op: Op, machine: Machine, buffer: Buffer, rows: int, k: int, described: SharedDescriptor, name: str = "B"
    ) -> None:
        storage = machine.storages[buffer]
        assert isinstance(storage, SharedStorage), buffer
        self._op, self._machine, self._storage = op, machine, storage
        self._rows, self._k, self._descriptor = rows, k, described
        self._size, self._name = buffer.dtype.bytes, name
        self._lanes = CHUNK // self._size
        self._warpgroup = machine.warp * WARPS_OF[Scope.WARPGROUP]

    @cached_property
    def _chunks(self) -> Array:
        """The byte at which each chunk of the tile begins, from its start: (rows, chunks) or (chunks, k)."""
        places = self._descriptor.places(self._rows, self._k, self._size)
        return places[:, :: self._lanes] if self._descriptor.major == "K" else places[:: self._lanes, :]

    def read(self, index: Lanes, mask: Mask, groups: Array) -> Array:
        """Return the tiles (blocks or 1, groups, rows, k) of some warpgroups."""
        demand_same(self._op, "descriptors", index, mask, self._machine)
        starts = at_least_2d(index).astype(np.int64)
        if starts.shape[1] > 1:
            starts = starts[:, groups * self._warpgroup]
        starts = self._storage.offset + starts * self._size
        addresses = self._descriptor.swizzled(starts[:, :, None, None] + self._chunks)  # of bytes of a block's memory
        if self._machine.observers:
            self._observe(addresses, mask, groups)
            for observer in self._machine.observers:
                observer.read_operand(self._op, self._name, self._core_matrices(addresses), mask)
        arena = self._machine.arena
        cells = arena.view(np.complex128)
        where = addresses // CHUNK
        pitch = cells.shape[1]
        if (where < 0).any() or (where >= pitch).any():
            if not self._machine.observers:
                error = IndexError(f"byte {int(addresses.max())} of {arena.shape[1]}")
                raise self._machine.outside(self._op, self._storage.buffer, error)
            where = where.clip(0, pitch - 1)
        blocks = np.arange(len(cells))[:, None, None, None]
        found = cells[blocks, where].view(self._storage.buffer.dtype.numpy)
        if self._descriptor.major == "K":
            return self._all_groups(found, groups)
        found = found.reshape(*found.shape[:3], self._k, self._lanes).swapaxes(-1, -2)
        return self._all_groups(found.reshape(*found.shape[:2], self._rows, self._k), groups)

    def _core_matrices(self, addresses: Array) -> Array:
        """Return the addresses of chunks by core matrices, (..., 8): of 8 rows, or of 8 k where MN is contiguous."""
        chunks = addresses.swapaxes(-1, -2) if self._descriptor.major == "K" else addresses
        return chunks.reshape(*chunks.shape[:2], -1, LINES)

    def _all_groups(self, found: Array, groups: Array) -> Array:
        return np.broadcast_to(found, (found.shape[0], len(groups), *found.shape[2:]))

    def _observe(self, addresses: Array, mask: Mask, groups: Array) -> None:
        """Show the reads to the observers: each warp reads all of the tile, its lanes a chunk each, several times."""
        machine, warp = self._machine, self._machine.warp
        elements = (addresses - self._storage.offset) // self._size
        elements = elements.reshape(*elements.shape[:2], -1)
        count, threads = elements.shape[2], machine.threads
        of_thread = np.zeros(threads, np.intp)
        if elements.shape[1] > 1:
            of_thread[np.repeat(groups, self._warpgroup) * self._warpgroup + np.tile(
                np.arange(self._warpgroup), len(groups)
            )] = np.repeat(np.arange(len(groups)), self._warpgroup)  # fmt: skip
        lane = np.arange(threads) % warp
        for first in range(0, count, warp):
            index = elements[:, of_thread, (first + lane) % count]
            machine.observe(Access(self._op, AccessKind.OPERAND_READ, self._storage, index, self._lanes, mask))


def demand_same(op: Op, what: str, value: Lanes, mask: Mask, machine: Machine) -> None:
    """Report a warpgroup whose threads pass different values where the instruction takes one."""
    array, groups = at_least_2d(value), machine.products
    if not machine.observers or array.shape[1] == 1:
        return
    own = array[:, : groups.count * groups.size].reshape(len(array), groups.count, groups.size)
    differs = (own != own[:, :, :1]).any(axis=2) & groups.active(mask)
    if not differs.any():
        return
    row, group = (int(n) for n in np.argwhere(differs)[0])
    first = group * groups.size
    fault = Fault(
        op, "warp-divergence", f"threads of a warpgroup pass different {what} to one wgmma",
        machine.block_coordinate(row), machine.thread_coordinate(first),
        help="let what the product depends on be the same in the warpgroup: of tw.warpgroup_id(), not of tw.thread_idx",
        count=int(differs.sum()) * groups.size,
    )  # fmt: skip
    machine.collector.report(fault)


class RegisterTiles:
    """How registers of the threads of warpgroups become tiles (rows, columns), and back."""

    def __init__(self, machine: Machine, table: Array, shape: tuple[int, int]) -> None:
        self._machine, self._table, self._shape = machine, table, shape
        self._size = machine.products.size

    def tile(self, registers: Sequence[Any], dtype: DType, groups: Array) -> Array:
        """Return the tiles (blocks or 1, groups, rows, columns) in the registers of some warpgroups."""
        held = np.stack(np.broadcast_arrays(*[at_least_2d(r) for r in registers]), axis=-1)
        held = np.ascontiguousarray(np.broadcast_to(held, (len(held), self._machine.threads, held.shape[-1])))
        held = held[:, : self._machine.products.count * self._size].view(dtype.numpy)
        by_group = held.reshape(len(held), -1, self._size, held.shape[-1])[:, groups]
        rows, columns = self._shape
        flat = np.empty((*by_group.shape[:2], rows * columns), by_group.dtype)
        flat[..., self._table] = by_group
        tiles: Array = flat.reshape(*flat.shape[:2], columns, rows).swapaxes(-1, -2)
        return tiles

    def spread(self, tiles: Array, dtype: DType, groups: Array) -> list[Array]:
        """Return the registers of a type, one after the other, each (blocks or 1, threads)."""
        flat = tiles.swapaxes(-1, -2).reshape(*tiles.shape[:2], -1)[..., self._table]
        held = np.zeros((len(flat), self._machine.threads, flat.shape[-1]), tiles.dtype)
        whole = held[:, : self._machine.products.count * self._size].reshape(len(flat), -1, self._size, flat.shape[-1])
        whole[:, groups] = flat
        held[:, : self._machine.products.count * self._size] = whole.reshape(len(flat), -1, flat.shape[-1])
        words = held.view(dtype.numpy)
        return [np.ascontiguousarray(words[..., i]) for i in range(words.shape[-1])]
