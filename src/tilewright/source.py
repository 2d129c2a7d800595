"""Places in the user's Python source: file, line, columns, and the excerpt with carets for a message."""

from __future__ import annotations

import linecache
import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class SourceLocation:
    """One place in a Python file.

    Lines count from 1, columns from 0 as in Python's `ast`; the columns are None where the interpreter
    keeps none (Python 3.10). `inlined_at` is the place of the call that traced this line, when the line
    stands in a helper function.
    """

    file: str
    line: int
    function: str
    column: int | None = None
    end_column: int | None = None
    inlined_at: SourceLocation | None = None

    @property
    def text(self) -> str:
        """The source line without its line end, or an empty string where the source is gone."""
        found = linecache.getline(self.file, self.line) or self.__dict__.get("_text_elsewhere", "")
        return str(found).rstrip("\n")

    def __getstate__(self) -> dict[str, object]:
        # Another process may not have the file: a notebook's cell, or a folder that is gone by then.
        return {**self.__dict__, "_text_elsewhere": self.text}

    @property
    def short_file(self) -> str:
        """The file's name without its folders; of a notebook's cell "In [3]"."""
        return _cell(self.file) or os.path.basename(self.file)

    def excerpt(self) -> list[str]:
        """Return the lines of a message: place, source line, carets, and the chain of calls to it."""
        lines = [f"{self.short_file}:{self.line}, in {self.function}:"]
        text = self.text
        if text.strip():
            stripped = text.lstrip()
            indent = len(text) - len(stripped)
            lines.append(f"  {stripped}")
            lines.append("  " + self._carets(stripped, indent))
        if self.inlined_at is not None:
            lines += [f"called from {line}" if n == 0 else line for n, line in enumerate(self.inlined_at.excerpt())]
        return lines

    def _carets(self, stripped: str, indent: int) -> str:
        start = 0 if self.column is None else max(self.column - indent, 0)
        end = len(stripped) if self.end_column is None else min(self.end_column - indent, len(stripped))
        # Columns past the first line of a multi-line statement: mark to the end of the line.
        if end <= start:
            end = len(stripped)
        return " " * start + "^" * max(end - start, 1)

    def __str__(self) -> str:
        return f"{self.short_file}:{self.line}"


class Located:
    """Something at a `location`, None where no line is known of it. It is a part of its class."""

    __slots__ = ()
    location: SourceLocation | None

    @property
    def file(self) -> str | None:
        """The Python file of the line."""
        return None if self.location is None else self.location.file

    @property
    def line(self) -> int | None:
        """The number of the line, from 1."""
        return None if self.location is None else self.location.line


def _cell(file: str) -> str | None:
    """Return the name by which IPython shows the cell whose code stands in a file, None of any other file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = name(file) if name is not None else None
    return None if found is None else str(found[1]).replace("In[", "In [")
