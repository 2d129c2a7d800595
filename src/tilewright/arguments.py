"""Checks of what users pass to public functions: one error for each kind of mistake, with the argument's name.

integer("tw.pipeline", "stages", 0, minimum=1)  ->  ArgumentError: tw.pipeline: stages is at least 1, got 0
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Hashable
from numbers import Real
from typing import TypeGuard, TypeVar

from tilewright.errors import ArgumentError

T = TypeVar("T")

_repr = reprlib.Repr()
_repr.maxother = _repr.maxstring = 60
_repr.maxtuple = _repr.maxlist = _repr.maxdict = 8


def shown(value: object) -> str:
    """Return a value as an error shows it: in one line, and not longer than that.

    >>> shown("a"), shown([0] * 100), shown(object)
    ("'a'", '[0, 0, 0, 0, 0, 0, 0, 0, ...]', "<class 'object'>")
    """
    try:
        text = " ".join(_repr.repr(value).split())
    except Exception:  # a repr of the user's own that fails
        return f"an object of type {type(value).__name__}"
    return text


def given(value: object) -> str:
    """Return what came, for the end of a message: None, or the type and the value.

    >>> given(None), given(3.5), given(float)
    ('None', 'float 3.5', "<class 'float'>")
    """
    return shown(value) if value is None or isinstance(value, type) else f"{type(value).__name__} {shown(value)}"


def instance(
    function: str, name: str, value: object, kinds: type | tuple[type, ...], expected: str, help: str | None = None
) -> None:
    """Raise `ArgumentError` where an argument is of none of the types; `expected` names them for the user."""
    if not isinstance(value, kinds):
        raise ArgumentError(f"{function}: {name} is {expected}, got {given(value)}", help=help)


def integer(function: str, name: str, value: object, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return an argument as an int; raise `ArgumentError` for what is not an integer, a bool too, and out of range."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)  # type: ignore[arg-type]  # what it is for
    except TypeError:
        raise ArgumentError(f"{function}: {name} is an integer, got {given(value)}") from None
    if minimum is not None and found < minimum:
        raise ArgumentError(f"{function}: {name} is at least {minimum}, got {shown(found)}")
    if maximum is not None and found > maximum:
        raise ArgumentError(f"{function}: {name} is at most {maximum}, got {shown(found)}")
    return found


def text(function: str, name: str, value: object) -> str:
    """Return an argument that is a text with something in it; raise `ArgumentError` for anything else."""
    instance(function, name, value, str, "a text")
    assert isinstance(value, str), value
    if not value.strip():
        raise ArgumentError(f"{function}: {name} is a text that is not empty, got {value!r}")
    return value


def one_of(function: str, name: str, value: T, known: tuple[T, ...]) -> T:
    """Return an argument that is one of a few values; raise `ArgumentError` for any other."""
    if not any(type(value) is type(k) and value == k for k in known):
        choices = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
        raise ArgumentError(f"{function}: {name} is {choices}, got {shown(value)}")
    return value


def number(function: str, name: str, value: object, *, least: float | None = None, above: float | None = None) -> float:
    """Return an argument that is a real number and not NaN; raise `ArgumentError` for others and out of range."""
    # A NaN differs from itself; torch.compile, which traces through here, does not trace math.isnan of a number.
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise ArgumentError(f"{function}: {name} is a number, got {given(value)}")
    found = float(value)
    if least is not None and found < least:
        raise ArgumentError(f"{function}: {name} is at least {least}, got {value}")
    if above is not None and not found > above:
        raise ArgumentError(f"{function}: {name} is more than {above}, got {value}")
    return found


def names(function: str, name: str, value: object) -> tuple[str, ...]:
    """Return an argument that is a list or tuple of names; raise `ArgumentError` for others, and for one text."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(x, str) for x in value):
        raise ArgumentError(f"{function}: {name} is a list of names, got {given(value)}")
    return tuple(value)


def hashable(value: object) -> TypeGuard[Hashable]:
    """Return whether a value has a hash: a tuple with a list in it has none."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def function(caller: str, name: str, value: object) -> None:
    """Raise `ArgumentError` for what cannot be called."""
    if not callable(value):
        raise ArgumentError(f"{caller}: {name} is a function, got {given(value)}")
