"""Keys of values that tell apart what Python calls equal: 1, 1.0 and True, 0.0 and -0.0, one NaN and another.

A kernel is traced with a value as it is, so values that differ in type or bits give different kernels. `freeze` makes
the key of a compile-time argument; `same` compares what a kernel captured with what stands there now.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any  # Any: whatever users give

_ATOMS = (int, bool, str, bytes, type(None), type(Ellipsis))
_MOST_KNOWN = 256


def freeze(value: Any) -> Hashable:
    """Return a key that is equal for values of equal types and bits: of tuples and frozen dataclasses, all their parts.

    Other objects count as they compare themselves. Raises `TypeError` for what cannot be hashed.

    >>> freeze(1) == freeze(True), freeze((0.0,)) == freeze((-0.0,)), freeze((1, 2.0)) == freeze((1, 2.0))
    (False, False, True)
    """
    kind: Any = type(value)
    if not _field_names(kind):
        return _key(value, _by_equality, exact=False)
    # The fields of a frozen dataclass do not change: the launch path looks its key up.
    known = _known.get(id(value))
    if known is None or known[0] is not value:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[id(value)] = value, _key(value, _by_equality, exact=False)
    return known[1]


_known: dict[int, tuple[Any, Hashable]] = {}


def needs_freezing(value: Any) -> bool:
    """Return whether a value of the same type may be equal and yet another one."""
    kind: Any = type(value)
    return isinstance(value, (tuple, frozenset, float, complex)) or bool(_field_names(kind)) or _is_numpy_scalar(kind)


def is_looked_up(value: Any) -> bool:
    """Return whether `freeze` knows a value that it has seen by its identity, as it does not change."""
    kind: Any = type(value)
    return bool(_field_names(kind))


def same(a: Any, b: Any, by_value: tuple[type, ...] = ()) -> bool:
    """Return whether two values can stand for each other in a kernel.

    Of objects that are neither numbers, text, tuples nor frozen dataclasses each is the same as itself only, apart from
    those of the types `by_value`.

    >>> same((1, 2), (1, 2)), same((1, 2), (1.0, 2.0)), same(0.0, -0.0), same(1, True)
    (True, False, False, False)
    """

    def opaque(value: Any) -> Hashable:
        return _by_equality(value) if isinstance(value, by_value) else Itself(value)

    return a is b or (type(a) is type(b) and _key(a, opaque, exact=True) == _key(b, opaque, exact=True))


def identity(value: Any) -> Hashable:
    """Return a key as `same` compares: equal for what can stand for one another in a kernel."""
    return _key(value, Itself, exact=True)


class Itself:
    """Stands for an object that is equal to itself alone."""

    value: object

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _by_equality(value: Any) -> Hashable:
    hash(value)  # a list in a tuple is refused here
    return type(value), value


def _key(value: Any, opaque: Callable[[Any], Hashable], *, exact: bool) -> Hashable:
    """Return a value's key; with `exact`, subclasses of tuples and numbers, which may hold more, are opaque."""
    kind: Any = type(value)
    if kind in _ATOMS:
        return kind, value
    if _is_numpy_scalar(kind):
        return kind, str(value.dtype), value.tobytes()
    if kind is float or (isinstance(value, float) and not exact):
        return kind, struct.pack("<d", value)
    if kind is complex or (isinstance(value, complex) and not exact):
        return kind, struct.pack("<dd", value.real, value.imag)
    if kind in (tuple, frozenset) or (isinstance(value, tuple) and (hasattr(kind, "_fields") or not exact)):
        parts = [_key(part, opaque, exact=exact) for part in value]
        return kind, frozenset(parts) if kind is frozenset else tuple(parts)
    names = _field_names(kind, compared=not exact)
    if names and (not exact or set(getattr(value, "__dict__", names)) == set(names)):
        try:
            return kind, tuple([_key(getattr(value, name), opaque, exact=exact) for name in names])
        except TypeError:  # a class with a hash of its own
            return opaque(value)
    return opaque(value)


@cache
def _field_names(kind: Any, *, compared: bool = True) -> tuple[str, ...]:
    """Return the fields of a frozen dataclass that compares by them, or all of them; nothing for other classes."""
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not (parameters.frozen and parameters.eq) or "__dataclass_fields__" not in vars(kind):
        return ()
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare or not compared)


@cache
def _is_numpy_scalar(kind: Any) -> bool:
    return any(base.__module__ == "numpy" and base.__name__ == "generic" for base in kind.__mro__)
