"""Nested tuples of integers: flat views, sizes, profiles, and division of shapes.

Functions here know shapes and strides only, not layouts. An operation that takes "a shape or a layout" reads
the shape through `shape_of`.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, TypeVar

from tilewright.errors import LayoutError
from tilewright.layout.ints import (
    Basis,
    DynamicInt,
    Int,
    IntTuple,
    Leaf,
    Shape,
    Stride,
    as_int,
    ceildiv,
    mul,
    need_static,
    same_int,
)

T = TypeVar("T")


def shape_of(x: Any) -> Shape:  # Any: a layout, tensor, integer or nested tuple
    """Return the shape of a layout or tensor, and a shape itself, checked."""
    if type(x) is int or (type(x) is tuple and _all_ints(x)):
        return x
    shape = getattr(x, "shape", None)
    if shape is not None and not isinstance(x, (int, DynamicInt)):
        x = shape
    return checked_tuple(x, "shape")


def _all_ints(x: tuple[Any, ...]) -> bool:
    kinds = {type(v) for v in x}
    return kinds == {int} or (kinds <= {int, tuple} and all(_all_ints(v) for v in x if type(v) is tuple))


def checked_tuple(x: object, what: str) -> IntTuple:
    """Return `x` with its sequences as tuples and its leaves as integers, or raise `LayoutError`."""
    if type(x) is int:
        return x
    if isinstance(x, (tuple, list)):
        return tuple([v if type(v) is int else checked_tuple(v, what) for v in x])
    return as_int(x, f"a leaf of the {what}")


def checked_stride(x: object) -> Stride:
    """Return a stride with its sequences as tuples and its leaves as integers or basis strides, or raise."""
    if type(x) is int or isinstance(x, (Basis, DynamicInt)):
        return x
    if isinstance(x, (tuple, list)):
        return tuple([checked_stride(v) for v in x])
    return as_int(x, "a stride")


def leaves(x: Any) -> list[Any]:  # Any: a nested tuple of any leaf, whose leaves come back
    """Return the leaves of a nested tuple in order.

    >>> leaves(((1, 2), 3))
    [1, 2, 3]
    """
    if type(x) is not tuple:
        return [x]
    result: list[Any] = []
    for v in x:
        if type(v) is tuple:
            result += leaves(v)
        else:
            result.append(v)
    return result


def unflatten(flat: list[T], profile: Any) -> Any:  # Any: takes the profile's own nesting
    """Nest the leaves `flat` as `profile` is nested."""
    position = iter(flat)
    return map_leaves(lambda _: next(position), profile)


def map_leaves(function: Callable[[Any], Any], x: Any) -> Any:  # Any: leaves of any type
    """Apply `function` to every leaf of a nested tuple, keeping the nesting."""
    if isinstance(x, tuple):
        return tuple([map_leaves(function, v) for v in x])
    return function(x)


def tuple_size(shape: Shape) -> Int:
    """Return the product of all leaves of a shape."""
    if type(shape) is not tuple:
        return shape  # type: ignore[return-value]
    result: Int = 1
    for v in shape:
        result = mul(result, tuple_size(v) if type(v) is tuple else v)  # type: ignore[arg-type]
    return result


def tuple_depth(x: object) -> int:
    """Return the depth of nesting; a leaf has depth 0."""
    if not isinstance(x, tuple):
        return 0
    return 1 + max((tuple_depth(v) for v in x), default=0)


def same(a: object, b: object) -> bool:
    """Compare two nested tuples leaf by leaf, dynamic leaves by identity."""
    if type(a) is tuple:
        return type(b) is tuple and len(a) == len(b) and all(same(x, y) for x, y in builtins.zip(a, b, strict=True))
    return same_int(a, b)


def congruent_tuples(a: object, b: object) -> bool:
    """Say whether two nested tuples are nested alike."""
    if type(a) is not tuple or type(b) is not tuple:
        return type(a) is not tuple and type(b) is not tuple
    if len(a) != len(b):
        return False
    for x, y in builtins.zip(a, b, strict=True):  # hot, and of one length
        if (type(x) is tuple or type(y) is tuple) and not congruent_tuples(x, y):
            return False
    return True


def compact_strides(shape: Shape, start: Int = 1) -> tuple[Stride, Int]:
    """Return column-major strides of `shape` from `start`, and the next free stride.

    A static extent 1 gets stride 0, as in C++ CuTe (pycute gives it the running product).
    """
    if type(shape) is int:
        return (0, start) if shape == 1 else (start, mul(start, shape))
    if isinstance(shape, tuple):
        strides: list[Stride] = []
        for extent in shape:
            stride, start = compact_strides(extent, start)
            strides.append(stride)
        return tuple(strides), start
    return start, mul(start, shape)


def basis_strides(shape: Shape, path: tuple[int, ...] = ()) -> Stride:
    """Return the unit basis stride of every leaf of `shape`."""
    if isinstance(shape, tuple):
        return tuple([basis_strides(v, (*path, i)) for i, v in enumerate(shape)])
    return Basis(1, path or (0,))


def product_each(shape: Shape) -> tuple[Int, ...]:
    """Return the size of each top-level mode of a shape.

    >>> product_each(((2, 3), 4))
    (6, 4)
    """
    return tuple([tuple_size(v) for v in shape]) if isinstance(shape, tuple) else (shape,)


def compatible(a: Any, b: Any) -> bool:  # Any: shapes or layouts
    """Say whether every coordinate of `a` is a coordinate of `b`: `b` refines modes of `a` of the same size.

    Law: compatible(a, b)  =>  size(a) == size(b), and each leaf of `a` is the size of the corresponding mode of `b`.

    >>> compatible(24, (4, 6)), compatible((4, 6), ((2, 2), 6)), compatible((2, 12), (4, 6))
    (True, True, False)

    Raises `LayoutError` when an extent that decides is dynamic. Source: CuTe `compatible`.
    """
    return _compatible(shape_of(a), shape_of(b))


def _compatible(a: Shape, b: Shape) -> bool:
    if type(a) is tuple:
        if type(b) is not tuple or len(a) != len(b):
            return False
        return all([_compatible(x, y) for x, y in builtins.zip(a, b, strict=True)])  # noqa: C419  # a list is faster
    size = tuple_size(b)
    if type(a) is int and type(size) is int:
        return a == size
    if a is size:
        return True
    return need_static(a, "compatible", "an extent of the first shape") == need_static(
        size, "compatible", "an extent of the second shape"
    )


def congruent(a: Any, b: Any) -> bool:  # Any: shapes, strides or layouts
    """Say whether two shapes (or layouts) have the same nesting.

    Law: congruent(a, b)  <=>  replacing every leaf by one and the same value makes them equal.

    >>> congruent((1, (2, 3)), (4, (5, 6))), congruent((1, 2), 3)
    (True, False)

    Source: CuTe `congruent`.
    """
    return congruent_tuples(a if type(a) is tuple else shape_of(a), b if type(b) is tuple else shape_of(b))


def weakly_congruent(a: Any, b: Any) -> bool:  # Any: shapes or layouts
    """Say whether `b` is nested like `a` or deeper: each leaf of `a` corresponds to any mode of `b`.

    Law: congruent(a, b)  =>  weakly_congruent(a, b), and weakly_congruent(n, b) for every integer n.

    >>> weakly_congruent((1, 2), ((1, 1), 2)), weakly_congruent((1, (2, 3)), (1, 2))
    (True, False)

    Source: CuTe `weakly_congruent`.
    """

    def weak(x: Shape, y: Shape) -> bool:
        if not isinstance(x, tuple):
            return True
        return isinstance(y, tuple) and len(x) == len(y) and all(weak(u, v) for u, v in builtins.zip(x, y, strict=True))

    return weak(shape_of(a), shape_of(b))


def ceil_div(a: Any, b: Any) -> Any:  # Any: an integer or a nested tuple gives the same
    """Divide a shape by a shape, element by element, rounding up.

    A tuple by a tuple goes mode by mode (further modes of `a` stay); a tuple by an integer uses the integer up
    from the first mode on; an integer by a tuple divides by its size.

    Law for integers: ceil_div(a, b) == -(-a // b).

    >>> ceil_div(10, 4), ceil_div((100, 64), (32, 32)), ceil_div((4, 6), 8)
    (3, (4, 2), (1, 3))

    Raises `LayoutError` when `b` has more modes than `a`, or is zero. Source: CuTe `ceil_div`.
    """
    if type(a) is int and type(b) is int and b > 0:  # of grids, before each launch
        return -(-a // b)
    return _divide(shape_of(a), shape_of(b), _ceil_leaf, "ceil_div")


def shape_div(a: Any, b: Any) -> Any:  # Any: an integer or a nested tuple gives the same
    """Divide a shape by a shape exactly: of two integers, one has to divide the other.

    Law for integers: shape_div(a, b) * b == a, or shape_div(a, b) == 1 where a divides b.

    >>> shape_div(12, 4), shape_div(4, 12), shape_div((4, 6), 8)
    (3, 1, (1, 3))

    Raises `LayoutError` where neither divides the other, or a value that decides is dynamic. Source: CuTe `shape_div`.
    """
    return _divide(shape_of(a), shape_of(b), _exact_leaf, "shape_div")


def _ceil_leaf(a: Int, b: Int) -> Int:
    if type(b) is int and b <= 0:
        raise LayoutError(f"ceil_div by {b}", help="divide by a positive extent")
    return ceildiv(a, b)


def _exact_leaf(a: Int, b: Int) -> Int:
    if type(b) is int and b == 1:
        return a
    if a is b:
        return 1
    x, y = need_static(a, "shape_div", "the dividend"), need_static(b, "shape_div", "the divisor")
    if y > 0:
        if x % y == 0:
            return x // y
        if x > 0 and y % x == 0:
            return 1
    raise LayoutError(f"shape_div: of {x} and {y} neither divides the other", help="use ceil_div to round up")


def _divide(a: Shape, b: Shape, leaf: Callable[[Int, Int], Int], name: str) -> Shape:
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            if len(b) > len(a):
                raise LayoutError(f"{name}: {show(b)} has more modes than {show(a)}")
            return tuple([_divide(x, y, leaf, name) for x, y in builtins.zip(a, b, strict=False)]) + a[len(b) :]
        result: list[Shape] = []
        for mode in a:
            result.append(_divide(mode, b, leaf, name))
            b = leaf(b, tuple_size(mode))
        return tuple(result)
    return leaf(a, tuple_size(b))


def show(x: object) -> str:
    """Write a nested tuple as CuTe prints it: no blanks, `(8)` for one mode, `_` for a kept mode.

    >>> show(((2, 3), 4)), show((8,)), show((None, 3))
    ('((2,3),4)', '(8)', '(_,3)')
    """
    if isinstance(x, (tuple, list)):
        return f"({','.join([show(v) for v in x])})"
    return "_" if x is None else str(x)


def prefix_products(flat: list[Int]) -> list[Int]:
    """Return the running products before each element: `[1, s0, s0*s1, ...]`."""
    result: list[Int] = []
    current: Int = 1
    for extent in flat:
        result.append(current)
        current = mul(current, extent)
    return result


def merge_flat(
    shape: list[Int], stride: list[Leaf], *, keep_last: bool = False, keep_static: bool = False
) -> tuple[list[Int], list[Leaf]]:
    """Coalesce flat modes: drop extents 1, join neighbours where the second continues the first.

    With `keep_last` the last mode stays even if its extent is 1, because an index past the end of the layout
    still steps by its stride. With `keep_static` a static extent is not joined with a dynamic one, which would
    hide what divides it.
    """
    shapes: list[Int] = []
    strides: list[Leaf] = []
    last = len(shape) - 1 if keep_last else -1
    expected: Leaf | None = None  # the stride that would continue the mode before, where that is a plain number
    for i, (extent, step) in enumerate(builtins.zip(shape, stride, strict=True)):  # hot, and of one length
        if type(extent) is int:
            if extent == 1 and i != last:
                continue
            if type(step) is int:
                if step == expected:
                    shapes[-1] = grown = shapes[-1] * extent
                    expected = grown * strides[-1]
                    continue
                if expected is not None:
                    shapes.append(extent)
                    strides.append(step)
                    expected = extent * step
                    continue
        mixed = keep_static and shapes and (type(extent) is int) is not (type(shapes[-1]) is int)
        if shapes and not mixed and _continues(shapes[-1], strides[-1], step):
            shapes[-1] = mul(shapes[-1], extent)
        else:
            shapes.append(extent)
            strides.append(step)
        before, width = shapes[-1], strides[-1]
        expected = before * width if type(before) is int and type(width) is int else None
    return shapes, strides


def _continues(extent: Int, stride: Leaf, following: Leaf) -> bool:
    """Say whether the stride `following` goes on where a mode `extent:stride` ends, as far as that is known."""
    if type(stride) is int and type(following) is int:
        if type(extent) is int:
            return extent * stride == following
        return stride == 0 and following == 0
    if isinstance(stride, Basis) and isinstance(following, Basis):
        return stride.modes == following.modes and _continues(extent, stride.value, following.value)
    if isinstance(stride, Basis) or isinstance(following, Basis):
        return False
    # Dynamic: known to match where the value is the very same one.
    return same_int(mul(extent, stride), following) if _is_one(extent) or _is_one(stride) else False


def _is_one(x: Leaf) -> bool:
    return type(x) is int and x == 1
