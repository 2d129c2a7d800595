"""The first phases of translation of C++, written from the standard: what is left of a text without its comments.

It shares nothing with the printer. `breaks` are the signs that end a line: compilers differ in it.
"""

from __future__ import annotations

import re

_TRIGRAPHS = {"=": "#", "/": "\\", "'": "^", "(": "[", ")": "]", "!": "|", "<": "{", ">": "}", "-": "~"}
ONLY_NEWLINE = "\n"
EVERY_BREAK = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"


def without_comments(text: str, *, trigraphs: bool = True, breaks: str = EVERY_BREAK, universal: bool = True) -> str:
    """Return the tokens of a text, one blank between those that a comment or blanks part.

    Trigraphs are replaced (before C++17), universal character names become their signs, a backslash in front of the end
    of a line, blanks between them or not, joins the lines, and comments become blanks.
    """
    if trigraphs:
        text = re.sub(r"\?\?([=/'()!<>-])", lambda m: _TRIGRAPHS[m[1]], text)
    if universal:
        text = re.sub(r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})", _universal, text)
    text = re.sub("\r\n", "\n", text)
    text = re.sub(f"[{re.escape(breaks)}]", "\n", text)
    text = re.sub(r"\\[ \t]*\n", "", text)
    kept: list[str] = []
    at = 0
    while at < len(text):
        if text.startswith("//", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            assert end >= 0, "a comment does not end"
            kept.append(" ")
            at = end + 2
        elif text[at] in "\"'":
            end = at + 1
            while text[end] != text[at]:
                assert text[end] != "\n", "a literal does not end on its line"
                end += 2 if text[end] == "\\" else 1
            kept.append(text[at : end + 1])
            at = end + 1
        else:
            kept.append(text[at])
            at += 1
    return " ".join("".join(kept).split())


def _universal(match: re.Match[str]) -> str:
    number = int(match[1] or match[2], 16)
    return chr(number) if number < 0x110000 else match[0]


def literal_bytes(literal: str) -> bytes:
    """Return the bytes of a string literal, up to its first NUL; fails for what is not one literal on one line."""
    assert literal[0] == literal[-1] == '"' and not re.search(f"[{re.escape(EVERY_BREAK)}\0]", literal)
    assert not re.search(r"\?\?[=/'()!<>-]", literal)
    simple = {"n": 10, "t": 9, "r": 13, "?": 63, '"': 34, "\\": 92}
    inside, found, at = literal[1:-1], bytearray(), 0
    while at < len(inside):
        assert inside[at] != '"', "a quotation mark inside"
        if inside[at] != "\\":
            found += inside[at].encode()
            at += 1
        elif inside[at + 1] in simple:
            found.append(simple[inside[at + 1]])
            at += 2
        else:
            octal = re.match(r"[0-7]{1,3}", inside[at + 1 :])
            assert octal is not None, f"an unknown escape {inside[at : at + 2]}"
            found.append(int(octal[0], 8))
            at += 1 + len(octal[0])
    return bytes(found).partition(b"\0")[0]
