"""Layouts as text: `(4,8):(8,1)`, read and written."""

from __future__ import annotations

import re
from typing import Any

from tilewright.errors import LayoutError
from tilewright.layout.ints import Basis
from tilewright.layout.layouts import Layout
from tilewright.layout.limits import check_depth, check_length, excerpt, path_of, whole

_TOKEN = re.compile(r"\s*(-?\d+(?:@\d+)*|[(),:])")


def layout_from_text(text: str) -> Layout:
    """Read a layout as `str` writes it; blanks are free, and the stride may be left out.

    Law: layout_from_text(str(layout)) == layout for every static layout within the limits: 10,000 characters, 64
    brackets in brackets, numbers below 2**63, and basis strides of modes 0 to 63, at most 8 in one another.

    >>> layout_from_text("((2, 2), 8):((1, 4), 2)")
    Layout(((2, 2), 8), ((1, 4), 2))

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
        return Layout(shape)
    if tokens[rest] != ":":
        raise LayoutError(f"{excerpt(text)!r} is not a layout: {excerpt(tokens[rest])!r} stands after the shape")
    stride, rest = _tuple(text, tokens, rest + 1)
    if rest != len(tokens):
        raise LayoutError(f"{excerpt(text)!r} is not a layout: {excerpt(tokens[rest])!r} stands after the stride")
    return Layout(shape, stride)


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
