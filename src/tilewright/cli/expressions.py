"""Expressions of layouts for the shell, such as `composition((4,8):(8,1), 8:2)`, read by a grammar of their own.

    expression = operand { "o" operand }                       composition, as a composed layout prints itself
    operand    = NAME "(" [ argument { "," argument } ] ")"    a function of tilewright.layout
               | NAME                                          a value that the command names, such as an instruction
               | "Sw<" INT "," INT "," INT ">"
               | tuple [ ":" tuple ]                           a shape, or a layout with its stride
    tuple      = INT { "@" INT } | "_" | "(" [ expression { "," expression } ] ")"
    argument   = [ NAME "=" ] expression

Nothing else can be called and nothing has attributes, so that an expression from anywhere is safe to work out. What it
may hold is bounded as in the text of a layout (`tilewright.layout.text`), and so is every value on the way: how large
its numbers are, how many there are, and how deep they are nested.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import tilewright.layout as algebra
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.layout import ComposedLayout, E, Layout, Swizzle
from tilewright.layout.ints import Basis
from tilewright.layout.text import DEPTH, MODES, PATH, check_length, excerpt, path_of, whole

_TOKEN = re.compile(r"\s*(?:(?P<number>-?\d+(?:@\d+)*)|(?P<name>[A-Za-z_]\w*)|(?P<sign>[():,=<>]))")
_MOST_LEAVES = 256  # numbers in a value; operations take a time that grows with the square of it
_MOST_BITS_OF_SWIZZLE = 62  # what an index of a GPU has
_MOST_BITS = 256  # of a number that an operation gives, such as the size of a large layout
_SHOWN = 60  # characters that a message shows on both sides of a place


def evaluate(
    text: str, *, names: Mapping[str, Any] | None = None, more: Mapping[str, Callable[..., Any]] | None = None
) -> Any:  # Any: a layout, swizzle, integer, nested tuple or truth value, or one of what is named
    """Work out an expression of layouts.

    >>> print(evaluate("composition((4,8):(8,1), 8:2)"))
    (2,4):(16,1)
    >>> evaluate("size(complement(4:2, 24))")
    6

    `names` are further values that a name stands for, `more` further functions, which bound what they take themselves.

    Raises `ArgumentError` at the place that cannot be read and for a value that is too large, `LayoutError` as the
    operations and the limits of texts do.
    """
    check_length(text)
    reader = _Reader(text, names or {}, functions() | dict(more or {}))
    value = reader.expression()
    if reader.kind:
        raise reader.error("the expression should end here")
    return value


# An expression has no functions to give to these, and could ask the last of them for more than a value may hold.
_NOT_HERE = frozenset(
    (
        *("transform", "transform_leaf", "transform_apply", "for_each", "for_each_leaf", "filter_tuple"),
        *("fold", "fold_first", "iscan", "escan", "find_if", "any_of", "all_of", "none_of"),
        *("repeat", "tuple_repeat", "make_coord_iterator"),
    )
)


@cache
def functions() -> dict[str, Callable[..., Any]]:
    """Return what can be called, by name: functions of `tilewright.layout` on values, and constructors of layouts."""
    public = {name: getattr(algebra, name) for name in algebra.__all__}
    named = {name: value for name, value in public.items() if inspect.isfunction(value) and name not in _NOT_HERE}
    return named | {"Layout": Layout, "Swizzle": Swizzle, "ComposedLayout": ComposedLayout, "E": E}


class _Reader:
    """Reads an expression from left to right, one token ahead."""

    def __init__(self, text: str, names: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> None:
        self.text = text
        self.names = names
        self.functions = functions
        self.depth = 0
        self.end = 0
        self.advance()

    def advance(self) -> None:
        self.start = self.end
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            self.kind, self.token = "", ""
            self.start += len(self.text[self.end :]) - len(self.text[self.end :].lstrip())
            if self.text[self.start :]:
                raise self.error(f"{self.text[self.start]!r} has no meaning here")
            return
        self.kind = match.lastgroup or ""
        self.token, self.start, self.end = match[self.kind], match.start(self.kind), match.end()

    def error(self, problem: str) -> ArgumentError:
        """Make the error that points at the current token."""
        first = max(self.start - _SHOWN, 0) if len(self.text) > 2 * _SHOWN else 0
        shown = self.text[first : max(self.start, _SHOWN) + _SHOWN]
        place = " " * (self.start - first) + "^" * max(min(len(self.token), _SHOWN), 1)
        return ArgumentError(
            f"cannot read the expression: {problem}",
            details=[shown, place],
            help='write layouts as "(4,8):(8,1)" and operations as "composition((4,8):(8,1), 8:2)"',
        )

    def take(self, sign: str) -> None:
        if self.token != sign:
            raise self.error(f"{sign!r} is missing")
        self.advance()

    def comma(self) -> None:
        """Take the comma between two values of a list, which none follows before the bracket."""
        if self.token == ",":
            self.advance()
        elif self.token != ")":
            raise self.error("',' or ')' is missing")

    def expression(self) -> Any:
        self.depth += 1
        if self.depth > DEPTH:
            raise self.error(f"it is nested more than {DEPTH} deep")
        operands = [self.operand()]
        while self.kind == "name" and self.token == "o":
            self.advance()
            operands.append(self.operand())
        self.depth -= 1
        return _bounded(self._composed(operands))

    def _composed(self, operands: list[Any]) -> Any:
        """Join operands from the right: an integer between two of them is the offset of a composed layout."""
        value = operands.pop()
        while operands:
            outer = operands.pop()
            if isinstance(outer, int) and operands:
                value = self._call(ComposedLayout.of, "o", (operands.pop(), outer, value), {})
            else:
                value = self._call(algebra.composition, "o", (outer, value), {})
        return value

    def operand(self) -> Any:
        if self.kind == "name" and self.token != "_":
            if self.token in self.names:
                value = self.names[self.token]
                self.advance()
                return value
            return self.swizzle() if self.token == "Sw" else self.call()
        shape = self.tuple()
        if self.token != ":":
            return shape
        self.advance()
        return self._call(Layout, "a layout", (shape, self.tuple()), {})

    def swizzle(self) -> Swizzle:
        self.advance()
        self.take("<")
        numbers = [self.number()]
        for _ in range(2):
            self.take(",")
            numbers.append(self.number())
        self.take(">")
        return self._call(Swizzle, "Sw", tuple(numbers), {})  # type: ignore[no-any-return]  # what Sw makes

    def number(self) -> Any:
        if self.kind != "number":
            raise self.error("a number is missing")
        value, *path = self.token.split("@")
        self.advance()
        return whole(value) * E(*path_of(path)) if path else whole(value)

    def tuple(self) -> Any:
        if self.token == "_":
            self.advance()
            return None
        if self.token != "(":
            return self.number()
        self.advance()
        values: list[Any] = []
        while self.token != ")":
            values.append(self.expression())
            self.comma()
        self.advance()
        # Brackets around one layout only group; around one integer they make a shape of one mode.
        grouped = len(values) == 1 and isinstance(values[0], (Layout, ComposedLayout, Swizzle))
        return values[0] if grouped else tuple(values)

    def call(self) -> Any:
        name, function = self.token, self.functions.get(self.token)
        if function is None:
            near = difflib.get_close_matches(name[:_SHOWN], [*self.functions, *self.names], 1)
            raise self.error(
                f"{excerpt(name)!r} is not a function of layouts" + (f"; did you mean {near[0]!r}?" if near else "")
            )
        self.advance()
        self.take("(")
        arguments: list[Any] = []
        named: dict[str, Any] = {}
        while self.token != ")":
            key = self._keyword()
            value = self.expression()
            if key is None:
                arguments.append(value)
            else:
                named[key] = value
            self.comma()
        self.advance()
        return self._call(function, name, tuple(arguments), named)

    def _keyword(self) -> str | None:
        """Take `NAME =` where it stands before an argument."""
        match = re.compile(r"\s*=").match(self.text, self.end)
        if self.kind != "name" or match is None:
            return None
        key = self.token
        self.advance()
        self.advance()
        return key

    def _call(self, function: Callable[..., Any], name: str, arguments: Any, named: dict[str, Any]) -> Any:
        _refuse_large_counts(function, name, arguments, named)
        try:
            return _bounded(function(*arguments, **named))
        except TilewrightError:
            raise
        except (TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError) as error:
            # Arguments of the wrong kind or number, which the operation itself does not look for.
            raise ArgumentError(
                f"{name} does not take these arguments: {excerpt(str(error))}", details=[excerpt(self.text)]
            ) from error


def _refuse_large_counts(function: Callable[..., Any], name: str, arguments: Any, named: dict[str, Any]) -> None:
    """Raise `ArgumentError` for a number that says how long or how wide the result is, not how large a number in it."""
    if function is E:
        numbers, most, what = [*arguments, *named.values()], MODES - 1, "modes of a basis stride"
        if len(numbers) > PATH:
            raise ArgumentError(f"{name} with {len(numbers)} modes", help=f"at most {PATH} are taken here")
    elif function in (Swizzle, algebra.make_swizzle):
        numbers, most, what = [*arguments, *named.values()], _MOST_BITS_OF_SWIZZLE, "bits, base and shift of a swizzle"
    else:
        numbers, most, what = [named.get("rank")], _MOST_LEAVES, "the rank of a result"
    for number in numbers:
        if isinstance(number, int) and abs(number) > most:
            raise ArgumentError(f"{name} with {number}: {what} are too large", help=f"at most {most} is taken here")


def _bounded(value: Any) -> Any:
    """Return a value. Raises `ArgumentError` for one with too many numbers, too large ones, or nested too deep."""
    count = 0
    pending = [(value, 0)]
    while pending:
        part, depth = pending.pop()
        count += 1
        if count > 4 * _MOST_LEAVES or depth > 2 * DEPTH:
            raise ArgumentError(
                "a value of the expression is too large",
                help=f"at most {_MOST_LEAVES} extents, nested at most {2 * DEPTH} deep, are worked out here",
            )
        if isinstance(part, (tuple, list)):
            pending += [(inner, depth + 1) for inner in part]
        elif isinstance(part, Layout):
            pending += [(part.shape, depth), (part.stride, depth)]
        elif isinstance(part, ComposedLayout):
            pending += [(inner, depth + 1) for inner in (part.outer, part.offset, part.inner)]
        elif isinstance(part, Basis):
            pending.append((part.value, depth))
        elif isinstance(part, int) and part.bit_length() > _MOST_BITS:
            raise ArgumentError(
                f"the expression gives a number of {part.bit_length()} bits",
                help=f"numbers of at most {_MOST_BITS} bits are worked out here",
            )
    return value
