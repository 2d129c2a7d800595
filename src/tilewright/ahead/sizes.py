"""What only a launch knows, as C and as Python: sizes, which a grid's function sees in place of extents and numbers.

>>> from tilewright.layout import ceil_div
>>> n = Size.extent("x", 0)
>>> grid = ceil_div(n, 256), 2 * n + 1
>>> grid[0].text("c"), grid[1].text("python")
('floor_quotient((x->shape[0] + 255), 256)', '((2 * x.shape[0]) + 1)')
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from tilewright.dtypes import DType, bool_
from tilewright.errors import ArgumentError
from tilewright.ir.core import Value
from tilewright.ir.ops import Binary, Cast, Compare, Constant, Select, Unary
from tilewright.layout.ints import DynamicInt

Language = Literal["c", "python"]
_CALLS = {"//": "floor_quotient", "%": "floor_remainder"}


@dataclass(frozen=True, eq=False)
class Size(DynamicInt):
    """An integer expression of extents, strides and numbers of a launch, with + - * // and %."""

    kind: str  # an operator, "extent", "stride", "number", "constant", or "fraction": a number that no grid takes
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
            # Python computes with whole numbers of any size: C does in 64 bits, and not in those of the number.
            return f"{'(int64_t)' * (language == 'c' and self.kind == 'number')}{self.operands[0]}"
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
    left, right = as_size(lhs), as_size(rhs)
    if kind in _CALLS and right.operands == (0,):
        raise ArgumentError("the grid divides by zero")
    return Size(kind, (left, right))


def as_size(value: object) -> Size:
    """Return a number or a size as a size. Raises `ArgumentError` for what is not a whole number of 64 bits."""
    if isinstance(value, Size):
        if value.kind == "fraction":
            raise ArgumentError(f"a grid is computed from whole numbers, and {value.operands[0]} is a float")
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


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FUNCTIONS = {"div": "quotient", "rem": "remainder_of", "min": "smaller", "max": "larger"}
_GROWING = ("add", "sub", "mul", "shl", "neg", "abs", "bit_not")  # results that their type may not hold


class Printer:
    """Prints in one language what a launch computes on the host from extents, strides and numbers.

    These are the pure ops that `ir.evaluate` computes. A result is reduced to its type, as there. `names` has the text
    of each parameter's value.
    """

    def __init__(self, language: Language, names: Mapping[Value, str]) -> None:
        self._language = language
        self._known = dict(names)

    def text(self, value: Value) -> str:
        """Return an expression for a value. Raises `ArgumentError` for one that the host cannot compute."""
        if value not in self._known:
            self._known[value] = self._print(value)
        return self._known[value]

    def _print(self, value: Value) -> str:
        op, type = value.definition, value.type
        if not isinstance(type, DType) or type.is_float or (type.bits == 64 and not type.is_signed):
            raise ArgumentError(f"an exported kernel's launch computes whole numbers of up to 63 bits, not {type}")
        if isinstance(op, Constant):
            return str(int(op.value))
        if isinstance(op, Select):
            condition, on_true, on_false = (self.text(v) for v in (op.condition, op.on_true, op.on_false))
            if self._language == "c":
                return f"({condition} ? {on_true} : {on_false})"
            return f"({on_true} if {condition} else {on_false})"
        if isinstance(op, Compare):
            return f"({self.text(op.lhs)} {_COMPARED[op.kind]} {self.text(op.rhs)})"
        if isinstance(op, Binary) and op.kind in _SIGNS:
            return self._reduced(op.kind, f"({self.text(op.lhs)} {_SIGNS[op.kind]} {self.text(op.rhs)})", type)
        if isinstance(op, Binary) and op.kind in _FUNCTIONS:
            return f"{_FUNCTIONS[op.kind]}({self.text(op.lhs)}, {self.text(op.rhs)})"
        if isinstance(op, Unary) and op.kind == "not":
            return f"(!{self.text(op.x)})" if self._language == "c" else f"(not {self.text(op.x)})"
        if isinstance(op, Unary) and op.kind in ("neg", "bit_not"):
            return self._reduced(op.kind, f"({'-' if op.kind == 'neg' else '~'}{self.text(op.x)})", type)
        if isinstance(op, Unary) and op.kind == "abs":
            return self._reduced("abs", f"larger({self.text(op.x)}, -{self.text(op.x)})", type)
        if isinstance(op, Cast) and isinstance(op.x.type, DType) and not op.x.type.is_float:
            return f"({self.text(op.x)} != 0)" if type is bool_ else self._reduced("shl", self.text(op.x), type)
        raise ArgumentError(
            "the launch of this kernel computes what that of an exported one cannot",
            location=None if op is None else op.location,
        )

    def _reduced(self, kind: str, text: str, type: DType) -> str:
        """Return an expression of 64 bits reduced to a type."""
        if kind not in _GROWING or type is bool_ or type.bits == 64:
            return text
        if self._language == "c":
            return f"(int64_t)({'' if type.is_signed else 'u'}int{type.bits}_t){text}"
        return f"reduced({text}, {type.bits}, {type.is_signed})"
