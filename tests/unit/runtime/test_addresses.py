"""Ranges of addresses and shared memory, against sets of the bytes that arrays hold."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from tilewright.dtypes import float16, float32, int8
from tilewright.runtime.addresses import (
    address_range,
    may_overlap_itself,
    meeting_distances,
    overlap_of,
    range_of,
    ranges_meet,
    share_memory,
)
from tilewright.runtime.arrays import ArrayInfo

MODES = st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 6)), max_size=3)


@st.composite
def arrays(draw: st.DrawFn) -> ArrayInfo:
    modes = draw(MODES)
    dtype = draw(st.sampled_from([int8, float16, float32]))
    shape, strides = tuple(e for e, _ in modes), tuple(s for _, s in modes)
    return ArrayInfo(1000 + draw(st.integers(-40, 40)), shape, strides, dtype, 0)


def places(info: ArrayInfo) -> list[int]:
    return [
        info.pointer + info.dtype.bytes * sum(c * s for c, s in zip(coordinate, info.strides, strict=True))
        for coordinate in itertools.product(*map(range, info.shape))
    ]


def held(info: ArrayInfo) -> set[int]:
    return {place + k for place in places(info) for k in range(info.dtype.bytes)}


EMPTY = ArrayInfo(1008, (0,), (1,), float32, 0)
AROUND = ArrayInfo(1000, (8,), (1,), float32, 0)


@given(arrays())
@example(EMPTY)
def test_a_range_ends_where_the_array_does(info: ArrayInfo) -> None:
    low, high = range_of(info)
    bytes = held(info)
    assert (low, high) == ((min(bytes), max(bytes) + 1) if bytes else (info.pointer, info.pointer))
    assert high - low == info.span * info.dtype.bytes


@given(arrays(), arrays())
@example(EMPTY, AROUND)
@example(AROUND, EMPTY)
def test_arrays_meet_in_their_ranges_and_share_what_both_hold(a: ArrayInfo, b: ArrayInfo) -> None:
    meets = ranges_meet(range_of(a), range_of(b))
    assert meets == bool(set(range(*range_of(a))) & set(range(*range_of(b)))) == ranges_meet(range_of(b), range_of(a))
    assert share_memory(a, a.pointer, b, b.pointer) == bool(held(a) & held(b))
    at_zero = [address_range(x.shape, x.strides, x.dtype.bytes) for x in (a, b)]
    bounds = meeting_distances(at_zero[0], at_zero[1])
    assert meets == (bounds is not None and bounds[0] < b.pointer - a.pointer < bounds[1])
    overlap = overlap_of(0, a, None, b)
    assert meets == (overlap.low < b.pointer - a.pointer < overlap.high)


@given(arrays())
def test_elements_at_one_place_are_always_found(info: ArrayInfo) -> None:
    found = places(info)
    if len(set(found)) < len(found):
        assert may_overlap_itself(info.shape, info.strides)
