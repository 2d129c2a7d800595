"""From a Python function and what its arguments are to a kernel's IR."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tilewright.arch import Arch
from tilewright.errors import LanguageError, TilewrightError
from tilewright.ir.core import Kernel
from tilewright.lang.escapes import refuse_escapes
from tilewright.lang.parameters import ArgumentType, stand_ins
from tilewright.lang.rewrite import is_rewritten, rewrite
from tilewright.lang.slices import refuse_wrong_slices
from tilewright.lang.sources import remember
from tilewright.lang.targets import refuse_missing_arithmetic
from tilewright.lang.tracer import Tracer, locate_error, run, tracing
from tilewright.lang.uniformity import refuse_divergent_barriers
from tilewright.source import SourceLocation

F = TypeVar("F", bound=Callable[..., Any])

# What an error of Python says that comes from using a stand-in as if it were a number, an array or a list.
_STAND_INS = ("Scalar", "Tensor", "BufferEngine", "DeviceRange", "Index3")


def trace(
    function: types.FunctionType,
    arguments: Mapping[str, ArgumentType],
    *,
    arch: Arch,
    block: tuple[int, int, int] | None,
    bounds: bool = False,
) -> Kernel:
    """Run a rewritten kernel function once on stand-ins and return the IR that it built.

    With `bounds` the coordinates of single elements are checked against the extents of their tensors, by the simulator.

    Errors of the package, and Python errors that the user's code raises, get the user's line. Raises `LanguageError`
    for what has no meaning on a device.
    """
    tracer = Tracer(function.__name__, arch, block)
    tracer.bounds = bounds
    result = _run(tracer, function, stand_ins(tracer, arguments))
    if result is not None:
        raise LanguageError(
            f"kernel {function.__name__!r} returns a value",
            location=_definition(function),
            help="store results in a tensor that is an argument",
        )
    kernel = Kernel(
        name=function.__name__,
        parameters=tuple(tracer.parameters),
        body=tracer.body,
        block=block,
        requirements=tuple(tracer.requirements.values()),
        location=_definition(function),
        copies_to_shared=tracer.copies_to_shared,
        remarks=tuple(tracer.remarks),
        warp_size=arch.warp_size,
    )
    refuse_wrong_slices(tracer)
    refuse_missing_arithmetic(kernel, arch)
    refuse_escapes(kernel)
    refuse_divergent_barriers(kernel)
    return kernel


def _definition(function: types.FunctionType) -> SourceLocation:
    code = function.__code__
    return SourceLocation(code.co_filename, code.co_firstlineno, function.__name__)


def _run(tracer: Tracer, function: types.FunctionType, values: Mapping[str, Any]) -> Any:
    """Call the function; what it raises gets the user's line."""
    named = {n for n, p in inspect.signature(function).parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
    positional = [value for name, value in values.items() if name not in named]
    try:
        return run(tracer, function, positional, {name: values[name] for name in named})
    except TilewrightError as error:
        raise error.at(locate_error(error)) from error.__cause__
    except RecursionError:
        raise LanguageError(
            f"kernel {function.__name__!r} nests its calls too deeply to be traced",
            help="a recursion must end for values that are known while tracing; no device value can end it",
        ) from None
    except Exception as error:
        place = locate_error(error)
        if isinstance(error, (TypeError, AttributeError)) and any(name in str(error) for name in _STAND_INS):
            raise LanguageError(
                f"{type(error).__name__}: {error}",
                location=place,
                help="device values take Python's operators and the functions of tilewright (tw.sqrt, tw.where, ...); "
                "NumPy and math work on numbers that are known while tracing",
            ) from error
        _annotate(error, tracer.name, place)
        raise


def _annotate(error: Exception, kernel: str, place: SourceLocation | None) -> None:
    """Tell an error of the user's own code where in the kernel it was raised; its type stays what it is."""
    lines = [f"while kernel {kernel!r} was traced", *([] if place is None else place.excerpt())]
    text = "\n  ".join(lines)
    if hasattr(error, "add_note"):
        error.add_note("  " + text)
    elif len(error.args) == 1 and isinstance(error.args[0], str):  # Python 3.10 has no notes
        error.args = (f"{error.args[0]}\n  {text}",)


def function(target: F) -> F:
    """Make a helper function whose loops and branches on device values become device control flow.

    A plain helper runs as Python while tracing; one that holds `for i in range(n)` or `if` on device values needs
    this decorator. It may be called from kernels and from other helpers; outside of a kernel it is the plain function.

    >>> import tilewright as tw
    >>> @tw.function
    ... def clamp(x, low, high):
    ...     if x < low:
    ...         return low
    ...     return high if x > high else x
    >>> clamp(7, 0, 5)
    5

    Raises `LanguageError` for what is no function, and when first traced for Python that has no meaning on a device.
    """
    if not isinstance(target, types.FunctionType):
        raise LanguageError(
            f"@tw.function takes a function, got {type(target).__name__}",
            help="put @staticmethod or @classmethod above @tw.function, not below it",
        )
    remember(target)
    rewritten: list[types.FunctionType] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if tracing() is None:
            return target(*args, **kwargs)
        if not rewritten:
            rewritten.append(target if is_rewritten(target) else rewrite(target))
        return rewritten[0](*args, **kwargs)

    call.__name__, call.__qualname__, call.__doc__ = target.__name__, target.__qualname__, target.__doc__
    call.__module__ = target.__module__
    call.__wrapped__ = target  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


class constexpr:
    """Annotates a kernel parameter that is known while tracing: `layout: tw.constexpr`.

    Its value (a layout, tiled copy, element type, int, function, ...) must be hashable, and each value makes a
    specialisation of its own.
    """
