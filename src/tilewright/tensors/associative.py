"""Associative operations by name: what reductions and collectives combine values by, on the host and in kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.dtypes import DType


@dataclass(frozen=True)
class Associative:
    """An operation that has a name. It commutes, bit for bit.

    `numpy` is NumPy's function of it; `neutral` gives the value that changes no other of a type, and of an idempotent
    one a value may take part more than once.
    """

    numpy: str
    neutral: Callable[[DType], float]
    is_idempotent: bool = False


def _highest(type: DType) -> float:
    return float("inf") if type.is_float else type.highest


def _lowest(type: DType) -> float:
    return float("-inf") if type.is_float else type.lowest


NAMED = {
    "add": Associative("add", lambda type: 0),
    "mul": Associative("multiply", lambda type: 1),
    "min": Associative("fmin", _highest, is_idempotent=True),
    "max": Associative("fmax", _lowest, is_idempotent=True),
    "and": Associative("bitwise_and", lambda type: -1 if type.kind == "int" else type.highest, is_idempotent=True),
    "or": Associative("bitwise_or", lambda type: 0, is_idempotent=True),
    "xor": Associative("bitwise_xor", lambda type: 0),
}
BITWISE = frozenset({"and", "or", "xor"})
_OF_BOOLS = {"min": "and", "max": "or"}


def on_type(name: str, kind: str) -> str:
    """Return the name of the operation that does the same on a kind of types: the least of bools is their `and`."""
    return _OF_BOOLS.get(name, name) if kind == "bool" else name
