"""Sizes that only a launch knows: what a grid's function sees in place of extents and numbers.

>>> from tilewright.layout import ceil_div
>>> n = Size.extent("x", 0)
>>> grid = ceil_div(n, 256), 2 * n + 1
>>> grid[0].text("c"), grid[1].text("python")
('floor_quotient((x->shape[0] + 255), 256)', '((2 * x.shape[0]) + 1)')
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from tilewright.dtypes import DType
from tilewright.errors import ArgumentError
from tilewright.layout.ints import DynamicInt

Language = Literal["c", "python"]
_CALLS = {"//": "floor_quotient", "%": "floor_remainder"}


@dataclass(frozen=True, eq=False)
class Size(DynamicInt):
    """An integer expression of extents, strides and numbers of a launch, with + - * // and %."""

    kind: str  # an operator, "extent", "stride", "number" or "constant"
    operands: tuple[Any, ...]  # sizes; of a leaf the argument and the mode, or the value

    @staticmethod
    def extent(argument: str, mode: int) -> Size:
        """Return an array's extent."""
        return Size("extent", (argument, mode))

    @staticmethod
    def stride(argument: str, mode: int) -> Size:
        """Return an array's stride, in elements."""
        return Size("stride", (argument, mode))

    def text(self, language: Language) -> str:
        """Return the expression as C or Python."""
        if self.kind in ("extent", "stride"):
            argument, mode = self.operands
            part = "shape" if self.kind == "extent" else "strides"
            return f"{argument}{'->' if language == 'c' else '.'}{part}[{mode}]"
        if self.kind in ("number", "constant"):
            return str(self.operands[0])
        lhs, rhs = (operand.text(language) for operand in self.operands)
        if language == "c" and self.kind in _CALLS:  # C's division rounds to 0
            return f"{_CALLS[self.kind]}({lhs}, {rhs})"
        return f"({lhs} {self.kind} {rhs})"

    def __add__(self, other: object) -> Size:
        return _of("+", self, other)

    def __radd__(self, other: object) -> Size:
        return _of("+", other, self)

    def __sub__(self, other: object) -> Size:
        return _of("-", self, other)

    def __rsub__(self, other: object) -> Size:
        return _of("-", other, self)

    def __mul__(self, other: object) -> Size:
        return _of("*", self, other)

    def __rmul__(self, other: object) -> Size:
        return _of("*", other, self)

    def __floordiv__(self, other: object) -> Size:
        return _of("//", self, other)

    def __rfloordiv__(self, other: object) -> Size:
        return _of("//", other, self)

    def __mod__(self, other: object) -> Size:
        return _of("%", self, other)

    def __rmod__(self, other: object) -> Size:
        return _of("%", other, self)

    def __neg__(self) -> Size:
        return _of("-", 0, self)

    def _refuse(self, *other: object) -> NoReturn:
        raise ArgumentError(
            "the grid asks for the value of a size that only the launch knows",
            help="compute it with + - * // % and tw.ceil_div; where it needs more, export one kernel for each case",
        )


# Checkers of types refuse these too, as the class body has none of them.
for _name in (
    *("bool", "index", "int", "float", "len", "iter", "lt", "le", "gt", "ge", "eq", "ne"),
    *("truediv", "rtruediv", "pow", "divmod", "abs", "round", "rshift", "lshift", "and", "or"),
    *("str", "format", "hash"),  # Python would answer for the expression, and not for its value
):
    setattr(Size, f"__{_name}__", Size._refuse)


def _of(kind: str, lhs: object, rhs: object) -> Size:
    left, right = _as_size(lhs), _as_size(rhs)
    if kind in _CALLS and right.operands == (0,):
        raise ArgumentError("the grid divides by zero")
    return Size(kind, (left, right))


def _as_size(value: object) -> Size:
    if isinstance(value, Size):
        return value
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # NumPy's integers are none of Python's
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or abs(number) >= 1 << 63:
        raise ArgumentError(f"a grid is computed from whole numbers of 64 bits, got {value!r}")
    return Size("constant", (number,))


@dataclass(frozen=True)
class SizedArray:
    """What a grid's function sees of an array: its type, its rank, and sizes for its extents and strides."""

    dtype: DType
    shape: tuple[Size | int, ...]
    strides: tuple[Size | int, ...]

    @property
    def ndim(self) -> int:
        """The number of modes."""
        return len(self.shape)

    @property
    def size(self) -> Size | int:
        """The number of elements."""
        found: Size | int = 1
        for extent in self.shape:
            found = extent if isinstance(found, int) and found == 1 else found * extent
        return found
