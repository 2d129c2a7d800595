"""Casts and bit casts between all pairs of element types, each against integer arithmetic done here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import (
    Array,
    Backend,
    assert_same_bits,
    bits_of,
    blocks,
    edge_values,
    rounded,
    wrapped,
)

import tilewright as tw

TYPES = (
    tw.bool_, tw.int8, tw.int16, tw.int32, tw.int64, tw.uint8, tw.uint16, tw.uint32, tw.uint64, tw.float16, tw.bfloat16,
    tw.float32, tw.float64,
)  # fmt: skip
WORDS = {8: tw.uint8, 16: tw.uint16, 32: tw.uint32, 64: tw.uint64}


@tw.kernel
def cast(out, x, types: tw.constexpr):
    """Convert each element to each type; row n of `out` holds the bits of the results of type n."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        for row, target in enumerate(types):
            value = x[i].to(target)
            word = value.to(tw.uint8) if target is tw.bool_ else value.bitcast(WORDS[target.bits])
            out[row, i] = word.to(tw.uint64)


def values_of(dtype: tw.DType) -> Array:
    """Return edge values of a type, and for wide types those at which other types saturate, wrap and round."""
    values = edge_values(dtype)
    if dtype.is_float:
        limits = [float(s * 2**n) for n in (7, 8, 15, 16, 31, 32, 63, 64) for s in (1, -1)]
        fractions = [0.49, 0.5, 0.99, 2.5, -0.5, -0.99, 127.5, 255.5, -128.5, 65504.0, 65519.0, 65520.0, 3.39e38]
        with np.errstate(over="ignore"):
            around = np.array([*limits, *fractions]).astype(dtype.numpy)
        if dtype in (tw.float32, tw.float64):
            around = np.concatenate(
                [around, np.nextafter(around, 0), np.nextafter(around, np.array(np.inf, around.dtype))]
            )
        ties = []
        if dtype is tw.float64:  # ties of the narrower types, and their neighbours
            for bits in (8, 11, 24):
                for step in (0.5, 1.5):
                    tie = 1 + step * 2.0 ** (1 - bits)
                    ties += [tie, np.nextafter(tie, 0), np.nextafter(tie, 2), tie * 2.0**-14, tie * 2.0**-24]
        return np.concatenate([values, around, np.array(ties, dtype.numpy)]).astype(dtype.numpy)
    if dtype is tw.bool_ or dtype.bits < 32:
        return values
    # Integers beyond a significand, at ties and next to them.
    found = []
    for bits in (8, 11, 24, 53):
        for scale in (0, 1, 9):
            tie = ((1 << bits) + 1) << scale
            found += [tie, tie + (1 << scale), tie - 1, tie + 1, (tie << 3) + 1]
    kept = [v * s for v in found for s in (1, -1) if dtype.lowest <= v * s <= dtype.highest]
    return np.concatenate([values, np.array(kept, dtype.numpy)])


def converted(value: Any, source: tw.DType, target: tw.DType) -> Any:
    """Convert one value: exactly, by Python's integers and fractions."""
    kind = target.numpy.type
    number: Any = float(value) if source.is_float else int(value)
    if target is tw.bool_:
        return kind(number != 0)
    if target.is_float:
        return rounded(number, target)
    if not source.is_float:
        return kind(wrapped(number, target))
    if math.isnan(number):
        return kind(0)
    if math.isinf(number):
        return kind(target.highest if number > 0 else target.lowest)
    return kind(min(max(math.trunc(number), target.lowest), target.highest))


@pytest.mark.parametrize("source", TYPES, ids=str)
@pytest.mark.spread(4)
def test_casts_to_every_type(backend: Backend, source: tw.DType) -> None:
    x = values_of(source)
    out = backend.zeros((len(TYPES), x.size), tw.uint64)
    cast[blocks(x.size), 128](out, backend.put(x), TYPES)
    for row, target in zip(backend.get(out), TYPES, strict=True):
        expected = np.array([converted(v, source, target) for v in x], target.numpy)
        found = row.astype(f"u{target.bytes}").view(target.numpy)
        assert_same_bits(found, expected, f"{source} to {target}", (x,))


@pytest.mark.parametrize("source", TYPES[1:], ids=str)
def test_bit_casts_keep_bits(backend: Backend, source: tw.DType) -> None:
    """There and back again through every type of the same size."""
    x = edge_values(source) if source.bits >= 16 else np.arange(-5, 5).astype(source.numpy)
    partners = tuple(t for t in TYPES if t.bits == source.bits and t is not tw.bool_)
    outs = [backend.zeros(x.size, t) for t in partners]
    for out, partner in zip(outs, partners, strict=True):
        read_as[blocks(x.size), 128](out, backend.put(x), partner)
        assert np.array_equal(bits_of(backend.get(out)), bits_of(x)), (source, partner)


@tw.kernel
def read_as(out, x, partner: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        out[i] = x[i].bitcast(partner)


@tw.kernel
def store_each(f16, bf16, f32, f64, i64, x):
    i = tw.thread_idx.x
    f16[i] = x[i]
    bf16[i] = x[i]
    f32[i] = x[i]
    f64[i] = x[i]
    i64[i] = x[i]


def test_stores_convert(backend: Backend) -> None:
    """A store converts an integer to the element type of the tensor."""
    x = np.array([0, 1, -1, 3, 2049, 65519, 2**24 + 1, -(2**31)], np.int32)
    types = (tw.float16, tw.bfloat16, tw.float32, tw.float64, tw.int64)
    outs = [backend.zeros(x.size, t) for t in types]
    store_each[1, x.size](*outs, backend.put(x))
    for out, target in zip(outs, types, strict=True):
        expected = np.array([converted(v, tw.int32, target) for v in x], target.numpy)
        assert_same_bits(backend.get(out), expected, target, (x,))


@tw.kernel
def constants(out, types: tw.constexpr, values: tw.constexpr):
    """Casts of numbers known while tracing: what the folding of constants computes."""
    for row, target in enumerate(types):
        for column, value in enumerate(values):
            zero = (tw.thread_idx.x & 0).to(tw.float64)  # a device value, and known to be 0
            folded = (zero + value).to(target)
            bits = folded.to(tw.uint8) if target is tw.bool_ else folded.bitcast(WORDS[target.bits])
            out[tw.thread_idx.x, row, column] = bits.to(tw.uint64)


def test_casts_of_constants(backend: Backend) -> None:
    values = (0.0, 1.0, -1.0, 2.5, -2.5, 300.7, -300.7, 1e10, -1e10, 1e20, 1e39, 65520.0, 1e-8)
    out = backend.zeros((2, len(TYPES), len(values)), tw.uint64)
    constants[1, 2](out, TYPES, values)
    for row, target in zip(backend.get(out)[1], TYPES, strict=True):
        expected = np.array([converted(np.float64(v), tw.float64, target) for v in values], target.numpy)
        assert_same_bits(row.astype(f"u{target.bytes}").view(target.numpy), expected, target)
