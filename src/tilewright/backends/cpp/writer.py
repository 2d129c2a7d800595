"""Collects the lines of a text, puts the Python line above them, and remembers which line came from where."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.backends.cpp.text import line_comment, string
from tilewright.source import SourceLocation

INDENT = "    "


class Writer:
    """Lines of text at a depth of indentation.

    `line_directives` adds `#line` before every line whose place in Python is known, so that the compiler's
    line table, and with it the profiler, speaks of the Python file.
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
