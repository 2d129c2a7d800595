"""Products: a block repeated as another layout says."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.compose import composition
from tilewright.layout.ints import ceildiv, mul
from tilewright.layout.inverses import complement
from tilewright.layout.layouts import Layout, cosize, flat_modes, from_modes, lift, modes_of, raw_layout
from tilewright.layout.modes import ONE, append, make_ordered_layout
from tilewright.layout.simplify import layout_of_flat
from tilewright.layout.tuples import compact_strides, merge_flat, product_each, shape_of, show, tuple_size


def logical_product(block: Any, tiler: Any) -> Any:  # Any: layouts; a composed block gives a composed layout
    """Repeat a block: mode 0 goes through the block, mode 1 through its copies in the order of `tiler`.

    A tuple goes mode by mode; an integer n counts as `n:1`; None leaves its mode as it is.

    Law: logical_product(a, b) == make_layout(a, composition(complement(a, size(a) * cosize(b)), b)).

    >>> print(logical_product(Layout((2, 2), (4, 1)), Layout(6, 1)))
    ((2,2),(2,3)):((4,1),(2,8))

    Raises `LayoutError` when the block has no complement or it does not compose with the tiler. Source: CuTe
    `logical_product`.
    """
    if type(block) is not Layout:
        return lift(logical_product, block, tiler)
    if isinstance(tiler, (tuple, list)):
        modes = modes_of(block)
        _check_rank(block, tuple(tiler))
        return from_modes([*[logical_product(m, t) for m, t in _pairs(modes, tiler)], *modes[len(tiler) :]])
    if tiler is None:
        return block
    times = tiler if isinstance(tiler, Layout) else Layout(tiler)
    free = complement(block, mul(tuple_size(block.shape), cosize(times)))
    return from_modes((block, composition(free, times)))


def _pairs(a: Any, b: Any) -> list[tuple[Any, Any]]:
    return [(x, b[i]) for i, x in enumerate(a[: len(b)])]


def _check_rank(block: Layout, tiler: tuple[Any, ...]) -> None:
    if len(tiler) > block.rank:
        raise LayoutError(
            f"logical_product({block}, {show(tiler)}): the tiler has {len(tiler)} modes, the block {block.rank}",
            help="a tuple goes mode by mode; append a mode 1:0 to the block for each further one",
        )


def product_modes(block: Layout, tiler: Any) -> tuple[Layout, Layout]:
    """Return the block part and the repeated part of a zipped product."""
    if isinstance(tiler, (tuple, list)):
        modes = modes_of(block)
        _check_rank(block, tuple(tiler))
        parts = [product_modes(m, t) for m, t in _pairs(modes, tiler)]
        return from_modes([p[0] for p in parts]), from_modes([*[p[1] for p in parts], *modes[len(tiler) :]])
    if tiler is None:
        return block, ONE
    first, second = modes_of(logical_product(block, tiler))
    return first, second


def zipped_product(block: Any, tiler: Any) -> Any:  # Any: layouts, see logical_product
    """Repeat a block, with the block's modes gathered in mode 0 and the copies' in mode 1.

    Law: zipped_product(a, (b0, b1))((i0, i1), (j0, j1)) == logical_product(a, (b0, b1))((i0, j0), (i1, j1)).

    >>> print(zipped_product(Layout((2, 2)), Layout((3, 4))))
    ((2,2),(3,4)):((1,2),(4,12))

    Raises `LayoutError` as `logical_product` does. Source: CuTe `zipped_product`.
    """
    if type(block) is not Layout:
        return lift(zipped_product, block, tiler)
    return from_modes(product_modes(block, tiler))


def tiled_product(block: Any, tiler: Any) -> Any:  # Any: layouts, see logical_product
    """Repeat a block, its modes gathered in mode 0 and each of the copies' a mode: (block, times0, times1, ...).

    Law: tiled_product(a, b)(i, j0, j1) == zipped_product(a, b)(i, (j0, j1)).

    >>> print(tiled_product(Layout(2), Layout((3, 4))))
    (2,3,4):(1,2,6)

    Raises `LayoutError` as `logical_product` does. Source: CuTe `tiled_product`.
    """
    if type(block) is not Layout:
        return lift(tiled_product, block, tiler)
    first, second = product_modes(block, tiler)
    return from_modes((first, *modes_of(second)))


def flat_product(block: Any, tiler: Any) -> Any:  # Any: layouts, see logical_product
    """Repeat a block, every mode by itself: (block0, block1, ..., times0, times1, ...).

    Law: flat_product(a, b)(i0, i1, j0, j1) == zipped_product(a, b)((i0, i1), (j0, j1)).

    >>> print(flat_product(Layout((2, 2)), Layout((3, 4))))
    (2,2,3,4):(1,2,4,12)

    Raises `LayoutError` as `logical_product` does. Source: CuTe `flat_product`.
    """
    if type(block) is not Layout:
        return lift(flat_product, block, tiler)
    first, second = product_modes(block, tiler)
    return from_modes((*modes_of(first), *modes_of(second)))


def blocked_product(block: Any, tiler: Layout) -> Any:  # Any: a layout or composed layout gives the same
    """Repeat a block over a tiler of the same rank, so that mode k goes through the block first, then the copies.

    Law: blocked_product(a, b)((i0, j0), (i1, j1)) == logical_product(a, b)((i0, i1), (j0, j1)), each mode coalesced.

    >>> print(blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4))))
    (6,(5,4)):(5,(1,30))

    Raises `LayoutError` as `logical_product` does. Source: CuTe `blocked_product`.
    """
    if type(block) is not Layout:
        return lift(blocked_product, block, tiler)
    return _interleaved(*_matched(block, tiler))


def raked_product(block: Any, tiler: Layout) -> Any:  # Any: a layout or composed layout gives the same
    """Repeat a block over a tiler of the same rank, so that mode k goes through the copies first, then the block.

    Law: raked_product(a, b)((j0, i0), (j1, i1)) == logical_product(a, b)((i0, i1), (j0, j1)), each mode coalesced.

    >>> print(raked_product(Layout((2, 5), (5, 1)), Layout((3, 4))))
    ((3,2),(4,5)):((10,5),(30,1))

    Raises `LayoutError` as `logical_product` does. Source: CuTe `raked_product`.
    """
    if type(block) is not Layout:
        return lift(raked_product, block, tiler)
    first, second = _matched(block, tiler)
    return _interleaved(second, first)


def _matched(block: Layout, tiler: Any) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
    """Return the modes of block and copies in their product, as many of each as the one of higher rank has."""
    times = tiler if isinstance(tiler, Layout) else Layout(tiler)
    rank = max(block.rank, times.rank)
    free = complement(block, mul(tuple_size(block.shape), cosize(times)))
    # As a tuple of modes, for composition may split a mode in several, which stay one mode of the tuple.
    padded = from_modes(modes_of(append(times, rank=rank)))
    return modes_of(append(block, rank=rank)), modes_of(composition(free, padded))


def _interleaved(first: tuple[Layout, ...], second: tuple[Layout, ...]) -> Layout:
    """Put each mode of `first` before its mode of `second`, joined where one continues the other."""
    modes = []
    for a, b in zip(first, second, strict=True):
        shape, stride = flat_modes(a)
        more_shape, more_stride = flat_modes(b)
        modes.append(layout_of_flat(*merge_flat(shape + more_shape, stride + more_stride)))
    return from_modes(modes)


def tile_to_shape(block: Any, shape: Any, order: Any = None) -> Any:  # Any: a layout or composed layout gives the same
    """Repeat a block until it fills `shape`; the least key of `order` names the mode to go along first.

    Law: compatible(shape, result), and the first block of the result is `block`.

    >>> print(tile_to_shape(Layout((8, 8), (8, 1)), (16, 32)))
    (16,(8,4)):(8,(1,128))

    Raises `LayoutError` when the block does not fill the shape evenly. Source: CuTe `tile_to_shape`.
    """
    if type(block) is not Layout:
        return lift(tile_to_shape, block, shape, order)
    target = product_each(Layout(shape_of(shape)).shape)  # a layout's: extents are at least 1
    if block.rank > len(target):
        raise LayoutError(f"tile_to_shape({block}, {show(target)}): the block has more modes than the shape")
    padded = append(block, rank=len(target))
    unit = product_each(padded.shape)
    for whole, part in zip(target, unit, strict=True):
        if type(whole) is int and type(part) is int and whole % part:
            raise LayoutError(
                f"tile_to_shape({block}, {show(target)}): the block's shape {show(unit)} does not divide it",
                help="round the shape up to multiples of the block",
            )
    times = tuple([ceildiv(whole, part) for whole, part in zip(target, unit, strict=True)])
    times_layout = raw_layout(times, compact_strides(times)[0]) if order is None else make_ordered_layout(times, order)
    result: Layout = blocked_product(padded, times_layout)
    return result
