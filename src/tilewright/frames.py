"""Tracebacks of errors: the frames of the user's code, without those of this package.

What a user calls hides the frames that lie between the call and the user's own code, a kernel or a configuration.
`TILEWRIGHT_DEBUG=1` shows all. Before Python 3.11 a traceback cannot be shortened where it is raised again, and all
frames show.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar

from tilewright.errors import InternalError, TilewrightError

VARIABLE = "TILEWRIGHT_DEBUG"

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_EXAMPLES = _PACKAGE + "examples" + os.sep  # of an installed package: they are as a user's
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_ENTRIES: set[CodeType] = set()  # what does nothing but call on: arguments that do not fit are their caller's fault


def is_entry(function: Callable[..., Any]) -> None:
    """Take note that a function hands the arguments of its caller on as they are."""
    _ENTRIES.add(function.__code__)


def hands_on(code: CodeType) -> bool:
    """Say whether code is that of such a function, as of what hides frames."""
    return code in _ENTRIES


def showing_frames(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that one of those calls on to, or the function itself: what the package's modules know."""
    return vars(function).get("__wrapped__", function) if getattr(function, "__code__", None) in _ENTRIES else function


def hiding_frames(function: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Return the function, whose errors show no frames of this package."""

    @functools.wraps(function)
    def call(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    is_entry(call)
    return call


def hiding_all(package: dict[str, Any], names: Iterable[str]) -> None:
    """Let the functions and classes that a package exports hide their frames. To be called at the end of the package.

    Each function is replaced in the package and in the module that defines it, so that it is one object wherever it is
    asked for from now on. The package's own modules imported it before, and call it as it was, without the cost.
    """
    for name in names:
        value = package[name]
        if isinstance(value, type) and not issubclass(value, BaseException):
            _hide_methods(value)
        elif isinstance(value, FunctionType):
            module = vars(sys.modules[value.__module__])
            earlier = module.get(value.__name__)  # of another name of the same function
            hidden = earlier if getattr(earlier, "__wrapped__", None) is value else hiding_frames(value)
            for place, key in ((package, name), (module, name), (module, value.__name__)):
                if place.get(key) is value:
                    place[key] = hidden


def _hide_methods(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        is_called_by_users = not name.startswith("_") or name in _SPECIAL_METHODS
        if is_called_by_users and isinstance(value, FunctionType) and value.__code__ not in _ENTRIES:
            setattr(cls, name, hiding_frames(value))
        elif is_called_by_users and isinstance(value, (classmethod, staticmethod)):
            setattr(cls, name, type(value)(hiding_frames(value.__func__)))


_SPECIAL_METHODS = {"__init__", "__new__", "__call__", "__getitem__", "__setitem__"}


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
    while isinstance(error, TypeError) and frames and frames[-1].tb_frame.f_code in _ENTRIES:
        frames = frames[:-1]
    return bool(frames) and _is_ours(frames[-1])


@functools.cache
def is_user_file(file: str) -> bool:
    """Say whether code of a file is not this package's own."""
    return not file.startswith(_PACKAGE) or file.startswith(_EXAMPLES)


def _is_ours(frame: TracebackType) -> bool:
    file = frame.tb_frame.f_code.co_filename
    if file == "<string>":  # methods that `dataclass` writes
        return str(frame.tb_frame.f_globals.get("__name__")).startswith("tilewright.")
    return not is_user_file(file)


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
