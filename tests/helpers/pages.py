"""Pages of the documentation as programs: their blocks in order, run one after the other, with what they print compared.

A page is Markdown. What is done with a block of it depends on its language:

- `python` is run, in one namespace for the whole page, as the code of one file that is named after the page. A `text`
  block after it is what it prints, or the text of the error that it raises; `...` stands for anything.
- `python` whose first line is `# needs ...`, as in `# needs PyTorch and a GPU`, is run where all of that is there, and
  compiled only elsewhere.
- `python` whose first line is a file's name, as in `# add.py`, is written to that file.
- `console` is typed into a shell in the page's folder: lines that begin with `$ ` are commands, what follows is what they
  print. `[exit status 1]` after that is how they end; it is 0 where nothing is said.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import linecache
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import CompileError
from tilewright.runtime.nvrtc import nvrtc_version

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(?P<language>[\w-]*)\n(?P<text>.*?)^```$", re.M | re.S)
_FILE = re.compile(r"# (?P<name>[\w./-]+\.\w+)\n")
_COMPILES = re.compile(r"\.(?:resources|ptx|sass|module|lower)\b|tilewright show|Package\(\)|resources\.py")
_STATUS = re.compile(r"\[exit status (\d+)\]\n\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text and the line of the page on which the text begins."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if it is one."""
        found = _FILE.match(self.text)
        return None if found is None else found["name"]

    @property
    def needs(self) -> frozenset[str]:
        """What the block needs that is not there on every machine."""
        first = self.text.partition("\n")[0]
        listed = first[len("# needs ") :] if first.startswith("# needs ") else ""
        return frozenset(part for part in re.split(r", | and ", listed) if part)


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    for found in _FENCE.finditer(text):
        yield Block(found["language"], found["text"], text.count("\n", 0, found.start()) + 2)


def skip_where_it_cannot_run(text: str) -> None:
    """Skip a test of a page, or of a part of one, that types commands or compiles, where that cannot be done."""
    if "```console" in text and sys.platform == "win32":
        pytest.skip("the commands are typed into a POSIX shell")
    if any(_COMPILES.search(block.text) for block in blocks_of(text)):
        try:
            nvrtc_version()
        except CompileError:
            pytest.skip("NVRTC is not installed")


def shell_of_this_python(folder: Path) -> dict[str, str]:
    """Return an environment in which `python` and `tilewright` are this interpreter's; their scripts are in a folder."""
    commands = folder / "bin"
    commands.mkdir()
    for name, call in (("python", ""), ("tilewright", " -m tilewright")):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{call} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    # Tables are as wide as the terminal: the pages show them at 120 columns.
    return {**os.environ, "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120", "NO_COLOR": "1"}


def agrees(expected: str, printed: str) -> bool:
    """Return whether what was printed is what a page shows; `...` stands for anything."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, printed, flags)


def _difference(what: str, expected: str, printed: str) -> str:
    return f"{what}\nthe page shows:\n{expected}\nand this came:\n{printed}"


class Session:
    """What runs the blocks of a page, in a folder, with an environment for its commands and what is there of needs."""

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        available: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.folder = folder
        self.available = available
        self.environment = dict(os.environ if environment is None else environment)
        self._file = f"{name}.py"
        self._lines: list[str] = []
        self._names: dict[str, Any] = {"__name__": name}

    def run(self, blocks: list[Block]) -> int:
        """Run blocks in order; return how many were run. Raises `AssertionError` where something else came."""
        count = 0
        for block, after in zip(blocks, [*blocks[1:], Block("", "", 0)], strict=True):
            where = f"{self.name}, line {block.line}"
            if block.language == "python":
                count += self._python(block, after.text if after.language == "text" else None, where)
            elif block.language == "console":
                self.type(block.text, where)
                count += 1
        return count

    def _python(self, block: Block, expected: str | None, where: str) -> bool:
        if block.file is not None:
            (self.folder / block.file).write_text(block.text, encoding="utf-8")
            return False
        if not block.needs <= self.available:
            compile(block.text, where, "exec")
            return False
        printed, error = self._execute(block.text)
        if error is not None and expected is None:
            raise error
        if expected is not None:
            assert agrees(expected, printed), _difference(where, expected, printed)
        return True

    def _execute(self, code: str) -> tuple[str, Exception | None]:
        """Run code as the next lines of the page's file; return what it prints, its error's text behind it."""
        start = len(self._lines)
        self._lines += code.splitlines(keepends=True)
        whole = "".join(self._lines)
        linecache.cache[self._file] = (len(whole), None, list(self._lines), self._file)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                exec(compile("\n" * start + code, self._file, "exec"), self._names)
            except Exception as error:
                return printed.getvalue() + "".join(traceback.format_exception_only(error)), error
        return printed.getvalue(), None

    def type(self, text: str, where: str) -> None:
        """Type the commands of a console block, and compare what they print and how they end."""
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            while command.endswith("\\"):
                more, _, expected = expected.partition("\n")
                command = f"{command[:-1]}{more.strip()}"
            status = _STATUS.search(expected)
            expected = _STATUS.sub("", expected)
            done = subprocess.run(
                command, shell=True, cwd=self.folder, env=self.environment, text=True, encoding="utf-8",
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
            )  # fmt: skip
            told = f"{where}: $ {command}"
            assert done.returncode == (int(status[1]) if status else 0), f"{told}: {done.returncode}\n{done.stdout}"
            if expected:
                assert agrees(expected, done.stdout), _difference(told, expected, done.stdout)
