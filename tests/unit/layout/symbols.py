"""A symbolic integer: records arithmetic, refuses every question about its value, and can be evaluated later."""

from __future__ import annotations

import operator
from typing import Any

from tilewright.layout import ComposedLayout, DynamicInt, Layout


class Symbol(DynamicInt):
    """An integer known only by name, or an expression over such."""

    def __init__(self, name: str, evaluate: Any = None) -> None:
        self.name = name
        self.evaluate = evaluate or (lambda values: values[name])

    def _combine(self, function: Any, sign: str, other: Any, swapped: bool) -> Symbol:
        left, right = (other, self) if swapped else (self, other)
        return Symbol(
            f"({left} {sign} {right})", lambda values: function(value_of(left, values), value_of(right, values))
        )

    def __bool__(self) -> bool:
        raise AssertionError(f"the truth of the dynamic value {self} was asked for")

    def _refuse(self, other: object) -> bool:
        raise AssertionError(f"the dynamic value {self} was compared with {other}")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return self.name


def _operator(function: Any, sign: str) -> tuple[Any, Any]:
    def plain(self: Symbol, other: Any) -> Symbol:
        return self._combine(function, sign, other, swapped=False)

    def reflected(self: Symbol, other: Any) -> Symbol:
        return self._combine(function, sign, other, swapped=True)

    return plain, reflected


for _name, _function, _sign in [
    ("add", operator.add, "+"),
    ("sub", operator.sub, "-"),
    ("mul", operator.mul, "*"),
    ("floordiv", operator.floordiv, "//"),
    ("mod", operator.mod, "%"),
    ("and", operator.and_, "&"),
    ("xor", operator.xor, "^"),
    ("lshift", operator.lshift, "<<"),
    ("rshift", operator.rshift, ">>"),
]:
    _plain, _reflected = _operator(_function, _sign)
    setattr(Symbol, f"__{_name}__", _plain)
    setattr(Symbol, f"__r{_name}__", _reflected)


def value_of(x: Any, values: dict[str, int]) -> Any:
    """Return `x` with every symbol in it replaced by its value."""
    if isinstance(x, Symbol):
        return x.evaluate(values)
    if isinstance(x, tuple):
        return tuple(value_of(v, values) for v in x)
    if isinstance(x, Layout):
        return Layout(value_of(x.shape, values), value_of(x.stride, values))
    if isinstance(x, ComposedLayout):
        return ComposedLayout(x.outer, value_of(x.offset, values), value_of(x.inner, values))
    return x
