"""Scalar ops against a reference written in plain Python, number by number."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from tests.unit.backends.sim_kernels import Sketch, compute

from tilewright import dtypes
from tilewright.dtypes import DType, bfloat16, bool_, float16, float32, float64, int32, int64, uint32
from tilewright.ir.core import VectorType
from tilewright.ir.ops import Binary, Bitcast, Cast, Compare, Extract, Pack, Select, Unary

INTEGERS = [t for t in dtypes.ALL if t.is_integer]
FLOATS = [float16, bfloat16, float32, float64]


def interesting(dtype: DType) -> list[int]:
    found = {0, 1, 2, 3, 7, 31, 32, 33, 63, 64, 100, dtype.highest, dtype.highest - 1, dtype.lowest, dtype.lowest + 1}
    if dtype.kind == "int":
        found |= {-1, -2, -7, -33}
    return sorted(x for x in found if dtype.lowest <= x <= dtype.highest)


def wrap(x: int, dtype: DType) -> int:
    x %= 1 << dtype.bits
    return x - (1 << dtype.bits) if dtype.kind == "int" and x >> (dtype.bits - 1) else x


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else int(math.copysign(1, a) * math.copysign(1, b)) * (abs(a) // abs(b))


def shift(kind: str, a: int, b: int, dtype: DType) -> int:
    if not 0 <= b < dtype.bits:
        b = 200
    return a << b if kind == "shl" else a >> b


REFERENCE = {
    "add": lambda a, b, t: a + b,
    "sub": lambda a, b, t: a - b,
    "mul": lambda a, b, t: a * b,
    "div": lambda a, b, t: quotient(a, b),
    "rem": lambda a, b, t: a if b == 0 else a - b * quotient(a, b),
    "min": lambda a, b, t: min(a, b),
    "max": lambda a, b, t: max(a, b),
    "and": lambda a, b, t: a & b,
    "or": lambda a, b, t: a | b,
    "xor": lambda a, b, t: a ^ b,
    "shl": lambda a, b, t: shift("shl", a, b, t),
    "shr": lambda a, b, t: shift("shr", a, b, t),
}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("kind", REFERENCE)
def test_integer_binary(kind: str, dtype: DType) -> None:
    pairs = list(itertools.product(interesting(dtype), repeat=2))
    got = compute(lambda a, b: Binary(kind, a, b), dtype, dtype, *zip(*pairs, strict=True))
    assert got.tolist() == [wrap(REFERENCE[kind](a, b, dtype), dtype) for a, b in pairs]


@pytest.mark.parametrize("kind", REFERENCE)
@pytest.mark.spread(4)
def test_integer_binary_of_uniform_values_wraps_too(kind: str) -> None:
    for a, b in itertools.product(interesting(int32), repeat=2):
        sketch = Sketch()
        out = np.zeros(1, np.int32)
        target = sketch.array("out", out, int32)
        x, y = sketch.scalar("a", a, int32), sketch.scalar("b", b, int32)
        sketch.store(target, 0, sketch.binary(kind, x, y))
        sketch.run(1, 1, check=False)
        assert out[0] == wrap(REFERENCE[kind](a, b, int32), int32), (a, b)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_unary(dtype: DType) -> None:
    numbers = interesting(dtype)

    def run(kind: str) -> list[int]:
        return compute(lambda x: Unary(kind, x), dtype, dtype, numbers).tolist()

    bits = [x % (1 << dtype.bits) for x in numbers]
    assert run("neg") == [wrap(-x, dtype) for x in numbers]
    assert run("bit_not") == [wrap(~x, dtype) for x in numbers]
    assert run("abs") == [wrap(abs(x), dtype) for x in numbers]
    assert run("popcount") == [bin(b).count("1") for b in bits]
    assert run("clz") == [dtype.bits - b.bit_length() for b in bits]


@pytest.mark.parametrize("kind", ["and", "or", "xor"])
def test_bool_binary(kind: str) -> None:
    got = compute(lambda a, b: Binary(kind, a, b), bool_, bool_, [0, 0, 1, 1], [0, 1, 0, 1])
    assert got.tolist() == [bool(REFERENCE[kind](a, b, bool_)) for a in (0, 1) for b in (0, 1)]


def test_not() -> None:
    assert compute(lambda x: Unary("not", x), bool_, bool_, [False, True]).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [int32, uint32, *FLOATS], ids=str)
def test_compare_and_select(dtype: DType) -> None:
    numbers = [0, 1, 2, 100] + ([math.nan, -1.5] if dtype.is_float else [])
    pairs = list(itertools.product(numbers, repeat=2))
    operators = {
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "gt": lambda a, b: a > b,
        "ge": lambda a, b: a >= b,
    }
    for kind, reference in operators.items():
        got = compute(lambda a, b, kind=kind: Compare(kind, a, b), dtype, bool_, *zip(*pairs, strict=True))
        assert got.tolist() == [reference(a, b) for a, b in pairs], kind


def test_select() -> None:
    sketch = Sketch()
    out = np.zeros(8, np.int32)
    target, thread = sketch.array("out", out, int32), sketch.thread()
    chosen = sketch.emit(Select(sketch.compare("lt", thread, 3), sketch.value(7), thread), int32)
    always = sketch.emit(Select(sketch.value(True, bool_), chosen, thread), int32)
    sketch.store(target, thread, always)
    sketch.run(1, 8)
    assert out.tolist() == [7, 7, 7, 3, 4, 5, 6, 7]


SPECIAL_FLOATS = [0.0, -0.0, 1.0, -2.5, 3.0, 1e-3, 6e4, math.inf, -math.inf, math.nan, 2.0**-24, 1.0009765625]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", ["add", "sub", "mul", "div"])
def test_float_arithmetic_is_rounded_once(kind: str, dtype: DType) -> None:
    pairs = list(itertools.product(SPECIAL_FLOATS, repeat=2))
    got = compute(lambda a, b: Binary(kind, a, b), dtype, dtype, *zip(*pairs, strict=True))
    with np.errstate(all="ignore"):
        a, b = (np.array(x, dtype.numpy).astype(np.float64) for x in zip(*pairs, strict=True))
        exact = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[kind]
        # float64 keeps more than twice the digits of the narrow types, so rounding its result again is exact.
        wanted = exact.astype(np.float32).astype(dtype.numpy) if dtype is bfloat16 else exact.astype(dtype.numpy)
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_float_min_and_max_ignore_nan_and_order_zeros(dtype: DType) -> None:
    a = [1.0, math.nan, 2.0, math.nan, 0.0, -0.0, 0.0, -3.0]
    b = [2.0, 1.0, math.nan, math.nan, -0.0, 0.0, -3.0, 0.0]
    low = compute(lambda a, b: Binary("min", a, b), dtype, dtype, a, b).astype(np.float64)
    high = compute(lambda a, b: Binary("max", a, b), dtype, dtype, a, b).astype(np.float64)
    np.testing.assert_array_equal(low, [1, 1, 2, math.nan, 0, 0, -3, -3])
    np.testing.assert_array_equal(high, [2, 1, 2, math.nan, 0, 0, 0, 0])
    assert np.signbit(low[4:6]).all()
    assert not np.signbit(high[4:8]).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("kind", "function"),
    [
        ("sqrt", math.sqrt),
        ("rsqrt", lambda x: 1 / math.sqrt(x)),
        ("exp", math.exp),
        ("log", math.log),
        ("log1p", math.log1p),
        ("expm1", math.expm1),
        ("exp2", lambda x: 2.0**x),
        ("sin", math.sin),
        ("cos", math.cos),
        ("tanh", math.tanh),
        ("atan", math.atan),
        ("erf", math.erf),
        ("cbrt", lambda x: x ** (1 / 3)),
        ("abs", abs),
        ("neg", lambda x: -x),
    ],
)
def test_elementary_functions(kind: str, function: object, dtype: DType) -> None:
    x = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 3.25], dtype.numpy)
    got = compute(lambda v: Unary(kind, v), dtype, dtype, x.tolist()).astype(np.float64)
    epsilon = {float16: 2.0**-10, bfloat16: 2.0**-7, float32: 2.0**-23, float64: 2.0**-49}[dtype]
    np.testing.assert_allclose(got, [function(float(v)) for v in x], rtol=epsilon)  # type: ignore[operator]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rounding_functions_and_tests(dtype: DType) -> None:
    x = [0.5, 1.5, 2.5, -0.5, -1.25, 3.0]
    for kind, function in (("floor", math.floor), ("ceil", math.ceil), ("trunc", math.trunc), ("round", round)):
        assert compute(lambda v, kind=kind: Unary(kind, v), dtype, dtype, x).tolist() == [function(v) for v in x], kind
    x = [0.0, math.inf, -math.inf, math.nan, 5.0]
    for kind, function in (("isnan", math.isnan), ("isinf", math.isinf), ("isfinite", math.isfinite)):
        assert compute(lambda v, kind=kind: Unary(kind, v), dtype, bool_, x).tolist() == [function(v) for v in x], kind


def test_two_argument_functions() -> None:
    a, b = [5.5, -5.5, 2.0, 3.0], [2.0, 2.0, -3.0, -0.0]
    for kind, function in (
        ("fmod", math.fmod),
        ("rem", math.fmod),
        ("pow", lambda x, y: x**y),
        ("atan2", math.atan2),
        ("copysign", math.copysign),
    ):
        pairs = [(x, y) for x, y in zip(a, b, strict=True) if kind not in ("fmod", "rem") or y]
        got = compute(lambda a, b, kind=kind: Binary(kind, a, b), float32, float32, *zip(*pairs, strict=True))
        np.testing.assert_array_equal(got, np.array([function(x, y) for x, y in pairs], np.float32))


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", FLOATS, ids=str)
def test_float_to_integer_truncates_and_saturates(source: DType, target: DType) -> None:
    numbers = [0.0, 0.9, -0.9, 1.5, -1.5, 127.0, 128.0, -129.0, 300.0, 6e4, math.inf, -math.inf, math.nan]
    numbers += [] if source is float16 else [2.0**31, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e19]
    numbers = np.array(numbers, source.numpy).astype(np.float64).tolist()
    got = compute(Cast, source, target, numbers)

    def wanted(x: float) -> int:
        if math.isnan(x):
            return 0
        return target.highest if x > target.highest else target.lowest if x < target.lowest else math.trunc(x)

    assert got.tolist() == [wanted(x) for x in numbers]


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integer_to_integer_wraps(source: DType, target: DType) -> None:
    numbers = interesting(source)
    assert compute(Cast, source, target, numbers).tolist() == [wrap(x, target) for x in numbers]


def test_casts_to_bool_and_from_bool() -> None:
    assert compute(Cast, float32, bool_, [0.0, -0.0, 0.5, math.nan]).tolist() == [False, False, True, True]
    assert compute(Cast, int32, bool_, [0, -1, 256]).tolist() == [False, True, True]
    for dtype in (int32, float32, bfloat16, float16, int64):
        assert compute(Cast, bool_, dtype, [False, True]).tolist() == [0, 1]


def test_bfloat16_is_rounded_once_from_wide_types() -> None:
    # Just above half-way between 1 and the next bfloat16; float32 cannot tell it from half-way.
    above = 1 + 2.0**-8 + 2.0**-40
    assert compute(Cast, float64, bfloat16, [above, 1 + 2.0**-8, -above]).tolist() == [1.0078125, 1.0, -1.0078125]
    huge = 2**62 + 2**54 + 1
    assert compute(Cast, int64, bfloat16, [huge, 2**62 + 2**54, -huge]).tolist() == [
        2.0**62 * 1.0078125,
        2.0**62,
        -(2.0**62) * 1.0078125,
    ]


def test_bitcasts() -> None:
    assert compute(Bitcast, float32, uint32, [1.0, -0.0]).tolist() == [0x3F800000, 0x80000000]
    assert compute(Bitcast, uint32, float32, [0x40490FDB]).tolist() == [np.float32(math.pi)]
    sketch = Sketch()
    out = np.zeros(4, np.uint32)
    target, thread = sketch.array("out", out, uint32), sketch.thread()
    low = sketch.emit(Cast(thread), dtypes.uint16)
    pair = sketch.emit(Pack((low, sketch.value(7, dtypes.uint16))), VectorType(dtypes.uint16, 2))
    word = sketch.emit(Bitcast(pair), uint32)
    again = sketch.emit(Bitcast(word), VectorType(dtypes.uint16, 2))
    high = sketch.emit(Cast(sketch.emit(Extract(again, 1), dtypes.uint16)), uint32)
    sketch.store(target, thread, sketch.add(word, high))
    sketch.run(1, 4)
    assert out.tolist() == [7 * 65536 + n + 7 for n in range(4)]


def test_special_registers() -> None:
    grid, block = (3, 2, 2), (4, 3, 2)
    names = [f"{g}.{a}" for g in ("thread_idx", "block_idx", "block_dim", "grid_dim") for a in "xyz"]
    out = np.full((2, 2, 3, 2, 3, 4, 12), -1, np.int32)
    sketch = Sketch()
    target = sketch.array("out", out, int32)
    special = {n: sketch.special(n) for n in names}
    index = sketch.value(0)
    for group, extents in (("block_idx", grid), ("thread_idx", block)):
        for axis, extent in zip("zyx", extents[::-1], strict=True):
            index = sketch.add(sketch.mul(index, extent), special[f"{group}.{axis}"])
    for n, name in enumerate(names):
        sketch.store(target, sketch.add(sketch.mul(index, 12), n), special[name])
    sketch.run(grid, block)
    for bz, by, bx, tz, ty, tx in np.ndindex(out.shape[:-1]):
        assert out[bz, by, bx, tz, ty, tx].tolist() == [tx, ty, tz, bx, by, bz, 4, 3, 2, 3, 2, 2]
