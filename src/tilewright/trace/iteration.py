"""`enumerate`, `zip`, `reversed`, `map` and `iter` of what only the device knows.

    map(f, range(start, stop, step))    the iterations are counted, and the items computed from the count
    iter(take, end)                     take() is called until it returns `end`
    map(f, iter(take, end))

A for statement over one of them is a loop of the device, and so is one over an object whose `__iter__` returns one of
them. Of ranges that are known while tracing, and of anything else, they are Python's own.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterator
from typing import Any  # Any: integers of host or device

from tilewright.arguments import given
from tilewright.dtypes import DType, int32, promote
from tilewright.errors import LanguageError
from tilewright.trace.control import DeviceRange
from tilewright.trace.scalar import Scalar, arithmetic, as_scalar, select

_HELP = "write for i in range(...), and compute the others from i"


class DeviceItems(DeviceRange):
    """Items that a device loop computes from the numbers of a range. As Python's iterators, they are read once.

    `functions` are the user's that `item` calls: what they change, the loop carries.
    """

    def __init__(
        self,
        name: str,
        numbers: DeviceRange,
        item: Callable[[Any], Any],
        functions: tuple[Callable[..., Any], ...] = (),
    ) -> None:
        self.start: Any = numbers.start
        self.stop: Any = numbers.stop
        self.step: Any = numbers.step
        self.unroll: int | None = numbers.unroll
        self.name = name
        self.item = item
        self.functions = functions
        self.entered: bool = False

    def enter(self) -> Callable[[Any], Any]:
        """Return what gives the item of a number; refuse a second loop, in which Python's iterator would be empty."""
        _enter(self)
        return self.item

    def __next__(self) -> Any:
        raise LanguageError(f"next() of {self.name} of a range that only the device knows", help=_HELP)

    def contains(self, x: Any) -> Any:
        """Refuse `x in enumerate(...)`."""
        raise LanguageError(f"`in` of {self.name} of a range that only the device knows", help="compare in a loop")


class DeviceCalls:
    """The numbers that a function returns one after another until it returns `end`: `iter(take, end)` in a kernel.

    A for statement asks whether a number is `end`, on the device where only the device knows. Like Python's iterator it
    is read once. `item` is what the statement makes of a number, `functions` are the user's that it calls.
    """

    def __init__(self, take: Callable[[], Any], end: Any) -> None:
        self.name = "iter"
        self.take = take
        self.end = end
        self.item: Callable[[Any], Any] = lambda number: number
        self.functions: tuple[Callable[..., Any], ...] = ()
        self.entered = False

    def mapped(self, function: Callable[[Any], Any]) -> DeviceCalls:
        """Return what a function makes of the items, which can no longer be looped over themselves."""
        self.enter()
        made, item = DeviceCalls(self.take, self.end), self.item
        made.name, made.item = "map", lambda number: function(item(number))
        made.functions = (*self.functions, function)
        return made

    def enter(self) -> None:
        """Begin a loop; refuse a second one, in which Python's iterator would be empty."""
        _enter(self)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        number = self.take()
        is_end = number == self.end
        if isinstance(is_end, Scalar):
            raise LanguageError(
                "only the device knows where iter(function, end) ends, so only a for statement loops over it",
                help="write for x in iter(function, end), or an object whose __iter__ returns it",
            )
        if is_end:
            raise StopIteration
        return self.item(number)


def _enter(items: DeviceItems | DeviceCalls) -> None:
    if items.entered:
        raise LanguageError(
            f"this {items.name} was looped over before, and Python would find it empty or partly read",
            help=f"write {items.name}(...) in the for statement itself",
        )
    items.entered = True


def iterated(iterable: Any) -> Any:
    """Return what the `__iter__` that a class defines in Python returns for an object; anything else as it is.

    Raises `LanguageError` where that is a range, which has no `__next__` in Python either.
    """
    method = getattr(type(iterable), "__iter__", None)
    if not isinstance(method, types.FunctionType) or isinstance(iterable, (Scalar, DeviceRange, DeviceCalls, Begun)):
        return iterable
    items = method(iterable)
    if isinstance(items, DeviceRange) and not isinstance(items, DeviceItems):
        raise LanguageError(
            f"__iter__ of {type(iterable).__name__} returns a range, which is not an iterator in Python either",
            help="return iter(range(...)), or map(function, range(...))",
        )
    if isinstance(items, (DeviceItems, DeviceCalls)):
        return items
    return Begun(items) if hasattr(items, "__next__") else iterable


class Begun:
    """An iterator of Python that an `__iter__` has returned, which is not to be called again."""

    def __init__(self, items: Iterator[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return self.items


_NONE = object()


def device_iter(iterable: Any, end: Any = _NONE) -> Any:
    """Return the items of an iterable, or with `end` what a function returns until it returns that."""
    if end is not _NONE:
        if not callable(iterable):
            raise LanguageError(f"iter(function, end) takes a function that is called, got {given(iterable)}")
        return DeviceCalls(iterable, end)
    iterable = iterated(iterable)
    if isinstance(iterable, DeviceItems):
        return iterable
    if not _only_device_knows(iterable):
        return builtins.iter(iterable)
    return DeviceItems("iter", iterable, iterable.enter(), functions_of(iterable))


def device_map(function: Callable[..., Any], *iterables: Any) -> Any:
    """Return what a function returns for the items of iterables, side by side."""
    iterables = tuple(map(iterated, iterables))
    if len(iterables) == 1 and isinstance(iterables[0], DeviceCalls):
        return iterables[0].mapped(function)
    if not any(builtins.map(_only_device_knows, iterables)):
        return builtins.map(function, *iterables)
    if len(iterables) == 1:  # the loop counts as the range does
        (numbers,) = iterables
        item = numbers.enter()
        return DeviceItems("map", numbers, lambda number: function(item(number)), (*functions_of(numbers), function))
    count, items = _side_by_side("map", iterables)
    functions = *functions_of(*iterables), function
    return DeviceItems("map", DeviceRange(count), lambda i: function(*items(i)), functions)


def functions_of(*iterables: Any) -> tuple[Callable[..., Any], ...]:
    """Return the user's functions that compute the items of iterables."""
    return tuple(function for each in iterables for function in getattr(each, "functions", ()))


def device_enumerate(iterable: Any, start: Any = 0) -> Any:
    """Return the items of an iterable with their numbers."""
    iterable = iterated(iterable)
    if not _only_device_knows(iterable):
        return builtins.enumerate(iterable, start)
    count, item = _counted("enumerate", iterable)
    return DeviceItems("enumerate", DeviceRange(count), lambda i: (start + i, item(i)), functions_of(iterable))


def device_zip(*iterables: Any, strict: bool = False) -> Any:
    """Return the items of several iterables side by side."""
    iterables = tuple(map(iterated, iterables))
    if not any(map(_only_device_knows, iterables)):
        return builtins.zip(*iterables, strict=strict)
    if strict:
        raise LanguageError(
            "zip(..., strict=True) of ranges whose lengths only the device knows",
            help="leave strict= out, and assert that they are equal",
        )
    count, items = _side_by_side("zip", iterables)
    return DeviceItems("zip", DeviceRange(count), items, functions_of(*iterables))


def device_reversed(sequence: Any) -> Any:
    """Return the items of a sequence from the last to the first."""
    if not _only_device_knows(sequence):
        return builtins.reversed(sequence)
    if isinstance(sequence, DeviceItems):
        raise LanguageError(f"reversed of {sequence.name}, which has no order but its own", help=_HELP)
    count, item = _counted("reversed", sequence)
    return DeviceItems("reversed", DeviceRange(count), lambda i: item(count - 1 - i))


def _side_by_side(name: str, iterables: tuple[Any, ...]) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return how many items there are in the shortest iterable, and those of a number."""
    parts = [_counted(name, each) for each in iterables]
    count = parts[0][0]
    for other, _ in parts[1:]:
        count = arithmetic("min", as_scalar(count), other)
    return count, lambda i: tuple(item(i) for _, item in parts)


def _only_device_knows(x: Any) -> bool:
    return isinstance(x, DeviceRange) and any(isinstance(b, Scalar) for b in (x.start, x.stop, x.step))


def _counted(name: str, iterable: Any) -> tuple[Any, Callable[[Any], Any]]:
    """Return how many items there are (none where that is negative), and the item of a number."""
    if not isinstance(iterable, DeviceRange):
        raise LanguageError(
            f"{name} of a range that only the device knows, with {given(iterable)}: only ranges are computed there",
            help="put the items into a tensor, and index it by the number of the iteration",
        )
    item = iterable.enter()
    start, stop, step, dtype = iterable.start, iterable.stop, iterable.step, _index_type(iterable)
    start, stop = as_scalar(start, dtype), as_scalar(stop, dtype)
    if isinstance(step, int):
        beyond: Any = step - (1 if step > 0 else -1)
    else:
        step = as_scalar(step, dtype)
        beyond = select(step > 0, step - 1, step + 1)
    count = stop - start if isinstance(step, int) and step == 1 else (stop - start + beyond) // step
    return count, lambda i: item(start + i * step)


def _index_type(span: DeviceRange) -> DType:
    return promote(span.dtype, int32)
