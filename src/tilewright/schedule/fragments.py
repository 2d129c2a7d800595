"""Fragments: operands of matrix instructions in the registers of a warp, how they are read, and how they are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from tilewright import atoms
from tilewright.arch import VECTOR_BYTES
from tilewright.atoms import CopyAtom
from tilewright.dtypes import DType
from tilewright.errors import ScheduleError
from tilewright.ir.core import Space
from tilewright.lang.carry import rename
from tilewright.lang.copying import copy, fill
from tilewright.lang.fragments import convert_fragment
from tilewright.lang.loops import for_loop
from tilewright.lang.mathematics import maximum, where
from tilewright.lang.memory import registers
from tilewright.lang.ranges import DeviceRange
from tilewright.lang.scalar import as_scalar
from tilewright.lang.special import thread_idx
from tilewright.lang.tracer import current
from tilewright.layout import ComposedLayout, Layout
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.caches import Cache
from tilewright.schedule.filling import divisor_of_affine
from tilewright.schedule.mma_shapes import MMAFragmentOp
from tilewright.schedule.statements import Access
from tilewright.schedule.storage import Storage, tile_view
from tilewright.tensors import Tensor
from tilewright.tiled import TiledMMA, make_tiled_copy_A, make_tiled_copy_B

if TYPE_CHECKING:
    from tilewright.schedule.emission import Emission
    from tilewright.schedule.tensorization import Operation, Tensorization

Side = Literal["A", "B"]
View = Callable[[], Tensor]  # of elements in memory, looked at only where they are needed


class Fragments:
    """What a kernel's matrix instructions hold in registers, and how it gets there. One for each building of a kernel.

    For counting, `roles` says of each buffer of registers which operand it holds a part of, and `turns` has the values
    of the loops over K.
    """

    def __init__(self, emission: Emission, tile: Tensorization) -> None:
        self.emission, self.tile = emission, tile
        self.mmas: tuple[TiledMMA, ...] = tile.recipe.mmas
        self.roles: dict[Any, str] = {}  # Any: buffers of the IR
        self.turns: set[Any] = set()  # Any: values of the IR
        self.carried = tile.carried(emission.plan)
        m, n, k = tile.shape.m, tile.shape.n, tile.shape.k
        self.extents = dict(zip(tile.indices, (m, n, k), strict=True))

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
        size = self.emission.plan.target.warp_size
        x, *_ = self.emission.plan.block
        return thread_idx.x if x == size else thread_idx.x % size

    def divisor(self, place: Affine) -> int:
        return divisor_of_affine(self.emission, place)

    def view(self, access: Access, along: list[tuple[Index, int]]) -> Tensor:
        """Return the elements that an access touches while some indices run from where they are now."""
        emission = self.emission
        starts = {index: emission.values.get(index, 0) for index in self.tile.indices}
        return tile_view(
            emission.storage[access.array], access.place, along, {**emission.values, **starts}, self.divisor
        )

    # --- A and B -----------------------------------------------------------------------------------------

    def operand(self, side: Side, *tiles: int) -> Tensor:
        """Return registers for tiles of an operand: the modes of one tile (values, rows, depth), then `tiles`."""
        access = self.access(side)
        extents = self.extents[self.rows(side)], self.tile.shape.k
        tensor = registers(access.array.element_type, (*self.mmas[0].partition_shape(extents, side), *tiles))
        rename(f"r{access.array.name}", tensor)
        self.roles[tensor.engine.buffer] = self.role(side)
        return tensor

    def read(self, side: Side, view: Tensor, fragment: Tensor) -> None:
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
        rows, depth = mma.tile_size(0 if side == "A" else 1), mma.tile_size(2)
        if (depth if fast == 1 else rows) % vector or any(s != 1 and s % vector for s in others):
            return None
        count = min(rows * depth * dtype.bytes // 128, 4)
        if count < 1:
            return None
        name = f"SM75_U32x{count}_LDSM_N" if fast == 1 else f"SM75_U16x{2 * count}_LDSM_T"
        found: CopyAtom | None = getattr(atoms, name, None)
        return found

    # --- C -----------------------------------------------------------------------------------------------

    def accumulators(self, *tiles: int) -> list[Tensor]:
        """Return registers for the sums of tiles, the modes of one tile first: one tensor for each block."""
        extents = [self.extents[index] for index in self.target_indices]
        found = []
        for mma in self.mmas:
            tensor = registers(self.tile.accumulator, (*mma.partition_shape(tuple(extents), "C"), *tiles))
            rename(f"r{self.tile.c.array.name}", tensor)
            self.roles[tensor.engine.buffer] = "C"
            found.append(tensor)
        return found

    def _target(self, mma: TiledMMA, view: Tensor) -> Tensor:
        return mma.get_slice(self.lane).partition_C(view)

    def read_target(self, block: int, view: View, fragment: Tensor) -> None:
        """Read C into fragments, or set them where the prologue says so, and apply the prologue."""
        operation, argument = self.tile.prologue
        if operation is MMAFragmentOp.SET:
            fill(fragment, self._number(argument))
            return
        _convert(self._target(self.mmas[block], view()), fragment)
        self.apply(self.tile.prologue, fragment)

    def write_target(self, block: int, view: View, fragment: Tensor) -> None:
        """Apply the epilogue to fragments of C and store them."""
        self.apply(self.tile.epilogue, fragment)
        _convert(fragment, self._target(self.mmas[block], view()))

    def _number(self, argument: float | None) -> float | int | None:
        """Return an operation's argument in the kind of the sums; whole sums take whole numbers."""
        return argument if argument is None or self.tile.accumulator.is_float else int(argument)

    def apply(self, operation: Operation, fragment: Tensor) -> None:
        """Apply an operation to every element of a fragment."""
        kind, given = operation
        if kind is MMAFragmentOp.NONE:
            return
        argument = self._number(given)

        def result(x: Any) -> Any:  # Any: device numbers
            if kind is MMAFragmentOp.ReLU:
                return where(x > 0, x, 0)
            if kind is MMAFragmentOp.ReLU_NoConditional:
                return maximum(x, 0)
            if kind is MMAFragmentOp.SCALE:
                return x * argument
            return argument if kind is MMAFragmentOp.SET else kind(x)

        def turn(n: Any) -> None:  # Any: a device number
            fragment[n] = as_scalar(result(fragment[n]), None).to(fragment.dtype)

        unrolled(fragment.size, turn)  # type: ignore[arg-type]  # static: the layout of an instruction


def unrolled(extent: int, body: Callable[[Any], None]) -> None:  # Any: a device number
    """Emit a loop that the compiler unrolls; a single turn as it is."""
    if extent == 1:
        body(0)
        return

    def turn(n: Any) -> tuple[()]:  # Any: as above
        body(n)
        return ()

    for_loop(DeviceRange(0, extent, 1, unroll=True), turn, (), {})


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

    `sums` has a tensor for each block, (values, rows, columns) of a tile and then tiles from `origin` on. `now` is the
    fragment, and the element of it, that the statements of the moment are about.
    """

    def __init__(self, access: Access, sums: list[Tensor], origin: tuple[Affine, ...]) -> None:
        super().__init__(access.array, sums[0], origin)
        self.access, self.sums = access, sums
        self.now: tuple[Tensor, Any] | None = None  # Any: a device number

    def _demand(self, place: tuple[Affine, ...]) -> tuple[Tensor, Any]:  # Any: as above
        if self.now is None or place != self.access.place:
            raise ScheduleError(
                f"{self.array.name} is held in fragments, and a statement touches another of its elements than its own",
                help="touch only the element that the matrix product computes, or do not cache it in MMA_FRAGMENT",
            )
        return self.now

    def load(self, place: tuple[Affine, ...], values: Any) -> Any:  # Any: as in Storage
        """Return the element of the moment."""
        fragment, element = self._demand(place)
        return fragment[element]

    def store(self, place: tuple[Affine, ...], values: Any, value: Any) -> None:  # Any: as in Storage
        """Write the element of the moment."""
        fragment, element = self._demand(place)
        fragment[element] = as_scalar(value, None).to(fragment.dtype)


class HeldOperand(Storage):
    """A or B in fragments: `fragment` has (values, rows, depth) of a tile, and then tiles from `origin` on."""

    def __init__(self, cache: Cache, fragment: Tensor, origin: tuple[Affine, ...]) -> None:
        super().__init__(cache.array, fragment, origin)
        self.fragment = fragment
