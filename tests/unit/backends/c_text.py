"""A small interpreter of the C++ that the backend prints: integers, bools, arrays, loops and branches.

It knows C++'s grammar and its conversions (promotion to int, unsigned next to signed), and nothing of the
printer, so that a text that means something else than its IR gives another number. Signed overflow wraps, as
the machine code does. A name that is used without a declaration, or declared twice in a scope, is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

TYPES = {
    "bool": (1, False),
    "signed char": (8, True),
    "unsigned char": (8, False),
    "short": (16, True),
    "unsigned short": (16, False),
    "int": (32, True),
    "unsigned int": (32, False),
    "long long": (64, True),
    "unsigned long long": (64, False),
}
_TOKEN = re.compile(
    r"\s+|//[^\n]*|#[^\n]*|(?P<type>(?:un)?signed (?:char|short|int|long long)|long long|int|short|bool)\b"
    r"|(?P<number>\d+(?:ULL|LL|u)?)|(?P<name>[A-Za-z_]\w*(?:\.[xyz])?)"
    r"|(?P<sign><<=|>>=|[-+*/%&|^]=|<<|>>|&&|\|\||[=!<>]=|[-+*/%&|^~!<>=?:;,(){}\[\]])"
)
_LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)


@dataclass(frozen=True)
class Number:
    type: str
    value: int


class Undefined(Exception):
    """C++ gives the program no meaning."""


class _Break(Exception):
    pass


def run(text: str, given: dict[str, Number], arrays: dict[str, tuple[str, list[int]]]) -> None:
    """Run statements; `given` are the names that are there before, `arrays` are changed in place."""
    tokens = [(m.lastgroup, m.group()) for m in _TOKEN.finditer(text) if m.lastgroup]
    assert "".join(re.findall(r"\S", _TOKEN.sub("", text))) == "", text
    scopes: list[dict[str, Number | None]] = [dict(given)]
    _Parser(tokens, scopes, arrays).statements()


def convert(x: Number, type: str) -> Number:
    bits, signed = TYPES[type]
    if type == "bool":
        return Number(type, int(x.value != 0))
    low = x.value & ((1 << bits) - 1)
    return Number(type, low - (1 << bits) if signed and low >> (bits - 1) else low)


def _promote(x: Number) -> Number:
    return convert(x, "int") if TYPES[x.type][0] < 32 else x


def _common(a: Number, b: Number) -> tuple[Number, Number, str]:
    a, b = _promote(a), _promote(b)
    order = ("int", "unsigned int", "long long", "unsigned long long")
    type = max(a.type, b.type, key=order.index)
    return convert(a, type), convert(b, type), type


def _operate(sign: str, a: Number, b: Number) -> Number:
    if sign in ("<<", ">>"):
        a, b = _promote(a), _promote(b)
        if not 0 <= b.value < TYPES[a.type][0]:
            raise Undefined(sign)
        return convert(Number(a.type, a.value << b.value if sign == "<<" else a.value >> b.value), a.type)
    a, b, type = _common(a, b)
    x, y = a.value, b.value
    if sign in ("==", "!=", "<", "<=", ">", ">="):
        truth = {"==": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[sign]
        return Number("bool", int(truth))
    if sign in "/%":
        if y == 0:
            raise Undefined(sign)
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return convert(Number(type, quotient if sign == "/" else x - y * quotient), type)
    result = {"+": x + y, "-": x - y, "*": x * y, "&": x & y, "|": x | y, "^": x ^ y}[sign]
    return convert(Number(type, result), type)


def _call(name: str, arguments: list[Number]) -> Number:
    if name == "abs":
        x = _promote(arguments[0])
        return convert(Number(x.type, abs(x.value)), x.type)
    assert name in ("min", "max"), name
    a, b = (_promote(x) for x in arguments)
    assert a.type == b.type, f"{name} of {a.type} and {b.type} is ambiguous"
    return a if (a.value < b.value) == (name == "min") else b


class _Parser:
    """Parses and runs at once; what is not run is parsed with `live` off."""

    def __init__(
        self,
        tokens: list[tuple[str, str]],
        scopes: list[dict[str, Number | None]],
        arrays: dict[str, tuple[str, list[int]]],
    ) -> None:
        self.tokens, self.scopes, self.arrays, self.at, self.live, self.rounds = tokens, scopes, arrays, 0, True, 0

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def kind(self) -> str:
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        assert not wanted or token in wanted, (wanted, self.tokens[max(0, self.at - 8) : self.at + 4])
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() == token:
            self.at += 1
            return True
        return False

    # --- statements ----------------------------------------------------------------------------------------

    def statements(self) -> None:
        while self.peek() not in ("", "}"):
            self.statement()

    def block(self) -> None:
        self.take("{")
        self.scopes.append({})
        self.statements()
        self.scopes.pop()
        self.take("}")

    def dead(self, parse: Callable[[], object]) -> None:
        live, self.live = self.live, False
        scopes, self.scopes = self.scopes, [*self.scopes, {}]
        parse()
        self.live, self.scopes = live, scopes

    def statement(self) -> None:
        word = self.peek()
        if word in ("for", "while", "if"):
            getattr(self, f"_{word}")()
            return
        if word == "const" or self.kind() == "type":
            self.declaration()
        elif word == "break":
            self.take()
            if self.live:
                raise _Break
        else:
            self.assignment()
        self.take(";")

    def declaration(self) -> None:
        self.accept("const")
        type, name = self.take(), self.take()
        if self.accept("["):
            self.arrays[name] = (type, [0] * self.expression().value)
            self.take("]")
            return
        assert name not in self.scopes[-1], f"{name} is declared twice"
        assert not any(name in scope for scope in self.scopes), f"{name} hides another"
        value = convert(self.expression(), type) if self.accept("=") else None
        self.scopes[-1][name] = Number(type, value.value) if value else None
        self.declared = type

    def assignment(self) -> None:
        name = self.take()
        if self.accept("["):
            index = self.expression().value
            self.take("]")
            type, cells = self.arrays[name]
            old = Number(type, cells[index] if self.live else 0)
        else:
            scope = next(s for s in reversed(self.scopes) if name in s)
            held = scope[name]
            old, type, index = held or Number("int", 0), held.type if held else "int", None
        sign = self.take()
        new = self.expression()
        if sign != "=":
            new = _operate(sign[:-1], old, new) if self.live else new
        if not self.live:
            return
        if index is not None:
            cells[index] = convert(new, type).value
        else:
            scope[name] = convert(new, type)

    def _if(self) -> None:
        self.take("if")
        self.take("(")
        truth = self.expression().value
        self.take(")")
        if self.peek() != "{":  # if (...) break;
            self.statement() if truth else self.dead(self.statement)
            return
        self.block() if truth else self.dead(self.block)
        if self.accept("else"):
            follow = self._if if self.peek() == "if" else self.block
            self.dead(follow) if truth else follow()

    def _while(self) -> None:
        self.take("while")
        self.take("(")
        start = self.at
        if self.tokens[self.at][1] == "true":
            self.tokens[self.at] = ("number", "1")
        self.loop(start, None)

    def _for(self) -> None:
        self.take("for")
        self.take("(")
        self.scopes.append({})
        self.declaration()
        self.take(";")
        start = self.at
        self.expression()
        self.take(";")
        step = self.at
        self.loop(start, step)
        self.scopes.pop()

    def loop(self, start: int, step: int | None) -> None:
        while True:
            self.rounds += 1
            assert self.rounds < 10000
            self.at = start
            truth = self.expression().value and self.live
            if step is not None:
                self.take(";")
                self.dead(self.assignment)
            self.take(")")
            body, depth = self.at, len(self.scopes)
            try:
                self.block() if truth else self.dead(self.block)
            except _Break:
                self.at = body
                del self.scopes[depth:]
                self.dead(self.block)
                return
            if not truth:
                return
            if step is not None:
                self.at = step
                self.assignment()

    # --- expressions ---------------------------------------------------------------------------------------

    def expression(self) -> Number:
        condition = self.level(0)
        if not self.accept("?"):
            return condition
        a = self.expression()
        self.take(":")
        b = self.expression()
        if a.type == b.type:
            return a if condition.value else b
        a, b, _ = _common(a, b)
        return a if condition.value else b

    def level(self, depth: int) -> Number:
        if depth == len(_LEVELS):
            return self.prefix()
        x = self.level(depth + 1)
        while self.kind() == "sign" and self.peek() in _LEVELS[depth]:
            sign = self.take()
            if sign in ("&&", "||"):
                live, self.live = self.live, self.live and bool(x.value) == (sign == "&&")
                y = self.level(depth + 1)
                self.live = live
                truth = bool(x.value and y.value) if sign == "&&" else bool(x.value or y.value)
                x = Number("bool", int(truth))
            else:
                y = self.level(depth + 1)
                x = _operate(sign, x, y) if self.live else x
        return x

    def prefix(self) -> Number:
        if self.peek() == "(" and self.tokens[self.at + 1][0] == "type":
            self.take()
            type = self.take()
            self.take(")")
            return convert(self.prefix(), type)
        sign = self.peek()
        if sign in ("-", "~", "!"):
            self.take()
            x = self.prefix()
            if sign == "!":
                return Number("bool", int(not x.value))
            x = _promote(x)
            return convert(Number(x.type, -x.value if sign == "-" else ~x.value), x.type)
        return self.atom()

    def atom(self) -> Number:
        kind, token = self.tokens[self.at]
        self.take()
        if token == "(":
            x = self.expression()
            self.take(")")
            return x
        if kind == "number":
            suffix = token.lstrip("0123456789")
            value = int(token.removesuffix(suffix))
            type = {"u": "unsigned int", "LL": "long long", "ULL": "unsigned long long"}.get(suffix, "int")
            assert value < 1 << (TYPES[type][0] - TYPES[type][1]), f"{token} is too large"
            return Number(type, value)
        if token in ("true", "false"):
            return Number("bool", int(token == "true"))
        if self.accept("("):
            arguments = [self.expression()]
            while self.accept(","):
                arguments.append(self.expression())
            self.take(")")
            return _call(token, arguments)
        if self.accept("["):
            index = self.expression().value
            self.take("]")
            type, cells = self.arrays[token]
            return Number(type, cells[index] if self.live else 0)
        held = next((s[token] for s in reversed(self.scopes) if token in s), None)
        assert held is not None or not self.live, f"{token} is read before it has a value"
        return held or Number("int", 1)
