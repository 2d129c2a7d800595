"""Functions compiled into kernels: what they capture, when two are one, and that they compute what Python says."""

from __future__ import annotations

import functools
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
from tilewright.kernels.functions import Captured, captured

Array = np.ndarray[Any, Any]

GLOBAL_SCALE = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
SLOPE = 0.5


@tw.kernel
def apply(out, x, function: tw.constexpr, *operands):
    i = tw.thread_idx.x
    if i < out.size:
        out[i] = function(x[i], *[operand[i] for operand in operands])


def evaluate(target: Callable[..., Any], x: Array) -> Array:
    found = captured(target).constant()
    out = np.zeros_like(x)
    apply[1, 32](out, x, found.function, *found.arrays)
    return out


X = np.array([-2.0, -1.0, 1.0, 3.0], np.float32)


def leaky(acc):
    if acc < 0:
        return acc * SLOPE
    return acc


@tw.function
def traced(acc, low=-1.5):
    total = acc
    for _ in range(3):
        total = total + 1
    return total if acc > low else low


def global_scale(acc):
    return acc * GLOBAL_SCALE


def calls_global_scale(acc):
    return global_scale(acc) + 1


def twice(function):
    @functools.wraps(function)
    def wrapper(acc):
        return function(function(acc))

    return wrapper


@twice
def increment(acc):
    return acc + 1


class Scaler:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def apply(self, acc):
        return acc * self.factor if self.factor else acc

    def __call__(self, acc):
        return acc * self.factor


class Pair(NamedTuple):
    scale: Any
    shift: Any


bias = np.array([5.0, 6.0, 7.0, 8.0], np.float32)
pair = Pair(GLOBAL_SCALE, 3)


@pytest.mark.parametrize(
    "function",
    [
        lambda acc: acc,
        lambda acc: acc * SLOPE + 1,
        lambda acc: acc * GLOBAL_SCALE,
        lambda acc: (acc + bias) * GLOBAL_SCALE - bias,
        lambda acc, scale=GLOBAL_SCALE: acc * scale,
        lambda acc, *, scale=GLOBAL_SCALE, shift=1: acc * scale + shift,
        functools.partial(lambda acc, scale, shift: acc * scale + shift, scale=GLOBAL_SCALE, shift=2),
        functools.partial(functools.partial(lambda x, acc, y: x - acc * y, bias), y=GLOBAL_SCALE),
        global_scale,
        calls_global_scale,
        lambda acc: pair.scale * acc + pair.shift,
        lambda acc: (lambda y: y * GLOBAL_SCALE)(acc),
        increment,
        Scaler(3.0),
        Scaler(0.25).apply,
    ],
)
def test_computes_what_python_computes(function: Callable[..., Any]) -> None:
    assert np.array_equal(evaluate(function, X), np.asarray(function(X), np.float32))


@pytest.mark.parametrize("function", [leaky, traced, functools.partial(traced, low=-0.5)])
def test_control_flow(function: Callable[..., Any]) -> None:
    assert evaluate(function, X).tolist() == [function(x) for x in X]


def test_control_flow_on_a_captured_array() -> None:
    limit = np.array([0.0, -3.0, 5.0, 1.0], np.float32)

    def clip(acc):
        if acc > limit:
            return limit
        return acc

    assert np.array_equal(evaluate(clip, X), np.minimum(X, limit))


def test_tw_functions_serve_as_they_are() -> None:
    assert np.allclose(evaluate(tw.tanh, X), np.tanh(X), rtol=1e-6)
    assert np.allclose(evaluate(lambda acc: tw.maximum(acc, 0), X), np.maximum(X, 0))


def made(constant: Any, array: Any) -> Callable[..., Any]:
    return lambda acc: acc * constant + array


def test_fresh_lambdas_are_one_function() -> None:
    first = captured(made(2.0, X))
    again = captured(made(2.0, X.copy()))
    assert first.function is again.function
    assert first.arrays[0] is X and again.arrays[0] is not X
    assert first.names == ("array",)


@pytest.mark.parametrize("constant", [2, True, np.float32(2), np.float64(2), "2", None, tw.float32])
def test_other_constants_are_other_functions(constant: object) -> None:
    assert captured(made(2.0, X)).function is not captured(made(constant, X)).function


@pytest.mark.parametrize(("one", "other"), [(2.0, -0.5), (3, 100), (np.float32(1), np.float32(2))])
def test_numbers_of_one_kind_are_one_function(one: Any, other: Any) -> None:
    assert captured(made(one, X)).function is captured(made(other, X)).function
    assert captured(made(one, X)).constant().function is not captured(made(other, X)).constant().function


@pytest.mark.parametrize("value", [127, 255, 2**15 - 1, 2**31 - 1, 2**63 - 1, -1, -(2**31)])
def test_ints_that_fit_into_other_types_are_other_functions(value: int) -> None:
    beyond = value + 1 if value > 0 else value - 1
    other = beyond if value != -1 else 0
    assert captured(made(value, X)).function is not captured(made(other, X)).function


def test_negative_zero_is_another_constant() -> None:
    zero, negative = captured(made(0.0, X)).constant(), captured(made(-0.0, X)).constant()
    assert zero.function is not negative.function


def test_an_array_and_a_number_at_one_place_are_two_functions() -> None:
    assert captured(made(2.0, X)).function is not captured(made(X, 2.0)).function


def test_one_array_at_two_places_is_one_argument() -> None:
    same, other = captured(made(X, X)), captured(made(X, X.copy()))
    assert len(same.arrays) == 1 and len(other.arrays) == 2
    assert same.function is not other.function


def test_a_changed_global_is_another_function(monkeypatch: pytest.MonkeyPatch) -> None:
    before = captured(leaky).constant().function
    monkeypatch.setitem(globals(), "SLOPE", 0.25)
    assert captured(leaky).constant().function is not before
    assert evaluate(leaky, X).tolist() == [-0.5, -0.25, 1, 3]


class Layer:
    """An object whose attributes functions read."""

    bias = 1.0

    def __init__(self) -> None:
        self.scale, self.steps = 2.0, [3.0]

    def act(self, acc: Any) -> Any:
        return acc * self.scale + self.bias + self.steps[0]

    def __call__(self, acc: Any) -> Any:
        return self.act(acc)


@pytest.mark.parametrize("make", [lambda x: x.act, lambda x: x, lambda x: lambda acc: x.act(acc)], ids=range(3))
def test_attributes_are_read_anew(make: Callable[[Layer], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of objects and their classes, and what containers in them hold; equal values are one function again."""
    layer = Layer()
    epilogue = make(layer)
    one = np.ones((1, 1), np.float32)
    found = [captured(epilogue).function]
    assert tw.matmul(one, one, epilogue=epilogue) == 6
    layer.scale = 4.0
    found.append(captured(epilogue).function)
    monkeypatch.setattr(Layer, "bias", 10.0)
    found.append(captured(epilogue).function)
    layer.steps[0] = 5.0
    found.append(captured(epilogue).function)
    assert len(set(found)) == 4
    assert tw.matmul(one, one, epilogue=epilogue) == 19
    monkeypatch.undo()
    layer.scale, layer.steps[0] = float("2.0"), 3.0
    assert captured(epilogue).function is found[0]


def test_captured_arrays_are_not_kept() -> None:
    class Memory(np.ndarray):
        pass

    array = np.arange(4, dtype=np.float32).view(Memory)
    gone = weakref.ref(array)
    evaluate(made(7.25, array), X)
    del array
    gc.collect()
    assert gone() is None


def test_refusals() -> None:
    with pytest.raises(tw.ArgumentError, match="epilogue is a function of the accumulator, got int"):
        captured(3)
    with pytest.raises(
        tw.ArgumentError,
        match="called with the accumulator alone, and .*<lambda> does not take that: missing a required",
    ):
        captured(lambda acc, scale: acc * scale)
    with pytest.raises(tw.ArgumentError, match="captures 'constant', a set, which is neither an array nor hashable"):
        captured(made({1}, X))


def test_a_variable_without_a_value_is_not_none() -> None:
    def make(is_assigned: bool) -> Callable[..., Any]:
        if is_assigned:
            late = None
        return lambda acc: acc * 2 if late is None else acc

    np.testing.assert_array_equal(evaluate(make(True), X), X * 2)
    with pytest.raises(NameError, match="late"):
        evaluate(make(False), X)


def test_globals_of_different_names_are_told_apart() -> None:
    def either(acc: Any) -> Any:
        return acc * FIRST_FACTOR if "FIRST_FACTOR" in NAMES else acc + SECOND_FACTOR  # type: ignore[name-defined]  # noqa: F821

    def read(name: str) -> Captured:
        return captured(types.FunctionType(either.__code__, {"__name__": __name__, name: SLOPE}, "either"))

    first, second, again = (read(name) for name in ("FIRST_FACTOR", "SECOND_FACTOR", "FIRST_FACTOR"))
    assert first.template is again.template
    assert first.template is not second.template
