r"""Text that is not ours in C++: comments and string literals that stay what they are, whatever they are made of.

Lines of Python, messages, names of files and arrays go through `line_comment`, `block_comment` and `string`; names go
through `names.legal`. C++ gives a meaning to signs outside of tokens: a backslash at the end of a line joins the next
line to it (g++ and NVRTC allow blanks behind the backslash), `??/` is another spelling of a backslash, `\u000a` may
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
