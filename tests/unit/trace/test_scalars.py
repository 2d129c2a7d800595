"""Arithmetic of device scalars in every type, against NumPy and the rules of C++."""

from __future__ import annotations

import math
import operator
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from tests.helpers.language import compiles, run, zeros

import tilewright as tw
from tilewright import dtypes

INTEGERS = [t for t in dtypes.ALL if t.is_integer]
FLOATS = [t for t in dtypes.ALL if t.is_float]


@pytest.mark.parametrize("element", dtypes.ALL, ids=str)
def test_a_type_is_equal_to_its_other_names(element: tw.DType) -> None:
    """As NumPy's are, and to nothing else: `x.dtype == np.float32` chooses a branch of a kernel."""
    numpy = element.numpy
    assert element == element.name and element == numpy and element == numpy.type and numpy == element
    assert not (element != numpy or element in ("float3", None, 32, object, "", np.complex64))
    others = [t for t in dtypes.ALL if t is not element]
    assert element not in [t.numpy for t in others] and element not in [str(t) for t in others]
    assert {element: 1}.get(element) == 1 and (np.zeros(2) == element).tolist() == [False, False]


@tw.kernel
def operators(out, a, b):
    i = tw.thread_idx.x
    x, y = a[i], b[i]
    out[0, i] = x + y
    out[1, i] = x - y
    out[2, i] = x * y
    out[3, i] = x // y
    out[4, i] = x % y
    out[5, i] = -x
    out[6, i] = abs(x)
    out[7, i] = min(x, y)
    out[8, i] = max(x, y)


def _truncated(a, b):
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _wrapped(value: int, t: tw.DType) -> int:
    value &= (1 << t.bits) - 1
    return value - (1 << t.bits) if t.kind == "int" and value >> (t.bits - 1) else value


@pytest.mark.parametrize("t", INTEGERS, ids=str)
def test_integers_wrap_and_divide_as_in_cpp(t):
    samples = [t.highest, t.highest - 1, t.lowest, t.lowest + 1, 0, 1, 7, 100]
    samples += [-7, -1] if t.kind == "int" else [9, 3]
    pairs = [(a, b) for a in samples for b in samples if b != 0 and not (a == t.lowest and b == -1)]
    a, b = (np.array(side, t.numpy) for side in zip(*pairs, strict=True))
    out = run(operators, np.zeros((9, len(pairs)), t.numpy), a, b, block=len(pairs))
    for n, (x, y) in enumerate(pairs):
        exact = [x + y, x - y, x * y, _truncated(x, y), x - _truncated(x, y) * y, -x, abs(x), min(x, y), max(x, y)]
        assert out[:, n].tolist() == [_wrapped(v, t) for v in exact], (x, y)


@pytest.mark.parametrize("t", FLOATS, ids=str)
def test_floats_round_after_each_operation(t):
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=64).astype(t.numpy) for _ in range(2))
    out = run(operators, np.zeros((9, 64), t.numpy), a, b, block=64)
    wide = np.float32 if t.bits == 16 else t.numpy
    x, y = a.astype(wide), b.astype(wide)
    expected = [x + y, x - y, x * y, np.floor((x / y).astype(t.numpy).astype(wide)), np.fmod(x, y), -x, abs(x),
                np.fmin(x, y), np.fmax(x, y)]  # fmt: skip
    for row, values in zip(out, expected, strict=True):
        assert np.array_equal(row, values.astype(t.numpy), equal_nan=True)


@pytest.mark.parametrize("t", [t for t in dtypes.ALL if t.name not in ("int8", "uint8", "int16", "uint16")], ids=str)
@pytest.mark.spread(3)
def test_every_type_compiles(t):
    if t is not tw.bool_:
        compiles(operators, *[tw.spec(t, rank) for rank in (2, 1, 1)], block=32)


@pytest.mark.parametrize("a", dtypes.ALL, ids=str)
@pytest.mark.parametrize("b", dtypes.ALL, ids=str)
def test_result_type_is_the_promoted_one(a, b):
    found = []

    @tw.kernel
    def types(x, y):
        found.append((x[0] * y[0]).dtype)

    types.lower(tw.spec(a, 1), tw.spec(b, 1))
    # bools are numbers in arithmetic
    expected = tw.promote(tw.promote(a, b), tw.int32) if a is b is tw.bool_ else tw.promote(a, b)
    assert found == [expected]


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [
        ("int32", 2, "int32"), ("int32", 2.0, "float32"), ("int32", True, "int32"), ("int8", 100, "int8"),
        ("int8", 1000, "int64"), ("uint32", -1, "int64"), ("uint32", 1, "uint32"), ("int32", 2**31, "int64"),
        ("float16", 2, "float16"), ("float16", 0.1, "float16"), ("float64", 1, "float64"), ("bool", 1, "int32"),
        ("bool", 1.0, "float32"), ("bfloat16", 3, "bfloat16"), ("int64", 0.5, "float32"),
        ("float32", np.float64(1), "float64"), ("int32", np.int64(1), "int64"), ("float16", np.float32(2), "float32"),
    ],
)  # fmt: skip
def test_numbers_take_the_type_of_the_other_side(dtype, number, expected):
    found = []

    @tw.kernel
    def types(x, number: tw.constexpr):
        found.extend([(x[0] + number).dtype, (number + x[0]).dtype])

    types.lower(tw.spec(dtype, 1), number)
    assert [str(t) for t in found] == [expected] * 2


def test_true_division_of_integers_is_float32():
    @tw.kernel
    def divide(out, a, b):
        out[0] = a / b
        out[1] = 1 / b
        out[2] = a / 4

    assert run(divide, zeros(3, np.float32), 7, 2).tolist() == [3.5, 0.5, 1.75]


def test_power():
    @tw.kernel
    def powers(out, x, n):
        out[0] = x**3
        out[1] = x**0
        out[2] = x**-1
        out[3] = 2.0**x
        out[4] = x**0.5
        out[5] = (n**5).to(tw.float32)

    expected = [27, 1, 1 / 3, 8, math.sqrt(3), 32]
    assert np.allclose(run(powers, zeros(6, np.float32), 3.0, 2), expected, rtol=1e-6)


@pytest.mark.parametrize("t", [tw.int32, tw.uint32, tw.int64, tw.uint64], ids=str)
def test_shifts_and_bits(t):
    @tw.kernel
    def bits(out, x, n):
        out[0] = x[0] << n
        out[1] = x[0] >> n
        out[2] = x[0] & x[1]
        out[3] = x[0] | x[1]
        out[4] = x[0] ^ x[1]
        out[5] = ~x[0]
        out[6] = 1 << n

    values = np.array([t.lowest + 12345, 999], t.numpy)
    a, b = values.tolist()
    for n in (0, 3, t.bits - 1, t.bits, t.bits + 1):
        out = run(bits, zeros(7, t.numpy), values, n)
        expected = [a << n, a >> n, a & b, a | b, a ^ b, ~a]
        assert out[:6].tolist() == [_wrapped(v, t) for v in expected]
    compiles(bits, tw.spec(t, 1), tw.spec(t, 1), 3)


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons(compare):
    @tw.kernel
    def compared(out, a, b, compare: tw.constexpr):
        i = tw.thread_idx.x
        out[i] = compare(a[i], b[i])

    a, b = np.array([1, 2, np.nan, -0.0], np.float32), np.array([2, 2, 1, 0.0], np.float32)
    assert run(compared, zeros(4, np.bool_), a, b, compare, block=4).tolist() == compare(a, b).tolist()


def test_comparison_of_signed_and_unsigned_is_exact():
    @tw.kernel
    def compared(out, a, b):
        out[0] = a[0] < b[0]

    assert run(compared, zeros(1, np.bool_), np.array([-1], np.int32), np.array([1], np.uint32)).tolist() == [True]


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
@pytest.mark.parametrize("target", dtypes.ALL, ids=str)
@pytest.mark.spread(6)
def test_conversions(source, target):
    @tw.kernel
    def converted(out, x, target: tw.constexpr):
        i = tw.thread_idx.x
        out[i] = target(x[i])
        assert x[i].to(target).dtype is target

    values = np.array([0, 1, 2, 3.75, 100, -1, -2.5, 70000], np.float64)
    if not source.is_float:
        values = np.clip(values, source.lowest, source.highest).astype(np.int64)
    with np.errstate(over="ignore"):
        x = values.astype(source.numpy)
    out = run(converted, zeros(8, target.numpy), x, target, block=8)
    if target.is_float or target is tw.bool_:
        with np.errstate(over="ignore"):
            expected = x.astype(np.float64).astype(target.numpy)
    elif source.is_float:  # truncates and saturates
        limits = target.lowest, target.highest
        exact = [
            limits[int(v > 0)] if math.isinf(v) else min(max(int(v), limits[0]), limits[1]) for v in x.astype(float)
        ]
        expected = np.array(exact, target.numpy)
    else:
        expected = x.astype(target.numpy)
    assert np.array_equal(out, expected)


def test_nan_converts_to_zero_and_bits_are_kept_by_bitcast():
    @tw.kernel
    def bits(out, x):
        i = tw.thread_idx.x
        out[0, i] = tw.int32(x[i])
        out[1, i] = x[i].bitcast(tw.int32)
        out[2, i] = x[i].bitcast("uint32").bitcast(tw.float32).to(tw.int32)

    x = np.array([np.nan, 1.5, -3e10], np.float32)
    out = run(bits, np.zeros((3, 3), np.int32), x, block=3)
    assert out[0].tolist() == [0, 1, -(2**31)]
    assert np.array_equal(out[1], x.view(np.int32))
    assert np.array_equal(out[2], out[0])


def test_bools():
    @tw.kernel
    def logic(out, x):
        i = tw.thread_idx.x
        p, q = x[i, 0], x[i, 1]
        out[0, i] = p & q
        out[1, i] = p | q
        out[2, i] = p ^ q
        out[3, i] = ~p
        out[4, i] = p + q == 2
        out[5, i] = p

    x = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.bool_)
    out = run(logic, np.zeros((6, 4), np.bool_), x, block=4)
    p, q = x.T
    assert np.array_equal(out, [p & q, p | q, p ^ q, ~p, p & q, p])
    compiles(logic, tw.spec("bool", 2), tw.spec("bool", 2), block=4)


def test_scalar_arguments_keep_their_types():
    found = []

    @tw.kernel
    def arguments(out, *, a, b, c, d, e):
        found.append([x.dtype for x in (a, b, c, d, e)])
        out[0] = a.to(tw.float64) + b.to(tw.float64) + c + d + e

    out = zeros(1, np.float64)
    arguments[1, 1](out, a=True, b=2, c=0.5, d=2**40, e=np.float16(0.25))
    assert out.tolist() == [3.5 + 2**40 + 0.25]
    assert [str(t) for t in found[-1]] == ["bool", "int32", "float32", "int64", "float16"]


def test_numpy_numbers_on_either_side():
    @tw.kernel
    def numpy(out, x):
        out[0] = np.float32(2) * x + np.int32(1)
        out[1] = np.float32(7) - x
        out[2] = tw.where(np.float32(1) < x, 1.0, 0.0)

    assert run(numpy, zeros(3, np.float32), 3.0).tolist() == [7, 4, 1]


def test_augmented_assignment():
    @tw.kernel
    def augmented(out, x):
        i = tw.thread_idx.x
        v = x[i]
        v += 5
        v *= 3
        v -= 1
        v //= 2
        v %= 7
        v <<= 3
        v >>= 1
        v |= 1
        v ^= 2
        v &= 13
        out[i] = v
        out[i] += v
        w = 1.0
        w /= 2
        w **= 2
        out[i] += int(w * 4)

    def python(v):
        v = ((v + 5) * 3 - 1) // 2 % 7 << 3 >> 1
        return (((v | 1) ^ 2) & 13) * 2 + 1

    x = np.arange(8, dtype=np.int32)
    assert run(augmented, zeros(8), x, block=8).tolist() == [python(v) for v in range(8)]


def test_divmod_round_and_annotations():
    @tw.kernel
    def various(out, x):
        quotient, remainder = divmod(x, 4)
        half: tw.float16 = 0.1
        count: tw.int64 = x
        plain: int = 3
        out[0] = quotient
        out[1] = remainder
        out[2] = round(x / 4)
        out[3] = half
        out[4] = count + plain
        out[5], out[6] = divmod(100, x)

    expected = [-1, -3, -2, float(np.float16(0.1)), -4, -14, 2]
    assert np.allclose(run(various, zeros(7, np.float32), -7), expected)


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**70, -(2**70), 10**400])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_comparison_with_numbers_that_no_type_holds(number, dtype):
    @tw.kernel
    def compared(out, x):
        v = x[0]
        for i, holds in enumerate((v < number, v <= number, v > number, number >= v, v == number, number != v)):
            out[i] = holds
        out[6] = v in (1, number)

    expected = [number > 0, number > 0, number < 0, number > 0, False, True, False]
    for x in (np.iinfo(dtype).min, np.iinfo(dtype).max):
        assert run(compared, zeros(7), np.array([x], dtype)).tolist() == expected


@pytest.mark.parametrize("number", [Fraction(3), Decimal(3), 3 + 0j], ids=repr)
def test_numbers_that_no_device_has_are_not_compared(number):
    """Python would take them for different from any device value."""

    @tw.kernel
    def compared(out, x):
        out[0] = x == number

    @tw.kernel
    def looked_for(out, x):
        out[0] = x in (2, number)

    for kernel in compared, looked_for:
        with pytest.raises(tw.LanguageError, match=f"a device value is compared with {type(number).__name__}"):
            run(kernel, zeros(1), 3)


def test_a_device_value_is_no_object_of_python():
    """`is` would be False of each; of what is known while tracing it is Python's."""

    @tw.kernel
    def asked(out, x):
        out[0] = 1 if (x < 3) is True else 0

    @tw.kernel
    def denied(out, x):
        out[0] = 1 if (x < 3) is not False else 0

    @tw.kernel
    def known(out, x, flag: tw.constexpr):
        out[0] = 1 if flag is True else 0

    for kernel in asked, denied:
        with pytest.raises(tw.LanguageError, match="`is` asks of a device value whether it is an object"):
            run(kernel, zeros(1), 2)
    assert [run(known, zeros(1), 2, flag)[0] for flag in (True, False, 1)] == [1, 0, 0]
