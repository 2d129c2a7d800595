"""Tracebacks of errors: the frames of the user's code, without those of this package.

What a user calls hides the frames that lie between the call and the user's own code, a kernel or a configuration.
`TILEWRIGHT_DEBUG=1` shows all. Before Python 3.11 a traceback cannot be shortened where it is raised again, and all
frames show.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

from tilewright.errors import InternalError, TilewrightError

VARIABLE = "TILEWRIGHT_DEBUG"

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_EXAMPLES = _PACKAGE + "examples" + os.sep  # of an installed package: they are as a user's
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


def hiding_frames(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Return the function, whose errors show no frames of this package."""

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    return call


def hide_frames(error: BaseException) -> None:
    """Take the frames of this package out of the traceback of an error, and of the errors behind it.

    Those of a fault of this package stay: of an `InternalError`, and of any error that is not the package's own and was
    raised in its code. A `raise` without an argument has to follow, in the frame that caught the error.
    """
    if os.environ.get(VARIABLE, "0") not in ("", "0"):
        return
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        frames = _frames(behind.__traceback__)
        if not _is_fault_of_ours(behind, frames):
            behind.__traceback__ = _chained([frame for frame in frames if not _is_ours(frame)])
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)


def _is_fault_of_ours(error: BaseException, frames: list[TracebackType]) -> bool:
    if isinstance(error, TilewrightError):
        return isinstance(error, InternalError)
    return bool(frames) and _is_ours(frames[-1])


@functools.cache
def is_user_file(file: str) -> bool:
    """Say whether code of a file is not this package's own."""
    return not file.startswith(_PACKAGE) or file.startswith(_EXAMPLES)


def _is_ours(frame: TracebackType) -> bool:
    return not is_user_file(frame.tb_frame.f_code.co_filename)


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _chained(frames: list[TracebackType]) -> TracebackType | None:
    chain: TracebackType | None = None
    for frame in reversed(frames):
        chain = TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chain
