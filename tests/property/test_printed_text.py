"""No text of a user's becomes code: comments, literals and names made of anything leave a kernel's C++ what it is."""

from __future__ import annotations

import linecache
import re
import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st
from tests.helpers.cpp_lexer import EVERY_BREAK, ONLY_NEWLINE, literal_bytes, without_comments
from tests.helpers.slow import examples
from tests.unit.backends.kernels import Draft

from tilewright.backends import cuda, hip
from tilewright.backends.cpp.names import Names, entry_name, is_reserved, legal
from tilewright.backends.cpp.writer import block_comment, line_comment, string
from tilewright.ir.core import Kernel
from tilewright.ir.ops import Assert

# Pieces that mean something to C++, and any sign of Unicode, halves of surrogate pairs among them.
_PIECES = (
    *("\\", "\\ ", "\\\t", "??/", "?", "/", "*/", "/*", "//", '"', "'", "%", "%s", " ", "\t", "\0", "\x1b", "\x7f"),
    *("\\u000a", "\\U0000000A", "\\N{LINE FEED}", "u000a", "\\", 'R"(', ')"', "\\x", "\\0", "7", "#", "??=", "??<"),
    *("\r", "\n", "\r\n", *EVERY_BREAK, "\ud800", "\udcff", "\u202e", "\u00a0", "\ufeff", "\U0001f600", "é", "x", "0"),
    *("int y;", "\n__device__ int x;", "*/ int z; /*"),
)
hostile = st.lists(st.sampled_from(_PIECES) | st.characters(), max_size=12).map("".join)

_DIALECTS = tuple((trigraphs, breaks) for trigraphs in (False, True) for breaks in (ONLY_NEWLINE, EVERY_BREAK))


def _kernel(file: str, line: str, message: str | None = None) -> Kernel:
    """Return a kernel of one statement, from a line of a file."""
    draft = Draft("k")
    draft.file = file
    dst, src = draft.pointer("dst"), draft.pointer("src")
    i = draft.special("thread_idx.x", "i")
    linecache.cache[file] = (1, None, [line], file)
    draft.at(1)
    draft.kernel.location = draft.location
    draft.store(dst, i, draft.load(src, i))
    if message is not None:
        draft.builder.emit(Assert(draft.compare("lt", draft.special("thread_idx.x"), 7), message))
    return draft.kernel


@given(hostile, hostile)
@example("dst[i] = src[i]  # diagonal \\ \\", "a\n__device__ int x.py")
@example("x = y  # what??/", "q??/")
@example("x = y  # \\\t", "file.py\\")
@examples(25, 150)
def test_comments_are_no_code(line: str, file: str) -> None:
    for generate, arch in ((cuda.generate, "sm_90a"), (hip.generate, "gfx90a")):
        plain = generate(_kernel("k.py", ""), arch).text
        try:
            text = generate(_kernel(file, line), arch).text
        finally:
            linecache.cache.pop(file, None)
        text.encode("utf-8")
        assert len(text.split("\n")) == len(plain.split("\n"))
        for trigraphs, breaks in _DIALECTS:
            assert without_comments(text, trigraphs=trigraphs, breaks=breaks) == without_comments(
                plain, trigraphs=trigraphs, breaks=breaks
            )


@given(hostile)
@examples(25, 150)
def test_messages_are_no_code(message: str) -> None:
    plain = cuda.generate(_kernel("k.py", "", "m"), "sm_90a").text.split("\n")
    text = cuda.generate(_kernel("k.py", "", message), "sm_90a").text.split("\n")
    assert len(text) == len(plain)
    (line,) = [a for a, b in zip(text, plain, strict=True) if a != b] or [plain[-3]]
    literal = re.fullmatch(r"\s*if \(.*?\) assertion_failed\((.*)\);", line)
    assert literal is not None
    assert literal_bytes(literal[1]) == _as_bytes(f"k.py:1: {message if line != plain[-3] else 'm'}")


@given(hostile)
@examples(25, 150)
def test_messages_of_amd_are_no_code(message: str) -> None:
    plain = hip.generate(_kernel("k.py", "", "m"), "gfx90a").text
    text = hip.generate(_kernel("k.py", "", message), "gfx90a").text
    for trigraphs, breaks in _DIALECTS:
        assert without_comments(text, trigraphs=trigraphs, breaks=breaks) == without_comments(
            plain, trigraphs=trigraphs, breaks=breaks
        )


@given(hostile)
@examples(100, 500)
def test_comments_end_where_they_end(text: str) -> None:
    for comment in (line_comment(text), block_comment(text)):
        comment.encode("utf-8")
        assert comment.isprintable() and not comment.endswith(("\\", " "))
        for trigraphs, breaks in _DIALECTS:
            code = without_comments(f"a\n{comment}\nb {comment}\nc", trigraphs=trigraphs, breaks=breaks)
            assert code == "a b c"
    assert without_comments(f"a {block_comment(text)} b {block_comment(text)} c") == "a b c"


@given(st.text(st.characters(codec="ascii", categories=("L", "N")) | st.sampled_from("  _=+*()[],.:#"), max_size=40))
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert line_comment(text) == f"// {text}".rstrip()


@given(hostile)
@examples(100, 500)
def test_literals_are_what_they_were_made_of(text: str) -> None:
    assert literal_bytes(string(text)) == _as_bytes(text)


def _as_bytes(text: str) -> bytes:
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace")


@given(
    st.lists(
        st.text(max_size=300)
        | hostile
        | st.sampled_from(["and", "va_list", "\u03b1", "\ufb01", "\U0001d431", "__x", "x_", "1"])
    )
)
@examples(40, 300)
def test_names_are_identifiers_and_differ(wanted: list[str]) -> None:
    names = Names()
    found = [names.declare(name) for name in wanted]
    assert len(set(found)) == len(found) and set(found) == names.given
    for name in (*found, *map(entry_name, wanted)):
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,220}", name) and "__" not in name
    assert not any(map(is_reserved, [*map(legal, wanted), *map(entry_name, wanted)]))


def test_every_letter_has_a_spelling() -> None:
    letters = [chr(n) for n in range(0x80, 0x3000) if unicodedata.category(chr(n)).startswith("L")]
    for letter in letters:
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", legal(letter))
