"""Structures of arguments: lists, tuples, dicts, NamedTuples and dataclasses, taken apart and made again.

    Weights(w=array, scale=2.0)   ->  .w: array, .scale: 2.0      the parts, with their paths
    [first, second]               ->  [0]: first, [1]: second

What is inside of a part is another structure, or a leaf. Who takes a value apart says what is a leaf.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any  # Any: whatever users give

from tilewright.errors import ArgumentError

MAX_DEPTH = 32  # of structures in one another; more is a list that holds itself


@dataclass(frozen=True)
class Structure:
    """The kind of a structure, and what its parts are called: positions, keys or fields.

    `form` is one of "sequence" (a list or tuple), "named" (a NamedTuple), "dict" and "fields" (a dataclass).
    """

    kind: Any  # a class; Any, because mypy takes no class for hashable
    form: str
    keys: tuple[Hashable, ...]

    @property
    def identity(self) -> Hashable:
        """What differs between two structures of which a kernel sees another thing: 1 and True are different keys."""
        return self.kind, tuple([(type(key), key) for key in self.keys])

    def parts(self, value: Any) -> tuple[Any, ...]:
        """Return the parts of a value of this structure, in order."""
        if self.form == "fields":
            return tuple([getattr(value, str(key)) for key in self.keys])
        return tuple(value.values()) if self.form == "dict" else tuple(value)

    def make(self, parts: Sequence[Any]) -> Any:
        """Return a value of the same type with other parts. Neither `__init__` nor `__post_init__` of it runs."""
        if self.form == "dict":
            return dict(zip(self.keys, parts, strict=True))
        if self.form == "named":
            return tuple.__new__(self.kind, parts)
        if self.form == "sequence":
            return self.kind(parts)
        made: Any = object.__new__(self.kind)
        for key, part in zip(self.keys, parts, strict=True):
            object.__setattr__(made, str(key), part)  # a frozen one too
        return made

    def path(self, name: str, n: int) -> str:
        """Return what a user calls part `n` of a structure of that name: `xs[2]`, `params.weight`, `d['w']`."""
        key = self.keys[n]
        return f"{name}.{key}" if self.form in ("named", "fields") else f"{name}[{key!r}]"

    def identifier(self, name: str, n: int) -> str:
        """Return the name of part `n` in generated code: `xs_2`, `params_weight`, `d_w`."""
        word = re.sub(r"\W+", "_", str(self.keys[n]), flags=re.ASCII).strip("_")
        return f"{name}_{word or n}"


def structure_of(value: Any) -> Structure | None:
    """Return the structure of a list, tuple, dict, NamedTuple or dataclass; None for what is none of these.

    Objects of this library (layouts, tiled copies, specs) are values, whatever they are made of.
    """
    kind: Any = type(value)
    if kind is list or kind is tuple:
        return _sequence(kind, len(value))
    if kind is dict:
        return Structure(dict, "dict", tuple(value))
    return _with_fields(kind)


@cache
def _sequence(kind: Any, length: int) -> Structure:
    return Structure(kind, "sequence", tuple(range(length)))


@cache
def _with_fields(kind: Any) -> Structure | None:
    module = kind.__module__
    if module.startswith("tilewright.") and not module.startswith("tilewright.examples."):
        return None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return Structure(kind, "named", tuple(kind._fields))
    if dataclasses.is_dataclass(kind):
        return Structure(kind, "fields", tuple([field.name for field in dataclasses.fields(kind)]))
    return None


def demand_depth(depth: int, name: str) -> None:
    """Raise `ArgumentError` for structures too deep in one another."""
    if depth > MAX_DEPTH:
        raise ArgumentError(
            f"argument {name[:60]!r} nests structures more than {MAX_DEPTH} deep",
            help="pass a structure that does not contain itself",
        )
