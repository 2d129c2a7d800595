"""Operators on every element type, over all pairs of edge values, to the bit where an operation rounds once."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import (
    ALL,
    EVERY_INTEGER,
    FLOATS,
    INTEGERS,
    Array,
    Backend,
    assert_same_bits,
    assert_within,
    blocks,
    edge_values,
    pairs,
    wrapped,
)

import tilewright as tw

Operations = dict[str, Callable[..., Any]]


@tw.kernel
def binary(out, x, y, operations: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        for row, operation in enumerate(operations):
            out[row, i] = operation(x[i], y[i])


@tw.kernel
def unary(out, x, operations: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        for row, operation in enumerate(operations):
            out[row, i] = operation(x[i])


def run(backend: Backend, operations: Operations, result: Any, *inputs: Array) -> dict[str, Array]:
    """Compute each operation over the inputs, all in one kernel, and return the results by name."""
    kernel = binary if len(inputs) == 2 else unary
    out = backend.zeros((len(operations), inputs[0].size), result)
    arrays = [backend.put(x) for x in inputs]
    kernel[blocks(inputs[0].size), 128](out, *arrays, tuple(operations.values()))
    return dict(zip(operations, backend.get(out), strict=True))


def towards_zero(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


@pytest.mark.parametrize("dtype", EVERY_INTEGER, ids=str)
def test_integers_wrap(backend: Backend, dtype: tw.DType) -> None:
    operations: Operations = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "&": operator.and_,
        "|": operator.or_,
        "^": operator.xor,
        "minimum": tw.minimum,
        "maximum": tw.maximum,
        "fused": lambda a, b: a * b - a + 3 * b,
    }
    reference = {**operations, "minimum": min, "maximum": max}
    x, y = pairs(dtype)
    for name, found in run(backend, operations, dtype, x, y).items():
        expected = [wrapped(reference[name](int(a), int(b)), dtype) for a, b in zip(x, y, strict=True)]
        assert_same_bits(found, np.array(expected, dtype.numpy), f"{dtype} {name}", (x, y))


@pytest.mark.parametrize("dtype", EVERY_INTEGER, ids=str)
def test_integer_quotients_round_towards_zero(backend: Backend, dtype: tw.DType) -> None:
    x, y = pairs(dtype, lambda a, b: b != 0 and not (a == dtype.lowest and int(b) == -1))
    found = run(backend, {"//": operator.floordiv, "%": operator.mod}, dtype, x, y)
    quotients = [towards_zero(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    remainders = [int(a) - q * int(b) for a, b, q in zip(x, y, quotients, strict=True)]
    assert_same_bits(found["//"], np.array(quotients, dtype.numpy), f"{dtype} //", (x, y))
    assert_same_bits(found["%"], np.array(remainders, dtype.numpy), f"{dtype} %", (x, y))


DIVISORS = (1, 2, 3, 7, 8, 10, 64, 1000, -1, -3, -16)


@pytest.mark.parametrize(
    ("dtype", "divisor"), [(t, d) for t in INTEGERS for d in DIVISORS if t.is_signed or d > 0], ids=str
)
def test_integer_quotients_by_constants(backend: Backend, dtype: tw.DType, divisor: int) -> None:
    x = np.array([v for v in edge_values(dtype) if divisor != -1 or v != dtype.lowest], dtype.numpy)
    found = run(backend, {"//": lambda v: v // divisor, "%": lambda v: v % divisor}, dtype, x)
    quotients = [towards_zero(int(v), divisor) for v in x]
    assert_same_bits(found["//"], np.array(quotients, dtype.numpy), f"{dtype} // {divisor}", (x,))
    remainders = [int(v) - q * divisor for v, q in zip(x, quotients, strict=True)]
    assert_same_bits(found["%"], np.array(remainders, dtype.numpy), f"{dtype} % {divisor}", (x,))


@pytest.mark.parametrize("dtype", EVERY_INTEGER, ids=str)
def test_shifts(backend: Backend, dtype: tw.DType) -> None:
    """Amounts of the width and more shift everything out."""
    values = edge_values(dtype)
    amounts = np.array([0, 1, 5, 31, 32, 33, 63, 64, 100], dtype.numpy)
    x, y = (a.ravel() for a in np.meshgrid(values, amounts))
    found = run(backend, {"<<": operator.lshift, ">>": operator.rshift}, dtype, x, y)
    left = [wrapped(int(a) << int(b), dtype) for a, b in zip(x, y, strict=True)]
    right = [int(a) >> int(b) for a, b in zip(x, y, strict=True)]
    assert_same_bits(found["<<"], np.array(left, dtype.numpy), f"{dtype} <<", (x, y))
    assert_same_bits(found[">>"], np.array(right, dtype.numpy), f"{dtype} >>", (x, y))
    fixed = run(backend, {"<<": lambda v: v << 5, ">>": lambda v: v >> 5}, dtype, values)
    expected = [wrapped(int(v) << 5, dtype) for v in values]
    assert_same_bits(fixed["<<"], np.array(expected, dtype.numpy), f"{dtype} << 5", (values,))
    assert_same_bits(fixed[">>"], np.array([int(v) >> 5 for v in values], dtype.numpy), f"{dtype} >> 5", (values,))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_one_operand(backend: Backend, dtype: tw.DType) -> None:
    operations: Operations = {
        "-": operator.neg,
        "~": operator.invert,
        "abs": tw.abs,
        "**2": lambda v: v**2,
        "**5": lambda v: v**5,
        "**0": lambda v: v**0,
        "1+": lambda v: 1 + v,
        "5-": lambda v: 5 - v,
    }
    reference = {**operations, "abs": abs}
    x = edge_values(dtype)
    for name, found in run(backend, operations, dtype, x).items():
        expected = [wrapped(reference[name](int(v)), dtype) for v in x]
        assert_same_bits(found, np.array(expected, dtype.numpy), f"{dtype} {name}", (x,))
    counted = run(backend, {"popcount": tw.popcount, "clz": tw.clz}, tw.int32, x)
    words = [int(v) & ((1 << dtype.bits) - 1) for v in x]
    assert counted["popcount"].tolist() == [bin(w).count("1") for w in words]
    assert counted["clz"].tolist() == [dtype.bits - w.bit_length() for w in words]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_true_quotient_of_integers_is_float32(backend: Backend, dtype: tw.DType) -> None:
    x, y = pairs(dtype)
    found = run(backend, {"/": operator.truediv}, tw.float32, x, y)["/"]
    with np.errstate(all="ignore"):
        assert_same_bits(found, x.astype(np.float32) / y.astype(np.float32), f"{dtype} /", (x, y))


COMPARISONS: Operations = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@pytest.mark.parametrize("dtype", (*ALL, *EVERY_INTEGER[3:]), ids=str)
def test_comparisons(backend: Backend, dtype: tw.DType) -> None:
    x, y = pairs(dtype)
    for name, found in run(backend, COMPARISONS, tw.bool_, x, y).items():
        with np.errstate(invalid="ignore"):
            expected = COMPARISONS[name](x, y)
        assert_same_bits(found, expected, f"{dtype} {name}", (x, y))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_round_once(backend: Backend, dtype: tw.DType) -> None:
    """NumPy and ml_dtypes compute 16-bit floats in float32 and round, which is rounding once for these."""
    operations: Operations = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": operator.truediv,
    }
    x, y = pairs(dtype)
    with np.errstate(all="ignore"):
        for name, found in run(backend, operations, dtype, x, y).items():
            assert_same_bits(found, operations[name](x, y), f"{dtype} {name}", (x, y))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fma_rounds_once(backend: Backend, dtype: tw.DType) -> None:
    """16-bit floats are multiplied and added in float32, and rounded then."""
    random = np.random.default_rng(1)
    x, y = (random.standard_normal(512).astype(dtype.numpy) for _ in range(2))
    operations: Operations = {"fma": lambda a, b: tw.fma(a, b, a)}
    if dtype.bits >= 32:  # the compiler's own contraction, the same on both backends
        operations |= {"a*b+c": lambda a, b: a * b + a, "c+a*b": lambda a, b: a + a * b}
    wide = np.longdouble if dtype is tw.float64 else np.float64
    exact = x.astype(wide) * y.astype(wide) + x.astype(wide)
    if dtype in (tw.float16, tw.bfloat16):
        exact = exact.astype(np.float32)
    for name, found in run(backend, operations, dtype, x, y).items():
        assert_within(found, exact.astype(wide), 0.5 + 2**-9, f"{dtype} {name}", (x, y))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_remainders_and_floors(backend: Backend, dtype: tw.DType) -> None:
    operations: Operations = {
        "%": operator.mod,
        "fmod": tw.fmod,
        "//": operator.floordiv,
        "copysign": tw.copysign,
        "minimum": tw.minimum,
        "maximum": tw.maximum,
    }
    x, y = pairs(dtype)
    wide = np.float32 if dtype.bits < 32 else dtype.numpy
    with np.errstate(all="ignore"):
        remainder = np.fmod(x.astype(wide), y.astype(wide)).astype(dtype.numpy)
        quotient = (x.astype(wide) / y.astype(wide)).astype(dtype.numpy)
        reference = {
            "%": remainder,
            "fmod": remainder,
            "//": np.floor(quotient.astype(wide)).astype(dtype.numpy),
            "copysign": np.copysign(x.astype(wide), y.astype(wide)).astype(dtype.numpy),
        }
    ordered = pairs(dtype, lambda a, b: not (a == 0 and b == 0))
    for name, found in run(backend, {k: v for k, v in operations.items() if k in reference}, dtype, x, y).items():
        assert_same_bits(found, reference[name], f"{dtype} {name}", (x, y))
    # Which zero is the lesser is not said.
    for name, found in run(backend, {k: operations[k] for k in ("minimum", "maximum")}, dtype, *ordered).items():
        function = np.fmin if name == "minimum" else np.fmax
        expected = function(*(v.astype(wide) for v in ordered)).astype(dtype.numpy)
        assert_same_bits(found, expected, f"{dtype} {name}", ordered)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_one_operand(backend: Backend, dtype: tw.DType) -> None:
    x = np.concatenate([edge_values(dtype), np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.49], dtype.numpy)])
    wide = np.float32 if dtype.bits < 32 else dtype.numpy
    operations: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "-": (operator.neg, operator.neg),
        "abs": (tw.abs, np.abs),
        "floor": (tw.floor, np.floor),
        "ceil": (tw.ceil, np.ceil),
        "trunc": (tw.trunc, np.trunc),
        "round": (tw.round, np.rint),
        "sqrt": (tw.sqrt, np.sqrt),
        "**0": (lambda v: v**0, np.ones_like),
    }
    with np.errstate(all="ignore"):
        for name, found in run(backend, {k: v[0] for k, v in operations.items()}, dtype, x).items():
            expected = operations[name][1](x.astype(wide)).astype(dtype.numpy)
            assert_same_bits(found, expected, f"{dtype} {name}", (x,))
        cube = run(backend, {"**3": lambda v: v**3}, dtype, x)["**3"]
        assert_same_bits(cube, x * (x * x), f"{dtype} **3", (x,))
    tests = {"isnan": tw.isnan, "isinf": tw.isinf, "isfinite": tw.isfinite}
    for name, found in run(backend, tests, tw.bool_, x).items():
        assert_same_bits(found, getattr(np, name)(x.astype(wide)), f"{dtype} {name}", (x,))


def test_bools(backend: Backend) -> None:
    x, y = pairs(tw.bool_)
    logical: Operations = {
        "&": operator.and_,
        "|": operator.or_,
        "^": operator.xor,
        "and": lambda a, b: a & b,
        "==": operator.eq,
        "<": operator.lt,
    }
    for name, found in run(backend, logical, tw.bool_, x, y).items():
        assert_same_bits(found, logical[name](x, y), name, (x, y))
    sums: Operations = {"+": operator.add, "-": operator.sub, "*": operator.mul, "maximum": tw.maximum}
    for name, found in run(backend, sums, tw.int32, x, y).items():
        function = max if name == "maximum" else sums[name]
        assert found.tolist() == [function(int(a), int(b)) for a, b in zip(x, y, strict=True)], name
    assert_same_bits(
        run(backend, {"~": operator.invert}, tw.bool_, np.array([False, True]))["~"], np.array([True, False])
    )
    signs = run(backend, {"-": operator.neg, "+1": lambda v: v + 1}, tw.int32, np.array([False, True]))
    assert signs["-"].tolist() == [0, -1] and signs["+1"].tolist() == [1, 2]


def _promoted(a: tw.DType, b: tw.DType) -> np.dtype[Any]:
    """NumPy's promotion but for an integer with a float, which gives the float, and two bools, summed as int32."""
    if a is b is tw.bool_:
        return np.dtype(np.int32)
    if {a, b} == {tw.float16, tw.bfloat16}:
        return np.dtype(np.float32)
    if a.is_float != b.is_float:
        return (a if a.is_float else b).numpy
    return np.promote_types(a.numpy, b.numpy)


@tw.kernel
def mixed(out, x, y, types: tw.constexpr, seen: tw.constexpr):
    i = tw.thread_idx.x
    row = 0
    for a in types:
        for b in types:
            total = x[i].to(a) + y[i].to(b)
            seen(a, b, total.dtype)
            out[row, i] = total.to(tw.float64)
            row += 1


def test_mixed_types_promote(backend: Backend) -> None:
    x, y = np.array([0.0, 1, 2, 3, 100]), np.array([1.0, 5, 7, 2, 27])
    found: dict[tuple[tw.DType, tw.DType], tw.DType] = {}

    def seen(a: tw.DType, b: tw.DType, total: tw.DType) -> None:
        found[a, b] = total

    out = backend.zeros((len(ALL) ** 2, 5), tw.float64)
    mixed[1, 5](out, backend.put(x), backend.put(y), ALL, seen)
    rows = iter(backend.get(out))
    for a in ALL:
        for b in ALL:
            wanted = _promoted(a, b)
            assert found[a, b].numpy == wanted, (a, b)
            first, second = x.astype(a.numpy).astype(wanted), y.astype(b.numpy).astype(wanted)
            assert_same_bits(next(rows), (first + second).astype(np.float64), (a, b))


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_python_numbers_take_the_other_type(backend: Backend, dtype: tw.DType) -> None:
    x = np.array([0, 1, 1, 0], dtype.numpy)
    own = dtype if dtype is not tw.bool_ else tw.int32
    found = run(backend, {"+1": lambda v: v + 1, "2-": lambda v: 2 - v, "3*": lambda v: 3 * v}, own, x)
    assert found["+1"].tolist() == [1, 2, 2, 1]
    assert found["2-"].tolist() == [2, 1, 1, 2]
    assert found["3*"].tolist() == [0, 3, 3, 0]
    fraction = dtype if dtype.is_float else tw.float32
    assert run(backend, {"+": lambda v: v + 0.5}, fraction, x)["+"].tolist() == [0.5, 1.5, 1.5, 0.5]


@tw.kernel
def powers(out, fixed, x, y):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        out[i] = x[i] ** y[i]
        fixed[i] = x[i] ** 105


@pytest.mark.parametrize("t", EVERY_INTEGER, ids=str)
def test_integer_powers_are_exact_modulo_the_type(backend: Backend, t: tw.DType) -> None:
    rng = np.random.default_rng(3)
    x = rng.integers(t.lowest, t.highest, 500, t.numpy, endpoint=True)
    y = rng.integers(0, t.highest, 500, t.numpy, endpoint=True)
    y[:100] %= t.numpy.type(16)
    out, fixed = backend.zeros(500, t), backend.zeros(500, t)
    powers[blocks(500), 128](out, fixed, backend.put(x), backend.put(y))
    for got, exponents in ((out, y.tolist()), (fixed, [105] * 500)):
        want = [pow(a, b, 2**t.bits) for a, b in zip(x.tolist(), exponents, strict=True)]
        assert [n % 2**t.bits for n in backend.get(got).tolist()] == want


@tw.kernel
def python_floats(out, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        chosen = 0.1 if x[i] > 1 else 1 / 3
        if x[i] > 2:
            assigned = 0.7
        elif x[i] > 1:
            assigned = chosen * 3
        else:
            assigned = x[i]
        out[0, i] = x[i] * 0.1 + 1e300
        out[1, i] = chosen
        out[2, i] = tw.where(x[i] > 2, -1e300, 0.3) * x[i]
        out[3, i] = assigned
        out[4, i] = tw.float64(0.1) - tw.uint32(3)


def test_python_floats_are_exact_to_float64(backend: Backend) -> None:
    x = np.linspace(-3, 3, 301)
    out = backend.zeros((5, x.size), tw.float64)
    python_floats[blocks(x.size), 128](out, backend.put(x))
    chosen = np.where(x > 1, 0.1, 1 / 3)
    assigned = np.where(x > 2, 0.7, np.where(x > 1, chosen * 3, x))
    want = [x * 0.1 + 1e300, chosen, np.where(x > 2, -1e300, 0.3) * x, assigned, np.full(x.size, 0.1 - 3)]
    assert_same_bits(backend.get(out), np.stack(want))


@tw.kernel
def exact_comparisons(out, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        for row, number in enumerate((-1, 200, 2.5, 2**31, 2**63, 1e300, float("nan"))):
            out[2 * row, i] = x[i] < number
            out[2 * row + 1, i] = number == x[i]


@pytest.mark.parametrize("t", EVERY_INTEGER, ids=str)
def test_integers_compare_exactly_with_python_numbers(backend: Backend, t: tw.DType) -> None:
    x = np.array(sorted({t.lowest, t.highest, 0, 1, 2, 3, 100, min(200, t.highest)}), t.numpy)
    out = backend.zeros((14, x.size), tw.bool_)
    exact_comparisons[blocks(x.size), 128](out, backend.put(x))
    numbers = (-1, 200, 2.5, 2**31, 2**63, 1e300, float("nan"))
    want = [[[n < number for n in x.tolist()], [n == number for n in x.tolist()]] for number in numbers]
    assert backend.get(out).tolist() == [row for pair in want for row in pair]
