"""What the commands share: the `--json` option, and printing."""

from __future__ import annotations

import codecs
import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from typing import TextIO, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., object])


def json_option(command: _Command) -> _Command:
    """Add `--json` to a command, as its parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")(command)


def print_json(value: object) -> None:
    """Print `value` as JSON to stdout."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def terminal_width(stream: TextIO | None = None) -> int | None:
    """Return how many characters a line has that is printed to a stream, standard output by default.

    COLUMNS says it, or else the terminal; None where a file or a pipe takes what is printed.
    """
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns) > 0:
        return int(columns)
    return shutil.get_terminal_size().columns if (stream or sys.stdout).isatty() else None


# Lines of tables, for encodings that have none: Windows uses one wherever a file or a pipe takes what is printed.
_PLAIN = {ord(line): sign for lines, sign in (("│", "|"), ("─━", "-"), ("┌┐└┘├┤┬┴┼", "+")) for line in lines}
_HANDLER = "tilewright.plain"
_ASCII = "tilewright_ascii"


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(c if c.isascii() else "?" for c in text), error.end


def _ascii(name: str) -> codecs.CodecInfo | None:
    """Return ASCII by another name: click writes UTF-8 to a stream whose encoding is called ASCII."""
    if name != _ASCII:
        return None
    codec = codecs.lookup("ascii")
    encoder, decoder = codec.incrementalencoder, codec.incrementaldecoder
    return codecs.CodecInfo(*codec, incrementalencoder=encoder, incrementaldecoder=decoder, name=_ASCII)


def prepare_streams() -> None:
    """Let what the encoding of the output lacks be printed by other signs, and what goes to no stream go nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # it stays open
    codecs.register_error(_HANDLER, _plain)
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper):
            continue
        # Of the locale C, Python passes on the bytes of names that it could not decode, and nothing else.
        errors = _HANDLER if stream.errors in ("strict", "surrogateescape") else stream.errors
        if codecs.lookup(stream.encoding).name == "ascii":
            codecs.register(_ascii)
            stream.reconfigure(encoding=_ASCII, errors=errors)
        else:
            stream.reconfigure(errors=errors)


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
