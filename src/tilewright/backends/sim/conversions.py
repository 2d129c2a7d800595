"""Conversions between element types: each value rounded once, to nearest even; integers saturate from floats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.backends.sim.values import Array, Lanes
from tilewright.dtypes import DType, bfloat16, float8_e4m3fn, float8_e5m2, float64


def convert(source: DType, target: DType) -> Callable[[Lanes], Lanes]:
    """Return the function that converts values of `source` to `target`."""
    if target.kind == "bool":
        return lambda x: np.not_equal(x, source.numpy.type(0))
    if target.bits == 8 and target.is_float:
        return lambda x: _to_float8(np.asarray(x), target)[()]
    if source.is_float and not target.is_float:
        return lambda x: _saturate(x, target)
    if target is bfloat16 and (source is float64 or (source.is_integer and source.bits > 16)):
        return lambda x: round_float64(_to_float64_odd(np.asarray(x)), bfloat16)[()]
    numpy_type = target.numpy
    return lambda x: x.astype(numpy_type)


def round_float64(x: Array, dtype: DType) -> Array:
    """Return float64 values rounded to a float type."""
    if dtype is not bfloat16:
        return x.astype(dtype.numpy)
    # ml_dtypes goes by way of float32; rounding to odd on the way makes the two roundings one.
    single = x.astype(np.float32)
    back = single.astype(np.float64)
    move = (back != x) & ((single.view(np.uint32) & 1) == 0) & np.isfinite(single) & ~np.isnan(x)
    towards = np.where(x > back, np.float32(np.inf), np.float32(-np.inf))
    return np.where(move, np.nextafter(single, towards), single).astype(dtype.numpy)


_LARGEST = {float8_e4m3fn: np.float32(448), float8_e5m2: np.float32(57344)}


def _to_float8(x: Array, target: DType) -> Array:
    """Return values rounded to float32 and then to an 8-bit float, the largest finite number where they are larger."""
    largest = _LARGEST[target]
    clipped: Array = np.clip(x.astype(np.float32), -largest, largest).astype(target.numpy)
    return clipped


def _to_float64_odd(x: Array) -> Array:
    """Return integers as float64; those beyond 53 bits rounded to odd in a place below any type's last bit."""
    if x.dtype.kind == "f" or x.itemsize < 8:
        return x.astype(np.float64)
    rest = x & x.dtype.type(0x7FF)
    odd = (x - rest) | np.where(rest != 0, x.dtype.type(0x800), x.dtype.type(0))
    large = (x >= 2**53) | (x <= -(2**53)) if x.dtype.kind == "i" else x >= 2**53
    return np.where(large, odd, x).astype(np.float64)


def _saturate(x: Lanes, target: DType) -> Lanes:
    """Return floats truncated to integers, the nearest integer where they do not fit, 0 for NaN."""
    value = np.trunc(np.asarray(x).astype(np.float64))
    above = value >= float(target.highest + 1)
    below = value < float(target.lowest)
    outside = above | below | np.isnan(value)
    if not outside.any():
        return value.astype(target.numpy)[()]
    inner = np.where(outside, 0.0, value).astype(target.numpy)
    kind = target.numpy.type
    return np.where(above, kind(target.highest), np.where(below, kind(target.lowest), inner))[()]


def bitcast(x: Lanes, target: DType, lanes: int) -> Lanes:
    """Return the bits of a scalar or vector read as `lanes` lanes of a type (1: as a scalar)."""
    array = np.asarray(x)
    if array.ndim < 3:
        array = (array.reshape(1, 1) if array.ndim == 0 and lanes > 1 else array)[..., None]
    viewed = np.ascontiguousarray(array).view(target.numpy)
    return viewed if lanes > 1 else viewed[..., 0][()]
