"""Layouts as text: `(4,8):(8,1)`, read and written.

A text has limits, so that reading one from anywhere ends soon and takes little memory.
"""

from __future__ import annotations

import re
from typing import Any

from tilewright.arguments import given
from tilewright.errors import LayoutError
from tilewright.layout.ints import Basis

CHARACTERS = 10_000  # of a text
DEPTH = 64  # of brackets in brackets; Python's own stack ends a little below 1,000 calls
LARGEST = 2**63 - 1  # of a number: what an index of a GPU holds
MODES = 64  # of a coordinate that a basis stride such as 1@63 steps through
PATH = 8  # modes in modes that a basis stride names, as 1@0@1 names two
_DIGITS = len(str(LARGEST))
_SHOWN = 60  # characters of a text that a message shows


def whole(token: str) -> int:
    """Return the number of a token, which may have a sign. Raises `LayoutError` for one that is too large."""
    digits = token.lstrip("-").lstrip("0") or "0"
    if len(digits) > _DIGITS or int(digits) > LARGEST:
        raise LayoutError(
            f"the number {excerpt(token)} is too large",
            help=f"numbers of layouts are at most {LARGEST}, what an index of a GPU holds",
        )
    return -int(digits) if token.startswith("-") else int(digits)


def path_of(tokens: list[str]) -> tuple[int, ...]:
    """Return the modes that a basis stride names, outermost first, of what follows each @ in its text.

    Raises `LayoutError` for modes past the 64th, whose coordinates would be that long, and for more than 8 of them.
    """
    if len(tokens) > PATH:
        raise LayoutError(f"a basis stride names {len(tokens)} modes in modes", help=f"at most {PATH} are read")
    modes = tuple(whole(token) for token in reversed(tokens))
    for mode in modes:
        if mode >= MODES:
            raise LayoutError(f"a basis stride steps through mode {mode}", help=f"modes 0 to {MODES - 1} are read")
    return modes


def check_length(text: str) -> None:
    """Raise `LayoutError` for what is not a text, or is too long to be read."""
    if not isinstance(text, str):
        raise LayoutError(f"a layout is read from a text such as '(4,8):(1,4)', got {given(text)}")
    if len(text) > CHARACTERS:
        raise LayoutError(
            f"the text of a layout has {len(text)} characters: {excerpt(text)}", help=f"at most {CHARACTERS} are read"
        )


def check_depth(depth: int) -> None:
    """Raise `LayoutError` for brackets that are nested too deep."""
    if depth > DEPTH:
        raise LayoutError(f"brackets are nested more than {DEPTH} deep", help=f"at most {DEPTH} are read")


def excerpt(text: str) -> str:
    """Return a text as a message shows it: the beginning of what is long."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_TOKEN = re.compile(r"\s*(-?\d+(?:@\d+)*|[(),:])")


def parse_layout(text: str) -> tuple[Any, Any]:  # Any: integers, basis strides and nested tuples
    """Return the shape and the stride that a text says, unchecked, and None where it leaves the stride out.

    >>> parse_layout("((2, 2), 8):((1, 4), 2)")
    (((2, 2), 8), ((1, 4), 2))

    Raises `LayoutError` at the first character that does not belong, and for what is beyond a limit.
    """
    check_length(text)
    tokens: list[str] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        tokens.append(match.group(1))
        position = match.end()
    shape, rest = _tuple(text, tokens, 0)
    if rest == len(tokens):
        return shape, None
    if tokens[rest] != ":":
        raise LayoutError(f"{excerpt(text)!r} is not a layout: {excerpt(tokens[rest])!r} stands after the shape")
    stride, rest = _tuple(text, tokens, rest + 1)
    if rest != len(tokens):
        raise LayoutError(f"{excerpt(text)!r} is not a layout: {excerpt(tokens[rest])!r} stands after the stride")
    return shape, stride


def _tuple(text: str, tokens: list[str], at: int, depth: int = 0) -> tuple[Any, int]:
    if at >= len(tokens):
        raise LayoutError(f"{excerpt(text)!r} is not a layout: it ends too early", help='write it as "(4,8):(8,1)"')
    token = tokens[at]
    if token == "(":
        check_depth(depth + 1)
        values = []
        at += 1
        while at < len(tokens) and tokens[at] != ")":
            value, at = _tuple(text, tokens, at, depth + 1)
            values.append(value)
            if at < len(tokens) and tokens[at] == ",":
                at += 1
        if at >= len(tokens):
            raise LayoutError(f"{excerpt(text)!r} is not a layout: a bracket is not closed")
        return tuple(values), at + 1
    if token in "),:":
        raise LayoutError(f"{excerpt(text)!r} is not a layout: {token!r} stands where a number belongs")
    value, *path = token.split("@")
    return (Basis(whole(value), path_of(path)) if path else whole(value)), at + 1


def _unreadable(text: str, position: int) -> LayoutError:
    rest = text[position:].lstrip()
    return LayoutError(
        f"{excerpt(text)!r} is not a layout: cannot read {rest[:10]!r}", help='write it as "(4,8):(8,1)"'
    )
