"""A helper whose code or defaults are exchanged in place, as reloading in a notebook does, is traced anew."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontend.captures import Captures


def first(x: float = 1.0, *, y: float = 1.0) -> float:
    return x + y


def second(x: float = 4.0, *, y: float = 5.0) -> float:
    return x * y


def result(kernel: tw.Kernel) -> float:
    x = np.zeros(1, np.float32)
    kernel[1, 1](x)
    return float(x[0])


def copied(function: types.FunctionType) -> types.FunctionType:
    made = types.FunctionType(function.__code__, globals(), function.__name__, function.__defaults__)
    made.__kwdefaults__ = dict(function.__kwdefaults__)
    return made


def as_it_is(function: types.FunctionType) -> types.FunctionType:
    return function


PARTS = {"__code__": 1.0, "__defaults__": 5.0, "__kwdefaults__": 6.0}


@pytest.mark.parametrize("decorate", [as_it_is, tw.function])
@pytest.mark.parametrize("part", PARTS)
def test_a_helper_of_other_parts(part: str, decorate: Callable[[types.FunctionType], types.FunctionType]) -> None:
    inner = copied(first)
    helper = decorate(inner)

    def outer() -> float:
        return helper()

    @tw.kernel
    def direct(x):
        x[0] = helper()

    @tw.kernel
    def through_another(x):
        x[0] = outer()

    assert [result(direct), result(through_another)] == [2.0, 2.0]
    setattr(inner, part, getattr(second, part))
    assert [result(direct), result(through_another)] == [PARTS[part]] * 2


def test_our_own_modules_are_constant() -> None:
    """A launch of a finished product compares nothing: it would be 59 places, 2 to 5 microseconds each time."""
    from tilewright.kernels._hopper_kernel import matmul_warpgroups

    matmul_warpgroups.captures.note()
    assert not matmul_warpgroups.captures.watched


def test_a_copy_of_our_globals_is_not_constant() -> None:
    """As in a doctest: its functions name one of our modules, and their variables are its own."""
    variables: dict[str, Any] = {"__name__": "tilewright.dtypes", "STEP": 1}
    exec("def add(x):\n    x[0] = x[0] + STEP", variables)
    captures = Captures(variables["add"])
    captures.note()
    assert not captures.changed()
    variables["STEP"] = 2
    assert captures.changed()
