"""Numbers given to a kernel: in which type it gets them, and which of them a call may give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.dtypes import ALL, DType, bool_, dtype, float32, int32, int64
from tilewright.errors import ArgumentError


@dataclass(frozen=True)
class NumberType:
    """The type in which a kernel gets a number, and what a call has to look at.

    `limits` is the type of integer that a value has to be in range of, None where each value fits. Only a Python int
    that no declaration gives a type to may be beyond them: then it is an int64.
    """

    dtype: DType
    limits: DType | None = None
    is_declared: bool = False

    def of(self, name: str, value: Any) -> DType:
        """Return the type of one value; raise `ArgumentError` for one that does not fit."""
        if self.limits is None or self.limits.lowest <= value <= self.limits.highest:
            return self.dtype
        if not self.is_declared and int64.lowest <= value <= int64.highest:
            return int64
        room = self.dtype if self.is_declared else "64 bits"
        raise ArgumentError(f"argument {name!r} is {value}, which does not fit into {room}")


def number_type(name: str, value: object, declared: DType | None) -> NumberType | None:
    """Return how a kernel gets a number: in the declared type, or that of `scalar_type`; None for another object.

    Raises `ArgumentError` where the declared type has fewer kinds of numbers, for a float where it is an integer, and
    for types that are those of arrays only.
    """
    element = scalar_type(value)
    if element is None:
        return None
    if declared is None:
        return NumberType(element, int32 if element is int32 and isinstance(value, int) else None)
    narrows = not declared.is_float and (element.is_float or declared is bool_)
    if declared not in ALL or (narrows and element is not declared):
        raise ArgumentError(
            f"argument {name!r} is {value!r}, and the kernel declares {name}: {declared!r}",
            help="convert it, or declare another type: of integers, or of floats of 16 bits and more",
        )
    return NumberType(declared, None if declared.is_float or declared is bool_ else declared, is_declared=True)


def scalar_type(value: object) -> DType | None:
    """Return the type in which a kernel gets a number, or None for what is not a number.

    >>> scalar_type(3), scalar_type(2**40), scalar_type(0.5), scalar_type(True)
    (tw.int32, tw.int32, tw.float32, tw.bool_)

    A Python int is the 32-bit kind here; whether it fits is seen from its value, call by call.
    """
    if isinstance(value, bool):
        return bool_
    if "numpy" in {base.__module__ for base in type(value).__mro__}:  # NumPy's float64 is a Python float as well
        try:
            return dtype(value.dtype.name) if hasattr(value, "dtype") else None
        except TypeError:
            return None
    if isinstance(value, int):
        return int32
    return float32 if isinstance(value, float) else None
