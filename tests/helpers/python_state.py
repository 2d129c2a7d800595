"""Programs with Python state: run by Python itself and by the simulator, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

Program = Callable[..., None]


class Programs:
    """The programs of a test file, in lists that parametrise its tests."""

    def __init__(self) -> None:
        self.agreeing: list[Any] = []
        self.refusals: list[Any] = []

    def carried(self, function: Program) -> Program:
        """Note a program (out, x, n) that computes the same on both sides."""
        self.agreeing.append(pytest.param(function, id=function.__name__))
        return function

    def refused(self, message: str) -> Callable[[Program], Program]:
        """Note a program that is refused with a message, a pattern."""

        def note(function: Program) -> Program:
            self.refusals.append(pytest.param(function, message, id=function.__name__))
            return function

        return note


class Plain:
    """An object with a number, a list, and a method that changes both."""

    def __init__(self) -> None:
        self.v: Any = 0
        self.parts = [0, 0]

    def add(self, x: Any) -> Plain:
        self.v += x
        self.parts[1] += 1
        return self


def make_counter(start: Any) -> Callable[[Any], Any]:
    """Return a function with a variable of its own."""
    count = start

    def step(by: Any) -> Any:
        nonlocal count
        count += by
        return count

    return step


def assert_agrees(function: Program) -> None:
    """Run a program by Python and on the simulator."""
    kernel = tw.kernel(function)
    for n in (0, 1, 2, 3, 7):
        for first in (3, 0, -2):
            x = np.array([first, 5, 1, 4, -2, 9, 2, 6], np.int64)
            expected = np.zeros(8, np.int64)
            function(expected, x, n)
            found = np.zeros(8, np.int32)
            kernel[1, 1](found, x.astype(np.int32), n)
            assert found.tolist() == expected.tolist(), (n, first)


def assert_refused(function: Program, message: str) -> None:
    """Trace a program that has to be refused, with a line and a way out."""
    with pytest.raises(tw.LanguageError, match=message) as caught:
        tw.kernel(function).lower(tw.spec("int32", 1), tw.spec("int32", 1), 3)
    assert caught.value.location is not None
    assert "help: " in str(caught.value)
