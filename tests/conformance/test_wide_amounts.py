"""Amounts, counts, places and stages of 64 bits where the hardware takes 32: what does not fit does not wrap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.conformance.harness import Backend

import tilewright as tw
from tilewright.atoms import SM90_TMA_LOAD, SM90_TMA_STORE
from tilewright.errors import CheckError

FAR = 1 << 32


@tw.kernel
def shifted(out, number, amount, amount_of_byte):
    out[0], out[1], out[2] = number << amount, number >> amount, tw.uint32(5) << amount
    out[3], out[4] = tw.int8(number) << amount_of_byte, tw.int8(number) >> amount_of_byte


@pytest.mark.parametrize(
    ("amount", "of_byte", "expected"),
    [
        (FAR, 256, (0, -1, 0, 0, -1)),
        (FAR + 1, 257, (0, -1, 0, 0, -1)),
        (-FAR, -256, (0, -1, 0, 0, -1)),
        (-1, -1, (0, -1, 0, 0, -1)),
        (31, 7, (-(1 << 31), -1, 1 << 31, -128, -1)),
        (2, 2, (-20, -2, 20, -20, -2)),
        (0, 0, (-5, -5, 5, -5, -5)),
    ],
)
def test_shifts(backend: Backend, amount: int, of_byte: int, expected: tuple[int, ...]) -> None:
    """By the width or more, and by a negative amount, all bits leave: zeros come, or copies of the sign."""
    out = backend.put(np.full(5, 99, np.int64))
    shifted[1, 1](out, -5, np.int64(amount), of_byte)
    assert tuple(backend.get(out)) == expected


@tw.kernel
def counted(out, x, count):
    held = tw.registers(tw.float32, 8)
    tw.copy(tw.local_tile(x, 8, 0), held, count=count)
    for i in tw.static_range(8):
        out[i] = held[i]


@pytest.mark.parametrize("count", [FAR, FAR + 3, 3 - FAR, -(1 << 31), 3, 0, 8, -1])
def test_counts_of_copies(backend: Backend, count: int) -> None:
    x, out = backend.put(np.arange(1, 9, dtype=np.float32)), backend.put(np.full(8, 99, np.float32))
    counted[1, 1](out, x, np.int64(count))
    assert [int(number) for number in backend.get(out)] == [n + 1 if n < count else 0 for n in range(8)]


@tw.kernel
def moved(out, x, tile, atom: tw.constexpr):
    held, barrier = tw.shared(tw.float32, tw.row_major((4, 8))), tw.mbarrier(1)
    row, column = tw.thread_idx.x // 8, tw.thread_idx.x % 8
    held[row, column] = 9.0
    tw.fence_proxy_async()
    tw.sync_threads()
    if tw.thread_idx.x == 0:
        part = tw.local_tile(x, (4, 8), (tile, 0), guard=True)
        if atom is SM90_TMA_LOAD:
            barrier.arrive_expect_tx(4 * 4 * 8)
            tw.copy(atom, part, held, barrier=barrier)
        else:
            tw.copy(atom, held, part)
            tw.tma_store_commit()
            tw.tma_store_wait(read=False)
    if atom is SM90_TMA_LOAD:
        barrier.wait(0)
    out[row, column] = held[row, column]


def box(tile: Any, atom: Any) -> tuple[np.ndarray, np.ndarray]:
    x, out = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)
    moved[1, 32](out, x, tile, atom)
    return out, x


@pytest.mark.parametrize("tile", [1 << 30, FAR, 7])
def test_boxes_far_away(tile: int) -> None:
    """A box behind a tensor is zeros, and is not stored, however far away it is."""
    assert not box(np.int64(tile), SM90_TMA_LOAD)[0].any()
    assert (box(np.int64(tile), SM90_TMA_STORE)[1] == 1).all()


@pytest.mark.parametrize("atom", [SM90_TMA_LOAD, SM90_TMA_STORE], ids=str)
def test_places_of_boxes_that_overflow_are_found(atom: Any) -> None:
    with pytest.raises(CheckError, match="integer overflow: a value that does not fit into int32 is an index of x"):
        box(1 << 30, atom)


@tw.kernel
def staged(out, stage, parity):
    barriers = tw.mbarrier(1, stages=2)
    tw.sync_threads()
    barriers[stage].arrive()
    barriers[0].wait(parity)
    out[0] = 1


@pytest.mark.parametrize(("stage", "parity", "found"), [(FAR, 0, "use of the mbarrier barriers"), (0, FAR, "parity")])
def test_stages_and_parities(stage: int, parity: int, found: str) -> None:
    with pytest.raises(CheckError, match=found):
        staged[1, 1](np.zeros(1, np.int32), np.int64(stage), np.int64(parity))


@tw.kernel
def first_of(out, count, kind: tw.constexpr):
    held = tw.shared(tw.int32, (count,))
    out[tw.thread_idx.x] = held[0] if kind == "read" else tw.atomic_add(held, 0, 1)


@pytest.mark.parametrize("kind", ["read", "update"])
def test_shared_memory_of_no_elements(kind: str) -> None:
    with pytest.raises(CheckError, match="out of bounds: .* held.0., which has 0 elements"):
        first_of[1, 32](np.zeros(32, np.int32), 0, kind)
