"""Comparisons of coordinates, and walks through them, under CuTe's names.

There is more than one order of coordinates, so none of them is `<`. Leaves may be a kernel's integers; the answer then
is a kernel's condition, as `elem_less(coord, shape)` is for a predicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.coordinates import checked_coord, crd2idx, idx2crd
from tilewright.layout.ints import add, need_static
from tilewright.layout.tuples import congruent_tuples, leaves, shape_of, show, unflatten

# Any, throughout this module: integers or nested sequences of them; a bool, or a kernel's condition.


def _and(a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        return b if a else False
    return (a if b else False) if isinstance(b, bool) else a & b


def _or(a: Any, b: Any) -> Any:
    if isinstance(a, bool):
        return True if a else b
    return (True if b else a) if isinstance(b, bool) else a | b


def _not(a: Any) -> Any:
    return not a if isinstance(a, bool) else ~a


def _checked(name: str, a: Any, b: Any) -> tuple[Any, Any]:
    x, y = checked_coord(a), checked_coord(b)
    if None in leaves(x) or None in leaves(y):
        raise LayoutError(f"{name}({show(x)}, {show(y)}): a kept mode has no place in an order")
    return x, y


def _tuples(name: str, a: Any, b: Any) -> bool:
    """Say whether both are tuples; one alone cannot be compared."""
    if isinstance(a, tuple) != isinstance(b, tuple):
        raise LayoutError(f"{name}: {show(a)} and {show(b)} cannot be compared: only one of the two is a tuple")
    return isinstance(a, tuple)


def _equal(a: Any, b: Any) -> Any:
    if isinstance(a, tuple) or isinstance(b, tuple):
        if not isinstance(a, tuple) or not isinstance(b, tuple) or len(a) != len(b):
            return False
        found: Any = True
        for x, y in zip(a, b, strict=True):
            found = _and(found, _equal(x, y))
        return found
    return a == b


def elem_less(a: Any, b: Any) -> Any:
    """Return whether every leaf of `a` is less than its counterpart in `b`: whether a coordinate is inside a shape.

    A tuple with more modes than the other is not less; modes that only `b` has do not matter.

    >>> elem_less((1, 2), (2, 3)), elem_less((1, 3), (2, 3)), elem_less((1, 2), (2, 3, 0)), elem_less((1, 2), (2,))
    (True, False, True, False)

    Raises `LayoutError` when an integer is compared with a tuple. Source: CuTe `elem_less`.
    """
    return _elem_less(*_checked("elem_less", a, b))


def _elem_less(a: Any, b: Any) -> Any:
    if not _tuples("elem_less", a, b):
        return a < b
    found: Any = len(a) <= len(b)
    for x, y in zip(a, b, strict=False):
        found = _and(found, _elem_less(x, y))
    return found


def elem_leq(a: Any, b: Any) -> Any:
    """Return not elem_less(b, a): of integers a <= b, of tuples that not every leaf of `b` is less.

    >>> elem_leq(3, 3), elem_leq((1, 9), (2, 3)), elem_leq((3, 9), (2, 3))
    (True, True, False)

    Source: CuTe `elem_leq`.
    """
    return _not(elem_less(b, a))


def elem_gtr(a: Any, b: Any) -> Any:
    """Return elem_less(b, a). Source: CuTe `elem_gtr`."""
    return elem_less(b, a)


def elem_geq(a: Any, b: Any) -> Any:
    """Return not elem_less(a, b). Source: CuTe `elem_geq`."""
    return _not(elem_less(a, b))


def lex_less(a: Any, b: Any) -> Any:
    """Compare by the first modes, then by the next: the order of offsets in a row-major layout.

    Of tuples that agree as far as the shorter goes, the shorter is less.

    Law: lex_less(a, b) == (row_major(s)(a) < row_major(s)(b)) for coordinates of a shape s.

    >>> lex_less((1, 2), (1, 3)), lex_less((0, 9), (1, 0)), lex_less((1, 2), (1, 2, 0))
    (True, True, True)

    Raises `LayoutError` when an integer is compared with a tuple. Source: CuTe `lex_less`.
    """
    return _ordered("lex_less", *_checked("lex_less", a, b), step=1)


def colex_less(a: Any, b: Any) -> Any:
    """Compare by the last modes, then by those before: the order of offsets in a column-major layout.

    Of tuples that agree as far as the shorter goes from the end, the shorter is less.

    Law: colex_less(a, b) == (crd2idx(a, s) < crd2idx(b, s)) for coordinates of a shape s.

    >>> colex_less((9, 0), (0, 1)), colex_less((1, 2, 3), (1, 1, 2, 3))
    (True, True)

    Raises `LayoutError` when an integer is compared with a tuple. Source: CuTe `colex_less`.
    """
    return _ordered("colex_less", *_checked("colex_less", a, b), step=-1)


def _ordered(name: str, a: Any, b: Any, step: int) -> Any:
    if not _tuples(name, a, b):
        return a < b
    less: Any = False
    equal: Any = True
    for x, y in zip(a[::step], b[::step], strict=False):
        less = _or(less, _and(equal, _ordered(name, x, y, step)))
        equal = _and(equal, _equal(x, y))
        if equal is False:
            return less
    return _or(less, equal) if len(a) < len(b) else less


def lex_leq(a: Any, b: Any) -> Any:
    """Return not lex_less(b, a). Source: CuTe `lex_leq`."""
    return _not(lex_less(b, a))


def lex_gtr(a: Any, b: Any) -> Any:
    """Return lex_less(b, a). Source: CuTe `lex_gtr`."""
    return lex_less(b, a)


def lex_geq(a: Any, b: Any) -> Any:
    """Return not lex_less(a, b). Source: CuTe `lex_geq`."""
    return _not(lex_less(a, b))


def colex_leq(a: Any, b: Any) -> Any:
    """Return not colex_less(b, a). Source: CuTe `colex_leq`."""
    return _not(colex_less(b, a))


def colex_gtr(a: Any, b: Any) -> Any:
    """Return colex_less(b, a). Source: CuTe `colex_gtr`."""
    return colex_less(b, a)


def colex_geq(a: Any, b: Any) -> Any:
    """Return not colex_less(a, b). Source: CuTe `colex_geq`."""
    return _not(colex_less(a, b))


def increment(coord: Any, shape: Any) -> Any:
    """Return the coordinate that follows in colexicographic order; the last leaf goes on past the shape.

    Law: crd2idx(increment(c, s), s) == crd2idx(c, s) + 1.

    >>> increment((2, 0), (3, 4)), increment((2, (1, 2)), (3, (2, 3)))
    ((0, 1), (0, (0, 3)))

    Raises `LayoutError` when the coordinate is not nested like the shape. Source: CuTe `increment`, which changes the
    coordinate in place.
    """
    place, extents = checked_coord(coord), shape_of(shape)
    if not congruent_tuples(place, extents):
        raise LayoutError(f"increment: the coordinate {show(place)} is not nested like the shape {show(extents)}")
    return idx2crd(add(crd2idx(place, extents), 1), extents)  # type: ignore[arg-type]  # of a shape: an integer


def make_coord_iterator(shape: Any, coord: Any = None) -> Iterator[Any]:
    """Go through the coordinates of a static shape in colexicographic order, from `coord` on.

    >>> list(make_coord_iterator((2, 2), (1, 0)))
    [(1, 0), (0, 1), (1, 1)]

    Raises `LayoutError` when the coordinate is not nested like the shape, or an extent is dynamic. Source: CuTe
    `make_coord_iterator`.
    """
    extents = shape_of(shape)
    sizes = [need_static(e, "make_coord_iterator", "every extent") for e in leaves(extents)]
    if any(e < 1 for e in sizes):
        raise LayoutError(f"make_coord_iterator({show(extents)}): an extent is less than 1")
    place = unflatten([0] * len(sizes), extents) if coord is None else checked_coord(coord)
    if not congruent_tuples(place, extents):
        raise LayoutError(f"the coordinate {show(place)} is not nested like the shape {show(extents)}")
    return _coordinates(place, extents, sizes)


def _coordinates(place: Any, shape: Any, sizes: list[int]) -> Iterator[Any]:
    while not sizes or leaves(place)[-1] < sizes[-1]:
        yield place
        if not sizes:
            return
        place = increment(place, shape)
