"""What the commands share: the `--json` option, and printing."""

from __future__ import annotations

import codecs
import io
import json
import shutil
import sys
from collections.abc import Callable
from typing import TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., object])


def json_option(command: _Command) -> _Command:
    """Add `--json` to a command, as its parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


def print_json(value: object) -> None:
    """Print `value` as JSON to stdout."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def terminal_width() -> int | None:
    """Return how many characters a line of the terminal has, None where a file or a pipe takes what is printed."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


# Lines of tables, for encodings that have none: Windows uses one wherever a file or a pipe takes what is printed.
_PLAIN = {ord(line): sign for lines, sign in (("│", "|"), ("─━", "-"), ("┌┐└┘├┤┬┴┼", "+")) for line in lines}
_HANDLER = "tilewright.plain"


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(c if c.isascii() else "?" for c in text), error.end


def allow_any_encoding() -> None:
    """Let what the encoding of the output lacks be printed by other signs, in place of an error."""
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors=_HANDLER)


def format_bytes(count: int) -> str:
    """Return a size in bytes in the unit that suits it.

    >>> format_bytes(0), format_bytes(2048), format_bytes(5 * 2**20)
    ('0 bytes', '2.0 KiB', '5.0 MiB')
    """
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
