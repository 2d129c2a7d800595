r"""The lines of a text, each with the Python line that it comes from; comments and string literals from foreign text.

Lines of Python, messages, names of files and arrays go through `line_comment`, `block_comment` and `string`; names go
through `names.legal`. C++ gives a meaning to signs outside of tokens: a backslash at the end of a line joins the next
line to it (g++ and NVRTC allow blanks after the backslash), `??/` is another spelling of a backslash, `\u000a` may
stand for a sign, and compilers differ in what ends a line. So that no such sign is left, a comment

- is one line of printable characters: each other one, and half of a surrogate pair, is written as its code, [U+2028];
- holds no trigraph and no universal character name: the second `?` or the backslash is written as its code;
- does not end with a backslash or a blank;
- where it ends with `*/`, holds no `*/` and no `/*`: a blank parts the two signs.

A string literal is one line of printable characters without quotes, lone backslashes and trigraphs; other bytes are
octal escapes of three digits, which end by themselves. What UTF-8 cannot hold appears as its escape in Python.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.source import SourceLocation

_TRIGRAPH = re.compile(r"(?<=\?)\?(?=[=/'()!<>-])")
_UNIVERSAL = re.compile(r"\\(?=[uUN])")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "?": "\\?", "\0": "\\\\x00"}


def line_comment(text: str) -> str:
    r"""Return `// text`, which ends where the line ends.

    >>> print(line_comment("dst[i] = src[i]  # diagonal \\ \\"))
    // dst[i] = src[i]  # diagonal
    >>> print(line_comment("a" + chr(0x2028) + "int x;"), line_comment("what??/"))
    // a[U+2028]int x; // what?[U+003F]/
    """
    return f"// {_comment(text)}".rstrip()


def block_comment(text: str) -> str:
    """Return `/* text */`, which ends at its end.

    >>> print(block_comment("shape (4,) */ int x; /*"))
    /* shape (4,) * / int x; / * */
    """
    inside = _comment(text)
    while "*/" in inside or "/*" in inside:
        inside = inside.replace("*/", "* /").replace("/*", "/ *")
    return f"/* {inside} */"


def string(text: str) -> str:
    r"""Return a string literal, quotes included, that C++ reads as the text.

    A C string ends at its first NUL, so that one appears as \x00.

    >>> print(string('say "what??/"'))
    "say \"what\?\?/\""
    >>> print(string("1" + chr(27) + "2"))
    "1\0332"
    """
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return '"' + "".join(_ESCAPES.get(c, c if c.isprintable() else _octal(c)) for c in whole) + '"'


def _octal(character: str) -> str:
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def _comment(text: str) -> str:
    """Return text as a comment can hold it, up to its end."""
    shown = "".join(_shown(c) for c in text)
    shown = _TRIGRAPH.sub(_code("?"), shown)
    shown = _UNIVERSAL.sub(_code("\\"), shown)
    # What continued a line of Python joins no lines here. A trigraph for a backslash is gone already.
    return shown.rstrip("\\ ")


def _shown(character: str) -> str:
    if character == "\t" or unicodedata.category(character) == "Zs":
        return " "
    return character if character.isprintable() else _code(character)


def _code(character: str) -> str:
    return f"[U+{ord(character):04X}]"


INDENT = "    "


class Writer:
    """Lines of text at a depth of indentation.

    `line_directives` adds `#line` before every line whose place in Python is known, so that the compiler's
    line table, and with it the profiler, refers to the Python file.
    """

    def __init__(self, *, line_directives: bool = False) -> None:
        self.lines: list[str] = []
        self.places: dict[int, SourceLocation] = {}
        self.line_directives = line_directives
        self._depth = 0
        self._commented: tuple[str, int] | None = None

    @contextmanager
    def indented(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def text(self, text: str = "", location: SourceLocation | None = None) -> None:
        """Write lines as they are; they are recorded as coming from `location`."""
        for line in text.split("\n"):
            if location is not None:
                if self.line_directives and line:
                    # NVRTC hands the name on to PTX, in which a quotation mark would end it.
                    name = location.file.replace('"', "'")
                    self.lines.append(f"#line {location.line} {string(name)}")
                self.places[len(self.lines) + 1] = location
            self.lines.append(INDENT * self._depth + line if line else "")

    def comment(self, location: SourceLocation | None) -> None:
        """Write the Python line as a comment, unless it is the one that was written last."""
        if location is None or (location.file, location.line) == self._commented:
            return
        self._commented = (location.file, location.line)
        source = location.text.strip()
        if self.lines and self.lines[-1].endswith("}"):
            self.text()
        self.text(line_comment(f"{location.short_file}:{location.line}" + (f": {source}" if source else "")))
