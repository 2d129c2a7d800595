"""From arrays to matrices: every element of the arrangement's views is the one that NumPy's matmul uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.kernels.arrangement import (
    Arrangement,
    Placement,
    arrange,
    broadcast_shapes,
    broadcast_strides,
    extents_of,
)

Array = np.ndarray[Any, Any]
extent = st.integers(1, 5)


@st.composite
def broadcast_pair(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return batch modes that broadcast."""
    full = draw(st.lists(extent, max_size=3))
    sides = []
    for _ in range(2):
        keep = draw(st.integers(0, len(full)))
        sides.append(tuple(e if draw(st.booleans()) else 1 for e in full[len(full) - keep :]))
    return sides[0], sides[1]


@st.composite
def laid_out(draw: st.DrawFn, shape: tuple[int, ...]) -> Array:
    """Return an array of a shape whose modes lie in any order, padded, reversed, or broadcast; its values are places."""
    order = draw(st.permutations(range(len(shape))))
    pads = [draw(st.sampled_from([0, 0, 0, 1, 4])) for _ in shape]
    memory = np.arange(np.prod([shape[o] + p for o, p in zip(order, pads, strict=True)], dtype=int)).astype(np.int64)
    view = memory.reshape([shape[o] + p for o, p in zip(order, pads, strict=True)])
    view = view[tuple(slice(0, shape[o]) for o in order)].transpose(np.argsort(order))
    for mode in range(len(shape)):
        if draw(st.integers(0, 7)) == 0:
            view = np.flip(view, mode)
    return view


def strides_of(x: Array) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def seen(x: Array, placement: Placement, offset: int) -> Array:
    strides = [s * x.itemsize for s in placement.strides]
    start = np.lib.stride_tricks.as_strided(x, (1,), (x.itemsize,))
    interface = dict(start.__array_interface__)
    interface["data"] = (interface["data"][0] + offset * x.itemsize, False)
    holder = type("Holder", (), {"__array_interface__": interface, "owner": x})()
    return np.lib.stride_tricks.as_strided(np.asarray(holder), placement.shape, strides)


def compute(found: Arrangement, d: Array, a: Array, b: Array, operands: list[Array]) -> None:
    """Compute d from the views, as a kernel does."""
    first, second = (b, a) if found.is_swapped else (a, b)
    for offsets in found.offsets:
        A, B = seen(first, found.a, offsets[1]), seen(second, found.b, offsets[2])
        total = np.einsum("mkl,nkl->mnl", A, B)
        for operand, placement, offset in zip(operands, found.operands, offsets[3:], strict=True):
            total = total + seen(operand, placement, offset)
        seen(d, found.d, offsets[0])[...] = total


@given(data=st.data(), batch=broadcast_pair(), m=extent, n=extent, k=extent, rows=st.booleans(), columns=st.booleans())
def test_views_hold_the_product(
    data: st.DataObject, batch: tuple[Any, Any], m: int, n: int, k: int, rows: bool, columns: bool
) -> None:
    a = data.draw(laid_out((*batch[0], m, k) if rows else (k,)))
    b = data.draw(laid_out((*batch[1], k, n) if columns else (k,)))
    extents = extents_of(a.shape, b.shape)
    expected = np.matmul(a, b)
    assert extents.result == expected.shape
    shape = tuple(e if data.draw(st.booleans()) else 1 for e in expected.shape)[data.draw(st.integers(0, 1)) :]
    operand = data.draw(laid_out(shape)) if expected.ndim else np.full((), 3)
    d = np.zeros_like(data.draw(laid_out(expected.shape))) if expected.ndim else np.zeros((), np.int64)
    strides = broadcast_strides(operand.shape, strides_of(operand), extents.result)
    assert strides is not None
    found = arrange(extents, strides_of(d), (a.shape, strides_of(a)), (b.shape, strides_of(b)), [strides])
    compute(found, d, a, b, [operand])
    assert np.array_equal(d, expected + operand)
    check_majors(found)


def check_majors(found: Arrangement) -> None:
    for placement in (found.a, found.b):
        unit = {"K": 1, "MN": 0}.get(placement.major)
        assert placement.strides[unit] == 1 if unit is not None else 1 not in placement.strides[:2]
    assert (found.d.strides[1] == 1) == (found.d.major == "MN")
    # D is contiguous along N whenever it is contiguous at all.
    if found.d.major == "none":
        assert found.d.strides[0] != 1 or found.d.shape[0] == 1


def arranged(a: Array, b: Array, d: Array | None = None) -> Arrangement:
    extents = extents_of(a.shape, b.shape)
    result = np.empty(extents.result) if d is None else d
    return arrange(extents, strides_of(result), (a.shape, strides_of(a)), (b.shape, strides_of(b)), [])


def test_a_batch_times_one_matrix_is_one_product() -> None:
    found = arranged(np.zeros((4, 8, 128, 64)), np.zeros((64, 32)))
    assert found.d.shape == (4096, 32, 1) and found.a.strides == (64, 1, 0) and len(found.offsets) == 1


def test_one_matrix_times_a_batch_of_columns_is_one_product() -> None:
    b = np.zeros((64, 8, 32)).transpose(1, 0, 2)
    d = np.zeros((16, 8, 32)).transpose(1, 0, 2)
    assert arranged(np.zeros((16, 64)), b, d).d.shape == (16, 256, 1)


def test_batch_modes_become_one() -> None:
    found = arranged(np.zeros((4, 8, 16, 64)), np.zeros((4, 8, 64, 32)))
    assert found.d.shape == (16, 32, 32) and len(found.offsets) == 1


def test_batch_modes_that_stay_apart_are_looped_over() -> None:
    found = arranged(np.zeros((4, 1, 16, 64)), np.zeros((9, 64, 32)))
    # A is the same for all 9, B for all 4: the longer one is the kernel's.
    assert found.d.shape == (16, 32, 9) and len(found.offsets) == 4


def test_a_result_by_columns_is_computed_transposed() -> None:
    d = np.zeros((32, 16)).T
    found = arranged(np.zeros((16, 64)), np.zeros((64, 32)), d)
    assert found.is_swapped and found.d.shape == (32, 16, 1) and found.d.major == "MN"
    assert (found.a.major, found.b.major) == ("MN", "K")


def test_alignment() -> None:
    place = Placement((64, 64, 1), (72, 1, 0), "K", 1)
    assert [place.alignment(p, 2) for p in (0, 256, 8, 6)] == [16, 16, 8, 2]
    assert Placement((64, 64, 2), (64, 1, 36), "K", 1).alignment(0, 2) == 8
    assert Placement((64, 64, 1), (-66, 1, 0), "K", 1).alignment(0, 2) == 4
    assert Placement((64, 64, 2), (64, 1, 1), "K", 1).alignment(0, 2) == 2
    assert Placement((1, 64, 1), (0, 1, 0), "K", 1).alignment(32, 4) == 16
    assert Placement((64, 64, 1), (0, 1, 0), "K", 1).alignment(32, 4) == 8  # all rows are one
    assert Placement((64, 64, 2), (-64, 1, 64), "K", 1).alignment(32, 4) == 8
    assert Placement((64, 64, 2), (64, 1, -64), "K", 1).alignment(32, 4) == 8


@given(a=st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3), b=st.lists(st.sampled_from([0, 1, 2, 3]), max_size=3))
def test_broadcasting_is_numpys(a: list[int], b: list[int]) -> None:
    try:
        expected: tuple[int, ...] | None = np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        expected = None
    assert broadcast_shapes((tuple(a), tuple(b))) == expected


@given(data=st.data(), batch=broadcast_pair())
def test_extents_are_numpys(data: st.DataObject, batch: tuple[Any, Any]) -> None:
    zero = st.integers(0, 2)
    a = (*batch[0], data.draw(zero), data.draw(zero)) if data.draw(st.booleans()) else (data.draw(zero),)
    b = (*batch[1], data.draw(zero), data.draw(zero)) if data.draw(st.booleans()) else (data.draw(zero),)
    try:
        expected = np.matmul(np.zeros(a), np.zeros(b)).shape
    except ValueError:
        with pytest.raises(tw.ArgumentError):
            extents_of(a, b)
    else:
        assert extents_of(a, b).result == expected


def test_refusals() -> None:
    with pytest.raises(
        tw.ArgumentError, match="a has no modes, and matmul takes vectors, matrices and batches of them"
    ):
        extents_of((), (3,))
    with pytest.raises(tw.ArgumentError, match=r"a has 4 columns and b has 5 rows\n  help: b is transposed, it seems"):
        extents_of((3, 4), (5, 4))
    with pytest.raises(tw.ArgumentError, match="help: a is transposed, it seems"):
        extents_of((4, 3), (4, 5))
    with pytest.raises(tw.ArgumentError, match=r"the batch modes \(2,\) of a and \(3,\) of b do not broadcast"):
        extents_of((2, 4, 4), (3, 4, 4))
