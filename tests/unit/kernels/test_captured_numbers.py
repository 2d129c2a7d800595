"""Numbers that an epilogue captures: given to the kernel where that means the same, and compiled in where not."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import tilewright as tw
import tilewright.compile as compile_module
from tilewright.arch import Arch
from tilewright.kernels import functions
from tilewright.kernels.functions import captured
from tilewright.trace.host_numbers import NeedsConstant, number_kind

Array = np.ndarray[Any, Any]
Make = Callable[[Any], Callable[[Any], Any]]

A = np.random.default_rng(5).integers(-4, 5, (4, 8)).astype(np.float32) / 8
B = np.random.default_rng(6).integers(-4, 5, (8, 4)).astype(np.float32) / 8
LEVEL = 0.5


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    seen: list[str] = []
    trace = compile_module.trace

    def counted(function, *args, **options):
        seen.append(function.__name__)
        return trace(function, *args, **options)

    monkeypatch.setattr(compile_module, "trace", counted)
    yield seen


class Pair(NamedTuple):
    scale: float
    shift: float


def helper(acc, scale):
    return acc * scale


def with_branch(value):
    def leaky(acc):
        if acc < 0:
            return acc * value
        return acc

    return leaky


def named(value):
    @tw.function
    def scaled(acc):
        factor = value
        return acc * factor

    return scaled


def with_loop(value):
    def powers(acc):
        total = acc
        for _ in range(3):
            total = total * value + 1
        return total

    return powers


GIVEN: dict[str, Make] = {
    "product": lambda v: lambda acc: acc * v,
    "reflected": lambda v: lambda acc: v - acc,
    "quotient": lambda v: lambda acc: acc / v,
    "reflected quotient": lambda v: lambda acc: v / (acc + 100),
    "on the host": lambda v: lambda acc: acc * (1 / (v + 3)) + (2 * v - 1) - -v,
    "twice": lambda v: lambda acc: acc * v + v,
    "default": lambda v: lambda acc, scale=v: acc * scale,
    "keyword default": lambda v: lambda acc, *, scale=v: acc * scale,
    "partial": lambda v: functools.partial(lambda scale, acc: acc + scale, v),
    "partial keyword": lambda v: functools.partial(lambda acc, scale: acc + scale, scale=v),
    "tuple": lambda v: lambda acc, p=(v, 2.0): acc * p[0] + p[1],
    "named tuple": lambda v: lambda acc, p=Pair(v, v + 1): acc * p.scale + p.shift,
    "dict": lambda v: lambda acc, p={"scale": v}: acc * p["scale"],
    "maximum": lambda v: lambda acc: tw.maximum(acc, v),
    "where": lambda v: lambda acc: tw.where(acc > v, acc, acc * v),
    "where of it": lambda v: lambda acc: tw.where(acc > 0, acc, v),
    "fma": lambda v: lambda acc: tw.fma(acc, v, 1.0),
    "helper": lambda v: lambda acc: helper(acc, v),
    "inner": lambda v: lambda acc: (lambda y: y * v)(acc),
    "float64": lambda v: lambda acc: (acc.to(tw.float64) * v).to(tw.float32),
    "float16": lambda v: lambda acc: (acc.to(tw.float16) * v).to(tw.float32),
    "result": lambda v: lambda acc: v,
    "branch": with_branch,
    "variable": named,
    "loop": with_loop,
    "is None": lambda v: lambda acc: acc if v is None else acc * v,
}
COMPILED_IN: dict[str, Make] = {
    "if": lambda v: lambda acc: acc * v if v > 0.5 else acc,
    "truth": lambda v: lambda acc: acc * v if v else acc,
    "math": lambda v: lambda acc: acc * math.sqrt(abs(v)),
    "numpy": lambda v: lambda acc: acc * float(np.exp(v)),
    "exp": lambda v: lambda acc: acc * tw.exp(v),
    "isinstance": lambda v: lambda acc: acc * 2 if isinstance(v, float) else acc,
    "isinstance of several": lambda v: lambda acc: acc * 2 if isinstance(v, (str, int, float)) else acc,
    "type": lambda v: lambda acc: acc * 2 if type(v) is float else acc,
    "identity": lambda v: lambda acc, other=LEVEL: acc * 2 if v is other else acc,
    "text": lambda v: lambda acc: acc * float(f"{v:.3f}"),
    "dict of numbers": lambda v: lambda acc: acc * {v: 3.0}.get(v, 1.0),
    "attribute": lambda v: lambda acc: acc * 2 if v.is_integer() else acc * 3,
    "hasattr": lambda v: lambda acc: acc * 2 if hasattr(v, "bitcast") or hasattr(v, "dtype") else acc * 3,
    "element type": lambda v: lambda acc: acc * tw.float32(v),
    "power": lambda v: lambda acc: tw.pow(acc + 100, 1.0) * v**2,
    "swallowed": lambda v: lambda acc: acc * swallow(v),
    "comparison of numbers": lambda v: lambda acc: acc * sorted([v, 0.4, -v])[1],
    "list of numbers": lambda v: lambda acc: acc * (2.0 if v in (0.5, 0.25) else 3.0),
    "builtin min": lambda v: lambda acc: acc * min(v, 0.75),
    "array of it": lambda v: lambda acc: acc * np.asarray(v)[()],
    "another package": lambda v: functools.partial(lambda acc, f, x: acc * f(x), f=pytest.approx, x=v),
}


def swallow(value):
    """Ask for a value in a way that hides that it could not be told."""
    try:
        return 2.0 if value > 0.5 else 3.0
    except BaseException:  # what users write
        return 1.0


# The third from the end is rounded up to float16, and down where it is rounded to float32 first.
VALUES = [0.5, -0.25, 1.0, 0.1, 0.0, -0.0, 1e-3, 1 + 2**-11 + 2**-40, 3e38, float("inf")]


@pytest.fixture(autouse=True)
def forget():
    functions._templates.clear()


@tw.kernel
def apply(out, x, function: tw.constexpr, uses: tw.constexpr, *operands):
    count = len(operands) - len(uses)
    i = tw.thread_idx.x
    out[i] = function.bind(uses, operands[count:])(x[i], *[operand[i] for operand in operands[:count]])


def evaluate(target: Callable[[Any], Any], x: Array) -> Array:
    """Apply a function as tw.matmul does, in a small kernel."""
    found = captured(target)
    out = np.zeros(x.shape, np.float64 if x.dtype.kind == "i" else x.dtype)
    while True:
        try:
            uses = found.function.uses(tw.dtype(x.dtype), (), Arch.parse("sm_90a"))
        except NeedsConstant:
            found = found.again()
            continue
        break
    apply[1, x.size](out, x, found.function, uses, *[use.value(found.numbers) for use in uses])
    return out


X = np.array([-2.0, -0.75, 1.0, 0.3, 7.5], np.float32)


def results(make: Make, values: list[Any], x: Array = X) -> list[Array]:
    return [evaluate(make(v), x) for v in values]


def compiled_in(make: Make, values: list[Any], monkeypatch: pytest.MonkeyPatch, x: Array = X) -> list[Array]:
    """Compute the same with every number a part of the code."""
    with monkeypatch.context() as patch:
        patch.setattr(functions, "number_kind", lambda value: None)
        functions._templates.clear()
        found = results(make, values, x)
    functions._templates.clear()
    return found


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.spread(4)
def test_a_new_value_traces_nothing(name: str, traces: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    values = VALUES if name in ("product", "on the host", "float16") else VALUES[:3]
    found = results(GIVEN[name], values)
    assert len(traces) == 1, traces
    expected = compiled_in(GIVEN[name], values, monkeypatch)
    for value, got, want in zip(values, found, expected, strict=True):
        assert same_bits(got, want), value


@pytest.mark.parametrize("name", [n for n in COMPILED_IN if n != "another package"])
def test_a_value_that_the_trace_needs_is_compiled_in(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.5, 0.75, 0.5]
    for got, want in zip(
        results(COMPILED_IN[name], values), compiled_in(COMPILED_IN[name], values, monkeypatch), strict=True
    ):
        assert same_bits(got, want)


@pytest.mark.parametrize(
    ("make", "values", "kinds"),
    [
        (lambda v: lambda acc: acc * v, [1, 2, 100], 1),
        (lambda v: lambda acc: acc + v, [1, -1, 200, 40000, 2**31, 2**40], 6),
        (lambda v: lambda acc: acc & v, [1, 2], 2),
        (lambda v: lambda acc: acc // (v + 1), [1, 2], 2),
        (lambda v: lambda acc: acc**v, [1, 2], 2),
        (lambda v: lambda acc: acc + (1, 2, 3)[v], [0, 1, 2], 3),
        (lambda v: lambda acc: sum([acc for _ in range(v)], acc), [1, 2], 2),
        (lambda v: lambda acc: acc.to(tw.uint8) + v, [1, 5, 300], 2),
        (lambda v: lambda acc: (acc * v).to(tw.int32), [0.5, 0.25], 1),
        (lambda v: lambda acc: acc * v, [np.float32(0.5), np.float32(0.1)], 1),
        (lambda v: lambda acc: acc * v, [np.float64(0.5), np.float64(0.1)], 1),
        (lambda v: lambda acc: acc + v, [np.int64(5), np.int64(-7)], 1),
        (lambda v: lambda acc: acc + v, [np.int8(5), np.int8(-7)], 2),
        (lambda v: lambda acc: acc + v, [True, False], 2),
        (lambda v: lambda acc: acc + 2.0 * v, [np.float64(0.5), np.float64(0.1)], 2),
    ],
)
def test_numbers_beside_integers(
    make: Make, values: list[Any], kinds: int, traces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(-3, 4, dtype=np.int32)
    found = results(make, values, x)
    assert len(traces) == kinds, traces
    for value, got, want in zip(values, found, compiled_in(make, values, monkeypatch, x), strict=True):
        assert same_bits(got, want), value


def test_of_two_numbers_one_may_be_given(traces: list[str]) -> None:
    def make(scale, rounds):
        return lambda acc: functools.reduce(operator.add, [acc * scale] * rounds)

    for scale, rounds in [(0.5, 2), (0.25, 2), (3.0, 2), (3.0, 4), (0.5, 4)]:
        assert np.array_equal(evaluate(make(scale, rounds), X), X * np.float32(scale) * rounds)
    assert len(traces) == 2


def test_arrays_and_numbers_come_in_order(traces: list[str]) -> None:
    bias, scale = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32)[:, None]

    def make(x, y):
        return lambda acc, c=y: (acc + bias) * x + scale * c

    for x, y in [(2.0, 0.5), (0.5, 4.0), (1.0, 0.0)]:
        got = tw.matmul(A, B, epilogue=make(x, y), c=A[:, :4].copy(), beta=1, bias=bias)
        assert np.allclose(got, (A @ B + A[:, :4] + bias + bias) * x + scale * y, rtol=1e-6)
    assert len(traces) == 1


def test_errors_of_the_host_and_of_the_trace() -> None:
    with pytest.raises(ZeroDivisionError):
        results(lambda v: lambda acc: acc * (1 / v), [0.5, 0.0])
    with pytest.raises(tw.LanguageError, match="& is not defined on float32"):
        results(lambda v: lambda acc: acc & v, [0.5], np.arange(3, dtype=np.int32))


def test_memory_of_many_values_is_bounded(traces: list[str]) -> None:
    for n in range(500):
        got = captured(GIVEN["product"](n / 8 + 0.125))
    assert len(functions._templates) == 1
    for n in range(3 * functions.MAX_KNOWN):
        captured(COMPILED_IN["if"](float(n))).constant()
    assert len(functions._templates) <= 2 * functions.MAX_KNOWN
    assert len(functions._functions) <= 2 * functions.MAX_KNOWN
    assert got.numbers == (499 / 8 + 0.125,)


def test_500_values_are_one_kernel(traces: list[str]) -> None:
    launch = apply[1, 2]
    x = np.ones(2, np.float32)
    for n in range(500):
        assert evaluate(GIVEN["product"](n / 8), x)[0] == n / 8
    assert traces == ["apply"]
    assert launch.kernel is apply


def test_a_product_traces_no_other_value(traces: list[str]) -> None:
    for scale in (0.5, 0.25, 3.0):
        got = tw.matmul(A, B, epilogue=lambda acc, s=scale: tw.maximum(acc * s, -s))
        assert np.array_equal(got, np.maximum((A @ B) * np.float32(scale), -np.float32(scale)))
    assert traces == ["matmul_tiles"]


@pytest.mark.parametrize("value", [True, 2**64, -(2**63) - 1, None, "x", 1j, np.int8(1), np.bool_(1), np.zeros(())])
def test_what_is_always_compiled_in(value: object) -> None:
    assert number_kind(value) is None


def test_a_function_that_changes_its_mind_is_refused() -> None:
    """The epilogue is traced once, in loops on the device, for all elements."""
    calls = itertools.count()

    def make(value):
        def fickle(acc):
            return acc * value if next(calls) < 1 else acc * math.floor(value)

        return fickle

    with pytest.raises(tw.LanguageError, match="an iterator that exists before, .* is read or changed in a loop"):
        tw.matmul(A, B, epilogue=make(2.5))


def test_needs_constant_passes_by_what_users_catch() -> None:
    assert not issubclass(NeedsConstant, Exception)
