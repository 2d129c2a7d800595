"""Asynchronous copies: they land at the wait, for each thread's own groups, and not before."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.backends.sim_kernels import Sketch

from tilewright.dtypes import bool_, float32, int32
from tilewright.instructions.cp_async import AsyncCommit, AsyncCopy, AsyncWait
from tilewright.ir.core import Buffer, Value
from tilewright.profile import simulate


class Copies:
    """A kernel that copies elements of `src` (1, 2, 3, ...) to a shared tile first filled with -1."""

    def __init__(self, threads: int = 8, elements: int = 1, count: int = 64) -> None:
        self.threads, self.elements = threads, elements
        self.out = np.zeros((2, count), np.int32)
        self.sketch = Sketch()
        self.src = self.sketch.array("src", np.arange(1, count + 1, dtype=np.int32), int32)
        self.dst = self.sketch.array("dst", self.out, int32)
        self.tile = self.sketch.shared("tile", int32, count)
        self.count = count
        for n in range(count // threads):
            self.sketch.store(self.tile, self.at(n), -1)

    def at(self, n: int) -> Value:
        return self.sketch.add(self.sketch.thread(), n * self.threads)

    def copy(self, n: int, valid: Value | None = None) -> None:
        """Let each thread start the copy of its n-th piece."""
        sketch = self.sketch
        index = sketch.mul(self.at(n), self.elements)
        valid = sketch.value(True, bool_) if valid is None else valid
        sketch.do(AsyncCopy(self.tile, self.src, self.elements, "ca", index, index, valid))

    def commit(self) -> None:
        self.sketch.do(AsyncCommit())

    def wait(self, pending: int | None) -> None:
        self.sketch.do(AsyncWait(pending))

    def result(self, check: bool = True) -> list[int]:
        block = self.sketch.special("block_idx.x")
        for n in range(self.count // self.threads):
            value = self.sketch.load(self.tile, self.at(n))
            self.sketch.store(self.dst, self.sketch.add(self.at(n), self.sketch.mul(block, self.count)), value)
        with simulate(check=check, raise_errors=False):
            self.sketch.run_inside(2, self.threads)
        assert self.out[0].tolist() == self.out[1].tolist()
        return self.out[0].tolist()


def landed(*pieces: int, count: int = 64, size: int = 8) -> list[int]:
    return [n + 1 if n // size in pieces else -1 for n in range(count)]


def test_without_a_wait_nothing_lands() -> None:
    copies = Copies()
    copies.copy(0)
    copies.commit()
    assert copies.result() == landed()


@pytest.mark.parametrize("pending", [0, 1, 2, 3])
def test_a_wait_leaves_the_newest_groups_under_way(pending: int) -> None:
    copies = Copies()
    for n in range(3):
        copies.copy(n)
        copies.commit()
    copies.wait(pending)
    assert copies.result() == landed(*range(3 - pending))


def test_what_is_not_committed_waits_for_wait_all_only() -> None:
    copies = Copies()
    copies.copy(0)
    copies.commit()
    copies.copy(1)
    copies.wait(0)
    assert copies.result() == landed(0)
    copies = Copies()
    copies.copy(0)
    copies.commit()
    copies.copy(1)
    copies.wait(None)
    assert copies.result() == landed(0, 1)


def test_empty_groups_count() -> None:
    copies = Copies()
    copies.copy(0)
    copies.commit()
    copies.commit()
    copies.wait(1)
    assert copies.result() == landed(0)


@pytest.mark.parametrize("elements", [2, 4])
@pytest.mark.parametrize("check", [False, True])
def test_wide_copies(elements: int, check: bool) -> None:
    copies = Copies(elements=elements)
    copies.copy(0)
    copies.copy(1)
    copies.commit()
    copies.wait(0)
    assert copies.result(check) == [n + 1 if n < 16 * elements else -1 for n in range(64)]


def test_where_it_is_not_valid_zeros_land_and_the_source_is_not_read() -> None:
    copies = Copies(threads=16, count=64)
    thread = copies.sketch.thread()
    # Piece 3 of thread t reads beyond the source for t = 15 only if shifted: shift the source by moving its buffer.
    short = copies.sketch.array("short", np.arange(100, 110, dtype=np.int32), int32)
    index = copies.at(0)
    valid = copies.sketch.compare("lt", thread, 10)
    copies.sketch.do(AsyncCopy(copies.tile, short, 1, "ca", index, index, valid))
    never = copies.sketch.value(False, bool_)
    copies.sketch.do(AsyncCopy(copies.tile, short, 1, "ca", copies.at(1), copies.at(7), never))
    copies.commit()
    copies.wait(0)
    assert copies.result() == [*range(100, 110), *[0] * 6, *[0] * 16, *[-1] * 32]


def test_threads_have_their_own_groups() -> None:
    copies = Copies(threads=8, count=64)
    sketch, thread = copies.sketch, copies.sketch.thread()
    copies.copy(0)
    with sketch.when(sketch.compare("lt", thread, 4)):
        copies.commit()  # threads 0..3: piece 0 is a group of its own
    copies.copy(1)
    copies.commit()
    copies.wait(1)  # threads 0..3: piece 0 lands; the others have one group, which stays under way
    assert copies.result() == [n + 1 if n < 4 else -1 for n in range(64)]


def test_waiting_under_a_mask_lands_the_copies_of_those_threads() -> None:
    copies = Copies()
    sketch, thread = copies.sketch, copies.sketch.thread()
    with sketch.when(sketch.compare("ne", thread, 0)):
        copies.copy(0)
        copies.copy(1)
    copies.commit()
    with sketch.when(sketch.compare("lt", thread, 3)):
        copies.wait(0)
    early = [sketch.load(copies.tile, thread)]
    out = np.zeros(8, np.int32)
    sketch.store(sketch.array("early", out, int32), thread, early[0])
    copies.wait(0)
    assert copies.result() == [-1 if n % 8 == 0 or n >= 16 else n + 1 for n in range(64)]
    assert out.tolist() == [-1, 2, 3, -1, -1, -1, -1, -1]


def test_copies_do_not_outlive_their_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.backends.sim.machine.CHUNK_THREADS", 8)
    sketch = Sketch()
    out = np.zeros((4, 8), np.float32)
    src = sketch.array("src", np.arange(1, 9, dtype=np.float32), float32)
    dst: Buffer = sketch.array("dst", out, float32)
    tile = sketch.shared("tile", float32, 8)
    thread = sketch.thread()
    sketch.store(tile, thread, 0.5)
    sketch.do(AsyncWait(None))
    sketch.store(dst, sketch.global_thread(), sketch.load(tile, thread))
    sketch.do(AsyncCopy(tile, src, 1, "ca", thread, thread, sketch.value(True, bool_)))
    sketch.run(4, 8)
    assert (out == 0.5).all()
