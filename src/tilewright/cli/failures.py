"""What commands say of errors: of the user's file that they run, of files that cannot be written, and of warnings."""

from __future__ import annotations

import errno
import os
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from tilewright.errors import InternalError, TilewrightError, TilewrightWarning


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Let the package's errors, and those of the system, be one paragraph without a traceback."""
    try:
        yield
    except TilewrightError as error:
        # The class says who is at fault: of a fault of this package it is worth a word, the others say what is wrong.
        kind = f"{type(error).__name__}: " if isinstance(error, InternalError) else ""
        raise click.ClickException(f"{kind}{error}") from error
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # click ends without a word: `| head` has read enough
        reason = error.strerror or str(error)
        if error.filename is not None:
            raise click.ClickException(f"{reason}: {error.filename}") from error
        _drop_output()
        raise click.ClickException(
            f"the output cannot be written: {reason}" if error.errno == errno.ENOSPC else reason
        ) from error


def _drop_output() -> None:
    """Let what standard output still holds go nowhere: at the end Python writes it, and would fail once more."""
    with suppress(OSError):  # an output of no file, as in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def warnings_in_words() -> Iterator[None]:
    """Let the package's warnings of no line of the user's be said without the line of ours that led to them."""
    show = warnings.showwarning

    def said(message: Any, category: Any, filename: str, *rest: Any) -> None:  # Any: as Python's function of that name
        if issubclass(category, TilewrightWarning) and filename.startswith(_CLICK):
            click.echo(f"warning: {message}", err=True)
        else:
            show(message, category, filename, *rest)

    warnings.showwarning = said  # type: ignore[assignment]  # the rest as it comes
    try:
        yield
    finally:
        warnings.showwarning = show


_CLICK = os.path.dirname(click.__file__)  # what calls the commands, and so the first frame that is not the package's


@contextmanager
def users_code(path: str) -> Iterator[None]:
    """Say where in a file of the user's an error was raised that knows no place, in place of a traceback."""
    try:
        yield
    except Exception as error:
        text = raised_in(error, path)
        if text is None:
            raise
        raise click.ClickException(text) from error


def raised_in(error: Exception, path: str) -> str | None:
    """Return what to say of an error that code of a file raised, None where it says all itself or is not the file's."""
    has_place = isinstance(error, TilewrightError) and (error.location is not None or isinstance(error, InternalError))
    is_of_pipe = isinstance(error, OSError) and error.errno == errno.EPIPE
    if has_place or is_of_pipe or isinstance(error, (click.ClickException, click.exceptions.Exit, click.Abort)):
        return None
    frames = reversed(traceback.extract_tb(error.__traceback__))
    line = next((frame.lineno for frame in frames if _is_same(frame.filename, path)), None)
    if line is None:
        return None
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    return f"{path}:{line} raised {type(error).__name__}: {error}{notes}"


def from_file(error: Exception, path: str) -> Exception:
    """Return an error without the frames that ran a file: all, where it is none of the file's, as for its syntax."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and not _is_same(frame.tb_frame.f_code.co_filename, path):
        frame = frame.tb_next
    return error.with_traceback(frame)


def _is_same(file: str, path: str) -> bool:
    return os.path.abspath(file) == os.path.abspath(path)


def demand_writable(path: Path | None) -> None:
    """Raise `ArgumentError` where a file that a command is to write cannot be: before its work, not after it."""
    if path is not None:
        from tilewright.suites.files import check_target

        check_target(path)
