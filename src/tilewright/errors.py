"""The errors that Tilewright raises: what was expected, what came, where, and what to do.

Every error derives from `TilewrightError`. Its text has one shape::

    summary: one sentence, with the values
      detail lines
      gemm.py:42, in mainloop:
        sA = tw.composition(A, B)
             ^^^^^^^^^^^^^^^^^^^^
      help: what usually fixes it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tilewright.source import SourceLocation

ROLLBACK_VARIABLE = "TILEWRIGHT_SIM_ROLLBACK"


class TilewrightError(Exception):
    """The base class of all errors of this package.

    `summary` is one sentence with the values in it, `details` are further lines, `location` is the
    user's source line where one is known, and `help` says what usually fixes it.
    """

    def __init__(
        self,
        summary: str,
        *,
        details: Sequence[str] = (),
        location: SourceLocation | None = None,
        help: str | None = None,
    ) -> None:
        super().__init__(summary)
        self.summary = summary
        self.details: tuple[str, ...] = tuple(details)
        self.location = location
        self.help = help

    def at(self, location: SourceLocation | None) -> TilewrightError:
        """Attach the user's line if none is attached yet, and return the error itself."""
        if self.location is None:
            self.location = location
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions are made anew from `args` by default, which errors with other parameters do not survive.
        return _restored, (type(self), self.args), self.__dict__.copy()

    def __str__(self) -> str:
        lines = [self.summary]
        lines += [f"  {line}" for detail in self.details for line in detail.splitlines()]
        if self.location is not None:
            lines += [f"  {line}" for line in self.location.excerpt()]
        if self.help is not None:
            lines.append(f"  help: {self.help}")
        return "\n".join(lines)


def _restored(kind: type[TilewrightError], args: tuple[object, ...]) -> TilewrightError:
    """Return an error of a kind without a call of its constructor; its attributes follow."""
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class LayoutError(TilewrightError, ValueError):
    """A layout operation has no result, or needs a static value and got a dynamic one."""


class LanguageError(TilewrightError, TypeError):
    """A kernel uses Python that a device cannot run, or breaks a rule of the language."""


class MissingAttributeError(LanguageError, AttributeError):
    """A kernel names what a value of the language does not have, which `hasattr` may ask."""


class ArgumentError(TilewrightError, TypeError, ValueError):
    """A call of a kernel or of a public function got an argument that it does not accept."""


class ScheduleError(TilewrightError, ValueError):
    """A transformation of a schedule or a plan is not possible, or would change the result."""


class CompileError(TilewrightError, RuntimeError):
    """A compiler rejected generated code, or is not installed."""


class DeviceError(TilewrightError, RuntimeError):
    """The CUDA driver rejected an operation, or there is no device."""


class CheckError(TilewrightError, RuntimeError):
    """The simulator found an error in a kernel: a race, a bad access, a missing wait, a barrier that threads miss.

    Its text is that of the first of `findings`, with a line for each of the others. `outputs` are the names of the
    arrays that the kernel writes. They may hold part of its results, unless `rolled_back`: then they hold what they
    held before the launch.
    """

    MOST_LISTED: ClassVar[int] = 20  # further findings that the text lists

    findings: tuple[Any, ...] = ()  # Any: each a `Finding` of the simulator
    outputs: tuple[str, ...] = ()
    rolled_back = False

    def __str__(self) -> str:
        others = self.findings[1:]
        lines = [super().__str__()]
        if others:
            lines.append(f"and {len(others)} more finding{'s' if len(others) > 1 else ''}:")
        for finding in others[: self.MOST_LISTED]:
            place = "" if finding.location is None else f"{finding.location}: "
            lines.append(f"  {place}{finding.message.splitlines()[0]}")
        if len(others) > self.MOST_LISTED:
            lines.append("  ...")
        if self.outputs:
            lines.append(describe_outputs(self.outputs, self.rolled_back))
        return "\n".join(lines)


def describe_outputs(names: tuple[str, ...], are_kept: bool) -> str:
    """Return the line of an error about the arrays that a kernel writes."""
    listed, verb = ", ".join(names), "hold" if len(names) > 1 else "holds"
    if are_kept:
        return f"{listed} {verb} what {'they' if len(names) > 1 else 'it'} held before the launch"
    way = f"tw.simulate(rollback=True) or {ROLLBACK_VARIABLE}=1 puts arrays back"
    return f"{listed} may hold partial or wrong results; {way}"


class TuningError(TilewrightError, RuntimeError):
    """A tuning has no result, or its results cannot be stored: no candidate is correct, or the store is damaged."""


class InternalError(TilewrightError, RuntimeError):
    """An invariant of Tilewright itself does not hold. Please report it with the text."""


class TilewrightWarning(UserWarning):
    """Something works, but not as well as it should: a slow path, a cache that cannot be written."""


# Tracebacks call them by the names under which users catch them.
for _kind in (
    TilewrightError, LayoutError, LanguageError, ArgumentError, ScheduleError, CompileError, DeviceError, CheckError,
    TuningError, InternalError, TilewrightWarning,
):  # fmt: skip
    _kind.__module__ = "tilewright"
