"""What a launch computes on the host from extents, strides and numbers, as C and as Python.

These are the pure ops that `ir.evaluate` computes. A result is reduced to its type, as there.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ahead.sizes import Language
from tilewright.dtypes import DType, bool_
from tilewright.errors import ArgumentError
from tilewright.ir.core import Value
from tilewright.ir.ops import Binary, Cast, Compare, Constant, Select, Unary

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>"}
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FUNCTIONS = {"div": "quotient", "rem": "remainder_of", "min": "smaller", "max": "larger"}
_GROWING = ("add", "sub", "mul", "shl", "neg", "abs", "bit_not")  # results that their type may not hold


class Printer:
    """Prints values in one language. `names` has the text of each parameter's value."""

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
