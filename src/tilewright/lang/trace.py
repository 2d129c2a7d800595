"""From a Python function and what its arguments are to a kernel's IR."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tilewright.arch import Arch
from tilewright.errors import LanguageError, TilewrightError
from tilewright.ir.core import Kernel
from tilewright.lang.parameters import ArgumentType, stand_ins
from tilewright.lang.rewrite import rewrite
from tilewright.lang.tracer import Tracer, locate, run, tracing
from tilewright.source import SourceLocation

F = TypeVar("F", bound=Callable[..., Any])


def trace(
    function: types.FunctionType,
    arguments: Mapping[str, ArgumentType],
    *,
    arch: Arch,
    block: tuple[int, int, int] | None,
) -> Kernel:
    """Run a rewritten kernel function once on stand-ins and return the IR that it built.

    Errors of the package, and Python errors that the user's code raises, get the user's line.
    """
    tracer = Tracer(function.__name__, arch, block)
    values = stand_ins(tracer, arguments)
    try:
        result = run(tracer, function, values)
    except TilewrightError as error:
        raise _located(error)
    except (TypeError, ValueError, IndexError, AttributeError, NameError) as error:
        place = _user_line(error)
        if place is None:
            raise
        raise LanguageError(f"{type(error).__name__}: {error}", location=place) from error
    if result is not None:
        raise LanguageError(
            f"kernel {function.__name__!r} returns a value", help="store results in a tensor that is an argument"
        )
    code = function.__code__
    return Kernel(
        name=function.__name__,
        parameters=tuple(tracer.parameters),
        body=tracer.body,
        block=block,
        requirements=tuple(tracer.requirements.values()),
        location=SourceLocation(code.co_filename, code.co_firstlineno, function.__name__),
    )


def _located(error: TilewrightError) -> TilewrightError:
    return error.at(_user_line(error))


def _user_line(error: BaseException) -> SourceLocation | None:
    """Return the innermost line of the user's code that an exception came through."""
    traceback = error.__traceback__
    last = None
    while traceback is not None:
        last = traceback
        traceback = traceback.tb_next
    return None if last is None else locate(last.tb_frame)


def function(target: F) -> F:
    """Make a helper function whose loops and branches on device values become device control flow.

    A plain helper runs as Python while tracing; one that holds `for i in range(n)` or `if` on device values needs
    this decorator. It may be called from kernels and from other helpers.

    >>> import tilewright as tw
    >>> @tw.function
    ... def clamp(x, low, high):
    ...     if x < low:
    ...         return low
    ...     return high if x > high else x
    """
    if not isinstance(target, types.FunctionType):
        raise LanguageError(f"@tw.function takes a function, got {type(target).__name__}")
    rewritten: list[types.FunctionType] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if tracing() is None:
            return target(*args, **kwargs)
        if not rewritten:
            rewritten.append(rewrite(target))
        return rewritten[0](*args, **kwargs)

    call.__name__, call.__qualname__, call.__doc__ = target.__name__, target.__qualname__, target.__doc__
    call.__wrapped__ = target  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


class constexpr:
    """Annotates a kernel parameter that is known while tracing: `layout: tw.constexpr`.

    Its value (a layout, tiled copy, element type, int, function, ...) must be hashable, and each value makes a
    specialisation of its own.
    """
