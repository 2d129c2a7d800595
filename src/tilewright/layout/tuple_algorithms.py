"""Algorithms over nested tuples, under CuTe's names: they know nothing of shapes, and leaves may be anything.

Only `tuple` nests: a list, a `Layout` or a string is a leaf. Where CuTe's C++ passes a function last, CuTe's Python and
MoYe.jl pass it first; both orders are accepted. Indices count from 0.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from tilewright.arguments import integer
from tilewright.errors import LayoutError
from tilewright.layout.tuples import leaves, map_leaves, show

# Any, throughout this module: leaves of any type, and functions of them.


def _split(name: str, arguments: tuple[Any, ...], least: int = 1) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function among the arguments, which is the first or the last, and the others."""
    if len(arguments) > least and _is_function(arguments[-1]):
        return arguments[-1], arguments[:-1]
    if len(arguments) > least and _is_function(arguments[0]):
        return arguments[0], arguments[1:]
    raise LayoutError(
        f"{name} takes {least} argument{'s' if least > 1 else ''} or more and a function, which comes last or first",
        details=[f"got {', '.join([show(a) for a in arguments])}"],
    )


def _is_function(x: Any) -> bool:
    return callable(x) and not hasattr(x, "shape")  # layouts and tensors can be called, and are leaves


def _rows(name: str, tuples: tuple[Any, ...]) -> list[tuple[Any, ...]] | None:
    """Return the elements of tuples side by side; None where the first is a leaf."""
    if not isinstance(tuples[0], tuple):
        return None
    if any(not isinstance(t, tuple) or len(t) != len(tuples[0]) for t in tuples):
        raise LayoutError(f"{name}: the tuples have different ranks: {', '.join([show(t) for t in tuples])}")
    return list(builtins.zip(*tuples, strict=True))


def transform(*arguments: Any) -> Any:
    """Apply a function to each element, and to a leaf itself.

    Law: transform(t, f) == (f(t[0]), f(t[1]), ...).

    >>> transform((1, 2), (10, 20), lambda x, y: x + y), transform(3, lambda x: 2 * x)
    ((11, 22), 6)

    Raises `LayoutError` when tuples have different ranks. Source: CuTe `transform`.
    """
    f, tuples = _split("transform", arguments)
    rows = _rows("transform", tuples)
    return f(*tuples) if rows is None else tuple([f(*row) for row in rows])


def transform_leaf(*arguments: Any) -> Any:
    """Apply a function to each leaf, keeping the nesting of the first tuple, whose leaves may meet tuples of others.

    >>> transform_leaf(((1, 2), 3), lambda x: 2 * x), transform_leaf((1, 2), ((1, 1), 5), lambda x, y: (x, y))
    (((2, 4), 6), ((1, (1, 1)), (2, 5)))

    Raises `LayoutError` when tuples have different ranks. Source: CuTe `transform_leaf`.
    """
    f, tuples = _split("transform_leaf", arguments)
    rows = _rows("transform_leaf", tuples)
    return f(*tuples) if rows is None else tuple([transform_leaf(*row, f) for row in rows])


def transform_apply(*arguments: Any, f: Any = None, g: Any = None) -> Any:
    """Apply f to each element, and g to the results.

    Law: transform_apply(t, f, g) == g(f(t[0]), f(t[1]), ...).

    >>> transform_apply((1, 2, 3), lambda x: x * x, lambda *v: sum(v))
    14

    Raises `LayoutError` when tuples have different ranks. Source: CuTe `transform_apply`.
    """
    if f is None or g is None:
        arguments, (f, g) = arguments[:-2], arguments[-2:] if len(arguments) > 2 else (None, None)
    if not arguments or not callable(f) or not callable(g):
        raise LayoutError("transform_apply takes one tuple or more and two functions, f and g")
    rows = _rows("transform_apply", arguments)
    return g(f(*arguments)) if rows is None else g(*[f(*row) for row in rows])


def for_each(*arguments: Any) -> None:
    """Call a function with each element in order; a leaf is its own element. Source: CuTe `for_each`."""
    f, tuples = _split("for_each", arguments)
    rows = _rows("for_each", tuples)
    for row in [tuples] if rows is None else rows:
        f(*row)


def for_each_leaf(*arguments: Any) -> None:
    """Call a function with each leaf in order.

    >>> for_each_leaf(((1, 2), 3), print)
    1
    2
    3

    Source: CuTe `for_each_leaf`.
    """
    f, tuples = _split("for_each_leaf", arguments)
    for leaf in leaves(tuples[0]):
        f(leaf)


def filter_tuple(*arguments: Any, f: Any = None) -> tuple[Any, ...]:
    """Join the tuples that a function returns for each element: () drops it, (x,) keeps or replaces it.

    >>> filter_tuple((1, 2, 3, 4), lambda x: (x,) if x % 2 == 0 else ())
    (2, 4)

    Raises `LayoutError` when tuples have different ranks. Source: CuTe `filter_tuple`.
    """
    f, tuples = _split("filter_tuple", arguments if f is None else (*arguments, f))
    rows = _rows("filter_tuple", tuples)
    return tuple_cat(*[f(*row) for row in ([tuples] if rows is None else rows)])


def tuple_cat(*tuples: Any) -> tuple[Any, ...]:
    """Join tuples; a leaf counts as a tuple of one.

    >>> tuple_cat((1, 2), 3, ((4, 5),))
    (1, 2, 3, (4, 5))

    Source: CuTe `tuple_cat`.
    """
    return tuple([x for t in tuples for x in wrap(t)])


def fold(*arguments: Any) -> Any:
    """Reduce from the left, beginning with a value.

    Law: fold(t, v, f) == f(... f(f(v, t[0]), t[1]) ..., t[-1]).

    >>> fold((1, 2, 3), 10, lambda v, x: v * x)
    60

    Source: CuTe `fold`.
    """
    f, (t, value) = _of_two("fold", arguments)
    for x in wrap(t):
        value = f(value, x)
    return value


def fold_first(*arguments: Any) -> Any:
    """Reduce from the left, beginning with the first element.

    Law: fold_first(t, f) == fold(t[1:], t[0], f).

    >>> fold_first((7, 2, 3), lambda v, x: v - x)
    2

    Raises `LayoutError` for an empty tuple. Source: CuTe `fold_first`.
    """
    f, tuples = _split("fold_first", arguments)
    elements = _not_empty("fold_first", tuples[0])
    return fold(elements[1:], elements[0], f)


def iscan(*arguments: Any) -> tuple[Any, ...]:
    """Return the inclusive scan: after each element.

    Law: iscan(t, v, f) == (f(v, t[0]), f(f(v, t[0]), t[1]), ...).

    >>> iscan((1, 2, 3), 10, lambda v, x: v * x)
    (10, 20, 60)

    Source: CuTe `iscan`.
    """
    f, (t, value) = _of_two("iscan", arguments)
    found = []
    for x in wrap(t):
        value = f(value, x)
        found.append(value)
    return tuple(found)


def escan(*arguments: Any) -> tuple[Any, ...]:
    """Return the exclusive scan: before each element.

    Law: escan(t, v, f) == (v, f(v, t[0]), ...), as many as t has.

    >>> escan((1, 2, 3, 4, 5), 10, lambda v, x: v * x)
    (10, 10, 20, 60, 240)

    Source: CuTe `escan`.
    """
    f, (t, value) = _of_two("escan", arguments)
    if not wrap(t):
        return ()
    return (value, *iscan(wrap(t)[:-1], value, f))


def _of_two(name: str, arguments: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    f, rest = _split(name, arguments, 2)
    if len(rest) != 2:
        raise LayoutError(f"{name} takes a tuple, a first value and a function, got {len(rest)} values")
    return f, (rest[0], rest[1])


def _not_empty(name: str, t: Any) -> tuple[Any, ...]:
    elements = wrap(t)
    if not elements:
        raise LayoutError(f"{name}: the tuple is empty")
    return elements


def find_if(*arguments: Any) -> int:
    """Return the index of the first element for which a function is true, or the rank where there is none.

    >>> find_if((4, 6, 7), lambda x: x % 2 == 1)
    2

    Source: CuTe `find_if`.
    """
    f, tuples = _split("find_if", arguments)
    elements = wrap(tuples[0])
    return next((i for i, x in enumerate(elements) if f(x)), len(elements))


def find(t: Any, x: Any) -> int:
    """Return the index of the first element that equals x, or the rank where there is none.

    >>> find((4, 6, 7), 6), find((4, 6, 7), 5)
    (1, 3)

    Source: CuTe `find`.
    """
    return find_if(t, lambda y: y == x)


def any_of(*arguments: Any) -> bool:
    """Say whether a function is true for some element. Source: CuTe `any_of`."""
    f, tuples = _split("any_of", arguments)
    return any(f(x) for x in wrap(tuples[0]))


def all_of(*arguments: Any) -> bool:
    """Say whether a function is true for all elements. Source: CuTe `all_of`."""
    f, tuples = _split("all_of", arguments)
    return all(f(x) for x in wrap(tuples[0]))


def none_of(*arguments: Any) -> bool:
    """Say whether a function is true for no element. Source: CuTe `none_of`."""
    return not any_of(*arguments)


def front(t: Any) -> Any:
    """Return the first leaf.

    >>> front(((2, 3), 4)), back((2, (3, 4)))
    (2, 4)

    Raises `LayoutError` where there is none. Source: CuTe `front`.
    """
    return front(_not_empty("front", t)[0]) if isinstance(t, tuple) else t


def back(t: Any) -> Any:
    """Return the last leaf; raises `LayoutError` where there is none. Source: CuTe `back`."""
    return back(_not_empty("back", t)[-1]) if isinstance(t, tuple) else t


def wrap(t: Any) -> tuple[Any, ...]:
    """Return a tuple as it is and a leaf as a tuple of one. Source: CuTe `wrap`."""
    return t if isinstance(t, tuple) else (t,)


def unwrap(t: Any) -> Any:
    """Remove tuples of one until a leaf or a tuple of another rank is left.

    >>> unwrap(((1,),)), unwrap(((1, 2),))
    (1, (1, 2))

    Source: CuTe `unwrap`.
    """
    while isinstance(t, tuple) and len(t) == 1:
        t = t[0]
    return t


def flatten_to_tuple(t: Any) -> tuple[Any, ...]:
    """Return the leaves as a flat tuple, of a leaf a tuple of one. Source: CuTe `flatten_to_tuple`."""
    return tuple(leaves(t))


def unflatten(flat: Any, profile: Any) -> Any:
    """Nest the elements of a flat tuple as a profile is nested.

    >>> unflatten((1, 2, 3, 4), (0, (0, (0, 0))))
    (1, (2, (3, 4)))

    Raises `LayoutError` when there are more or fewer elements than leaves of the profile. Source: CuTe `unflatten`.
    """
    elements = tuple(flat) if isinstance(flat, (tuple, list)) else (flat,)
    count = len(leaves(profile))
    if len(elements) != count:
        raise LayoutError(
            f"unflatten({show(elements)}, {show(profile)}): {len(elements)} elements for {count} leaves of the profile"
        )
    position = iter(elements)
    return map_leaves(lambda _: next(position), profile)


def _place(name: str, t: Any, index: Any, end: int) -> tuple[Any, ...]:
    elements = wrap(t)
    integer(name, "index", index)
    if not 0 <= index < len(elements) + end:
        raise LayoutError(
            f"{name}: there is no place {index} in {show(t)}", help=f"places are 0 to {len(elements) + end - 1}"
        )
    return elements


def insert(t: Any, index: int, x: Any) -> tuple[Any, ...]:
    """Put x before the element `index`; an index of the rank puts it at the end.

    >>> insert((1, 2, 3), 1, 10)
    (1, 10, 2, 3)

    Raises `LayoutError` if there is no such position. Source: CuTe `insert`.
    """
    elements = _place("insert", t, index, 1)
    return (*elements[:index], x, *elements[index:])


def remove(t: Any, index: int) -> tuple[Any, ...]:
    """Remove the element `index`.

    >>> remove((1, 2, 3), 1)
    (1, 3)

    Raises `LayoutError` where there is none. Source: CuTe `remove`.
    """
    elements = _place("remove", t, index, 0)
    return elements[:index] + elements[index + 1 :]


def replace_front(t: Any, x: Any) -> Any:
    """Replace the first element by x; a leaf becomes x. Source: CuTe `replace_front`."""
    return (x, *_not_empty("replace_front", t)[1:]) if isinstance(t, tuple) else x


def replace_back(t: Any, x: Any) -> Any:
    """Replace the last element by x; a leaf becomes x. Source: CuTe `replace_back`."""
    return (*_not_empty("replace_back", t)[:-1], x) if isinstance(t, tuple) else x


def tuple_repeat(n: int, x: Any) -> tuple[Any, ...]:
    """Return a tuple of n times x. Source: CuTe `tuple_repeat`."""
    return (x,) * integer("tuple_repeat", "n", n, minimum=0)


def repeat(n: int, x: Any) -> Any:
    """Return a tuple of n times x, and x itself for one. Source: CuTe `repeat`."""
    return x if n == 1 else tuple_repeat(n, x)


def repeat_like(t: Any, x: Any) -> Any:
    """Replace every leaf by x.

    >>> repeat_like(((2, 3), (4, 5)), 1)
    ((1, 1), (1, 1))

    Source: CuTe `repeat_like`.
    """
    return map_leaves(lambda _: x, t)


def reverse(t: Any) -> Any:
    """Return the elements in reverse order; a leaf comes as it is.

    >>> reverse((1, (2, 3)))
    ((2, 3), 1)

    Source: CuTe `reverse`.
    """
    return t[::-1] if isinstance(t, tuple) else t


def zip2_by(t: Any, guide: Any) -> tuple[Any, Any]:
    """Gather the firsts and the seconds of pairs, which are where the leaves of `guide` are; more modes go last.

    Law: zip2_by(((A, a), ((B, b), (C, c)), d), (0, (0, 0))) == ((A, (B, C)), (a, (b, c), d)).

    >>> zip2_by(((1, 10), ((2, 20), (3, 30)), 40), (0, (0, 0)))
    ((1, (2, 3)), (10, (20, 30), 40))

    Raises `LayoutError` where there is not a pair for a leaf of the guide. Source: CuTe `zip2_by`.
    """
    if not isinstance(guide, tuple):
        if not isinstance(t, tuple) or len(t) != 2:
            raise LayoutError(f"zip2_by: a leaf of the guide stands for a pair, not for {show(t)}")
        return t
    if not isinstance(t, tuple) or len(t) < len(guide):
        raise LayoutError(f"zip2_by: the guide {show(guide)} has more modes than {show(t)}")
    split = [zip2_by(x, g) for x, g in builtins.zip(t, guide, strict=False)]
    return tuple([s[0] for s in split]), (*[s[1] for s in split], *t[len(guide) :])
