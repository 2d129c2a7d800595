"""Wavefronts and sectors of single requests: cases worked out by hand, and the plain oracle on random ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.helpers.slow import examples
from tests.unit.profile import oracle

from tilewright.transactions import fewest_sectors, sectors, wavefronts


def shared(lanes: oracle.Lanes, width: int, kind: str = "load") -> tuple[int, int]:
    addresses = np.array([[0 if a is None else a for a in lanes]], np.int64)
    active = np.array([[a is not None for a in lanes]])
    took, least = wavefronts(addresses, active, width, kind)
    return int(took[0]), int(least[0])


def by_lane(place: Callable[[int], int]) -> oracle.Lanes:
    return [place(lane) for lane in range(32)]


HAND = {
    "neighbours, 4 bytes": (by_lane(lambda i: 4 * i), 4, (1, 1)),
    "broadcast": (by_lane(lambda i: 64), 4, (1, 1)),
    "stride 2": (by_lane(lambda i: 8 * i), 4, (2, 1)),
    "stride 3, odd": (by_lane(lambda i: 12 * i), 4, (1, 1)),
    "stride 16": (by_lane(lambda i: 64 * i), 4, (16, 1)),
    "a column of 32 x 32 floats": (by_lane(lambda i: 128 * i), 4, (32, 1)),
    "a column of 32 x 33 floats": (by_lane(lambda i: 132 * i), 4, (1, 1)),
    "two rows, in banks of their own": (by_lane(lambda i: 128 * (i // 16) + 4 * i), 4, (1, 1)),
    "halves of neighbours, 2 bytes": (by_lane(lambda i: 2 * i), 2, (1, 1)),
    "a column of 32 x 64 halves": (by_lane(lambda i: 128 * i), 2, (32, 1)),
    "neighbours, 8 bytes": (by_lane(lambda i: 8 * i), 8, (2, 2)),
    "stride 2 of 8 bytes": (by_lane(lambda i: 16 * i), 8, (4, 2)),
    "8 bytes, in the same place": (by_lane(lambda i: 0), 8, (1, 1)),
    "8 bytes, lanes i and i ^ 2 in one place": (by_lane(lambda i: 8 * (i % 2 + i // 4 * 2)), 8, (1, 1)),
    "8 bytes, lanes i and i ^ 4 in one place": (by_lane(lambda i: 8 * (i % 4 + i // 8 * 4)), 8, (2, 2)),
    "neighbours, 16 bytes": (by_lane(lambda i: 16 * i), 16, (4, 4)),
    "rows of 64 bytes, 16 bytes a lane": (by_lane(lambda i: 64 * i), 16, (16, 4)),
    "rows of 128 bytes, 16 bytes a lane": (by_lane(lambda i: 128 * i), 16, (32, 4)),
    "rows of 144 bytes, 16 bytes a lane": (by_lane(lambda i: 144 * i), 16, (4, 4)),
    "16 bytes, in the same place": (by_lane(lambda i: 0), 16, (2, 2)),
    "16 bytes of one half": ([16 * i if i < 16 else None for i in range(32)], 16, (2, 2)),
    "one lane": ([None] * 7 + [1024] + [None] * 24, 16, (1, 1)),
    "nobody": ([None] * 32, 8, (0, 0)),
}


@pytest.mark.parametrize("name", HAND)
def test_wavefronts_by_hand(name: str) -> None:
    lanes, width, expected = HAND[name]
    assert shared(lanes, width) == expected


def test_a_matrix_takes_a_phase_whatever_the_others_do() -> None:
    rows = by_lane(lambda i: 16 * (i % 8))  # four times the same matrix
    assert shared(rows, 16, "matrix") == (4, 4)
    assert shared(by_lane(lambda i: 64 * i), 16, "matrix") == (16, 4)  # rows of 32 halves, unswizzled
    eight = [128 * i if i < 8 else None for i in range(32)]
    assert shared(eight, 16, "matrix") == (8, 1)


def test_atomic_updates_of_one_word_wait_for_each_other() -> None:
    assert shared(by_lane(lambda i: 4 * i), 4, "atomic") == (1, 1)
    assert shared(by_lane(lambda i: 0), 4, "atomic") == (32, 32)
    assert shared(by_lane(lambda i: 128 * i), 4, "atomic") == (32, 1)


@st.composite
def requests(draw: st.DrawFn) -> tuple[oracle.Lanes, int]:
    """Lanes at random places, few or many, in lines or scattered."""
    width = draw(st.sampled_from([1, 2, 4, 8, 16]))
    unit = st.integers(0, draw(st.sampled_from([3, 40, 600])))
    if draw(st.booleans()):
        start, step = draw(unit), draw(st.integers(0, 70))
        units = [start + step * (i ^ draw(st.sampled_from([0, 1, 3]))) for i in range(32)]
    else:
        units = draw(st.lists(unit, min_size=32, max_size=32))
    idle = draw(st.sampled_from([0, 0, 1, 31, 0x55555555, 0xFFFF0000, draw(st.integers(0, 2**32 - 1))]))
    return [None if idle >> i & 1 else width * u for i, u in enumerate(units)], width


@examples(40, 250)
@given(requests(), st.sampled_from(["load", "store", "copy", "matrix", "atomic"]))
@example(([0, 8] * 16, 8), "load")
@example(([None] * 32, 16), "atomic")
def test_wavefronts_agree_with_the_oracle(request: tuple[oracle.Lanes, int], kind: str) -> None:
    lanes, width = request
    assert shared(lanes, width, kind) == oracle.wavefronts(lanes, width, kind)


@examples(20, 120)
@given(requests())
def test_sectors_agree_with_the_oracle(request: tuple[oracle.Lanes, int]) -> None:
    lanes, width = request
    addresses = np.array([[0 if a is None else a for a in lanes]], np.int64)
    count, requested = sectors(addresses, np.array([[a is not None for a in lanes]]), width)
    assert (int(count[0]), int(fewest_sectors(requested)[0])) == oracle.sectors(lanes, width)


@examples(10, 50)
@given(st.lists(requests(), min_size=2, max_size=6))
def test_requests_do_not_influence_each_other(many: list[tuple[oracle.Lanes, int]]) -> None:
    width = 16
    lanes = [[None if a is None else a // w * width for a in request] for request, w in many]
    addresses = np.array([[0 if a is None else a for a in row] for row in lanes], np.int64)
    active = np.array([[a is not None for a in row] for row in lanes])
    took, least = wavefronts(addresses, active, width)
    assert list(zip(took, least, strict=True)) == [oracle.wavefronts(row, width) for row in lanes]
