"""Conversions of fragments: shape and type of the result, and machine code that converts two values at a time."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.helpers.slow import covering

import tilewright as tw

MMA = tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN, (1, 1, 1), (16, 32, 16))


@tw.kernel
def whole(y, x):
    part = (tw.thread_idx.x,)
    fragment = tw.registers(x.dtype, (16,))
    tw.copy(tw.local_tile(x, (16,), part), fragment)
    tw.copy(fragment.to(y.dtype), tw.local_tile(y, (16,), part))


@tw.kernel
def in_a_loop(y, x):
    part = (tw.thread_idx.x,)
    fragment, converted = tw.registers(x.dtype, (16,)), tw.registers(y.dtype, (16,))
    tw.copy(tw.local_tile(x, (16,), part), fragment)
    for i in tw.range(16, unroll=True):
        converted[i] = fragment[i]
    tw.copy(converted, tw.local_tile(y, (16,), part))


def count(kernel: Any, source: tw.DType, target: tw.DType, pattern: str, arch: str) -> int:
    x, y = (tw.static(tw.spec(t, (1024,))) for t in (source, target))
    return len(re.findall(pattern, kernel.sass(y, x, block=64, arch=arch)))


@pytest.mark.parametrize(
    ("kernel", "target", "arch"), covering([whole, in_a_loop], [tw.bfloat16, tw.float16], ["sm_80", "sm_90a"])
)
@pytest.mark.spread(4)
def test_sixteen_bit_floats_are_packed(kernel: Any, target: tw.DType, arch: str) -> None:
    assert count(kernel, tw.float32, target, r"\bF2FP\S*PACK_AB", arch) == 8


@pytest.mark.parametrize(
    ("kernel", "target", "arch"),
    covering([whole, in_a_loop], [tw.float8_e4m3fn, tw.float8_e5m2], ["sm_89", "sm_90a"]),
)
@pytest.mark.spread(4)
def test_eight_bit_floats_are_packed(kernel: Any, target: tw.DType, arch: str) -> None:
    assert count(kernel, tw.float32, target, r"\bF2FP\.SATFINITE\S*PACK_AB", arch) == 8


@pytest.mark.parametrize("kernel", [whole, in_a_loop], ids=lambda k: k.__name__)
@pytest.mark.parametrize("wide", [tw.float16, tw.float32], ids=str)
@pytest.mark.spread(4)
def test_eight_bit_floats_are_unpacked(kernel: Any, wide: tw.DType) -> None:
    assert count(kernel, tw.float8_e4m3fn, wide, r"\bF2FP\.F16\.E4M3\.UNPACK_B", "sm_90a") == 8


def test_accumulators_keep_their_shape() -> None:
    @tw.kernel
    def store(c):
        thread = MMA.get_slice(tw.thread_idx.x)
        part = thread.partition_C(c)
        acc = thread.make_fragment_C(part)
        tw.fill(acc, 1.0 + 2.0**-12)
        result = acc.to(c.dtype)
        assert result.shape == acc.shape and result.dtype is c.dtype and result.space == "register"
        tw.copy(result, part)

    c = np.zeros((16, 32), np.float16)
    store[1, 32](tw.static(c))
    assert np.array_equal(c, np.ones_like(c))


def test_rounding_to_tensor_core_operands() -> None:
    @tw.kernel
    def rounded(x):
        fragment = tw.registers(tw.float32, (1,))
        fragment[0] = x[0]
        result = fragment.to(tw.tfloat32)
        assert result.dtype is tw.float32
        x[0] = result[0]

    x = np.array([1 + 2.0**-11 + 2.0**-20], np.float32)
    rounded[1, 1](x)
    assert x[0] == 1 + 2.0**-10


def test_host_tensors_convert_too() -> None:
    t = tw.tensor(np.arange(6, dtype=np.float32).reshape(2, 3)).to(tw.float16)
    assert t.dtype is tw.float16 and np.array_equal(t.to_numpy(), np.arange(6).reshape(2, 3))
