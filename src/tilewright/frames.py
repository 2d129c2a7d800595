"""Tracebacks of errors: the frames of the user's code, without those of this package.

What a user calls hides the frames that lie between the call and the user's own code, a kernel or a configuration.
`TILEWRIGHT_DEBUG=1` shows all. Before Python 3.11 a traceback cannot be shortened where it is raised again, and all
frames show.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, ParamSpec, TypeVar

from tilewright.errors import InternalError, TilewrightError, TilewrightWarning
from tilewright.source import SourceLocation

VARIABLE = "TILEWRIGHT_DEBUG"

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BETWEEN = (functools.__file__, contextlib.__file__, ast.__file__)  # what calls functions of ours for us
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


def with_stack(function: Callable[..., object]) -> None:
    """Give a function a frame that leaves room for the frames of what it calls.

    CPython asks the system for 16 KB of frames at a time, and gives them back when the first frame in them ends. Calls
    in a loop just at such a border do so each time: a fifth of the time of tracing a long kernel. A frame of half a
    megabyte gets nearly as much again.
    """
    function.__code__ = function.__code__.replace(co_stacksize=1 << 16)  # words


def hiding_all(package: dict[str, Any], names: Iterable[str]) -> None:
    """Let the functions and classes that a package exports hide their frames. To be called at the end of the package.

    Each function is replaced in the package and in the module that defines it, so that it is one object wherever it is
    asked for from now on. The package's own modules imported it before, and call it as it was, without the cost.
    """
    for name in names:
        value = package[name]
        if isinstance(value, type) and not issubclass(value, BaseException):
            hide_methods(value)
        elif isinstance(value, FunctionType):
            module = vars(sys.modules[value.__module__])
            earlier = module.get(value.__name__)  # of another name of the same function
            hidden = earlier if getattr(earlier, "__wrapped__", None) is value else hiding_frames(value)
            for place, key in ((package, name), (module, name), (module, value.__name__)):
                if place.get(key) is value:
                    place[key] = hidden


def hide_methods(cls: type) -> None:
    """Let the methods and operators of a class that users meet hide their frames, those that it inherits too."""
    for part in cls.__mro__:  # what it inherits, too: the operators of tensors
        if part.__module__.startswith("tilewright."):
            _hide_own_methods(part)


def _hide_own_methods(cls: type) -> None:
    names = _SPECIAL_METHODS
    if vars(cls).get("__hash__") is object.__hash__:  # its == compares elements; others answer True or False, and often
        names = names | {"__eq__", "__ne__"}
    for name, value in list(vars(cls).items()):
        is_called_by_users = not name.startswith("_") or name in names
        if is_called_by_users and isinstance(value, FunctionType) and value.__code__ not in _ENTRIES:
            setattr(cls, name, hiding_frames(value))
        elif is_called_by_users and isinstance(value, (classmethod, staticmethod)):
            setattr(cls, name, type(value)(hiding_frames(value.__func__)))


_OPERATORS = (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow"),
    *("lshift", "rshift", "and", "or", "xor"),
)
_SPECIAL_METHODS = frozenset(f"__{kind}{name}__" for name in _OPERATORS for kind in ("", "r", "i")) | {
    *("__init__", "__new__", "__call__", "__getitem__", "__setitem__", "__delitem__", "__contains__"),
    *("__len__", "__iter__", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__round__", "__array__"),
    *("__neg__", "__pos__", "__abs__", "__invert__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__setattr__", "__delattr__", "__enter__", "__exit__"),
}


def hide_frames(error: BaseException) -> None:
    """Take the frames of this package out of the traceback of an error, and of the errors behind it.

    Those of a fault of this package stay: of an `InternalError`, and of any error that is not the package's own and
    happened in its code, where no `raise` asked for one that Python expects. A `raise` without an argument has to
    follow, in the frame that caught the error.
    """
    if os.environ.get(VARIABLE, "0") not in ("", "0"):
        return
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        seen.add(id(behind))
        frames = _frames(behind.__traceback__)
        if not _is_fault_of_ours(behind, frames):
            behind.__traceback__ = _chained(_of_the_user(frames))
        behind = behind.__cause__ or (None if behind.__suppress_context__ else behind.__context__)


def _of_the_user(frames: list[TracebackType]) -> list[TracebackType]:
    """Return the frames that are not this package's, nor of Python's own modules that it called on the way."""
    kept: list[TracebackType] = []
    previous_is_ours = False
    for frame in frames:
        previous_is_ours = _is_ours(frame) or (previous_is_ours and _is_between(frame.tb_frame))
        if not previous_is_ours:
            kept.append(frame)
    return kept


def _is_between(frame: FrameType) -> bool:
    return frame.f_code.co_filename in _BETWEEN


def _is_fault_of_ours(error: BaseException, frames: list[TracebackType]) -> bool:
    if isinstance(error, TilewrightError):
        return isinstance(error, InternalError)
    while isinstance(error, (TypeError, AssertionError)) and frames and frames[-1].tb_frame.f_code in _ENTRIES:
        frames = frames[:-1]
    return bool(frames) and _is_ours(frames[-1]) and not _is_deliberate(error, frames[-1])


def _is_deliberate(error: BaseException, frame: TracebackType) -> bool:
    """Say whether an error is of a kind that Python expects of an operation, and a `raise` asked for it."""
    return isinstance(error, _EXPECTED) and frame.tb_frame.f_code.co_code[frame.tb_lasti] == _RAISE


# An index outside, a frozen attribute, operands that do not go together.
_EXPECTED = (IndexError, AttributeError, TypeError)
_RAISE = dis.opmap["RAISE_VARARGS"]


def warn_at(text: str, location: SourceLocation | None = None) -> None:
    """Warn at a line of the user's; where none is known, at the line that called into this package."""
    if location is not None:
        warnings.warn_explicit(text, TilewrightWarning, location.file, location.line)
        return
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and (not is_user_file(frame.f_code.co_filename) or _is_between(frame)):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, TilewrightWarning, stacklevel=level)


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
