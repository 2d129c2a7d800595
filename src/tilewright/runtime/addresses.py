"""Whether arrays share memory, from pointers, shapes and strides: the memory itself is not looked at.

Ranges are asked first: they are cheap, and mostly apart. Within one range rows of two arrays may still alternate;
`share_memory` decides that exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tilewright.runtime.arrays import ArrayInfo

Range = tuple[int, int]  # the first address, and the one behind the last; two equal ones hold nothing

# How long NumPy may search for a common element before the arrays are taken to share one: milliseconds.
_MAX_WORK: Any = 100_000  # Any: the stubs of NumPy 2.4 know only its two special values


def address_range(shape: Sequence[int], strides: Sequence[int], size: int, pointer: int = 0) -> Range:
    """Return the addresses that an array of elements of `size` bytes reaches over; `strides` count elements.

    >>> address_range((4, 8), (8, 1), 4, pointer=256), address_range((3,), (-1,), 4, pointer=256)
    ((256, 384), (248, 260))
    >>> address_range((0, 8), (8, 1), 4, pointer=256)
    (256, 256)
    """
    if 0 in shape:
        return pointer, pointer
    reaches = [(extent - 1) * step for extent, step in zip(shape, strides, strict=True)]
    low, high = sum(r for r in reaches if r < 0), sum(r for r in reaches if r > 0)
    return pointer + low * size, pointer + (high + 1) * size


def range_of(info: ArrayInfo) -> Range:
    """Return the addresses that an array reaches over."""
    return address_range(info.shape, info.strides, info.dtype.bytes, info.pointer)


def ranges_meet(a: Range, b: Range) -> bool:
    """Say whether two ranges have an address in common; one that holds nothing meets none.

    >>> ranges_meet((0, 8), (4, 12)), ranges_meet((0, 8), (8, 12)), ranges_meet((0, 8), (4, 4))
    (True, False, False)
    """
    return max(a[0], b[0]) < min(a[1], b[1])


def meeting_distances(a: Range, b: Range) -> Range | None:
    """Return the bounds between which b's pointer - a's means that two arrays' ranges meet; None where none does.

    The ranges are those at pointer 0, so that calls with other pointers need only compare two numbers.

    >>> meeting_distances((0, 128), (0, 16))
    (-16, 128)
    """
    if a[0] == a[1] or b[0] == b[1]:
        return None
    return a[0] - b[1], a[1] - b[0]


class Overlap(NamedTuple):
    """An array read while the result is written: they meet if `low` < result's pointer - its own < `high`.

    `may_coincide`: it lies as the result does, so that at the same pointer each thread reads an element before it
    writes that element.
    """

    place: int
    low: int
    high: int
    may_coincide: bool


def overlap_of(place: int, info: ArrayInfo, strides: tuple[int, ...] | None, result: ArrayInfo) -> Overlap:
    """Return when an array meets the result; `strides` are those along the result's modes, None for a and b."""
    bounds = meeting_distances(
        address_range(info.shape, info.strides, info.dtype.bytes),
        address_range(result.shape, result.strides, result.dtype.bytes),
    )
    low, high = (0, 0) if bounds is None else bounds
    return Overlap(place, low, high, strides == result.strides and info.dtype.bytes == result.dtype.bytes)


def share_memory(a: ArrayInfo, a_pointer: int, b: ArrayInfo, b_pointer: int) -> bool:
    """Say whether two arrays have a byte in common.

    NumPy solves this exactly from addresses alone, which may be those of a GPU.
    """
    views = [np.asarray(_Addresses(replace(info, pointer=p))) for info, p in ((a, a_pointer), (b, b_pointer))]
    try:
        return bool(np.shares_memory(views[0], views[1], max_work=_MAX_WORK))
    except np.exceptions.TooHardError:
        return True


def may_overlap_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Say whether two elements may lie at one place: no mode's step is longer than all shorter modes reach.

    >>> may_overlap_itself((4, 8), (8, 1)), may_overlap_itself((4, 8), (7, 1)), may_overlap_itself((4, 8), (0, 1))
    (False, True, True)
    """
    if 0 in shape:
        return False
    reach = 0
    for step, extent in sorted((abs(s), e) for e, s in zip(shape, strides, strict=True) if e > 1):
        if step <= reach:
            return True
        reach += step * (extent - 1)
    return False


class _Addresses:
    """What `np.asarray` makes an array of addresses from, which nobody reads."""

    def __init__(self, info: ArrayInfo) -> None:
        size = info.dtype.bytes
        self.__array_interface__ = {
            "version": 3,
            "shape": info.shape,
            "typestr": f"|V{size}",
            "data": (info.pointer, True),
            "strides": tuple(stride * size for stride in info.strides),
        }
