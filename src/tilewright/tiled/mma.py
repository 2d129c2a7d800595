"""TiledMMA: a matrix multiply-add atom repeated over threads and values until it covers a tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tilewright.arguments import instance, integer, one_of
from tilewright.atoms.mma import MMAAtom, OperandPlace
from tilewright.dtypes import uint16
from tilewright.errors import LayoutError
from tilewright.layout import (
    Int,
    Layout,
    append,
    complement,
    composition,
    logical_divide,
    right_inverse,
    size,
    tiled_product,
    zipped_divide,
)
from tilewright.layout.display import Displayed
from tilewright.layout.layouts import from_modes, inside, modes_of
from tilewright.layout.tuples import show, tuple_size
from tilewright.pickling import hashed_once
from tilewright.tensors import Tensor, compact_fragment, make_fragment_like

Operand = Literal["A", "B", "C", "D", "E"]

# The modes of (M, N, K) that each operand has; E is the metadata of a sparse A.
_MODES: dict[str, tuple[int, int]] = {"A": (0, 2), "B": (1, 2), "C": (0, 1), "D": (0, 1), "E": (0, 2)}


def _modes_of(function: str, operand: str) -> tuple[int, int]:
    return _MODES[one_of(function, "operand", operand, tuple(_MODES))]


@hashed_once
@dataclass(frozen=True)
class TiledMMA(Displayed):
    """A matrix product by many threads: an atom, repeated over threads in M, N and K, and over values.

    `atom_layout` maps the position of an atom in (M, N, K) to its number; `permutations` reorder M, N and K before the
    atoms are laid over them (None: the tile is the atoms next to each other; an integer: the extent of the tile, which
    values fill beyond the atoms; a layout: the order of the elements too).

    >>> from tilewright.atoms import UniversalFMA
    >>> from tilewright.dtypes import float32
    >>> mma = make_tiled_mma(UniversalFMA(float32), Layout((16, 16)))
    >>> mma.size, mma.tile_size(0), mma.tile_size(1), mma.tile_size(2)
    (256, 16, 16, 1)
    """

    atom: MMAAtom
    atom_layout: Layout
    permutations: tuple[Any, Any, Any] = (None, None, None)  # Any: None, an extent, or a Layout

    def __post_init__(self) -> None:
        instance("TiledMMA", "atom", self.atom, MMAAtom, "an mma atom")
        instance("TiledMMA", "atom_layout", self.atom_layout, Layout, "a Layout")
        if self.atom_layout.rank != 3 or not self.atom_layout.is_static or not self._numbers_threads():
            raise LayoutError(
                "TiledMMA: the layout of the atoms has modes M, N, K, is static, and gives each thread a number of its "
                "own, with room for whole copies of all threads where it leaves numbers out",
                details=[f"atom_layout = {self.atom_layout}    atom.thr_id = {self.atom.thr_id}"],
                help="number the atoms in order, such as Layout((2, 2)) or Layout((2, 2), (2, 1))",
            )
        for mode in range(3):
            covered = self._covered(mode)
            permutation = self.permutation(mode)
            extent = tuple_size(permutation.shape if isinstance(permutation, Layout) else permutation)
            whole = not isinstance(permutation, Layout) or size(right_inverse(permutation)) == extent
            if not isinstance(extent, int) or extent % covered or not whole:
                raise LayoutError(
                    f"TiledMMA: permutation {show(permutation)} of {'MNK'[mode]} holds no whole atoms of {covered}",
                    details=[f"atom_layout = {self.atom_layout}    atom shape = {show(self.atom.shape_mnk)}"],
                    help=f"use a multiple of {covered}, or a layout that permutes such a number of elements",
                )

    @cached_property
    def thr_layout_vmnk(self) -> Layout:
        """The layout from (thread of the atom, position in M, N, K) to thread numbers."""
        found: Layout = tiled_product(self.atom.thr_id, self.atom_layout)
        return found

    def _numbers_threads(self) -> bool:
        """Say whether every thread number from 0 on is that of one thread, or of a copy of one."""
        try:
            numbers = self._with_copies
        except LayoutError:
            return False
        return size(right_inverse(numbers)) == size(numbers)

    @cached_property
    def copies(self) -> Layout:
        """The layout from a copy of the threads to the distance of its thread numbers from theirs; 1:0 without copies.

        There are copies where the thread numbers have gaps, as in one quad pair: lanes 0 to 3 and 16 to 19. The other
        lanes of the warp take part in the instruction, and compute and hold the same as these.
        """
        return complement(self.thr_layout_vmnk)

    @property
    def _with_copies(self) -> Layout:
        """The layout from (thread, copy) to thread numbers, where a thread is (of the atom, place in M, N, K)."""
        return from_modes((self.thr_layout_vmnk, self.copies))

    @cached_property
    def size(self) -> int:
        """The number of threads; their numbers may have gaps, see `thread_numbers`."""
        count = self.thr_layout_vmnk.size
        assert isinstance(count, int), self.atom_layout
        return count

    @property
    def span(self) -> int:
        """The number of thread numbers from 0 on that the threads and their copies have: `size` without gaps."""
        count = size(self._with_copies)
        assert isinstance(count, int), self.atom_layout
        return count

    @property
    def thread_numbers(self) -> tuple[int, ...]:
        """The numbers of the threads in ascending order: all from 0 on, unless the atom's lanes have gaps.

        A block has whole warps, and a thread whose number is left out works as a copy of one whose number is not: in a
        quad pair, lane 4 does the same as lane 0.

        >>> import tilewright as tw
        >>> make_tiled_mma(tw.atoms.SM70_8x8x4_F32F16F16F32_NT).thread_numbers
        (0, 1, 2, 3, 16, 17, 18, 19)
        """
        return tuple(sorted([self.thr_layout_vmnk(i) for i in range(self.size)]))

    @property
    def shape_mnk(self) -> tuple[int, int, int]:
        """The extents of the tile in M, N and K."""
        return (self.tile_size(0), self.tile_size(1), self.tile_size(2))

    @cached_property
    def tiler_mn(self) -> tuple[int, int]:
        """The extents of the tile in M and N."""
        return (self.tile_size(0), self.tile_size(1))

    def _covered(self, mode: int) -> int:
        """Return the extent that the atoms side by side cover."""
        count = self.atom_layout[mode].size
        assert isinstance(count, int), self.atom_layout
        return self.atom.shape_mnk[mode] * count

    def permutation(self, mode: int) -> Any:  # Any: an extent or a Layout
        """Return the permutation of mode 0 (M), 1 (N) or 2 (K), by default the extent that the atoms cover."""
        given = self.permutations[integer("permutation", "mode", mode, minimum=0, maximum=2)]
        return self._covered(mode) if given is None else given

    def tile_size(self, mode: int) -> int:
        """Return the extent of the tile in mode 0 (M), 1 (N) or 2 (K)."""
        integer("tile_size", "mode", mode, minimum=0, maximum=2)
        permutation = self.permutation(mode)
        extent = tuple_size(permutation.shape if isinstance(permutation, Layout) else permutation)
        assert isinstance(extent, int), permutation
        return extent

    def thread_fragment_layout(self, layout: Layout, operand: Operand) -> Layout:
        """Arrange an operand's layout as ((thread V, (thread M, thread N)), (value V, (rest M, rest N, ...))).

        For the C of an atom that computes one block of rows, thread V is (thread, block).
        """
        first, second = _modes_of("thread_fragment_layout", operand)
        if layout.rank < 2:
            raise LayoutError(f"operand {operand} needs two modes or more, not {layout}")
        permuted = logical_divide(layout, (self.permutation(first), self._permutation_of(operand, second)))
        atoms = zipped_divide(permuted, (self.atom.shape_mnk[first], self.atom.extent(operand, second)))
        tv = {"A": self.atom.layout_a, "B": self.atom.layout_b, "E": self.atom.layout_e}.get(operand)
        if operand == "E" and tv is None:
            raise LayoutError(f"{self.atom} has no metadata: its A is dense")
        tv = tv or self._layout_by_blocks(operand)
        values = composition(atoms[0], tv)
        counts = (size(self.atom_layout[first]), size(self.atom_layout[second]))
        rest = zipped_divide(atoms[1], counts)
        return from_modes((from_modes((values[0], rest[0])), from_modes((values[1], rest[1]))))

    def _permutation_of(self, operand: Operand, mode: int) -> Any:  # Any: an extent or a Layout
        """Return the permutation of a mode, counted in elements of an operand."""
        found, whole, own = self.permutation(mode), self.atom.shape_mnk[mode], self.atom.extent(operand, mode)
        if whole == own:
            return found
        if not isinstance(found, int):
            raise LayoutError(
                f"TiledMMA: {operand} of {self.atom} counts K by other elements than B, and K is permuted by {found}",
                help="give an extent instead of a layout",
            )
        return found * own // whole

    def tile_of(self, operand: Operand) -> tuple[int, int]:
        """Return the extents of an operand's tile, in its elements: of a sparse A those that are kept."""
        first, second = _modes_of("tile_of", operand)
        atom = self.atom
        extents = [
            self.tile_size(mode) * atom.extent(operand, mode) // atom.shape_mnk[mode] for mode in (first, second)
        ]
        return extents[0], extents[1]

    def _layout_by_blocks(self, operand: Operand) -> Layout:
        """Return the atom's layout of C or D, over all blocks of rows where it computes only one of them."""
        atom, layout = self.atom, self.atom.layout_c if operand == "C" else self.atom.layout_of_d
        if atom.row_block[1] == 1:
            return layout
        return from_modes((from_modes((layout[0], Layout(atom.row_block[1], atom.rows))), layout[1]))

    @property
    def offset_c(self) -> int:
        """The element of C's tile from which `layout_c_tv` counts: 0 unless the atom computes a block of rows."""
        if self.atom.row_block[1] == 1:
            return 0
        arranged = self.thread_fragment_layout(Layout(self.tiler_mn), "C")
        first = arranged[0][0][1](self.atom.row_block[0])
        assert isinstance(first, int), arranged
        return first

    def _layout_tv(self, operand: Operand) -> Layout:
        """Return (thread number, value) -> element of the operand's column-major tile."""
        first, second = _MODES[operand]
        reference = Layout(self.tile_of(operand))
        arranged = self.thread_fragment_layout(reference, operand)
        vector, places = arranged[0][0], arranged[0][1]
        if operand in "CD" and self.atom.row_block[1] > 1:
            vector = vector[0]
        # Threads that differ only in the mode this operand lacks hold the same elements: stride 0.
        modes = [vector]
        for mode in range(3):
            if mode in (first, second):
                modes.append(places[(first, second).index(mode)])
            else:
                modes.append(Layout(size(self.atom_layout[mode]), 0))
        numbers = self._with_copies
        modes.append(Layout(size(numbers[1]), 0))
        by_number = composition(from_modes(modes), right_inverse(numbers))
        return from_modes((by_number, arranged[1]))

    @property
    def layout_a_tv(self) -> Layout:
        """The layout from (thread, value) to elements of A's tile (M,K), column-major."""
        return self._layout_tv("A")

    @property
    def layout_b_tv(self) -> Layout:
        """The layout from (thread, value) to elements of B's tile (N,K), column-major."""
        return self._layout_tv("B")

    @property
    def layout_c_tv(self) -> Layout:
        """The layout from (thread, value) to elements of C's tile (M,N), column-major, counted from `offset_c` on."""
        return self._layout_tv("C")

    @property
    def layout_d_tv(self) -> Layout:
        """The layout from (thread, value) to elements of D's tile (M,N): that of C unless the atom says otherwise."""
        return self._layout_tv("D")

    def get_slice(self, thread: Int) -> ThrMMA:
        """Return the part of one thread, given by a static or dynamic number."""
        return ThrMMA(self, thread)

    slice = get_slice

    def partition_shape(self, shape: Any, operand: Operand) -> Any:  # Any: a shape in, a nested shape out
        """Return the shape (value, rest M, rest N, ...) of one thread's part of an operand of that shape."""
        arranged = self.thread_fragment_layout(Layout(shape), operand)
        values = arranged[1]
        return from_modes((values[0], *modes_of(values[1]))).shape

    def __str__(self) -> str:
        return f"TiledMMA({self.atom}, {self.atom_layout}, {show(self.permutations)})"


@dataclass(frozen=True)
class ThrMMA:
    """One thread's part of a TiledMMA. `thread` may be dynamic."""

    tiled_mma: TiledMMA
    thread: Int

    @property
    def is_copy(self) -> Any:  # Any: a bool, or a number of a kernel
        """Say whether this thread only repeats another's work, because the atoms leave its number out.

        Threads that store the same element race even where they store the same value, so a kernel of one quad pair
        writes `if not thread.is_copy:` around what it stores. For other tiled products this is False, a plain bool.
        """
        copies = self.tiled_mma.copies
        if copies.size == 1:
            return False
        _, place = from_modes((self.tiled_mma.thr_layout_vmnk, copies)).get_flat_coord(self.thread)
        return place != 0

    def _partition(self, t: Tensor, operand: Operand) -> Tensor:
        first, second = _MODES[operand]
        instance(f"partition_{operand}", "t", t, Tensor, "a tensor")
        self._demand_whole_tiles(t, operand)
        coord = self.tiled_mma.thr_layout_vmnk.get_flat_coord(self.thread)
        whole = t.map_layout(inside(lambda layout: self.tiled_mma.thread_fragment_layout(layout, operand)))
        rest = whole.layout[1][1].rank
        vector: Any = coord[0]  # Any: a thread of the atom, or with its block
        if operand in "CD" and self.tiled_mma.atom.row_block[1] > 1:
            vector = (vector, self.tiled_mma.atom.row_block[0])
        sliced = whole.with_engine(slice_engine(t, self.tiled_mma, self.thread))
        view: Tensor = sliced[((vector, (coord[1 + first], coord[1 + second])), (None, (None,) * rest))]
        return view

    def _demand_whole_tiles(self, t: Tensor, operand: Operand) -> None:
        """Refuse shared memory that an instruction reads whole and that is not whole tiles: it would read beyond."""
        mma, atom = self.tiled_mma, self.tiled_mma.atom
        if operand not in "AB" or {"A": atom.a_place, "B": atom.b_place}[operand] is not OperandPlace.DESCRIPTOR:
            return
        modes = t.shape if isinstance(t.shape, tuple) else (t.shape,)
        for mode, axis in enumerate(_MODES[operand]):
            extent = tuple_size(modes[mode]) if mode < len(modes) else 1
            size = mma.tile_size(axis)
            is_packed = operand == "A" and axis == 2 and atom.layout_e is not None  # half of K is there
            if isinstance(extent, int) and extent % size and not is_packed:
                places = mma.thr_layout_vmnk[2].size
                sizes = atom.sizes_of_n(extent // places) if axis == 1 and isinstance(places, int) else []
                fitting = ", ".join(map(str, sizes))
                raise LayoutError(
                    f"partition_{operand}: {operand} has {extent} elements along {'MNK'[axis]}, and the tiled mma "
                    f"takes {size} at a time: it would read shared memory beyond the tensor",
                    details=[f"{operand}: {t.title}", f"mma: {mma}"],
                    help=f"take the atom with N = {fitting}"
                    if fitting
                    else f"make the tile a multiple of {size}; TMA fills what lies outside of the array",
                )

    def partition_A(self, t: Tensor) -> Tensor:
        """Return this thread's part of A (M,K,...): (value, rest M, rest K, ...)."""
        return self._partition(t, "A")

    def partition_B(self, t: Tensor) -> Tensor:
        """Return this thread's part of B (N,K,...): (value, rest N, rest K, ...)."""
        return self._partition(t, "B")

    def partition_C(self, t: Tensor) -> Tensor:
        """Return this thread's part of C (M,N,...): (value, rest M, rest N, ...)."""
        return self._partition(t, "C")

    def partition_D(self, t: Tensor) -> Tensor:
        """Return this thread's part of D (M,N,...), which is that of C but where the atom says otherwise."""
        return self._partition(t, "D")

    def partition_E(self, t: Tensor) -> Tensor:
        """Return this thread's part of the metadata of a sparse A (M,words,...): (value, rest M, rest K, ...)."""
        return self._partition(t, "E")

    def make_fragment_A(self, t: Tensor) -> Tensor:
        """Make registers of A's type in the shape of a partitioned tensor, in the order of its strides.

        Of an atom that reads A from shared memory, return the partitioned tensor: it is what `tw.gemm` takes.
        """
        if self.tiled_mma.atom.a_place is OperandPlace.DESCRIPTOR:
            return t
        return make_fragment_like(t, self.tiled_mma.atom.dtype_a.storage)

    def make_fragment_B(self, t: Tensor) -> Tensor:
        """Make registers of B's type in the shape of a partitioned tensor, in the order of its strides.

        Of an atom that reads B from shared memory, return the partitioned tensor: it is what `tw.gemm` takes.
        """
        if self.tiled_mma.atom.b_place is OperandPlace.DESCRIPTOR:
            return t
        return make_fragment_like(t, self.tiled_mma.atom.dtype_b.storage)

    def make_fragment_C(self, t: Tensor) -> Tensor:
        """Make registers of the accumulator's type in the shape of a partitioned tensor, column-major."""
        return compact_fragment(t, self.tiled_mma.atom.dtype_c.storage)

    def make_fragment_D(self, t: Tensor) -> Tensor:
        """Make registers of the result's type in the shape of a partitioned tensor, column-major."""
        return compact_fragment(t, self.tiled_mma.atom.dtype_d.storage)

    def make_fragment_E(self, t: Tensor) -> Tensor:
        """Make registers for metadata in the shape of a partitioned tensor, column-major."""
        return compact_fragment(t, uint16)

    def partition_fragment_A(self, t: Tensor) -> Tensor:
        """Make registers for this thread's part of A."""
        return self.make_fragment_A(self.partition_A(t))

    def partition_fragment_B(self, t: Tensor) -> Tensor:
        """Make registers for this thread's part of B."""
        return self.make_fragment_B(self.partition_B(t))

    def partition_fragment_C(self, t: Tensor) -> Tensor:
        """Make registers for this thread's part of C."""
        return self.make_fragment_C(self.partition_C(t))

    def partition_fragment_D(self, t: Tensor) -> Tensor:
        """Make registers for this thread's part of D."""
        return self.make_fragment_D(self.partition_D(t))


def slice_engine(t: Tensor, tiled: Any, thread: Int) -> Any:  # Any: a TiledCopy or TiledMMA; an engine
    """Return the engine of a tensor of which a thread will get its slice; a kernel's engine remembers which."""
    remember = getattr(t.engine, "slice_of", None)
    return t.engine if remember is None else remember(tiled, thread, t.layout)


def make_tiled_mma(
    atom: MMAAtom, atom_layout: Any = (1, 1, 1), permutations: Any = None
) -> TiledMMA:  # Any: a layout or shape over M, N (and K); a tuple of tilers
    """Repeat an mma atom over threads: `atom_layout` has the modes M, N and, where it is not 1, K.

    `permutations` is None or a tuple for M, N, K of None, extents or layouts, see `TiledMMA`.

    Law: over all threads and values, each multiply-accumulate (m, n, k) of the tile is computed exactly once.

    Threads whose numbers the atoms leave out (an atom of lanes 0 to 3 and 16 to 19) work as copies of the others.

    Raises `LayoutError` when two atoms share a number, or the numbers left out do not fit whole copies. Source: CuTe
    `make_tiled_mma`.
    """
    instance("make_tiled_mma", "atom", atom, MMAAtom, "an mma atom", "such as tw.atoms.SM80_16x8x16_F32F16F16F32_TN")
    instance(
        "make_tiled_mma", "permutations", permutations, (tuple, list, type(None)), "None or a tuple for M, N and K"
    )
    layout = atom_layout if isinstance(atom_layout, Layout) else Layout(atom_layout)
    if layout.rank > 3:
        raise LayoutError(f"make_tiled_mma: the layout of the atoms has at most the modes M, N, K, not {layout}")
    entries = () if permutations is None else tuple(permutations)
    if len(entries) > 3:
        raise LayoutError(f"make_tiled_mma: permutations are for M, N and K, not {show(entries)}")
    m, n, k = (*entries, None, None, None)[:3]
    return TiledMMA(atom, append(layout, rank=3), (m, n, k))
