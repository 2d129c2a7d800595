"""Tiles of tensors: the part of a block, and the part of a thread."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.arguments import instance
from tilewright.errors import LayoutError
from tilewright.layout.coordinates import checked_coord
from tilewright.layout.division import divide_modes
from tilewright.layout.ints import DynamicInt
from tilewright.layout.layouts import Layout, cosize, from_modes, modes_of
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import product_each, show, tuple_size
from tilewright.tensors.engines import CoordinateEngine
from tilewright.tensors.tensor import Tensor

_WRAP = "on the host tw.tensor(array) makes a tensor of a NumPy array"


def _dice_tiler(tiler: Any, proj: Any) -> Any:
    """Leave out the entries of a tiler or coordinate where `proj` is None."""
    if proj is None:
        return tiler
    if isinstance(tiler, Layout):
        tiler = modes_of(tiler)
    if not isinstance(tiler, tuple) or len(tiler) != len(proj):
        raise LayoutError(
            f"proj {show(proj)} does not fit {show(tiler)}", help="one entry for each mode: 1 to use it, None not to"
        )
    return tuple(t for t, p in zip(tiler, proj, strict=True) if p is not None)


def local_tile(t: Any, tiler: Any, coord: Any, proj: Any = None) -> Any:  # Any: a tensor or layout gives the same
    """Return the tile at `coord` when `t` is cut into tiles of shape `tiler`.

    The tile's modes come first; a None in `coord` keeps all tiles along its mode, after them. With `proj`, the
    entries of tiler and coord whose entry in `proj` is None are left out, so one tiler serves A, B and C.

    Law: local_tile(t, tiler, c)[i] == zipped_divide(t, tiler)[i, c].

    >>> import numpy as np, tilewright as tw
    >>> tw.local_tile(tw.tensor(np.arange(64).reshape(8, 8)), (2, 4), (1, 0))
    host int64 (2,4):(8,1)
    16 17 18 19
    24 25 26 27

    Raises `LayoutError` when tiler and coordinate do not fit the tensor. Source: CuTe `local_tile`.
    """
    if isinstance(tiler, list):
        tiler = tuple(tiler)
    tiler, coord = _dice_tiler(tiler, proj), _dice_tiler(checked_coord(coord), proj)
    instance("local_tile", "t", t, (Layout, Tensor), "a tensor or a layout", _WRAP)
    if isinstance(t, Layout):
        return local_tile(Tensor(CoordinateEngine(0), t), tiler, coord).layout
    if isinstance(tiler, tuple) and len(tiler) > t.rank:
        raise LayoutError(
            f"local_tile: the tiler {show(tiler)} has {len(tiler)} modes, and the tensor has {t.rank}",
            details=[t.title],
            help="give one tile extent for each mode of the tensor, or a tensor with one mode for each",
        )
    guarded = _guarded(t, tiler)
    tiled, inner = _tile_and_rest(guarded, tiler)
    if coord is not None and not isinstance(coord, tuple):
        coord = (coord,) if inner == 1 else coord
    if isinstance(coord, tuple) and len(coord) < inner:
        coord = (*coord, *([None] * (inner - len(coord))))
    return tiled[((None,) * (tiled.rank and _tile_rank(tiled)), coord)]


def _tile_rank(tiled: Tensor) -> int:
    first = tiled.shape[0] if isinstance(tiled.shape, tuple) else tiled.shape
    return len(first) if isinstance(first, tuple) else 1


def _tile_and_rest(t: Tensor, tiler: Any) -> tuple[Tensor, int]:
    """Divide by a tiler into two modes, each a tuple of modes; return the number of rest modes too."""
    count = 1

    def divide(layout: Layout) -> Layout:
        nonlocal count
        tile, rest = divide_modes(layout, tiler)
        if not isinstance(tiler, tuple):
            tile, rest = from_modes((tile,)), from_modes((rest,))
        count = rest.rank
        return from_modes((tile, rest))

    def descend(layout: Any) -> Any:
        return layout.map_layout(descend) if isinstance(layout, ComposedLayout) else divide(layout)

    return t.map_layout(descend), count


def _guarded(t: Tensor, tiler: Any) -> Tensor:
    """Tell the engine about each tile extent that may not divide its mode."""
    if not isinstance(tiler, tuple):
        return t
    shape = t.shape if isinstance(t.shape, tuple) else (t.shape,)
    engine = t.engine
    for i, (extent, tile) in enumerate(zip(shape, tiler, strict=False)):
        if tile is None:
            continue
        dividend = tuple_size(extent)
        divisor = tuple_size(
            tile.shape if isinstance(tile, Layout) else tile if not isinstance(tile, tuple) else Layout(tile).shape
        )
        if type(divisor) is int and divisor < 1:
            raise LayoutError(f"the tile of mode {i} is {divisor}, and it is at least 1", details=[t.title])
        if dividend is divisor or (type(dividend) is int and type(divisor) is int and dividend % divisor == 0):
            continue
        engine = engine.guard(dividend, divisor, f"mode {i}")
    return t if engine is t.engine else Tensor(engine, t.layout)


def _check_index(threads: Layout, index: Any) -> None:
    """Refuse the number of a thread that there is not, where it is known: a layout would take it for another's."""
    if isinstance(index, DynamicInt):
        return
    try:
        number = None if isinstance(index, bool) else operator.index(index)
    except TypeError:
        number = None
    count = cosize(threads) if threads.is_static else None
    if number is None or number < 0 or (isinstance(count, int) and number >= count):
        last = "" if count is None else f" to {count - 1}"
        raise LayoutError(
            f"local_partition: the index is {index!r}, and the threads of {threads} have the numbers 0{last}",
            help="give the number of a thread, such as tw.thread_idx.x",
        )


@dataclass(frozen=True)
class Partition:
    """The layout of the threads that divide a tile among them."""

    threads: Layout
    CALLED: ClassVar[str] = "tw.local_partition"

    @property
    def size(self) -> int:
        """How many threads take part."""
        count = cosize(self.threads)
        assert isinstance(count, int), self.threads
        return count

    def __str__(self) -> str:
        return f"threads {self.threads}"


def _slice_engine(t: Tensor, threads: Layout, index: Any) -> Tensor:
    """Let the engine of a kernel's tensor note which parts threads take, where every number is that of a part."""
    remember = getattr(t.engine, "slice_of", None)
    if remember is None or not threads.is_static or cosize(threads) != threads.size:
        return t
    return Tensor(remember(Partition(threads), index, t.layout), t.layout)


def local_partition(
    t: Any, threads: Any, index: Any, proj: Any = None
) -> Any:  # Any: a tensor or layout gives the same
    """Return the part of `t` that thread `index` works on, when `threads` lays the threads out over it.

    `threads` is a layout from coordinates to thread numbers, or a shape. Every thread gets the elements at its
    coordinate in each tile of that shape. With `proj`, modes of `threads` whose entry is None are left out.

    Law: local_partition(t, threads, k)[c] == zipped_divide(t, shape(threads))[coordinate of k, c].

    >>> import numpy as np, tilewright as tw
    >>> tw.local_partition(tw.tensor(np.arange(64).reshape(8, 8)), tw.Layout((2, 4)), 5)
    host int64 (4,2):(16,4)
    10 14
    26 30
    42 46
    58 62

    Raises `LayoutError` when the threads do not fit the tensor, and for an index that is known and that no thread has.
    A kernel that accesses memory by parts of which its block has not all, or more than there are, is refused
    (`LanguageError`), as a tiled copy of another number of threads is. Source: CuTe `local_partition`.
    """
    instance("local_partition", "t", t, (Layout, Tensor), "a tensor or a layout", _WRAP)
    layout = threads if isinstance(threads, Layout) else Layout(threads)
    _check_index(layout, index)
    sizes = product_each(layout.shape)
    coord = layout.get_flat_coord(index)
    tiler, coord = _dice_tiler(sizes, proj), _dice_tiler(coord, proj)
    if isinstance(t, Layout):
        return local_partition(Tensor(CoordinateEngine(0), t), threads, index, proj).layout
    t = _slice_engine(t, layout, index)
    if not isinstance(layout.shape, tuple):
        tiler, coord = tiler[0], coord[0]
        tiled, count = _tile_and_rest(_guarded(t, (tiler,)) if t.rank == 1 else t, tiler)
        return tiled[((coord,), (None,) * count)]
    tiled, count = _tile_and_rest(_guarded(t, tiler), tiler)
    return tiled[(coord, (None,) * count)]
