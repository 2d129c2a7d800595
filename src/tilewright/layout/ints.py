"""Static and dynamic integers, basis strides, and arithmetic that folds what it can.

A leaf of a shape or stride is a Python `int` (static) or a `DynamicInt` (known only when a kernel runs).
Only static values are compared or branched on. The functions `add`, `mul`, `floordiv` ... do nothing on a
dynamic value that its meaning does not need (`x * 1` is `x`, `x * 0` is `0`), so that traced index arithmetic
stays as short as a person would write it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from tilewright.errors import LayoutError, TilewrightError


class DynamicInt:
    """The marker base class of integers whose value is not known while layouts are computed.

    A subclass provides `+ - * // %` with itself and with `int` on either side, and for swizzled layouts also
    `& ^ << >>`. This package compares dynamic values by identity and never asks one for its truth value.
    """

    __slots__ = ()

    def assume_multiple(self, divisor: int, what: str) -> None:
        """Note that a result is valid only if `divisor` divides this value; `what` names the operation.

        The base class does nothing. A kernel's integers check it at the launch, or in the thread that computes them.
        """

    def split_multiple(self, divisor: int) -> tuple[Int, Int]:
        """Return (rest, multiple) with rest + multiple == self, where `divisor` is known to divide the second."""
        return self, 0

    def difference(self, other: Int) -> Int:
        """Return self - other, as an `int` where it is known: of i + 4 and i it is 4."""
        return 0 if other is self else self - other

    if TYPE_CHECKING:
        # Declared for the type checker only: what a subclass has to provide.
        def __add__(self, other: int | DynamicInt, /) -> DynamicInt: ...
        def __radd__(self, other: int, /) -> DynamicInt: ...
        def __sub__(self, other: int | DynamicInt, /) -> DynamicInt: ...
        def __rsub__(self, other: int, /) -> DynamicInt: ...
        def __mul__(self, other: int | DynamicInt, /) -> DynamicInt: ...
        def __rmul__(self, other: int, /) -> DynamicInt: ...
        def __floordiv__(self, other: int | DynamicInt, /) -> DynamicInt: ...
        def __rfloordiv__(self, other: int, /) -> DynamicInt: ...
        def __mod__(self, other: int | DynamicInt, /) -> DynamicInt: ...
        def __rmod__(self, other: int, /) -> DynamicInt: ...
        def __and__(self, other: int | DynamicInt, /) -> DynamicInt: ...
        def __xor__(self, other: int | DynamicInt, /) -> DynamicInt: ...
        def __rxor__(self, other: int, /) -> DynamicInt: ...
        def __lshift__(self, other: int, /) -> DynamicInt: ...
        def __rshift__(self, other: int, /) -> DynamicInt: ...


Int: TypeAlias = "int | DynamicInt"
IntTuple: TypeAlias = "int | DynamicInt | tuple[IntTuple, ...]"
Shape: TypeAlias = IntTuple
Coord: TypeAlias = "int | DynamicInt | tuple[Coord, ...] | None"


class Basis:
    """A stride that steps through one mode of a coordinate instead of through memory: `value * E(*modes)`.

    Layouts with basis strides map a coordinate to a coordinate. `E(1)` steps mode 1, `E(0, 2)` mode 2 of mode 0.

    >>> 3 * E(1)
    3 * E(1)
    """

    __slots__ = ("modes", "value")
    value: Int
    modes: tuple[int, ...]

    def __init__(self, value: Int, modes: tuple[int, ...]) -> None:
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "modes", modes)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a basis stride is frozen; cannot set {name}")

    def __mul__(self, factor: Int) -> Basis:
        return Basis(mul(self.value, factor), self.modes)

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Basis) and self.modes == other.modes and same_int(self.value, other.value)

    def __hash__(self) -> int:
        return hash((self.modes, self.value if type(self.value) is int else id(self.value)))

    def __reduce__(self) -> tuple[type[Basis], tuple[Int, tuple[int, ...]]]:
        return (Basis, (self.value, self.modes))

    def __repr__(self) -> str:
        unit = f"E({', '.join(map(str, self.modes))})"
        return unit if type(self.value) is int and self.value == 1 else f"{self.value} * {unit}"

    def __str__(self) -> str:
        return f"{self.value}@{'@'.join(map(str, reversed(self.modes)))}"


Stride: TypeAlias = "int | DynamicInt | Basis | tuple[Stride, ...]"
Leaf: TypeAlias = "int | DynamicInt | Basis"


def E(*modes: int) -> Basis:
    """Make the unit basis stride of the mode at path `modes`.

    >>> E(0), E(1, 0)
    (E(0), E(1, 0))
    """
    if not modes:
        raise LayoutError("E() needs the path of a mode", help="write E(0) for mode 0, E(1, 0) for mode 0 of mode 1")
    path = tuple(as_int(mode, "the number of a mode") for mode in modes)
    if not all(isinstance(mode, int) for mode in path):
        raise LayoutError(f"E({', '.join(map(str, path))}): the numbers of modes are known while compiling")
    return Basis(1, path)  # type: ignore[arg-type]  # ints, as was checked


def as_int(value: object, what: str) -> Int:
    """Return `value` as a static or dynamic integer; `what` names it in the error."""
    if type(value) is int or isinstance(value, DynamicInt):
        return value
    if isinstance(value, bool):
        raise LayoutError(f"{what} is a bool: {value}", help="extents, strides and coordinates are integers")
    try:
        # NumPy's integers and bools both answer __index__; NumPy's bool has lost it, so only integers pass.
        return operator.index(value)  # type: ignore[arg-type]
    except TilewrightError:  # which says why it is none
        raise
    except TypeError:
        raise LayoutError(f"{what} is not an integer: {value!r}", help="use ints, or nested tuples of ints") from None


def is_static(x: object) -> bool:
    """Say whether `x` (an integer, nested tuple, layout or swizzle) has no dynamic leaf.

    >>> is_static((4, (2, 2)))
    True
    """
    if type(x) is int or x is None:
        return True
    if isinstance(x, tuple):
        return all(is_static(v) for v in x)
    if isinstance(x, Basis):
        return type(x.value) is int
    if isinstance(x, DynamicInt):
        return False
    known = getattr(x, "is_static", None)
    return bool(known) if known is not None else True


def need_static(value: object, operation: str, what: str) -> int:
    """Return `value` when it is a static integer, or raise the error that says what to make static."""
    if type(value) is int:
        return value
    raise LayoutError(
        f"{operation} needs {what} to be static, and it is dynamic",
        help=f"make {what} a Python int (a constexpr argument, or tw.static(array) for a whole array)",
    )


def same_int(a: object, b: object) -> bool:
    """Compare two leaves: static by value, dynamic by identity, basis strides by both."""
    if a is b:
        return True
    if type(a) is int:
        return type(b) is int and a == b
    return isinstance(a, Basis) and isinstance(b, Basis) and a == b


def add(a: Int, b: Int) -> Int:
    """Return `a + b`, folded."""
    if type(a) is int:
        if a == 0:
            return b
        if type(b) is int:
            return a + b
    elif type(b) is int and b == 0:
        return a
    return a + b


def sub(a: Int, b: Int) -> Int:
    """Return `a - b`, folded."""
    if type(b) is int and (b == 0 or type(a) is int):
        return a - b if b else a
    return 0 if a is b else a - b


def mul(a: Int, b: Int) -> Int:
    """Return `a * b`, folded."""
    if type(a) is int:
        if type(b) is int:
            return a * b
        return 0 if a == 0 else b if a == 1 else a * b
    if type(b) is int:
        return 0 if b == 0 else a if b == 1 else a * b
    return a * b


def floordiv(a: Int, b: Int) -> Int:
    """Return `a // b`, folded; `b` is positive."""
    if type(b) is int:
        return a // b if b != 1 else a
    if type(a) is int and a == 0:
        return 0
    return 1 if a is b else a // b


def mod(a: Int, b: Int) -> Int:
    """Return `a % b`, folded; `b` is positive."""
    if type(b) is int:
        return a % b if b != 1 else 0
    if (type(a) is int and a == 0) or a is b:
        return 0
    return a % b


def ceildiv(a: Int, b: Int) -> Int:
    """Return the least integer that is at least `a / b`, folded; `b` is positive."""
    if type(b) is int:
        if type(a) is int:
            return -(-a // b)
        return a if b == 1 else (a + (b - 1)) // b
    if type(a) is int and a <= 1:
        return a
    return 1 if a is b else (a + (b - 1)) // b


def scale(stride: Leaf, factor: Int) -> Leaf:
    """Return `stride * factor` for a leaf stride of any kind."""
    if isinstance(stride, Basis):
        if type(factor) is int and factor in (0, 1):
            return stride if factor else 0
        return stride * factor
    return mul(stride, factor)


def product(values: Iterable[Int]) -> Int:
    """Multiply integers, folded."""
    result: Int = 1
    for value in values:
        result = mul(result, value)
    return result
