"""Functions of numbers by name act on the elements of tensors: f(t)[c] == f(t[c]), or they are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.tensors.associative import BITWISE, NAMED

INTEGERS: dict[str, Any] = {
    "mul_hi": lambda x, y, n: tw.mul_hi(x, y),
    "dp4a": lambda x, y, n: tw.dp4a(x, y, n),
    "dp4a by name": lambda x, y, n: tw.dp4a(1234567, b=y, c=x),
    "dp4a one name": lambda x, y, n: tw.dp4a(7, 9, c=x),
    "dp2a": lambda x, y, n: tw.dp2a(x, y, n, high=True),
    "sad": lambda x, y, n: tw.sad(x, y, 5),
    "byte_permute": lambda x, y, n: tw.byte_permute(x, y, n, "f4e"),
    "byte_permute mode by name": lambda x, y, n: tw.byte_permute(x, 3, selector=n, mode="rc8"),
    "lop3": lambda x, y, n: tw.lop3(x, y, n, lambda a, b, c: (a & b) ^ c),
    "funnel_shift_left": lambda x, y, n: tw.funnel_shift_left(x, y, n, clamp=True),
    "funnel_shift_right": lambda x, y, n: tw.funnel_shift_right(x, high=y, amount=n),
    "ffs": lambda x, y, n: tw.ffs(x),
    "brev": lambda x, y, n: tw.brev(x),
    "bfe": lambda x, y, n: tw.bfe(x, n, 7),
    "bfi": lambda x, y, n: tw.bfi(x, y, 3, n),
    "popcount": lambda x, y, n: tw.popcount(x),
    "clz": lambda x, y, n: tw.clz(x),
    "randint": lambda x, y, n: tw.randint(x, y),
    "randint with bounds": lambda x, y, n: tw.randint(7, x, low=n, high=n + 100),
    "rand": lambda x, y, n: tw.rand(seed=3, offset=x),
    "randn": lambda x, y, n: tw.randn(x, 5),
    "inline_ptx": lambda x, y, n: tw.inline_ptx("xor.b32 %0, %1, %2;", (x, y), lambda a, b: a ^ b, tw.int32),
    "inline_ptx and a number": lambda x, y, n: tw.inline_ptx(
        "xor.b32 %0, %1, %2;", (x, tw.int32(9)), lambda a, b: a ^ b, tw.int32
    ),
}
FLOATS: dict[str, Any] = {
    name: (lambda x, y, n, name=name: getattr(tw, name)(x, ftz=True))
    for name in ("ex2_approx", "lg2_approx", "rcp_approx", "rsqrt_approx", "sqrt_approx", "sin_approx", "cos_approx")
}
FLOATS["tanh_approx"] = lambda x, y, n: tw.tanh_approx(x)
FLOATS["div_approx"] = lambda x, y, n: tw.div_approx(x, y, ftz=True)
FLOATS["div_approx by name"] = lambda x, y, n: tw.div_approx(1.0, b=y)


@tw.kernel
def apply(out, alone, x, y, n, function: tw.constexpr):
    r, s = +x, +y
    out[...] = function(r, s, n)
    for i in range(r.size):
        alone[i] = function(r[i], s[i], n)


def both(function: Any, dtype: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(1)
    if dtype is np.int32:
        x, y = (random.integers(-(2**31), 2**31 - 1, 8, dtype) for _ in range(2))
    else:
        x, y = (random.uniform(0.25, 2, 8).astype(dtype) for _ in range(2))
    out, alone = np.zeros(8, np.float64), np.ones(8, np.float64)
    apply[1, 1](tw.static(out), alone, tw.static(x), tw.static(y), 6, function)
    return out, alone


@pytest.mark.parametrize("name", INTEGERS)
def test_functions_of_integers_act_on_elements(name: str) -> None:
    out, alone = both(INTEGERS[name], np.int32)
    np.testing.assert_array_equal(out, alone)
    assert len(set(out)) > 1, out


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_functions_of_floats_act_on_elements(name: str, dtype: Any) -> None:
    out, alone = both(FLOATS[name], dtype)
    np.testing.assert_array_equal(out, alone)
    assert len(set(out)) > 1, out


def test_shapes_broadcast_and_tiles_of_memory_are_loaded() -> None:
    @tw.kernel
    def kernel(out, x, y):
        out[...] = tw.mul_hi(x, y)

    x, y = np.arange(1 << 28, (1 << 28) + 4, dtype=np.int32).reshape(4, 1), np.full((4, 3), 77, np.int32)
    out = np.zeros((4, 3), np.int32)
    kernel[1, 1](*map(tw.static, (out, x, y)))
    np.testing.assert_array_equal(out, (x.astype(np.int64) * y >> 32))


REFUSED: dict[str, tuple[Any, str]] = {
    "philox": (lambda r: tw.philox(r, 1)[0], r"tw\.philox gives several numbers, and takes no tensors"),
    "philox counter": (lambda r: tw.philox(1, (r, 2))[0], r"tw\.philox gives several numbers"),
    "rand4x": (lambda r: tw.rand4x(1, r)[0], r"tw\.rand4x gives several numbers"),
    "randn4x": (lambda r: tw.randn4x(r, 1)[0], r"tw\.randn4x gives several numbers"),
    "randint4x": (lambda r: tw.randint4x(1, r)[0], r"tw\.randint4x gives several numbers"),
    "several results": (
        lambda r: tw.inline_ptx("mov.b32 %0, %2;\nmov.b32 %1, %2;", r, lambda a: (a, a), (tw.int32, tw.int32))[0],
        "pure and has one result",
    ),
    "volatile": (
        lambda r: tw.inline_ptx("mov.b32 %0, %1;", r, lambda a: a, tw.int32, volatile=True),
        "pure and has one result",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_of_several_results_are_refused(name: str) -> None:
    function, message = REFUSED[name]

    @tw.kernel
    def kernel(y, x):
        r = +x
        y[0] = function(r)

    x = tw.static(tw.spec(tw.int32, (8,)))
    with pytest.raises(tw.LanguageError, match=message) as caught:
        kernel.source(x, x, block=1)
    assert "in kernel" in str(caught.value) and "loop over the elements" in str(caught.value)


# --- operations by name ------------------------------------------------------------------------------------


@tw.kernel
def by_name(out, x, op: tw.constexpr):
    r = +x
    out[0] = r.reduce(op)
    out[1] = tw.reduce(r, op)
    out[2] = tw.reduce(x, op, group="warp")


@pytest.mark.parametrize("op", NAMED)
@pytest.mark.parametrize("dtype", [tw.bool_, tw.int8, tw.uint32, tw.int64, tw.float16, tw.float32], ids=str)
@pytest.mark.spread(4)
def test_named_operations_are_the_same_in_tiles_collectives_and_on_the_host(op: str, dtype: tw.DType) -> None:
    if dtype.is_float and op in BITWISE:
        with pytest.raises(tw.LanguageError, match="is not defined on"):
            by_name.source(tw.spec(tw.float64, (3,)), tw.static(tw.spec(dtype, (8,))), op, block=32)
        return
    x = np.array([1, 1, 1, 0, 1, 1, 1, 1]).astype(dtype.numpy)
    if dtype is not tw.bool_:
        x = x + np.array([1, 0, 2, 1, 0, 1, 0, 0]).astype(dtype.numpy)
    out = np.full(3, -1, np.float64)
    by_name[1, 1](out, tw.static(x), op)
    expected = float(tw.tensor(x).reduce(op))
    assert out.tolist() == [expected] * 3


def test_names_that_there_are_not_are_refused_alike() -> None:
    for op in ("sum", ["add"], None):
        with pytest.raises(tw.TilewrightError, match="one of add, mul, min, max, and, or, xor|op is"):
            by_name.source(tw.spec(tw.float64, (3,)), tw.static(tw.spec(tw.float32, (8,))), str(op), block=32)
        with pytest.raises(tw.ArgumentError, match="op is"):
            tw.tensor(np.arange(4)).reduce(op)
