"""Tiles of tensors: the part of a block, and the part of a thread."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.arguments import instance
from tilewright.errors import LayoutError
from tilewright.layout.coordinates import checked_coord
from tilewright.layout.division import divide_modes
from tilewright.layout.ints import Basis, DynamicInt, product, same_int
from tilewright.layout.layouts import Layout, cosize, from_modes, modes_of
from tilewright.layout.swizzle import ComposedLayout
from tilewright.layout.tuples import leaves, product_each, show, tuple_size, unflatten
from tilewright.tensors.engines import CoordinateEngine
from tilewright.tensors.guarded import GuardedTensor, guarded
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


def local_tile(
    t: Any, tiler: Any, coord: Any, proj: Any = None, *, guard: bool = False, fill: Any = 0
) -> Any:  # Any: a tensor or layout gives the same
    """Return the tile at `coord` when `t` is cut into tiles of shape `tiler`.

    The tile's modes come first; a None in `coord` keeps all tiles along its mode, after them. With `proj`, the
    entries of tiler and coord whose entry in `proj` is None are left out, so one tiler serves A, B and C. A None in
    `tiler` takes a whole mode, or the tile of one that is a pair (tile, rest) already.

    With `guard`, the tile may lie partly or fully outside of `t`: its elements there read as `fill`, a number of the
    element type, and are not written (see `tw.guarded`). If the extents of `t` are static multiples of the tile's and
    the tile is known to be inside, no guard is added. A block index then counts as the number of a tile, and a launch
    with more blocks than tiles raises an error.

    Law: local_tile(t, tiler, c)[i] == zipped_divide(t, tiler)[i, c], and with a guard `fill` where that is outside.

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
        if guard:
            raise LayoutError(
                "local_tile: a layout has no elements to guard", help="give a tensor, or leave out guard="
            )
        return local_tile(Tensor(CoordinateEngine(0), t), tiler, coord).layout
    if isinstance(tiler, tuple) and len(tiler) > t.rank:
        raise LayoutError(
            f"local_tile: the tiler {show(tiler)} has {len(tiler)} modes, and the tensor has {t.rank}",
            details=[t.title],
            help="give one tile extent for each mode of the tensor, or a tensor with one mode for each",
        )
    tiler = _whole_modes(t, tiler)
    if guard and not _is_whole_tile(t, tiler, coord):
        t = guarded(t, fill)
    tiled, inner = _tile_and_rest(_guarded(t, tiler), tiler)
    if coord is not None and not isinstance(coord, tuple):
        coord = (coord,) if inner == 1 else coord
    if isinstance(coord, tuple) and len(coord) < inner:
        coord = (*coord, *([None] * (inner - len(coord))))
    place = ((None,) * (tiled.rank and _tile_rank(tiled)), coord)
    if isinstance(tiled, GuardedTensor):
        _refuse_unknown_steps(tiled, coord)
        return tiled.at(place)
    return tiled[place]


def _whole_modes(t: Tensor, tiler: Any) -> Any:
    """Write the extent of the mode in place of a None in a tiler, but where the mode is a pair (tile, rest) already."""
    if not isinstance(tiler, tuple) or not isinstance(t.shape, tuple):
        return tiler
    given = [
        s if tile is None and not (isinstance(s, tuple) and len(s) == 2) else tile
        for tile, s in zip(tiler, t.shape, strict=False)
    ]
    return tuple(given)


def _is_whole_tile(t: Tensor, tiler: Any, coord: Any) -> bool:
    """Say whether static extents fall into tiles without remainder, and a coordinate certainly is that of one of them.

    A block's index is taken for the number of a tile; then the grid may have no more blocks than there are tiles, which
    each launch checks.
    """
    if isinstance(t, GuardedTensor) or not isinstance(t.layout, Layout):
        return False
    shape = t.shape if isinstance(t.shape, tuple) else (t.shape,)
    tiles = tiler if isinstance(tiler, tuple) else (tiler,)
    indices = coord if isinstance(coord, tuple) else (coord,)
    if not len(shape) == len(tiles) == len(indices):
        return False
    counts = [_count_of_tiles(s, tile) for s, tile in zip(shape, tiles, strict=True)]
    blocks = []
    for mode, (count, index) in enumerate(zip(counts, indices, strict=True)):
        if count is None or not _is_below(index, count):
            if count is None or not isinstance(index, DynamicInt):
                return False
            blocks.append((mode, index, count))
    is_block = getattr(t.engine, "is_block_index", None)
    if not all(is_block is not None and is_block(index) for _, index, _ in blocks):
        return False
    for mode, index, count in blocks:
        t.engine.limit_blocks(index, count, f"mode {mode}")
    return True


def _count_of_tiles(extent: Any, tile: Any) -> int | None:
    """Return the number of tiles that a static mode falls into without remainder, None where there is none."""
    extent, size = tuple_size(extent), tuple_size(tile.shape if isinstance(tile, Layout) else Layout(tile).shape)
    if type(extent) is not int or type(size) is not int or extent % size:
        return None
    return extent // size


def _is_below(index: Any, count: int) -> bool:
    """Say whether an index certainly is at least 0 and less than a count."""
    if type(index) is int:
        return 0 <= index < count
    facts = getattr(index, "facts", None)
    return facts is not None and facts.low >= 0 and facts.high < count


def _tile_rank(tiled: Tensor) -> int:
    first = tiled.shape[0] if isinstance(tiled.shape, tuple) else tiled.shape
    return len(first) if isinstance(first, tuple) else 1


def _tile_and_rest(t: Tensor, tiler: Any) -> tuple[Tensor, int]:
    """Divide by a tiler into two modes, each a tuple of modes; return the number of rest modes too."""
    count = 1

    def divide(layout: Layout) -> Layout:
        nonlocal count
        tile, rest = divide_modes(layout, tiler)
        if isinstance(t, GuardedTensor):
            rest = _with_steps(layout, tiler, rest)
        if not isinstance(tiler, tuple):
            tile, rest = from_modes((tile,)), from_modes((rest,))
        count = rest.rank
        return from_modes((tile, rest))

    def descend(layout: Any) -> Any:
        return layout.map_layout(descend) if isinstance(layout, ComposedLayout) else divide(layout)

    return t.map_layout(descend), count


def _with_steps(whole: Layout, tiler: Any, rest: Layout) -> Layout:
    """Let a mode of one tile step to the next tile, which lies outside: the index of a guarded tile may be any."""
    if isinstance(tiler, tuple):
        pairs = zip(modes_of(whole), tiler, strict=False)
        modes = list(modes_of(rest))
        return from_modes([*(_with_steps(m, t, modes[n]) for n, (m, t) in enumerate(pairs)), *modes[len(tiler) :]])
    size = cosize(tiler) if isinstance(tiler, Layout) else tiler
    extents, strides = leaves(whole.shape), leaves(whole.stride)
    before, last = product(extents[:-1]), strides[-1]
    is_one = same_int(tuple_size(rest.shape), 1) and isinstance(last, Basis)
    if not is_one or type(size) is not int or type(before) is not int or size % before:
        return rest
    return Layout(rest.shape, unflatten([last * (size // before)] * len(leaves(rest.shape)), rest.shape))


def _refuse_unknown_steps(tiled: GuardedTensor, coord: Any) -> None:
    """Refuse a number in a mode of one tile where the next tile is not known: it would be the first again."""
    modes = modes_of(modes_of(tiled.where)[1])
    for mode, index in zip(modes, coord if isinstance(coord, tuple) else (coord,), strict=False):
        if isinstance(index, DynamicInt) and same_int(mode.shape, 1) and same_int(mode.stride, 0):
            raise LayoutError(
                "the tile covers a mode, and where another tile of it would lie is not known",
                details=[tiled.title],
                help="give 0 as the number of the tile along that mode",
            )


def _guarded(t: Tensor, tiler: Any) -> Tensor:
    """Tell the engine about each tile extent that may not divide its mode."""
    if not isinstance(tiler, tuple):
        return t
    shape = t.shape if isinstance(t.shape, tuple) else (t.shape,)
    engine = t.engine
    for i, (extent, tile) in enumerate(zip(shape, tiler, strict=False)):
        if tile is None or (isinstance(t, GuardedTensor) and t.is_cut_from(i)):
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
    return t if engine is t.engine else t.with_engine(engine)


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
    return t.with_engine(remember(Partition(threads), index, t.layout))


def local_partition(
    t: Any, threads: Any, index: Any, proj: Any = None, *, guard: bool = False, fill: Any = 0
) -> Any:  # Any: a tensor or layout gives the same
    """Return the part of `t` that thread `index` works on, when `threads` lays the threads out over it.

    `threads` is a layout from coordinates to thread numbers, or a shape. Every thread gets the elements at its
    coordinate in each tile of that shape. With `proj`, modes of `threads` whose entry is None are left out. With
    `guard`, the last tiles may extend past `t`: elements outside read as `fill` and are not written (see `tw.guarded`).

    Law: local_partition(t, threads, k)[c] == zipped_divide(t, shape(threads))[coordinate of k, c].

    >>> import numpy as np, tilewright as tw
    >>> tw.local_partition(tw.tensor(np.arange(64).reshape(8, 8)), tw.Layout((2, 4)), 5)
    host int64 (4,2):(16,4)
    10 14
    26 30
    42 46
    58 62

    Raises `LayoutError` when the threads do not fit the tensor, and for a static index that no thread has. A kernel
    whose block has fewer or more threads than there are parts raises `LanguageError` when it accesses memory by them,
    as for a tiled copy of another number of threads. Source: CuTe `local_partition`.
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
    if guard:
        t = guarded(t, fill)
    if not isinstance(layout.shape, tuple):
        tiler, coord = tiler[0], coord[0]
        tiled, count = _tile_and_rest(_guarded(t, (tiler,)) if t.rank == 1 else t, tiler)
        return tiled[((coord,), (None,) * count)]
    tiled, count = _tile_and_rest(_guarded(t, tiler), tiler)
    return tiled[(coord, (None,) * count)]


def domain_offset(coord: Any, t: Any) -> Any:  # Any: a tensor
    """Return `t` shifted: its element 0 is that of `t` at `coord`, which may be negative; the shape is unchanged.

    Law: domain_offset(c, t)[d] == t[c + d].

    In a guarded tensor, elements before the first and after the last read as its fill, so that a tile with a halo is
    `local_tile(domain_offset((i - 1, j - 1), tw.guarded(x)), (m + 2, n + 2), (0, 0))`.

    >>> import numpy as np, tilewright as tw
    >>> x = tw.guarded(tw.tensor(np.arange(1, 7).reshape(2, 3)))
    >>> tw.local_tile(tw.domain_offset((-1, -1), x), (3, 3), (0, 0))
    guarded host int64 (3,3):(3,1)
    0 0 0
    0 1 2
    0 4 5

    Raises `LayoutError` when the coordinate does not fit the tensor. Source: CuTe `domain_offset`.
    """
    instance("tw.domain_offset", "t", t, Tensor, "a tensor", _WRAP)
    return t.moved(checked_coord(coord))
