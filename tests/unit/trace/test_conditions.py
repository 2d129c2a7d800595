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


@tw.kernel
def swizzled(out, x, stage):
    smem = tw.shared(tw.float32, tw.composition(tw.Swizzle(2, 0, 2), tw.Layout((4, 4, 4), (4, 1, 16))))
    tid = tw.thread_idx.x
    for s in range(4):
        smem[tid // 4, tid % 4, s] = x[s, tid]
    tw.sync_threads()
    for s in range(4):
        out[s, tid] = smem[tid // 4, tid % 4, s]
    out[4, tid] = smem[tid // 4, tid % 4, stage]


def test_what_steps_over_whole_blocks_is_not_swizzled() -> None:
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    out = np.zeros((5, 16), np.float32)
    swizzled[1, 16](out, x, 2)
    assert np.array_equal(out, np.vstack([x, x[2]]))
    text = swizzled[1, 16].source(out, x, 2)
    loop = text[text.rindex("for (") :]
    assert "^" not in loop, text
