"""Writes random expressions of a given element type that are defined for every value of their variables.

What C++ leaves undefined is avoided by construction: signed sums and products are made of halves or by way of unsigned
types, divisors are odd, amounts of shifts are not negative, NaN is replaced where its sign or bits would show.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from tests.fuzz.meaning import TYPES

import tilewright as tw

INTEGERS = tuple(t for t in TYPES if t.is_integer)
FLOATS = tuple(t for t in TYPES if t.is_float)
UNSIGNED = {8: tw.uint8, 16: tw.uint16, 32: tw.uint32, 64: tw.uint64}
Item = TypeVar("Item")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def name_of(dtype: tw.DType) -> str:
    return "tw.bool_" if dtype is tw.bool_ else f"tw.{dtype.name}"


class Expressions:
    """Draws expressions. `variables` are the names of values by type; `numbers` those of Python ints from 0 to 3.

    `loose` lets products of float32 and float64 stand where they are contracted into fused multiply-adds, which the
    meaning of the text does not know; both backends execute the same contracted program.
    """

    def __init__(self, random: Random, loose: bool) -> None:
        self.random = random
        self.loose = loose
        self.variables: dict[tw.DType, list[str]] = {}
        self.numbers: list[str] = []
        self.is_plain = False  # Python that is not rewritten: no branches on device values
        self.pure: dict[tw.DType, list[tuple[str, tw.DType]]] = {}  # calls that change nothing, by result: parameter

    def integer(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def choice(self, choices: Sequence[Item]) -> Item:
        return choices[self.random.randrange(len(choices))]

    def pick(self, *choices: str) -> str:
        return self.choice(choices)

    def chance(self, one_in: int = 2) -> bool:
        return self.integer(1, one_in) == 1

    def type(self, choices: tuple[tw.DType, ...] | None = None) -> tw.DType:
        known = [t for t in (choices or TYPES) if self.variables.get(t)]
        return self.choice(known or [t for t in TYPES if self.variables.get(t)])

    def leaf(self, dtype: tw.DType) -> str:
        """Return a variable, converted where none has the type."""
        if self.variables.get(dtype):
            return self.pick(*self.variables[dtype])
        source = self.type()
        return f"{self.pick(*self.variables[source])}.to({name_of(dtype)})"

    def of(self, dtype: tw.DType, depth: int = 2) -> str:
        """Return the text of an expression of exactly this type, in brackets where it needs them."""
        if depth == 0 or self.chance(5):
            return self.leaf(dtype)
        if self.pure.get(dtype) and self.chance(4):
            call, parameter = self.choice(self.pure[dtype])
            return call.format(x=self.of(parameter, depth - 1))
        if self.chance(6):
            return self._chosen(dtype, depth)
        if self.chance(6):
            return self._converted(dtype, depth)
        if dtype is tw.bool_:
            return self._bool(depth)
        return self._float(dtype, depth) if dtype.is_float else self._integer(dtype, depth)

    def constant(self, dtype: tw.DType) -> str:
        """Return a number as the right side of an operation: a Python number, or one with a type."""
        if dtype.is_float:
            number = self.pick("0.5", "1.0", "-2.0", "3.0", "0.1", "1e4", "-0.0", "1.5")
        else:
            if self.numbers and self.chance(3):
                return self.pick(*self.numbers)
            edges = [dtype.lowest, dtype.highest, dtype.highest // 3]
            number = str(self.integer(0, 20) if self.chance() else self.choice(edges))
        return number if self.chance() else f"{name_of(dtype)}({number})"

    def right(self, dtype: tw.DType, depth: int) -> str:
        return self.constant(dtype) if self.chance(4) else self.of(dtype, depth)

    def condition(self, depth: int = 1) -> str:
        """Return something that is true or false."""
        if self.is_plain:
            return self.of(tw.bool_, 1)
        if depth and self.chance(3):
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            return self.pick(f"({a} and {b})", f"({a} or {b})", f"(not {a})")
        if self.chance(6):
            return self.of(self.type(INTEGERS), 1)
        return self.of(tw.bool_, 1)

    def small(self, bound: int) -> str:
        """Return an int32 from 0 below a power of two."""
        return f"({self.of(tw.int32, 1)} & {bound - 1})"

    def finite(self, dtype: tw.DType, depth: int, low: str, high: str) -> str:
        """Return a float of an interval: maximum and minimum replace NaN."""
        return f"tw.minimum(tw.maximum({self.of(dtype, depth)}, {low}), {high})"

    # --- forms ---

    def _chosen(self, dtype: tw.DType, depth: int) -> str:
        a, b = self.of(dtype, depth - 1), self.of(dtype, depth - 1)
        c = self.condition(depth - 1)
        return (
            f"tw.where({c}, {a}, {b})"
            if (self.chance() or self.is_plain) and "and" not in c and "or" not in c and "not" not in c
            else f"({a} if {c} else {b})"
        )

    def _converted(self, dtype: tw.DType, depth: int) -> str:
        same = [t for t in TYPES if t.bits == dtype.bits and tw.bool_ not in (t, dtype)]
        if same and self.chance(3):
            source = self.type(tuple(same))
            if source in same:
                x = self.of(source, depth - 1)
                if source.is_float and not dtype.is_float:
                    return f"tw.where(tw.isnan({x}), {name_of(source)}(1.5), {x}).bitcast({name_of(dtype)})"
                return f"{x}.bitcast({name_of(dtype)})"
        x = self.of(self.type(), depth - 1)
        return f"{x}.to({name_of(dtype)})" if self.chance() else f"{name_of(dtype)}({x})"

    def _bool(self, depth: int) -> str:
        form = self.integer(0, 9)
        if form == 0 and self.variables.get(tw.bool_):
            a, b = self.of(tw.bool_, depth - 1), self.of(tw.bool_, depth - 1)
            return self.pick(f"({a} & {b})", f"({a} | {b})", f"({a} ^ {b})", f"(~{a})")
        if form == 2 and not self.is_plain and self.chance():
            integer = self.type(INTEGERS)
            x, y, z = (self.of(integer, depth - 1) for _ in range(3))
            return self.pick(
                f"tw.bool_({x} in ({y}, {z}))",
                f"tw.bool_({x} not in [{y}, {z}])",
                f"tw.bool_(not {x})",
                f"tw.bool_(any([{x} == {y}, {y} < {z}]))",
            )
        if form == 1:
            return (
                f"tw.{self.pick('isnan', 'isinf', 'isfinite')}({self.of(self.type(FLOATS), depth - 1)})"
                if any(self.variables.get(t) for t in FLOATS)
                else self.leaf(tw.bool_)
            )
        first = self.type()
        second = first if self.chance() else self.type()
        # A number with a type is refused where the common type does not hold it.
        a, b = self.of(first, depth - 1), (self.right if second is first else self.of)(second, depth - 1)
        if form == 2 and first is not tw.bool_ and not self.is_plain:
            return f"({a} {self.pick('<', '<=')} {b} {self.pick('<', '<=')} {self.of(first, 0)})"
        return f"({a} {self.pick(*COMPARISONS)} {b})"

    def _integer(self, dtype: tw.DType, depth: int) -> str:
        name, bits = name_of(dtype), dtype.bits
        x, y = self.of(dtype, depth - 1), self.right(dtype, depth - 1)
        z = self.of(dtype, depth - 1)
        op = self.pick("+", "-", "*")
        amount = self.pick(f"({z} & {bits - 1})", f"({z} & {2 * bits - 1})", str(self.integer(0, bits - 1)))
        forms = [
            f"({x} {self.pick('&', '|', '^')} {y})",
            f"(~{x})",
            f"({x} >> {amount})",
            f"tw.{self.pick('minimum', 'maximum')}({x}, {y})",
            f"({x} {self.pick('//', '%')} {name}({self.pick('1', '2', '3', '7', '8', '10', '64', '100')}))",
            self._mixed(dtype, depth),
            f"(({x} & 3) ** {self.pick('2', '3', f'({z} & 3)', f'{name}(2)')})",
        ]
        if not self.is_plain:
            number = self.integer(0, 20)
            forms += [f"{name}({x} if {self.condition(0)} else {number})", f"{self.pick('min', 'max')}({x}, {z})"]
        if bits >= 32:
            forms.append(f"tw.{self.pick('popcount', 'clz')}({x}).to({name})")
        if dtype.is_signed:
            other = name_of(UNSIGNED[bits])
            forms += [
                f"({x}.bitcast({other}) << {amount}.to({other})).bitcast({name})"
                if "(" in amount
                else f"({x} >> {amount})",
                f"(({x} & 15) << ({z} & {1 if bits == 8 else 3}))",
                f"(({x} >> 1) {self.pick('+', '-')} ({z} >> 1))",
                f"(({x} >> {bits // 2}) * ({z} >> {bits // 2}))",
                f"({x}.to({other}) {op} {z}.to({other})).to({name})",
                f"({x}.bitcast({other}) {op} {z}.bitcast({other})).bitcast({name})",
                f"(({x} >> 1) {self.pick('//', '%')} ({z} | 1))",
                self.pick(f"(-({x} >> 1))", f"tw.abs({x} >> 1)"),
            ]
        else:
            forms += [
                f"({x} << {amount})",
                f"({x} ** {self.pick('2', '5', f'({z} & 7)')})",
                f"({x} {op} {y})",
                f"({x} {op} {z})",
                f"({x} {self.pick('//', '%')} ({z} | 1))",
            ]
        return self.choice(forms)

    def _mixed(self, dtype: tw.DType, depth: int) -> str:
        """Return an operation on two integer types, where the common type holds every result or wraps."""
        first, second = self.type(INTEGERS), self.type(INTEGERS)
        common = tw.promote(first, second)
        a, b = self.of(first, depth - 1), self.of(second, depth - 1)
        held = common not in (first, second) and tw.uint64 not in (first, second)  # int64 does not hold uint64
        fits = not common.is_float and (not common.is_signed or held)
        op = self.pick("+", "-", "*") if fits else self.pick("&", "|", "^") if not common.is_float else "-"
        if not (first.is_integer and second.is_integer):
            return a if first is dtype else f"{a}.to({name_of(dtype)})"
        return f"({a} {op} {b}).to({name_of(dtype)})"

    def _float(self, dtype: tw.DType, depth: int) -> str:
        x, y, z = self.of(dtype, depth - 1), self.right(dtype, depth - 1), self.of(dtype, depth - 1)
        product = f"{x} * {y}"
        if dtype.bits >= 32 and not self.loose:
            product = self.pick(f"tw.abs({product})", f"tw.maximum({product}, {z})", f"tw.floor({product})")
        else:
            product = self.pick(f"({product})", f"({product} + {z})", f"({z} - {product})", f"({x} * {x})")
        sign = f"tw.where(tw.isnan({z}), {name_of(dtype)}(-1.0), {z})"
        if not self.is_plain and self.chance(8):
            one, other = self.pick("0.1", "-0.3", "2.0"), self.pick("0.7", "1e-3", z)
            return f"{name_of(dtype)}({one} if {self.condition(0)} else {other})"
        return self.pick(
            f"({x} + {y})",
            f"({x} - {y})",
            f"({x} / {y})",
            product,
            f"tw.fma({x}, {z}, {y})",
            f"tw.{self.pick('minimum', 'maximum')}({x}, {y})",
            f"(-{x})",
            f"tw.abs({x})",
            f"tw.sqrt(tw.abs({x}))",
            f"tw.{self.pick('floor', 'ceil', 'trunc', 'round')}({x})",
            f"tw.copysign({x}, {sign})",
            f"({x} % {z})",
        )
