"""The types of tensor cores' operands: 8-bit floats and tfloat32, converted and stored."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance.harness import Array, Backend, assert_same_bits, blocks
from tests.conformance.test_mma_atoms import skip_without

import tilewright as tw
from tilewright.dtypes import FLOAT8_AMD, LARGEST_FLOAT8

FLOAT8 = (tw.float8_e4m3fn, tw.float8_e5m2)


@tw.kernel
def convert_all(out, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.shape[0]:
        out[i] = x[i].to(out.dtype)


@tw.kernel
def round_all(out, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.shape[0]:
        out[i] = x[i].to(tw.tfloat32)


def converted(backend: Backend, x: Array, dtype: tw.DType) -> Array:
    out = backend.zeros(x.size, dtype)
    convert_all[blocks(x.size), 128](out, backend.put(x))
    return backend.get(out)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_from_float8_is_exact(backend: Backend, dtype: tw.DType) -> None:
    skip_without(backend, "sm_89")
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy)
    assert_same_bits(converted(backend, codes, tw.float32), codes.astype(np.float32))
    assert_same_bits(converted(backend, codes, tw.float16), codes.astype(np.float32).astype(np.float16))


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("source", [tw.float32, tw.float16, tw.bfloat16, tw.int32, tw.float64], ids=str)
def test_to_float8_rounds_and_saturates(backend: Backend, dtype: tw.DType, source: tw.DType) -> None:
    skip_without(backend, "sm_89")
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float64)
    finite = np.unique(codes[np.isfinite(codes)])
    between = (finite[1:] + finite[:-1]) / 2  # ties
    near = [np.nextafter(between, side, dtype=np.float64) for side in (-np.inf, np.inf)]
    values = np.concatenate([finite, between, *near, finite * 1.03, [1e5, -1e30, 1e-9]])
    if source is tw.int32:
        values = np.concatenate([np.arange(-600, 600), [2**31 - 1, -(2**31)]])
    with np.errstate(over="ignore"):
        x = values.astype(source.numpy)
    largest = finite[-1]
    single = x.astype(np.float32)
    assert_same_bits(
        converted(backend, x, dtype), np.clip(single, -largest, largest).astype(np.float32).astype(dtype.numpy)
    )


def test_nan_stays_nan(backend: Backend) -> None:
    skip_without(backend, "sm_89")
    x = np.array([np.nan, np.inf, -np.inf], np.float32)
    for dtype in FLOAT8:
        found = converted(backend, x, dtype).astype(np.float32)
        assert np.isnan(found[0]) and found[1] == -found[2] == float(np.max(finite_values(dtype)))


@tw.kernel
def literals(out, x):
    out[0, 0] = 1000.0
    out[0, 1] = -70000
    out[0, 2] = out.dtype(1e9)
    out[0, 3] = float("inf")
    out[0, 4] = np.float64(-1e300)
    out[0, 5] = tw.where(x[0] > 0, x[0].to(out.dtype), 1e6)
    tw.fill(tw.local_tile(out, (1, 8), (1, 0)), 1e5)
    for i in tw.static_range(8):
        out[2, i] = x[i].to(out.dtype)


@pytest.mark.parametrize(("dtype", "arch"), [*((d, "sm_90a") for d in FLOAT8), *((d, "gfx942") for d in FLOAT8_AMD)])
def test_numbers_of_python_saturate_as_values_do(dtype: tw.DType, arch: str) -> None:
    x = np.array([-1, 1000, -70000, 1e9, np.inf, -1e30, 1e6, 1e5], np.float32)
    out = np.zeros((3, 8), dtype.numpy)
    literals.configure(arch=arch)[1, 1](out, x)
    literal, filled, converted = out.astype(np.float32)
    assert literal[:6].tolist() == converted[1:7].tolist() and np.isfinite(literal).all()
    assert set(filled) == {float(LARGEST_FLOAT8[dtype])} == {float(finite_values(dtype).max())}


def finite_values(dtype: tw.DType) -> Array:
    codes = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
    return codes[np.isfinite(codes)]


def test_tfloat32_is_rounded_to_nearest_ties_away(backend: Backend) -> None:
    skip_without(backend, "sm_80")
    rng = np.random.default_rng(0)
    ties = np.float32(1) + np.arange(8, dtype=np.float32) * np.float32(2.0**-11)
    x = np.concatenate([rng.standard_normal(500).astype(np.float32), ties, -ties, [0, -0.0, np.inf, 2.0**-140, 3.4e38]])
    x = x.astype(np.float32)
    out = backend.zeros(x.size, tw.float32)
    round_all[blocks(x.size), 128](out, backend.put(x))
    wide = x.astype(np.float64)
    exponent = np.maximum(np.frexp(wide)[1] - 1, -126)
    unit = np.ldexp(1.0, np.where(np.isfinite(wide), exponent, 0) - 10)
    with np.errstate(all="ignore"):
        steps = np.copysign(np.floor(np.abs(wide) / unit + 0.5), wide)
        expected = np.where(np.isfinite(wide), steps * unit, wide).astype(np.float32)
    assert_same_bits(backend.get(out), expected)
