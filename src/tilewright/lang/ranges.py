"""Loop ranges: `range` is a loop on the device, `static_range` is unrolled while tracing."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Iterator
from typing import Any

from tilewright.arguments import integer
from tilewright.dtypes import DType, int32, promote
from tilewright.errors import LanguageError
from tilewright.lang.scalar import Scalar, default_type


class DeviceRange:
    """A loop on the device over start, start + step, ... up to but not including stop.

    `range` inside a kernel means this. `unroll=True` unrolls the loop in the compiler, `unroll=n` n times,
    `unroll=False` or 1 not at all; without it the compiler decides.

    Raises `LanguageError` for a step of 0 and for bounds that are not integers.
    """

    def __init__(self, start: Any, stop: Any = None, step: Any = 1, *, unroll: bool | int | None = None) -> None:
        if stop is None:
            start, stop = 0, start
        self.start, self.stop, self.step = (_bound(x) for x in (start, stop, step))
        if isinstance(self.step, int) and self.step == 0:
            raise LanguageError("the step of a range is 0")
        self.unroll = _unroll_count(unroll)

    @property
    def dtype(self) -> DType:
        """The type of the index: int32, or wider where a bound is."""
        types = [x.dtype if isinstance(x, Scalar) else default_type(x) for x in (self.start, self.stop, self.step)]
        return promote(promote(types[0], types[1]), promote(types[2], int32))

    def __iter__(self) -> Iterator[int]:
        """Iterate in Python, as a comprehension does; only bounds that are known while tracing can."""
        for bound in (self.start, self.stop, self.step):
            if isinstance(bound, Scalar):
                raise LanguageError(
                    "this range has bounds that only the device knows, and only a for statement can loop over it",
                    help="write a for loop, or make the bound a tw.constexpr parameter",
                )
        return iter(builtins.range(self.start, self.stop, self.step))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, index: int) -> int:
        return list(self)[index]

    def contains(self, x: Any) -> Any:
        """Return whether a loop over the range comes to `x`: `x in range(...)` on device values."""
        low, high = (
            (self.start, self.stop)
            if not isinstance(self.step, int) or self.step > 0
            else (self.stop + 1, self.start + 1)
        )
        inside = (low <= x) & (x < high)
        return (
            inside
            if isinstance(self.step, int) and self.step in (1, -1)
            else inside & ((x - self.start) % self.step == 0)
        )


def _bound(x: Any) -> Any:
    if isinstance(x, Scalar):
        if not x.dtype.is_integer:
            raise LanguageError(f"a bound of a range is {x.dtype}, and it must be an integer")
        return x
    try:
        return operator.index(x)
    except TypeError:
        raise LanguageError(f"a bound of a range is {type(x).__name__} {x!r}, and it must be an integer") from None


def _unroll_count(unroll: bool | int | None) -> int | None:
    if unroll is None:
        return None
    if unroll is True:
        return 0
    try:
        count = operator.index(unroll)
    except TypeError:
        count = -1
    if not 0 <= count <= int32.highest:
        raise LanguageError(f"unroll is {unroll!r}; expected True, False or how many times, an int from 1")
    return max(count, 1)


def static_range(start: int, stop: int | None = None, step: int = 1) -> builtins.range:
    """Return a range that is unrolled while tracing: its index is a Python int in the body.

    Raises `LanguageError` for a bound that only the device knows.
    """
    for bound in (start, stop, step):
        if isinstance(bound, Scalar):
            raise LanguageError(
                "tw.static_range needs bounds that are known while tracing, and one is a device value",
                help="use range(...) for a loop on the device, or a tw.constexpr parameter for the bound",
            )
    integer("tw.static_range", "stop" if stop is None else "start", start)
    if stop is not None:
        integer("tw.static_range", "stop", stop)
        integer("tw.static_range", "step", step)
    return builtins.range(start) if stop is None else builtins.range(start, stop, step)
