"""TiledCopy: every element exactly once, in the order that the layouts say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.layout.symbols import Symbol, value_of
from tests.unit.test_tensors import Recorder

import tilewright as tw
from tilewright.atoms import CopyAtom, CpAsync, UniversalCopy, UniversalFMA
from tilewright.errors import LayoutError
from tilewright.layout import Layout
from tilewright.tiled import TiledCopy, make_tiled_copy, make_tiled_copy_A, make_tiled_copy_B, make_tiled_copy_C

# A two-thread instruction whose threads swap halves: source and destination differ.
SWAP = CopyAtom("swap", "", 64, Layout(2), Layout((2, 64), (64, 1)), Layout((2, 64), (64, 1)))
CROSS = CopyAtom("cross", "", 64, Layout(2), Layout((2, 64), (64, 1)), Layout((2, (32, 2)), (32, (1, 64))))

COPIES: dict[str, tuple[TiledCopy, tuple[int, ...]]] = {
    "one element": (make_tiled_copy(UniversalCopy(), (8, 4)), (16, 8)),
    "cp.async of 8 bytes": (make_tiled_copy(CpAsync(64), Layout((32, 8)), Layout((2, 1))), (128, 8)),
    "row-major threads, vectors along rows": (
        make_tiled_copy(UniversalCopy(128), Layout((16, 8), (8, 1)), Layout((1, 4))),
        (32, 64),
    ),
    "one mode": (make_tiled_copy(UniversalCopy(64), 32, 4), (256,)),
    "values in both modes": (make_tiled_copy(UniversalCopy(32), Layout((4, 8)), Layout((2, 2), (2, 1))), (16, 32)),
    "more modes in the tensor": (make_tiled_copy(UniversalCopy(32), Layout((4, 8))), (8, 8, 3)),
    "two threads an atom": (make_tiled_copy(SWAP, Layout((8, 4)), Layout((2, 1))), (16, 8)),
    "source and destination differ": (make_tiled_copy(CROSS, Layout((8, 4)), Layout((2, 1))), (32, 8)),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("side", ["partition_S", "partition_D"])
def test_every_element_once(name: str, side: str) -> None:
    copy, shape = COPIES[name]
    t = tw.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
    parts = [getattr(copy.get_slice(thread), side)(t).to_numpy().ravel() for thread in range(copy.size)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(t.size))
    assert len({p.size for p in parts}) == 1
    assert getattr(copy.slice(0), side)(t).rank == 1 + len(shape)


@pytest.mark.parametrize("name", COPIES)
def test_thread_value_layouts_agree_with_partitions(name: str) -> None:
    copy, shape = COPIES[name]
    tile = tuple(copy.tile_shape) + shape[len(copy.tile_shape) :]
    numbers = tw.tensor(np.arange(np.prod(tile), dtype=np.float32), Layout(tile))
    for layout, side in [
        (copy.layout_src_tv(tw.float32), "partition_S"),
        (copy.layout_dst_tv(tw.float32), "partition_D"),
    ]:
        for thread in range(copy.size):
            part = getattr(copy.get_slice(thread), side)(numbers)
            for value in range(copy.values):
                assert layout(thread, value) == part[(value, *[0] * (part.rank - 1))]


def test_the_copy_of_the_matmul_example() -> None:
    copy = make_tiled_copy(CpAsync(64), Layout((32, 8)), Layout((2, 1)))
    assert (copy.size, copy.values, copy.tile_shape) == (256, 2, (64, 8))
    shared = tw.tensor(np.zeros(2080, np.float32), Layout((128, 8, 2), (1, 130, 1040)))
    part = copy.get_slice(33).partition_D(shared)
    assert part.shape == ((2, 1), 2, 1, 2)
    assert part.stride == ((1, 0), 64, 0, 1040)
    assert part.engine.start == 2 * 1 + 130


def test_dynamic_threads_and_strides() -> None:
    thread, ld = Symbol("thread"), Symbol("ld")
    copy = make_tiled_copy(UniversalCopy(32), Layout((32, 8)))
    tile = tw.make_tensor(Recorder(), Layout((64, 8), (1, ld)))
    part = copy.get_slice(thread).partition_S(tile)
    values = {"thread": 77, "ld": 130}
    assert value_of(part[0, 1, 0], values) == 77 % 32 + 32 + 77 // 32 * 130


def test_copies_are_values() -> None:
    make = lambda: make_tiled_copy(CpAsync(128, cache="global"), Layout((8, 4)), val_layout=Layout((4, 1)))  # noqa: E731
    assert make() == make()
    assert hash(make()) == hash(make())
    assert str(make()) == "TiledCopy(CpAsync(128, cache='global'), (32,4):(4,1), (32,4))"


def test_copies_for_an_mma() -> None:
    mma = tw.make_tiled_mma(UniversalFMA(tw.float32), Layout((8, 4)), (16, 16, 4))
    for make, shape, operand in [
        (make_tiled_copy_A, (16, 4), "A"),
        (make_tiled_copy_B, (16, 4), "B"),
        (make_tiled_copy_C, (16, 16), "C"),
    ]:
        copy = make(UniversalCopy(), mma)
        t = tw.tensor(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))
        for thread in range(mma.size):
            wanted = getattr(mma.get_slice(thread), f"partition_{operand}")(t)
            fetched = copy.get_slice(thread).partition_S(t)
            assert sorted(fetched.to_numpy().ravel()) == sorted(wanted.to_numpy().ravel())


def test_retile_shows_the_same_registers() -> None:
    """A fragment of the mma, retiled, receives each element where the mma looks for it."""
    mma = tw.make_tiled_mma(UniversalFMA(tw.float32), Layout((8, 4)), (Layout((8, 2), (2, 1)), 8, 1))
    copy = make_tiled_copy_A(UniversalCopy(64), mma)
    t = tw.tensor(np.arange(32 * 4, dtype=np.float32).reshape(32, 4))
    for thread in range(mma.size):
        mine = mma.get_slice(thread)
        registers = mine.partition_fragment_A(t)
        source = copy.get_slice(thread).partition_S(t)
        target = copy.get_slice(thread).retile_D(registers)
        assert target.shape == source.shape
        target[...] = source
        assert np.array_equal(registers.to_numpy(), mine.partition_A(t).to_numpy())


REFUSED: dict[str, tuple[Any, list[str]]] = {
    "threads with gaps": (
        lambda: make_tiled_copy(UniversalCopy(), Layout((4, 8), (1, 5))),
        ["thr_layout = (4,8):(1,5)", "val_layout = 1:0"],
    ),
    "too few values": (
        lambda: make_tiled_copy(UniversalCopy(128), (32, 8), (2, 1)).get_slice(0).partition_S(DATA),
        ["2 float32", "moves 4"],
    ),
    "too few threads": (lambda: make_tiled_copy(SWAP, (3, 1), (2, 1)), ["3 threads", "swap"]),
    "a tensor of too few modes": (
        lambda: make_tiled_copy(UniversalCopy(), (32, 8)).get_slice(0).partition_S(DATA[:, 0]),
        ["2 modes"],
    ),
    "an element wider than the atom": (
        lambda: make_tiled_copy(UniversalCopy(16), (32, 8)).get_slice(0).partition_S(DATA),
        ["16 bits", "float32"],
    ),
    "cp.async of 2 bytes": (lambda: CpAsync(16), ["16", "cp.async.ca"]),
    "cp.async past L1 of 8 bytes": (lambda: CpAsync(64, cache="global"), ["64", "128"]),
    "a load of 3 bytes": (lambda: UniversalCopy(24), ["24"]),
}
DATA = tw.tensor(np.zeros((64, 8), np.float32))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    operation, words = REFUSED[name]
    with pytest.raises(LayoutError) as caught:
        operation()
    for word in words:
        assert word in str(caught.value), str(caught.value)
