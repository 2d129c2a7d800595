"""Views of arrays: what a launch reads of them, and whose stream it goes to."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.runtime.fake_arrays import CupyArray, DLPackArray, Tensor

import tilewright as tw
from tilewright.runtime.arrays import adapter_for, describe
from tilewright.runtime.plan import Signature
from tilewright.runtime.views import view


@tw.kernel
def copy_matrix(dst, src):
    m, n = tw.block_idx.x, tw.thread_idx.x
    if n < src.shape[1]:
        dst[m, n] = src[m, n]


@given(
    order=st.permutations([0, 1, 2]),
    steps=st.tuples(*[st.sampled_from([1, 2, -1, -3])] * 3),
    dtype=st.sampled_from([np.float32, np.int8, ml_dtypes.bfloat16]),
)
def test_view_reads_what_numpy_reads(order: list[int], steps: tuple[int, ...], dtype: type) -> None:
    memory = np.arange(6 * 7 * 8).astype(dtype).reshape(6, 7, 8)
    expected = memory[tuple(slice(None, None, s) for s in steps)].transpose(order)
    offset = (expected.__array_interface__["data"][0] - memory.ctypes.data) // memory.itemsize
    strides = tuple(s // memory.itemsize for s in expected.strides)
    info = describe(view(memory, expected.shape, strides, offset))
    assert info is not None
    assert np.array_equal(info.host(), expected)


def test_kernel_takes_views() -> None:
    x = np.arange(12, dtype=np.float32)
    out = np.zeros((4, 3), np.float32)
    # Every other element backwards as columns, and a transposed result.
    copy_matrix[3, 32](view(out, (3, 4), (1, 3)), view(x, (3, 4), (-1, 0), offset=5))
    assert np.array_equal(out, np.tile(x[5:2:-1], (4, 1)))


def test_view_keeps_what_the_array_promises() -> None:
    x = np.zeros(4, np.float32)
    x.setflags(write=False)
    found = view(x, (2, 2), (2, 1))
    assert not found.writable
    with pytest.raises(tw.ArgumentError, match="'dst' is written by the kernel, and the array is read-only"):
        copy_matrix[2, 32](found, np.zeros((2, 2), np.float32))


def test_views_of_one_layout_share_a_kernel() -> None:
    signature = Signature(["x"])
    keys = set()
    for n in range(3):
        _, (call, values, _) = signature.read((view(Tensor((8, 8), pointer=4096 * (n + 1)), (8, 8, 1), (1, 8, 0)),))
        assert (values, call.layouts) == ((4096 * (n + 1),), (((8, 8, 1), (1, 8, 0)),))
        keys.add(call.key)
    assert len(keys) == 1
    _, (other, _, _) = signature.read((view(Tensor((8, 8)), (8, 8, 1), (8, 1, 0)),))
    assert other.key not in keys


def test_stream_is_that_of_the_arrays_library() -> None:
    torch, cupy = Tensor((8, 8)), CupyArray((8, 8), (16, 2))
    for array in (torch, cupy):
        own, found = adapter_for(array), adapter_for(view(array, (64,), (1,)))
        assert own is not None and found is not None
        assert found.current_stream is own.current_stream and found.library == own.library
    assert type(view(torch, (64,), (1,))) is type(view(Tensor((4,)), (4,), (1,)))
    assert type(view(torch, (64,), (1,))) is not type(view(cupy, (64,), (1,)))


def test_view_of_what_only_speaks_dlpack() -> None:
    memory = np.arange(6, dtype=np.float32)
    found = view(DLPackArray(memory), (3,), (2,), offset=1)
    info = describe(found)
    assert info is not None
    assert info.host().tolist() == [1, 3, 5]


def test_refusals() -> None:
    with pytest.raises(tw.ArgumentError, match="a view is made of an array, got list"):
        view([1, 2], (2,), (1,))
    with pytest.raises(
        tw.ArgumentError, match=r"as many strides as extents, got the shape \(2,\) and the strides \(1, 1\)"
    ):
        view(np.zeros(2), (2,), (1, 1))
