"""Conditions that layout operations put on dynamic values, checked at the launch."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.layout import upcast


@tw.kernel
def rows_of_pairs(out, x):
    pairs = upcast(x.layout, 2)
    out[tw.thread_idx.x] = pairs.stride[0]


def test_upcast_of_dynamic_strides_is_checked():
    out = np.zeros(1, np.int32)
    rows_of_pairs[1, 1](out, np.zeros((4, 6), np.int16))
    assert out.tolist() == [3]
    out[:] = -1
    with pytest.raises(tw.ArgumentError, match="x_stride0, which is 7, as a multiple of 2"):
        rows_of_pairs[1, 1](out, np.zeros((4, 7), np.int16)[:, :6])
    assert out.tolist() == [-1]
