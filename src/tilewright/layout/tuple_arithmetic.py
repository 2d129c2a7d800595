"""Arithmetic of nested tuples of integers, under CuTe's names: reductions, products, rounding and compact strides.

Leaves may be dynamic where no comparison of values is needed: `max`, `min` and `gcd` need static ones.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.ints import Int, IntTuple, Shape, Stride, add, mul, need_static
from tilewright.layout.modes import make_ordered_layout
from tilewright.layout.tuples import (
    ceil_div,
    checked_tuple,
    compact_strides,
    leaves,
    shape_of,
    show,
    tuple_size,
    unflatten,
)

# Any, throughout this module: integers or nested sequences of them, checked as they are read.


def _static_leaves(name: str, values: tuple[Any, ...]) -> list[int]:
    found = [need_static(v, name, "every leaf") for x in values for v in leaves(checked_tuple(x, f"{name}'s tuple"))]
    if not found:
        raise LayoutError(f"{name} of no integers: {show(values)}")
    return found


def max(*values: Any) -> int:  # CuTe's name
    """Return the largest leaf of integers and nested tuples.

    >>> max((1, (7, 2)), 3)
    7

    Raises `LayoutError` for dynamic leaves, or none at all. Source: CuTe `max`.
    """
    return builtins.max(_static_leaves("max", values))


def min(*values: Any) -> int:  # CuTe's name
    """Return the smallest leaf of integers and nested tuples.

    Raises `LayoutError` for dynamic leaves, or none at all. Source: CuTe `min`.
    """
    return builtins.min(_static_leaves("min", values))


def gcd(*values: Any) -> int:
    """Return the greatest common divisor of all leaves.

    >>> gcd((12, (18, 30)))
    6

    Raises `LayoutError` for dynamic leaves, or none at all. Source: CuTe `gcd`.
    """
    return math.gcd(*_static_leaves("gcd", values))


def sum(values: Any) -> Int:  # CuTe's name
    """Add all leaves. Source: CuTe `sum`."""
    result: Int = 0
    for v in leaves(checked_tuple(values, "tuple")):
        result = add(result, v)
    return result


def product(values: Any) -> Int:
    """Multiply all leaves; of no leaves it is 1. The same as `size` of a shape.

    >>> product(((2, 3), 4)), product(())
    (24, 1)

    Source: CuTe `product`.
    """
    return tuple_size(checked_tuple(values, "tuple"))


def product_like(values: Any, guide: Any) -> Any:
    """Multiply the leaves under each leaf of `guide`, keeping the guide's nesting.

    >>> product_like(((2, 2), (3, (4, 5))), (0, (0, 0)))
    (4, (3, 20))

    Raises `LayoutError` when the guide is nested deeper than the tuple. Source: CuTe `product_like`.
    """
    return _like(checked_tuple(values, "tuple"), guide)


def _like(values: IntTuple, guide: Any) -> Any:
    if not isinstance(guide, tuple):
        return tuple_size(values)
    if not isinstance(values, tuple) or len(values) != len(guide):
        raise LayoutError(f"product_like: {show(guide)} is not nested like {show(values)} or less deep")
    return tuple([_like(v, g) for v, g in builtins.zip(values, guide, strict=True)])


def inner_product(a: Any, b: Any) -> Int:
    """Multiply two tuples of one profile leaf by leaf, and add.

    >>> inner_product(((2, 3), 4), ((2, 1), 2))
    15

    Raises `LayoutError` when the profiles differ. Source: CuTe `inner_product`.
    """
    result: Int = 0
    for x, y in _pairs("inner_product", checked_tuple(a, "first tuple"), checked_tuple(b, "second tuple")):
        result = add(result, mul(x, y))
    return result


def _pairs(name: str, a: Any, b: Any) -> list[tuple[Any, Any]]:
    if isinstance(a, tuple) != isinstance(b, tuple) or (isinstance(a, tuple) and len(a) != len(b)):
        raise LayoutError(f"{name}: {show(a)} and {show(b)} are nested differently")
    if not isinstance(a, tuple):
        return [(a, b)]
    return [pair for x, y in builtins.zip(a, b, strict=True) for pair in _pairs(name, x, y)]


def elem_scale(a: Any, b: Any) -> Any:
    """Multiply each leaf of `a` by the product of the corresponding leaves of `b`.

    >>> elem_scale((2, 3), (10, (2, 5)))
    (20, 30)

    Raises `LayoutError` when `a` is nested deeper than `b`. Source: CuTe `elem_scale`.
    """
    return _scale(checked_tuple(a, "first tuple"), checked_tuple(b, "second tuple"))


def _scale(a: IntTuple, b: IntTuple) -> Any:
    if not isinstance(a, tuple):
        return mul(a, tuple_size(b))
    if not isinstance(b, tuple) or len(a) != len(b):
        raise LayoutError(f"elem_scale: {show(b)} is not nested like {show(a)} or deeper")
    return tuple([_scale(x, y) for x, y in builtins.zip(a, b, strict=True)])


def round_up(a: Any, b: Any) -> Any:
    """Round `a` up to a multiple of `b`, mode by mode; further modes of `a` stay as they are.

    Law for integers: round_up(a, b) == ceil_div(a, b) * b.

    >>> round_up(10, 4), round_up((10, 6, 7), (4, 6))
    (12, (12, 6, 7))

    Raises `LayoutError` when `b` has more modes than `a`, is zero, or only one of the two is a tuple. Source: CuTe
    `round_up`.
    """
    x, y = shape_of(a), shape_of(b)
    if isinstance(x, tuple) and isinstance(y, tuple):
        if len(y) > len(x):
            raise LayoutError(f"round_up: {show(y)} has more modes than {show(x)}")
        return tuple([round_up(u, v) for u, v in builtins.zip(x, y, strict=False)]) + x[len(y) :]
    if isinstance(x, tuple) or isinstance(y, tuple):
        raise LayoutError(
            f"round_up({show(x)}, {show(y)}): one is a tuple and the other an integer", help="give a multiple a mode"
        )
    return mul(ceil_div(x, y), y)


def prefix_product(shape: Any, init: Any = 1) -> Any:
    """Return the product of all leaves before each one, times `init`: pycute's column-major strides.

    A tuple `init` gives each of its leaves to the corresponding mode.

    >>> prefix_product(((2, 3), 4)), prefix_product((1, 8), 5)
    (((1, 2), 6), (5, 5))

    `compact_col_major` gives modes of extent 1 the stride 0 instead. Raises `LayoutError` when `init` is nested deeper
    than the shape. Source: pycute `prefix_product`.
    """
    return _from(checked_tuple(shape, "shape"), init, _running(forward=True), "prefix_product")


def suffix_product(shape: Any, init: Any = 1) -> Any:
    """Return the product of all leaves after each one, times `init`: row-major strides, as `prefix_product`.

    >>> suffix_product(((2, 3), 4))
    ((12, 4), 1)
    """
    return _from(checked_tuple(shape, "shape"), init, _running(forward=False), "suffix_product")


def _running(forward: bool) -> Callable[[IntTuple, Int], Any]:
    def strides(shape: IntTuple, current: Int) -> Any:
        found: list[Int] = []
        flat = leaves(shape)
        for extent in flat if forward else flat[::-1]:
            found.append(current)
            current = mul(current, extent)
        return unflatten(found if forward else found[::-1], shape)

    return strides


def _from(shape: IntTuple, start: Any, strides: Callable[[IntTuple, Int], Any], name: str) -> Any:
    """Return strides from a start, or from each leaf of a tuple of starts for the mode in its place."""
    if not isinstance(start, tuple):
        return strides(shape, checked_tuple(start, "start"))  # type: ignore[arg-type]  # an integer
    if not isinstance(shape, tuple) or len(shape) != len(start):
        raise LayoutError(f"{name}: the starts {show(start)} are not nested like {show(shape)} or less deep")
    return tuple([_from(s, c, strides, name) for s, c in builtins.zip(shape, start, strict=True)])


def compact_col_major(shape: Any, current: Any = 1) -> Stride:
    """Return the strides of `col_major(shape)`, the first of them `current`; a static extent 1 gets stride 0.

    A tuple `current` gives each of its leaves to the corresponding mode.

    >>> compact_col_major((4, (8, 1, 2))), compact_col_major((4, 8), 3), compact_col_major(((2, 3), 5), (1, 100))
    ((1, (4, 0, 32)), (3, 12), ((1, 2), 100))

    Raises `LayoutError` when `current` is nested deeper than the shape. Source: CuTe `compact_col_major`.
    """
    found: Stride = _from(shape_of(shape), current, lambda s, c: compact_strides(s, c)[0], "compact_col_major")
    return found


def compact_row_major(shape: Any, current: Any = 1) -> Stride:
    """Return the strides of `row_major(shape)`, the last of them `current`; a static extent 1 gets stride 0.

    A tuple `current` gives each of its leaves to the corresponding mode.

    >>> compact_row_major((4, (8, 1, 2))), compact_row_major((4, 8), 3)
    ((16, (2, 0, 1)), (24, 3))

    Raises `LayoutError` when `current` is nested deeper than the shape. Source: CuTe `compact_row_major`.
    """

    def strides(part: Shape, start: Int) -> Any:
        flat = leaves(part)
        backwards = compact_strides(tuple(flat[::-1]), start)[0]
        assert isinstance(backwards, tuple), part
        return unflatten(list(backwards)[::-1], part)

    found: Stride = _from(shape_of(shape), current, strides, "compact_row_major")
    return found


def compact_order(shape: Any, order: Any) -> Stride:
    """Return the strides of `make_ordered_layout(shape, order)`: the mode of the least key is fastest.

    >>> compact_order((2, 3, 4), (1, 2, 0))
    (4, 8, 1)

    Raises `LayoutError` when the keys do not fit the shape. Source: CuTe `compact_order`.
    """
    return make_ordered_layout(shape, order).stride
