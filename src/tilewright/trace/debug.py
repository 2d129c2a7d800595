"""Looking into a running kernel: printing and assertions on the device."""

from __future__ import annotations

from typing import Any

from tilewright.arguments import given, shown
from tilewright.dtypes import bool_
from tilewright.errors import LanguageError
from tilewright.ir.ops import Assert, Print
from tilewright.trace.control import truth
from tilewright.trace.scalar import Scalar, as_scalar
from tilewright.trace.tracer import current


def device_print(*values: Any) -> None:
    """Print texts and numbers with spaces between, one line a thread, when the kernel runs.

    Raises `LanguageError` for a device value inside a text, as in f"x is {x}".

    >>> tw.device_print("thread", tw.thread_idx.x, "has", acc)  # doctest: +SKIP
    """
    texts: list[list[str]] = [[]]
    numbers = []
    for n, value in enumerate(values):
        if n:
            texts[-1].append(" ")
        if isinstance(value, Scalar):
            numbers.append(value.value)
            texts.append([])
        else:
            texts[-1].append(_text(value))
    current("tw.device_print").emit(Print(tuple(map("".join, texts)), tuple(numbers)))


def _text(value: Any) -> str:
    try:
        text = str(value)
    except ValueError:  # Python writes no int of more than 4300 digits
        text = shown(value)
    if "<device " in text:
        raise LanguageError(
            f"tw.device_print got the text of a device value, whose number is not known yet: {text!r}",
            help="give each value as an argument of its own: tw.device_print('x is', x)",
        )
    return text


def device_assert(condition: Any, message: str = "assertion failed") -> None:
    """Stop the kernel with a message where the condition is false in a thread.

    A condition that is known while tracing is checked then, and raises `LanguageError`.
    """
    condition = truth(condition)
    if isinstance(condition, Scalar):
        current("tw.device_assert").emit(Assert(as_scalar(condition, bool_).value, str(message)))
    elif isinstance(condition, (str, bytes)) or getattr(condition, "shape", ()) != ():
        raise LanguageError(f"tw.device_assert: condition is a number or a bool, got {given(condition)}")
    elif not condition:
        raise LanguageError(f"tw.device_assert: {message}")
