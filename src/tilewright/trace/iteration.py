"""`enumerate`, `zip` and `reversed` of ranges whose bounds only the device knows.

A for statement over one of them counts its iterations, and its items are computed from the count. Of ranges that are
known while tracing, and of anything else, they are Python's own.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any  # Any: integers of host or device

from tilewright.arguments import given
from tilewright.dtypes import DType, int32, promote
from tilewright.errors import LanguageError
from tilewright.trace.control import DeviceRange
from tilewright.trace.scalar import Scalar, arithmetic, as_scalar, select

_HELP = "write for i in range(...), and compute the others from i"


class DeviceItems(DeviceRange):
    """Items that a device loop computes from the number of its iteration. As Python's iterators, they are read once."""

    def __init__(self, name: str, count: Any, item: Callable[[Any], Any]) -> None:
        super().__init__(0, count)
        self.name = name
        self.item = item
        self.entered: bool = False

    def enter(self) -> Callable[[Any], Any]:
        """Return the items by their numbers; refuse a second loop, in which Python's iterator would be empty."""
        if self.entered:
            raise LanguageError(
                f"this {self.name} was looped over before, and Python would find it empty or partly read",
                help=f"write {self.name}(...) in the for statement itself",
            )
        self.entered = True
        return self.item

    def __next__(self) -> Any:
        raise LanguageError(f"next() of {self.name} of a range that only the device knows", help=_HELP)

    def contains(self, x: Any) -> Any:
        """Refuse `x in enumerate(...)`."""
        raise LanguageError(f"`in` of {self.name} of a range that only the device knows", help="compare in a loop")


def device_enumerate(iterable: Any, start: Any = 0) -> Any:
    """Return the items of an iterable with their numbers."""
    if not _only_device_knows(iterable):
        return builtins.enumerate(iterable, start)
    count, item = _counted("enumerate", iterable)
    return DeviceItems("enumerate", count, lambda i: (start + i, item(i)))


def device_zip(*iterables: Any, strict: bool = False) -> Any:
    """Return the items of several iterables side by side."""
    if not any(map(_only_device_knows, iterables)):
        return builtins.zip(*iterables, strict=strict)
    if strict:
        raise LanguageError(
            "zip(..., strict=True) of ranges whose lengths only the device knows",
            help="leave strict= out, and assert that they are equal",
        )
    parts = [_counted("zip", each) for each in iterables]
    count = parts[0][0]
    for other, _ in parts[1:]:
        count = arithmetic("min", as_scalar(count), other)
    return DeviceItems("zip", count, lambda i: tuple(item(i) for _, item in parts))


def device_reversed(sequence: Any) -> Any:
    """Return the items of a sequence from the last to the first."""
    if not _only_device_knows(sequence):
        return builtins.reversed(sequence)
    if isinstance(sequence, DeviceItems):
        raise LanguageError(f"reversed of {sequence.name}, which has no order but its own", help=_HELP)
    count, item = _counted("reversed", sequence)
    return DeviceItems("reversed", count, lambda i: item(count - 1 - i))


def _only_device_knows(x: Any) -> bool:
    return isinstance(x, DeviceRange) and any(isinstance(b, Scalar) for b in (x.start, x.stop, x.step))


def _counted(name: str, iterable: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return how many items there are (none where that is negative), and the item of a number."""
    if isinstance(iterable, DeviceItems):
        return iterable.stop, iterable.enter()
    if not isinstance(iterable, DeviceRange):
        raise LanguageError(
            f"{name} of a range that only the device knows, with {given(iterable)}: only ranges are computed there",
            help="put the items into a tensor, and index it by the number of the iteration",
        )
    start, stop, step, dtype = iterable.start, iterable.stop, iterable.step, _index_type(iterable)
    start, stop = as_scalar(start, dtype), as_scalar(stop, dtype)
    if isinstance(step, int):
        beyond: Any = step - (1 if step > 0 else -1)
    else:
        step = as_scalar(step, dtype)
        beyond = select(step > 0, step - 1, step + 1)
    count = stop - start if isinstance(step, int) and step == 1 else (stop - start + beyond) // step
    return count, lambda i: start + i * step


def _index_type(span: DeviceRange) -> DType:
    return promote(span.dtype, int32)
