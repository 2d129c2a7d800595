"""TiledCopy: a copy atom repeated over threads and values until it covers a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.arguments import instance
from tilewright.atoms.copy import CopyAtom
from tilewright.atoms.fragments import positions
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import LayoutError
from tilewright.layout import (
    Int,
    Layout,
    coalesce,
    composition,
    filter,  # noqa: A004  # CuTe's name
    left_inverse,
    logical_product,
    make_layout,
    raked_product,
    right_inverse,
    size,
    unzip,
    upcast,
    zipped_divide,
)
from tilewright.layout.display import Displayed
from tilewright.layout.layouts import flat_modes, from_modes, inside, modes_of
from tilewright.layout.tuples import product_each, show, tuple_size
from tilewright.pickling import hashed_once
from tilewright.tensors import Tensor
from tilewright.tiled.mma import TiledMMA, slice_engine

_UNSET: Any = object()


def _check(function: str, atom: object, *, mma: object = _UNSET, copy: object = _UNSET) -> None:
    """Raise `ArgumentError` for what is not an atom, a TiledMMA or a TiledCopy."""
    instance(function, "atom", atom, CopyAtom, "a copy atom", "such as tw.atoms.UniversalCopy(128)")
    if mma is not _UNSET:
        instance(function, "mma", mma, TiledMMA, "a TiledMMA", "tw.make_tiled_mma(atom, ...) makes one")
    if copy is not _UNSET:
        instance(function, "copy", copy, TiledCopy, "a TiledCopy", "tw.make_tiled_copy(atom, ...) makes one")


@hashed_once
@dataclass(frozen=True)
class TiledCopy(Displayed):
    """A copy by many threads: `layout_tv` maps (thread, value) to an element of a tile, `tiler` gives the tile.

    The tile is column-major in the shape of `tiler`, and it repeats over the tensors that are copied.

    >>> from tilewright.atoms import UniversalCopy
    >>> copy = make_tiled_copy(UniversalCopy(64), Layout((32, 8)), Layout((2, 1)))
    >>> print(copy.layout_tv, copy.tiler, copy.size)
    (256,2):(2,1) (64, 8) 256
    """

    atom: CopyAtom
    layout_tv: Layout
    tiler: tuple[Any, ...]  # Any: an extent or a Layout for each mode of the tensors

    def __post_init__(self) -> None:
        _check("TiledCopy", self.atom)
        instance("TiledCopy", "layout_tv", self.layout_tv, Layout, "a Layout from (thread, value) to elements")
        instance("TiledCopy", "tiler", self.tiler, tuple, "a tuple with an extent or a layout for each mode")
        threads, values = _static_sizes(self.layout_tv)
        if threads % self.atom.threads:
            raise LayoutError(
                f"TiledCopy: {threads} threads are not a multiple of the {self.atom.threads} of {self.atom}",
                details=[f"layout_tv = {self.layout_tv}    tiler = {show(self.tiler)}"],
            )
        # Threads may share elements (stride 0, as the operands of an mma do), but together they reach all.
        if size(right_inverse(self.layout_tv)) != size(self.tile_shape):
            raise LayoutError(
                f"TiledCopy: {threads} threads x {values} values do not fill a tile of {show(self.tile_shape)}",
                details=[f"layout_tv = {self.layout_tv}    tiler = {show(self.tiler)}"],
            )

    @property
    def size(self) -> int:
        """The number of threads."""
        return _static_sizes(self.layout_tv)[0]

    @property
    def values(self) -> int:
        """The number of elements of a tile that each thread copies."""
        return _static_sizes(self.layout_tv)[1]

    @property
    def tiler_mn(self) -> tuple[Any, ...]:  # Any: see tiler
        """The tiler, under CuTe's name."""
        return self.tiler

    @property
    def tile_shape(self) -> tuple[Int, ...]:
        """The extent of the tile in each mode."""
        return tuple([tuple_size(t.shape if isinstance(t, Layout) else t) for t in self.tiler])

    def layout_src_tv(self, dtype: DType) -> Layout:
        """Return the layout from (thread, value) to elements of the tile, as the source is read."""
        return self._tv(self.atom.src_tv(dtype), dtype)

    def layout_dst_tv(self, dtype: DType) -> Layout:
        """Return the layout from (thread, value) to elements of the tile, as the destination is written."""
        return self._tv(self.atom.dst_tv(dtype), dtype)

    def _tv(self, atom_tv: Layout, dtype: DType) -> Layout:
        tile = Layout(self.tile_shape)
        return from_modes(modes_of(composition(tile, self._thread_value(atom_tv, dtype))))

    def _thread_value(self, atom_tv: Layout, dtype: DType) -> Layout:
        """Return ((atom thread, rest), (atom value, rest)) -> element of the tile, in the order of `atom_tv`."""
        values = self.atom.values(dtype)
        if self.values % values:
            raise LayoutError(
                f"TiledCopy: each thread copies {self.values} {dtype} elements, {self.atom} moves {values} at a time",
                details=[f"layout_tv = {self.layout_tv}    tiler = {show(self.tiler)}"],
                help="give each thread more values (val_layout), or use a narrower atom",
            )
        atoms = zipped_divide(self.layout_tv, (self.atom.threads, values))
        reorder = composition(right_inverse(self.atom.ref_tv(dtype)), atom_tv)
        inside = composition(atoms[0], reorder)
        found: Layout = coalesce(unzip(from_modes((inside, atoms[1]))), (1, (1, 1)))
        return found

    def get_slice(self, thread: Int) -> ThrCopy:
        """Return the part of one thread, given by a static or dynamic number."""
        return ThrCopy(self, thread)

    slice = get_slice

    def partition_layout(self, layout: Layout, atom_tv: Layout, dtype: DType) -> Layout:
        """Arrange the layout of a tensor as (thread, value, rest of each mode...)."""
        return self._partition_by(layout, self._thread_value(atom_tv, dtype))

    def partition_coordinates(self, layout: Layout) -> Layout:
        """Arrange the layout of an identity tensor like the data, whose element type it does not know.

        One thread's values come in the order of the tile, however many of them an instruction moves.
        """
        return self._partition_by(layout, self.layout_tv)

    def _partition_by(self, layout: Layout, thread_value: Layout) -> Layout:
        if layout.rank < len(self.tiler):
            raise LayoutError(
                f"a TiledCopy over tiles {show(self.tile_shape)} needs tensors of {len(self.tiler)} modes or more",
                details=[f"tensor: {layout}", f"layout_tv = {self.layout_tv}"],
            )
        tiled = zipped_divide(layout, self.tiler)
        arranged = composition(tiled[0], thread_value)
        return from_modes((arranged[0], arranged[1], *modes_of(tiled[1])))

    def retile_layout(self, layout: Layout, dtype: DType) -> Layout:
        """Arrange a fragment's layout (values, rest...) as this copy goes through it: (copy values, rest...)."""
        shape = layout.shape
        count = tuple_size(shape[0]) if isinstance(shape, tuple) else tuple_size(shape)
        where = f"retile of {layout} by a TiledCopy with layout_tv = {self.layout_tv}"
        if not isinstance(count, int) or self.values % count:
            raise LayoutError(f"{where}: {count} values of an atom do not divide the {self.values} of the copy")
        order = right_inverse(self.layout_tv).with_shape(self.tile_shape)
        rest = upcast(order, self.size * count)  # which run of `count` values each part of the tile holds
        values = logical_product(Layout(count), right_inverse(rest))
        by_atom = zipped_divide(values, Layout(self.atom.values(dtype)))
        tiled = zipped_divide(layout, (count, *product_each(rest.shape)))
        return from_modes((composition(tiled[0], by_atom), *modes_of(tiled[1])[1:]))

    def __str__(self) -> str:
        return f"TiledCopy({self.atom}, {self.layout_tv}, {show(self.tiler)})"


@dataclass(frozen=True)
class ThrCopy:
    """One thread's part of a TiledCopy. `thread` may be dynamic."""

    tiled_copy: TiledCopy
    thread: Int

    def partition_S(self, t: Tensor) -> Tensor:
        """Return the elements of a source that this thread reads: (values, rest of each mode...)."""
        return self._partition(t, self.tiled_copy.atom.src_tv)

    def partition_D(self, t: Tensor) -> Tensor:
        """Return the elements of a destination that this thread writes: (values, rest of each mode...)."""
        return self._partition(t, self.tiled_copy.atom.dst_tv)

    def _partition(self, t: Tensor, atom_tv: Callable[[DType], Layout]) -> Tensor:
        copy = self.tiled_copy
        instance("the partition of a TiledCopy", "t", t, Tensor, "a tensor")
        if t.space == "coordinate" and copy.atom.threads == 1:
            whole = t.map_layout(inside(copy.partition_coordinates))
        else:
            whole = t.map_layout(inside(lambda layout: copy.partition_layout(layout, atom_tv(t.dtype), t.dtype)))
        coord = (self.thread, *[None] * (whole.rank - 1))
        view: Tensor = whole.with_engine(slice_engine(t, self.tiled_copy, self.thread))[coord]
        return view

    def retile_S(self, t: Tensor) -> Tensor:
        """Return a fragment of another partition (of an mma, say) as this copy reads it; the memory is the same."""
        instance("the retiling of a TiledCopy", "t", t, Tensor, "a tensor")
        return t.map_layout(inside(lambda layout: self.tiled_copy.retile_layout(layout, t.dtype)))

    def retile_D(self, t: Tensor) -> Tensor:
        """Return a fragment of another partition (of an mma, say) as this copy writes it; the memory is the same."""
        return self.retile_S(t)


def _static_sizes(layout_tv: Layout) -> tuple[int, int]:
    if layout_tv.rank != 2 or not layout_tv.is_static:
        raise LayoutError(f"a thread-value layout has two modes and is static, not {layout_tv}")
    threads, values = layout_tv[0].size, layout_tv[1].size
    assert isinstance(threads, int), layout_tv
    assert isinstance(values, int), layout_tv
    return threads, values


def make_tiled_copy(atom: CopyAtom, thr_layout: Any, val_layout: Any = 1) -> TiledCopy:  # Any: layouts or shapes
    """Spread a copy atom over threads laid out by `thr_layout`, each with values laid out by `val_layout`.

    Both map tile coordinates: `thr_layout` to thread numbers, `val_layout` to value numbers. The tile is their product:
    every thread holds a block of `val_layout`'s shape.

    Law: over all threads and values, layout_tv visits each element of the tile exactly once.

    Raises `LayoutError` when one of them does not number 0, 1, 2, ... without gaps. Source: CuTe `make_tiled_copy`.
    """
    _check("make_tiled_copy", atom)
    threads = thr_layout if isinstance(thr_layout, Layout) else Layout(thr_layout)
    values = val_layout if isinstance(val_layout, Layout) else Layout(val_layout)
    both = raked_product(threads, values)
    inverse = right_inverse(both)
    if not (threads.is_static and values.is_static) or size(inverse) != size(threads) * size(values):
        raise LayoutError(
            "make_tiled_copy: thread and value layouts have to be static and to number 0, 1, 2, ... without gaps",
            details=[f"thr_layout = {threads}    val_layout = {values}"],
            help="use compact layouts",
        )
    layout_tv = inverse.with_shape((size(threads), size(values)))
    return TiledCopy(atom, layout_tv, product_each(both.shape))


def make_cotiled_copy(atom: CopyAtom, layout_tv: Any, data: Any) -> TiledCopy:  # Any: layouts or shapes
    """Spread a copy atom over data by offsets: `layout_tv` maps (thread, value) to an offset of `data`.

    `data` is the layout of the tile in memory, so that threads and values may be given by addresses: 32 threads that
    each copy 4 neighbours in memory, whatever their coordinates.

    Law: of a tensor with the layout `data`, value v of thread t is the element at offset layout_tv(t, v), and the tile
    is the smallest that holds all of them.

    >>> from tilewright.atoms import UniversalCopy
    >>> copy = make_cotiled_copy(UniversalCopy(128), Layout((32, 4), (4, 1)), Layout((8, 16), (16, 1)))
    >>> copy.tile_shape, str(copy.layout_tv)
    ((8, 16), '((4,8),4):((32,1),8)')

    Raises `LayoutError` for an offset that `data` does not have. Source: CuTe `make_cotiled_copy`.
    """
    _check("make_cotiled_copy", atom)
    by_offset = layout_tv if isinstance(layout_tv, Layout) else Layout(layout_tv)
    where = data if isinstance(data, Layout) else Layout(data)
    _static_sizes(by_offset)
    coordinates = make_layout(left_inverse(where), Layout(1, 0))  # offset -> index of the data
    by_index = from_modes([composition(coordinates, mode) for mode in modes_of(by_offset)])
    if not _lie_at(where, by_index, by_offset):
        raise LayoutError(
            "make_cotiled_copy: some values lie at offsets that the data does not have",
            details=[f"layout_tv = {by_offset}", f"data      = {where}"],
            help="layout_tv gives offsets of the data's layout; make_tiled_copy takes threads by coordinates",
        )
    extents = product_each(where.shape) if isinstance(where.shape, tuple) else (where.shape,)
    tiler = []
    for mode in range(len(extents)):
        along = Layout(extents, tuple(int(m == mode) for m in range(len(extents))))
        tiler.append(_in_order(filter(composition(along, by_index))))
    inside_data = composition(Layout(extents), tuple(tiler))
    inverse = left_inverse(inside_data)
    return TiledCopy(atom, from_modes([composition(inverse, mode) for mode in modes_of(by_index)]), tuple(tiler))


def make_tiled_copy_C_atom(atom: CopyAtom, mma: TiledMMA, dtype: Any = None) -> TiledCopy:  # Any: names an element type
    """Make the smallest copy that moves the C operand as a TiledMMA holds it: one atom a thread.

    An epilogue with a small buffer in shared memory derives its further copies from it (`make_tiled_copy_S`). `dtype`
    is what is copied, by default the accumulators' type.

    Raises `LayoutError` if the atom moves more values than a thread holds. Source: CuTe `make_tiled_copy_C_atom`.
    """
    _check("make_tiled_copy_C_atom", atom, mma=mma)
    element = mma.atom.dtype_d.storage if dtype is None else as_dtype(dtype)
    whole = mma.layout_c_tv
    threads, held = _static_sizes(whole)
    values = atom.values(element)
    if held % values:
        raise LayoutError(
            f"make_tiled_copy_C_atom: {atom} moves {values} {element} a thread, and {mma} holds {held}",
            help="use a narrower atom",
        )
    part = composition(whole, Layout((threads, values)))
    return make_cotiled_copy(atom, part, Layout((mma.tile_size(0), mma.tile_size(1))))


def _lie_at(data: Layout, by_index: Layout, by_offset: Layout) -> bool:
    """Say whether every index, looked up in the data's layout, gives the offset that was asked for."""
    offsets = positions(make_layout(data, Layout(1, 0)))[:, 0]
    indices = positions(by_index)
    return bool((indices < len(offsets)).all() and (offsets[indices % len(offsets)] == positions(by_offset)).all())


def _in_order(tiler: Layout) -> Any:  # Any: an extent, or a layout
    """Return the tiler of the same elements in rising order; an extent where they are the first ones."""
    modes = sorted(zip(*reversed(flat_modes(tiler)), strict=True))
    found = coalesce(Layout(tuple(s for _, s in modes), tuple(d for d, _ in modes)))
    return found.size if found == Layout(found.size) else found


def make_tiled_copy_S(atom: CopyAtom, copy: TiledCopy, dtype: Any = None) -> TiledCopy:  # Any: names an element type
    """Make the copy by another atom whose threads hold what `copy` reads. Source: CuTe `make_tiled_copy_S`.

    `dtype` is needed where the atom of `copy` has a width in bits.
    """
    _check("make_tiled_copy_S", atom, copy=copy)
    return TiledCopy(atom, _side(copy, copy.atom.src_tv, dtype), copy.tiler)


def make_tiled_copy_D(atom: CopyAtom, copy: TiledCopy, dtype: Any = None) -> TiledCopy:  # Any: names an element type
    """Make the copy by another atom whose threads hold what `copy` writes. Source: CuTe `make_tiled_copy_D`.

    `dtype` is needed where the atom of `copy` has a width in bits.
    """
    _check("make_tiled_copy_D", atom, copy=copy)
    return TiledCopy(atom, _side(copy, copy.atom.dst_tv, dtype), copy.tiler)


def _side(copy: TiledCopy, atom_tv: Callable[[DType], Layout], dtype: Any) -> Layout:
    """Return (thread, value) -> element of the tile for one side of a copy."""
    if dtype is None and copy.atom.bits is not None and copy.atom.threads > 1:
        raise LayoutError(
            f"the sides of {copy.atom} differ by the element type", help="pass it: make_tiled_copy_S(atom, copy, dtype)"
        )
    if copy.atom.threads == 1:
        return copy.layout_tv  # both sides are one
    arranged = copy._thread_value(atom_tv(as_dtype(dtype)), as_dtype(dtype))
    return from_modes((arranged[0], arranged[1]))


def make_tiled_copy_A(atom: CopyAtom, mma: TiledMMA) -> TiledCopy:
    """Make the copy whose threads hold the A operand as a TiledMMA needs it. Source: CuTe `make_tiled_copy_A`."""
    _check("make_tiled_copy_A", atom, mma=mma)
    return TiledCopy(atom, mma.layout_a_tv, mma.tile_of("A"))


def make_tiled_copy_B(atom: CopyAtom, mma: TiledMMA) -> TiledCopy:
    """Make the copy whose threads hold the B operand as a TiledMMA needs it. Source: CuTe `make_tiled_copy_B`."""
    _check("make_tiled_copy_B", atom, mma=mma)
    return TiledCopy(atom, mma.layout_b_tv, (mma.tile_size(1), mma.tile_size(2)))


def make_tiled_copy_C(atom: CopyAtom, mma: TiledMMA) -> TiledCopy:
    """Make the copy whose threads hold the C operand as a TiledMMA needs it. Source: CuTe `make_tiled_copy_C`."""
    _check("make_tiled_copy_C", atom, mma=mma)
    return TiledCopy(atom, mma.layout_c_tv, (mma.tile_size(0), mma.tile_size(1)))
