"""Loops over fragments that convert 8-bit floats: in pairs where neighbours are neighbours, and always the same values."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.ops import Cast, CastPair
from tilewright.layout import Layout

FLOAT8 = tw.float8_e4m3fn


@tw.kernel
def convert(y, x, source: tw.constexpr, target: tw.constexpr, rounds: tw.constexpr):
    wide, narrow = tw.registers(x.dtype, source), tw.registers(y.dtype, target)
    for i in tw.static_range(rounds):
        wide[i] = x[i]
    for i in range(rounds):
        narrow[i] = wide[i].to(y.dtype)
    for i in tw.static_range(rounds):
        y[i] = narrow[i]


CASES = {
    "plain": (Layout(8), Layout(8), 8, True),
    "an mma's accumulators": (Layout(((2, 2), 2)), Layout(((2, 2), 2)), 8, True),
    "pairs that lie apart": (Layout((2, 4), (1, 6)), Layout((2, 4), (1, 2)), 8, True),
    "an odd number": (Layout(8), Layout(8), 7, False),
    "no neighbours in the source": (Layout(8, 2), Layout(8), 8, False),
    "no neighbours in the target": (Layout(8), Layout((4, 2), (2, 1)), 8, False),
    "pairs at odd places": (Layout((2, 4), (1, 3)), Layout(8), 8, False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("wide", "narrow"), [(tw.float32, FLOAT8), (FLOAT8, tw.float16), (FLOAT8, tw.float32)])
@pytest.mark.spread(4)
def test_values_and_pairs(name: str, wide: tw.DType, narrow: tw.DType) -> None:
    source, target, rounds, in_pairs = CASES[name]
    x = np.linspace(-500, 300, rounds).astype(np.float32).clip(-448, 448).astype(wide.numpy)
    y = np.zeros(rounds, narrow.numpy)
    convert[1, 1](y, x, source, target, rounds)
    assert np.array_equal(y.astype(np.float32), x.astype(narrow.numpy).astype(np.float32))
    ops = list(convert.lower(y, x, source, target, rounds, block=1).kernel.body.walk())
    assert any(isinstance(op, CastPair) for op in ops) == in_pairs
    assert any(isinstance(op, Cast) and FLOAT8 in (op.x.dtype, op.result.dtype) for op in ops) != in_pairs


@tw.kernel
def keep(y, x, extra: tw.constexpr):
    wide, narrow = tw.registers(tw.float32, 8), tw.registers(FLOAT8, 8)
    other = tw.registers(FLOAT8, 8)
    tw.copy(x, wide)
    tw.clear(other)
    for i in range(8):
        value = wide[i].to(FLOAT8)
        narrow[i] = value
        if extra:
            other[i] = value
    for i in tw.static_range(8):
        y[i] = narrow[i].to(tw.float32) + other[i].to(tw.float32)


@pytest.mark.parametrize("extra", [False, True])
def test_a_loop_that_does_more_is_kept(extra: bool) -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    arguments: tuple[Any, ...] = (tw.static(y), tw.static(x), extra)
    keep[1, 1](*arguments)
    assert np.array_equal(y, x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * (1 + extra))
    pairs = [op for op in keep.lower(*arguments, block=1).kernel.body.walk() if isinstance(op, CastPair)]
    assert len(pairs) == (not extra)
