"""Fragments: operands of matrix instructions in the registers of a warp, how they are read, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES
from tilewright.atoms import CopyAtom
from tilewright.dtypes import DType
from tilewright.errors import LayoutError, ScheduleError
from tilewright.ir.core import Space
from tilewright.language.copying import copy, fill
from tilewright.layout import ComposedLayout, Layout, coalesce, composition, make_layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.arrays import Load
from tilewright.schedule.caches import Cache
from tilewright.schedule.edges import Guard, guard_of, when_whole
from tilewright.schedule.filling import Filling, divisor_of_affine
from tilewright.schedule.loop_nest import Access, Condition, Part
from tilewright.schedule.mma_shapes import MMAFragmentOp
from tilewright.schedule.plan_state import Operation, Tensorization
from tilewright.schedule.scope import Parts, Scope, Storage
from tilewright.tensors import Tensor, identity_tensor
from tilewright.tiled import TiledMMA, make_tiled_copy_A, make_tiled_copy_B
from tilewright.trace.carry import rename
from tilewright.trace.control import branch, nest
from tilewright.trace.elementwise import convert_fragment
from tilewright.trace.mathematics import maximum, minimum, where
from tilewright.trace.memory import registers
from tilewright.trace.scalar import as_scalar
from tilewright.trace.threads import thread_idx
from tilewright.trace.tracer import current

Side = Literal["A", "B"]
View = Callable[[], tuple[Tensor, Guard]]  # elements in memory and which are there, looked at only where needed


class Fragments:
    """What a kernel's matrix instructions hold in registers, and how it gets there. One for each building of a kernel.

    For counting, `roles` says of each buffer of registers which operand it holds a part of.
    """

    def __init__(self, scope: Scope, tile: Tensorization) -> None:
        self.scope = scope
        self.tile = tile
        self.mmas: tuple[TiledMMA, ...] = tile.recipe.mmas
        self.roles: dict[Any, str] = {}  # Any: buffers of the IR
        m, n, k = tile.shape.m, tile.shape.n, tile.shape.k
        self.extents: dict[Index, int] = dict(zip(tile.indices, (m, n, k), strict=True))

    # The instruction may compute the transpose: its A is then B, and the rows of its C are the columns of C.

    def access(self, side: Side) -> Access:
        """Return the access that an operand of the instruction comes from."""
        return self.tile.a if (side == "A") != self.tile.recipe.transposed else self.tile.b

    def rows(self, side: Side) -> Index:
        """Return the index that an operand's rows move with."""
        return self.tile.indices[0 if (side == "A") != self.tile.recipe.transposed else 1]

    def role(self, side: Side) -> str:
        """Return the name of an operand in the statement."""
        return "A" if (side == "A") != self.tile.recipe.transposed else "B"

    @property
    def target_indices(self) -> tuple[Index, Index]:
        """The indices of the rows and columns of the instruction's C."""
        return self.rows("A"), self.rows("B")

    @property
    def lane(self) -> Any:  # Any: a device number
        """The thread's number in its warp."""
        size = self.scope.plan.target.warp_size
        x, *_ = self.scope.plan.block
        return thread_idx.x if x == size else thread_idx.x % size

    def divisor(self, place: Affine) -> int:
        return divisor_of_affine(self.scope, place)

    def view(self, access: Access, along: list[tuple[Index, int]]) -> Tensor:
        """Return the elements that an access touches while some indices run from where they are now."""
        scope = self.scope
        starts = {index: scope.values.get(index, 0) for index in self.tile.indices}
        return tile_view(scope.storage[access.array], access.place, along, {**scope.values, **starts}, self.divisor)

    def within(self, parts: Parts, body: Callable[[], None]) -> None:
        """Emit something where the loops around are within the boundaries of some part: others have no such tile."""
        holds: Any = False  # Any: a condition of host or device
        for part in parts:
            alive = self.scope.decided(part)
            if alive is None:
                continue
            known = tuple(c for c in self.outer_conditions(alive) if self.scope.is_known(c.value))
            this = self.scope.holds(known)
            holds = this if holds is False else True if this is True or holds is True else holds | this
        branch(holds, body)

    def outer_conditions(self, part: Part) -> tuple[Condition, ...]:
        """Return the conditions that do not depend on the tile's own loops; the others hold by the tile's making."""
        return tuple(c for c in part.conditions if not any(c.value.factor(index) for index in self.tile.indices))

    # --- A and B -----------------------------------------------------------------------------------------

    def operand(self, side: Side, *tiles: int) -> Tensor:
        """Return registers for tiles of an operand: the modes of one tile (values, rows, depth), then `tiles`."""
        access = self.access(side)
        extents = self.extents[self.rows(side)], self.tile.shape.k
        tensor = registers(access.array.element_type, (*self.mmas[0].partition_shape(extents, side), *tiles))
        rename(f"r{access.array.name}", tensor)
        self.roles[tensor.engine.buffer] = self.role(side)
        return tensor

    def guard(self, access: Access, along: list[tuple[Index, int]]) -> Guard:
        """Return which elements of `view` are there."""
        own = (self.tile.a, self.tile.b, self.tile.c)
        known = access if access in own else next(x for x in own if _is_of(x, access))
        return guard_of(self.scope, self.tile, known, access.place, along)

    def read(self, side: Side, access: Access, along: list[tuple[Index, int]], fragment: Tensor) -> None:
        """Read an operand into fragments: zeros beyond the boundaries of the nest."""
        view, guard = self.view(access, along), self.guard(access, along)

        def masked() -> None:
            thread = self.mmas[0].get_slice(self.lane)
            extents = tuple(extent for _, extent in along)
            part = thread.partition_A if side == "A" else thread.partition_B
            _read_inside(part(view), fragment, part(identity_tensor(extents)), guard)

        if guard and view.engine.buffer.space is Space.SHARED:
            masked()  # warps would have to be whole in the branch for instructions that read for all of their threads
        else:
            when_whole(guard, lambda: self._read_whole(side, view, fragment), masked)

    def _read_whole(self, side: Side, view: Tensor, fragment: Tensor) -> None:
        """Read an operand into fragments, by ldmatrix where it lies for that in shared memory."""
        atom = self._matrix_copy(side, view)
        if atom is None:
            thread = self.mmas[0].get_slice(self.lane)
            copy(thread.partition_A(view) if side == "A" else thread.partition_B(view), fragment)
            return
        make = make_tiled_copy_A if side == "A" else make_tiled_copy_B
        loader = make(atom, self.mmas[0])
        part = loader.get_slice(self.lane)
        copy(loader, part.partition_S(view), part.retile_D(fragment))

    def _matrix_copy(self, side: Side, view: Tensor) -> CopyAtom | None:
        """Return the widest ldmatrix for a view (rows, K), None where there is none."""
        arch, dtype = current("tensorize").arch, view.dtype
        if view.engine.buffer.space is not Space.SHARED or not arch.has_ldmatrix or dtype.bits == 64:
            return None
        inner = view.layout.inner if isinstance(view.layout, ComposedLayout) else view.layout
        steps = [_steps(inner[mode]) for mode in range(inner.rank)]
        fast = next((mode for mode, step in enumerate(steps) if step and step[0] == 1), None)
        vector = VECTOR_BYTES // dtype.bytes
        others = [s for step in steps for s in step if s != 1]
        if fast is None or any(not isinstance(s, int) or (s % vector and s > vector) for s in others):
            return None
        if fast == 0 and dtype.bits != 16:
            return None
        mma = self.mmas[0]
        if dtype.bits != (mma.atom.dtype_a if side == "A" else mma.atom.dtype_b).bits:
            return None  # converted in registers, where the instruction's elements lie, which are of another size
        rows, depth = mma.tile_size(0 if side == "A" else 1), mma.tile_size(2)
        if (depth if fast == 1 else rows) % vector or any(s != 1 and s % vector for s in others):
            return None
        count = min(rows * depth * dtype.bytes // 128, 4)
        if count < 1:
            return None
        name = f"SM75_U32x{count}_LDSM_N" if fast == 1 else f"SM75_U16x{2 * count}_LDSM_T"
        atom: CopyAtom | None = getattr(atoms, name, None)
        return atom

    # --- C -----------------------------------------------------------------------------------------------

    def accumulators(self, *tiles: int) -> list[Tensor]:
        """Return registers for the accumulators of tiles, the modes of one tile first: one tensor for each block."""
        extents = [self.extents[index] for index in self.target_indices]
        tensors = []
        for mma in self.mmas:
            tensor = registers(self.tile.accumulator, (*mma.partition_shape(tuple(extents), "C"), *tiles))
            rename(f"r{self.tile.c.array.name}", tensor)
            self.roles[tensor.engine.buffer] = "C"
            tensors.append(tensor)
        return tensors

    def _target(self, mma: TiledMMA, view: Tensor) -> Tensor:
        return mma.get_slice(self.lane).partition_C(view)

    def read_target(self, block: int, view: View, fragment: Tensor) -> None:
        """Read C into fragments, or set them where the prologue says so, and apply the prologue."""
        operation, argument = self.tile.prologue
        if operation is MMAFragmentOp.SET:
            fill(fragment, self._number(argument))
            return
        (tensor, guard), mma = view(), self.mmas[block]
        when_whole(
            guard,
            lambda: _convert(self._target(mma, tensor), fragment),
            lambda: _read_inside(self._target(mma, tensor), fragment, self._places(mma), guard),
        )
        self.apply(self.tile.prologue, fragment)

    def write_target(self, block: int, view: View, fragment: Tensor) -> None:
        """Apply the epilogue to fragments of C and store them."""
        self.finish_target(fragment)
        (tensor, guard), mma = view(), self.mmas[block]
        when_whole(
            guard,
            lambda: _convert(fragment, self._target(mma, tensor)),
            lambda: _store_inside(fragment, self._target(mma, tensor), self._places(mma), guard),
        )

    def finish_target(self, fragment: Tensor) -> None:
        """Apply the epilogue to fragments of C, and let them saturate where they shall."""
        self.apply(self.tile.epilogue, fragment)
        if self.tile.saturating:
            self._saturate(fragment)

    def _places(self, mma: TiledMMA) -> Tensor:
        """Return the coordinates in a tile of the elements of C that a thread holds."""
        rows, columns = (self.extents[index] for index in self.target_indices)
        return self._target(mma, identity_tensor((rows, columns)))

    def _number(self, argument: float | None) -> float | int | None:
        """Return an operation's argument in the kind of the accumulators; integer ones take whole numbers."""
        return argument if argument is None or self.tile.accumulator.is_float else int(argument)

    def apply(self, operation: Operation, fragment: Tensor) -> None:
        """Apply an operation to every element of a fragment."""
        kind, number = operation
        if kind is MMAFragmentOp.NONE:
            return
        argument = self._number(number)

        def result(x: Any) -> Any:  # Any: device numbers
            if kind is MMAFragmentOp.ReLU:
                return where(x > 0, x, 0)
            if kind is MMAFragmentOp.ReLU_NoConditional:
                return maximum(x, 0)
            if kind is MMAFragmentOp.SCALE:
                return x * argument
            return argument if kind is MMAFragmentOp.SET else kind(x)

        def element(n: Any) -> None:  # Any: a device number
            fragment[n] = as_scalar(result(fragment[n]), None).to(fragment.dtype)

        nest((fragment.size,), element, unroll=True)

    def _saturate(self, fragment: Tensor) -> None:
        """Put the nearest numbers of C's type into a fragment."""
        output = self.tile.c.array.element_type

        def element(n: Any) -> None:  # Any: a device number
            fragment[n] = saturated(fragment[n], output)

        nest((fragment.size,), element, unroll=True)


def saturated(number: Any, dtype: DType) -> Any:  # Any: device numbers
    """Return the number of an integer type that is nearest to one."""
    return minimum(maximum(number, dtype.lowest), dtype.highest)


def _is_of(one: Access, other: Access) -> bool:
    return one.array is other.array and one.is_write == other.is_write


def _read_inside(source: Tensor, fragment: Tensor, places: Tensor, guard: Guard) -> None:
    """Read the elements that are there into a fragment, and put zeros beside them."""

    def element(e: Any) -> None:  # Any: a device number
        def read() -> None:
            fragment[e] = as_scalar(source[e], None).to(fragment.dtype)

        branch(guard.inside(places[e]), read, lambda: fragment.__setitem__(e, 0))

    nest((fragment.size,), element, unroll=True)


def _store_inside(fragment: Tensor, target: Tensor, places: Tensor, guard: Guard) -> None:
    """Store the elements of a fragment that are there."""

    def element(e: Any) -> None:  # Any: a device number
        def store() -> None:
            target[e] = as_scalar(fragment[e], None).to(target.dtype)

        branch(guard.inside(places[e]), store)

    nest((fragment.size,), element, unroll=True)


def _convert(source: Tensor, target: Tensor) -> None:
    """Copy between memory and registers, converting elements where their types differ."""
    if source.dtype is target.dtype:
        copy(source, target)
        return
    held = registers(_memory_type(source, target), _compact(source))
    if source.engine.buffer.space is Space.REGISTER:
        convert_fragment(source, held, target.dtype)
        copy(held, target)
    else:
        copy(source, held)
        convert_fragment(held, target, target.dtype)


def _memory_type(source: Tensor, target: Tensor) -> DType:
    return target.dtype if source.engine.buffer.space is Space.REGISTER else source.dtype


def _compact(tensor: Tensor) -> Layout:
    return Layout(tensor.layout.shape)


def _steps(mode: Layout | ComposedLayout) -> list[Any]:  # Any: strides
    """Return the strides of a mode that elements move by, the least first."""
    shape = mode.shape if isinstance(mode.shape, tuple) else (mode.shape,)
    stride = mode.stride if isinstance(mode.stride, tuple) else (mode.stride,)
    return [d for s, d in zip(shape, stride, strict=True) if s != 1]


class HeldTarget(Storage):
    """C in fragments: loads and stores of its elements go to the registers of the thread that holds them.

    `accumulators` has a tensor for each block, (values, rows, columns) of a tile and then tiles from `origin` on. `now`
    is the fragment, and the element of it, that the statements of the moment are about.
    """

    def __init__(self, tile: Tensorization, accumulators: list[Tensor], origin: tuple[Affine, ...]) -> None:
        super().__init__(tile.c.array, accumulators[0], origin)
        self.access: Access = tile.c
        self.accumulators = accumulators
        self.saturating: bool = tile.saturating
        self.now: tuple[Tensor, Any] | None = None  # Any: a device number

    def _demand(self, place: tuple[Affine, ...]) -> tuple[Tensor, Any]:  # Any: as above
        if self.now is None or place != self.access.place:
            raise ScheduleError(
                f"{self.array.name} is held in fragments, and a statement touches another of its elements than its own",
                help="touch only the element that the matrix product computes, or do not cache it in MMA_FRAGMENT",
            )
        return self.now

    def load(self, place: tuple[Affine, ...], values: Any) -> Any:  # Any: as in Storage
        """Return the element of the moment; an integer as its array would hold it."""
        fragment, element = self._demand(place)
        value, type = fragment[element], self.array.element_type
        if self.saturating:
            value = saturated(value, type)
        return value if type.is_float else as_scalar(value, None).to(type)

    def store(self, place: tuple[Affine, ...], values: Any, value: Any) -> None:  # Any: as in Storage
        """Write the element of the moment."""
        fragment, element = self._demand(place)
        number = as_scalar(value, None)
        type = self.array.element_type
        fragment[element] = (number if type.is_float else number.to(type)).to(fragment.dtype)


class HeldOperand(Storage):
    """A or B in fragments: `fragment` has (values, rows, depth) of a tile, and then tiles from `origin` on.

    `now` is the place in the array, the fragment and the element of it at which a part computes the operand.
    """

    def __init__(self, cache: Cache, fragment: Tensor, origin: tuple[Affine, ...]) -> None:
        super().__init__(cache.array, fragment, origin)
        self.fragment = fragment
        self.now: tuple[tuple[Affine, ...], Tensor, Any] | None = None  # Any: a device number

    def _demand(self, place: tuple[Affine, ...]) -> tuple[Tensor, Any]:  # Any: as above
        if self.now is None or self.now[0] != place:
            raise ScheduleError(
                f"{self.array.name} is held in fragments, and a statement touches another of its elements than its own",
                help="touch only the element of the tile's rows and depth, or do not cache it in MMA_FRAGMENT",
            )
        return self.now[1:]

    def load(self, place: tuple[Affine, ...], values: Any) -> Any:  # Any: as in Storage
        """Return the element of the moment."""
        fragment, element = self._demand(place)
        return fragment[element]

    def store(self, place: tuple[Affine, ...], values: Any, value: Any) -> None:  # Any: as in Storage
        """Write the element of the moment."""
        fragment, element = self._demand(place)
        fragment[element] = as_scalar(value, None).to(fragment.dtype)


class HeldFragments(Filling):
    """A cache of A or B in fragments: `held` of them, for as many steps."""

    def __init__(self, fragments: Fragments, cache: Cache, held: int) -> None:
        super().__init__(fragments.scope, cache)
        self.fragments = fragments
        self.side: Side = "A" if cache.array is fragments.access("A").array else "B"
        self.access: Access = fragments.access(self.side)
        self.rows: Index = fragments.rows(self.side)
        self.depth: Index = fragments.tile.indices[2]
        self.along: list[tuple[Index, int]] = [
            (self.rows, fragments.extents[self.rows]),
            (self.depth, fragments.tile.shape.k),
        ]
        refuse_other_tiles(self, self.access, self.along)
        self.tiles_along: list[int] = [tiles_along(self, self.access, index, extent) for index, extent in self.along]
        self.fragment: Tensor = fragments.operand(self.side, *self.tiles_along, held)

    def read(self, step: int) -> None:
        """Read the region, at the present values of the loops around, into the fragments of a step."""
        place = place_from(self, self.access, (self.rows, self.depth))
        access = Access(self.access.statement, self.access.array, place, False)
        (_, rows), (_, depth) = self.along

        def at(row: Any, number: Any) -> None:  # Any: device numbers
            lasts = {index: (n - 1) * size for n, (index, size) in zip(self.tiles_along, self.along, strict=True)}
            with self.scope.knowing({self.rows: row * rows, self.depth: number * depth}, lasts):
                self.fragments.read(self.side, access, self.along, self.fragment[(None, None, None, row, number, step)])

        def every() -> None:
            nest(self.tiles_along, at, unroll=True)

        self.fragments.within((self.scope.plan.nest.parts[self.fragments.tile.part],), every)

    def operand(self, step: int) -> HeldOperand:
        """Return the storage of a step."""
        return HeldOperand(self.cache, self.fragment[(None, None, None, None, None, step)], self.region.origin)


def refuse_other_tiles(filling: Filling, access: Access, tile: list[tuple[Index, int]]) -> None:
    """Raise `ScheduleError` where a loop that runs while fragments are held moves an access to others than these.

    Fragments are told apart by whole tiles along the tile's own two indices, and by nothing else.
    """
    for loop in filling.scope.plan.varying(filling.cache):
        if loop.trips == 1 or any(loop.index is index for index, _ in tile):
            continue
        for place in access.place:
            extents = [extent for index, extent in tile if place.factor(index)]
            step = place.factor(loop.index) * loop.step
            if place.divides(loop.index) or (step and (not extents or step % extents[0])):
                raise ScheduleError(
                    f"{access} cannot be cached in fragments while {loop.index} runs: it moves to other elements than "
                    "whole tiles of these",
                    location=access.statement.location,
                    help=f"cache it inside of {loop.index}, or in shared memory, which tiles read their fragments from",
                )


def tiles_along(filling: Filling, access: Access, index: Index, extent: int) -> int:
    """Return how many tiles of a region an index of the tile runs through, alone in its mode of the array."""
    moving = [mode for mode, place in enumerate(access.place) if place.factor(index)]
    if len(moving) != 1 or access.place[moving[0]].factor(index) != 1 or filling.region.shape[moving[0]] % extent:
        raise ScheduleError(
            f"{access} cannot be cached in fragments: {index} does not move by itself through whole tiles of one mode",
            help="cache it in shared memory; the tile reads its fragments from there",
        )
    return filling.region.shape[moving[0]] // extent


def place_from(filling: Filling, access: Access, indices: tuple[Index, Index]) -> tuple[Affine, ...]:
    """Return the place of a region's first element, moving with the indices of the tile."""
    place = []
    for mode, start in zip(access.place, filling.region.origin, strict=True):
        for index in indices:
            if mode.factor(index):
                start = start + index
        place.append(start)
    return tuple(place)


# --- tiles in memory -------------------------------------------------------------------------------------


def _joined(mode: Layout | ComposedLayout) -> Layout:
    """Return a mode whose parts are joined where they lie in line; one of an array is whole as it is."""
    assert isinstance(mode, Layout), mode
    if not isinstance(mode.shape, tuple):
        return mode
    joined: Layout = coalesce(mode)
    return joined


def tile_view(
    storage: Storage,
    place: tuple[Affine, ...],
    along: Sequence[tuple[Index, int]],
    values: Mapping[Any, Any],  # Any: symbols; numbers of host or device
    divisor: Callable[[Affine], int],
) -> Tensor:
    """Return what an access touches while some indices run: a tensor with a mode for each of them, in their order.

    `along` gives the indices with their extents; `values` where they begin and what the others are. `divisor` says what
    divides an expression. Raises `ScheduleError` where the elements lie in no layout of those modes.
    """
    tensor: Tensor = storage.tensor
    if any(step != 1 for step in storage.steps):
        raise ScheduleError(f"{Load(storage.array, place)} is cached with gaps, and no matrix instruction reads it")
    inner = tensor.layout.inner if isinstance(tensor.layout, ComposedLayout) else tensor.layout
    modes = [_joined(inner[d]) for d in range(inner.rank)]
    coordinates = storage.place(place)
    tile = []
    for index, extent in along:
        moving = [(d, c) for d, at in enumerate(coordinates) if (c := at.factor(index))]
        if all(modes[d].rank == 1 and not isinstance(modes[d].shape, tuple) for d, _ in moving):
            step: Any = 0
            for d, factor in moving:
                step = step + factor * modes[d].stride
            tile.append(Layout(extent, step))
            continue
        d, factor = moving[0]
        start = coordinates[d] - factor * index
        tiled = None
        if len(moving) == 1 and factor >= 0 and divisor(start) % (factor * extent) == 0:
            with suppress(LayoutError):
                tiled = composition(modes[d], Layout(extent, factor))
        if tiled is None:
            raise ScheduleError(
                f"{Load(storage.array, place)} moves with {index} across the blocks of a layout of shared memory",
                help=f"let tiles of {index} have a power of two of elements, or cache further inside; or give the "
                "cache a plain layout, layout=Array.Layout.FIRST_MAJOR, where no warpgroup reads it",
            )
        tile.append(tiled)
    offset: Any = 0
    for mode, at in zip(modes, coordinates, strict=True):
        offset = offset + mode(at.evaluate(values))
    layout = make_layout(*tile)
    if isinstance(tensor.layout, ComposedLayout):
        return Tensor(tensor.engine, ComposedLayout(tensor.layout.outer, tensor.layout.offset + offset, layout))
    engine = tensor.engine if isinstance(offset, int) and offset == 0 else tensor.engine.offset(offset)
    return Tensor(engine, layout)
