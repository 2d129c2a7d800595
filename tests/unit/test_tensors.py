"""Tensors on the host: views, tiles, partitions, assignment, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.layout.symbols import Symbol, value_of

import tilewright as tw
from tilewright.errors import LayoutError
from tilewright.layout import ComposedLayout, Layout, Swizzle, composition, zipped_divide
from tilewright.tensors import CoordinateEngine, Engine, NumpyEngine, fragment_like, recast

ARRAYS = {
    "row-major": np.arange(48).reshape(6, 8),
    "column-major": np.asfortranarray(np.arange(48).reshape(6, 8)),
    "every second column": np.arange(96).reshape(6, 16)[:, ::2],
    "reversed": np.arange(48).reshape(6, 8)[::-1, ::-1],
    "broadcast": np.broadcast_to(np.arange(8), (6, 8)),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_is_seen_with_its_own_strides(name: str) -> None:
    array = ARRAYS[name]
    t = tw.tensor(array)
    assert all(t[i, j] == array[i, j] for i in range(6) for j in range(8))
    assert np.array_equal(t.to_numpy(), array)
    assert np.shares_memory(t.to_numpy(), array)
    assert np.array_equal(t.T.to_numpy(), array.T)
    assert t.T.shape == (8, 6)


def test_properties() -> None:
    t = tw.tensor(np.zeros((4, 8), np.float32))
    assert (t.shape, t.stride, t.size, t.rank, t.dtype, t.space) == ((4, 8), (8, 1), 32, 2, tw.float32, "host")
    assert isinstance(t.engine, Engine)


def test_linear_and_nested_coordinates() -> None:
    array = np.arange(24)
    t = tw.tensor(array, Layout(((2, 3), 4), ((12, 4), 1)))
    assert t[3] == t[3, 0] == t[(1, 1), 0] == 16
    assert t[np.int64(1), 2] == 14
    assert t[:, 3].shape == ((2, 3),)
    assert t[(None, 1), None].shape == (2, 4)
    assert t[(None, 1), None][1, 2] == t[(1, 1), 2]
    assert t[..., 2][5] == t[5, 2]
    assert t[:] is t
    assert t[None] is t


def test_assignment_through_views() -> None:
    array = np.zeros((4, 6), np.int32)
    t = tw.tensor(array)
    t[1, 2] = 7
    t[:, 0] = np.arange(4)
    t[3, :] = 9
    tw.local_tile(t, (2, 2), (0, 2))[...] = [[1, 2], [3, 4]]
    tw.local_tile(t, (2, 3), (1, 0)).T[...] = tw.tensor(np.full((3, 2), 5, np.int32))
    expected = np.zeros((4, 6), np.int32)
    expected[:, 0] = range(4)
    expected[3] = 9
    expected[1, 2] = 7
    expected[0:2, 4:6] = [[1, 2], [3, 4]]
    expected[2:4, 0:3] = 5
    assert np.array_equal(array, expected)


def test_assignment_through_nested_and_swizzled_layouts() -> None:
    storage = np.zeros(64, np.int64)
    t = tw.tensor(storage, composition(Swizzle(3, 0, 3), Layout((8, 8), (8, 1))))
    values = np.arange(64).reshape(8, 8)
    t[...] = values
    assert np.array_equal(t.to_numpy(), values)
    assert sorted(storage) == list(range(64))
    assert storage[9] == 8
    assert t[3, :].to_numpy().tolist() == values[3].tolist()
    divided = zipped_divide(tw.tensor(np.zeros(64)), 8)
    divided[...] = np.arange(64).reshape(8, 8)
    assert divided[3, 2] == 26


def test_a_view_is_no_copy_and_nested_modes_join() -> None:
    array = np.arange(64.0).reshape(8, 8)
    tiles = zipped_divide(tw.tensor(array), (4, 4))
    assert tiles.shape == ((4, 4), (2, 2))
    joined = tiles.to_numpy()
    assert joined.shape == (16, 4)
    assert joined[5, 3] == tiles[5, 3] == array[5, 5]
    tile = tw.local_tile(tw.tensor(array), (4, 4), (1, 0)).to_numpy()
    assert np.shares_memory(tile, array)
    assert np.array_equal(tile, array[4:8, 0:4])


def test_local_tile() -> None:
    array = np.arange(96).reshape(8, 12)
    t = tw.tensor(array)
    assert np.array_equal(tw.local_tile(t, (4, 3), (1, 2)).to_numpy(), array[4:8, 6:9])
    assert tw.local_tile(t, (4, 3), (1, None)).shape == (4, 3, 4)
    assert np.array_equal(tw.local_tile(t, (4, 3), (1, None))[:, :, 2].to_numpy(), array[4:8, 6:9])
    projected = tw.local_tile(t, (4, 99, 3), (1, 5, 2), proj=(1, None, 1))
    assert np.array_equal(projected.to_numpy(), array[4:8, 6:9])
    assert tw.local_tile(t, (4, 3), 3).to_numpy().tolist() == array[4:8, 3:6].tolist()
    assert str(tw.local_tile(t.layout, (4, 3), (1, 2))) == "(4,3):(12,1)"


def test_local_partition() -> None:
    t = tw.tensor(np.arange(64).reshape(8, 8))
    threads = Layout((2, 4), (4, 1))
    parts = [tw.local_partition(t, threads, k) for k in range(8)]
    assert sorted(v for p in parts for v in p.to_numpy().ravel()) == list(range(64))
    assert parts[5][0, 0] == t[1, 1]
    assert tw.local_partition(t, (2, 4), 5)[0, 0] == t[1, 2]
    by_row = tw.local_partition(t, Layout((2, 4)), 5, proj=(1, None))
    assert by_row.shape == (4, 8)
    assert by_row[0, 0] == t[1, 0]
    assert tw.local_partition(tw.tensor(np.arange(16)), 4, 3).to_numpy().tolist() == [3, 7, 11, 15]


def test_identity_tensors_follow_the_data() -> None:
    where = tw.identity_tensor((100, 64))
    tile = tw.local_tile(where, (32, 32), (3, 1))
    assert tile[5, 7] == (101, 39)
    part = tw.local_partition(tile, (8, 4), 9)
    assert part[2, 1] == (96 + 1 + 16, 32 + 1 + 4)
    assert tw.identity_tensor(((2, 3), 4))[(1, 2), 3] == ((1, 2), 3)
    assert where.T[3, 5] == (5, 3)
    with pytest.raises(LayoutError):
        where[0, 0] = 1


def test_recast_and_fragments() -> None:
    t = tw.tensor(np.arange(16, dtype=np.float32).reshape(4, 4))
    wide = recast(t, tw.uint64)
    assert (wide.shape, wide.stride, wide.dtype) == ((4, 2), (2, 1), tw.uint64)
    assert recast(wide, tw.float32)[2, 3] == 11
    copy = fragment_like(t, tw.float16)
    assert (copy.stride, copy.dtype) == ((4, 1), tw.float16)
    copy[...] = t
    assert np.array_equal(copy.to_numpy(), t.to_numpy())
    with pytest.raises(LayoutError):
        recast(tw.tensor(np.zeros((4, 3), np.float32)), tw.float64)


@pytest.mark.parametrize(
    "part",
    [slice(None, None, 2), slice(0, 2), slice(0, 8, 4), slice(1, 2)],
    ids=lambda s: f"{s.start}:{s.stop}:{s.step}",
)
def test_a_recast_takes_no_bytes_that_are_not_in_the_tensor(part: slice) -> None:
    t = tw.tensor(np.arange(16, dtype=np.uint8))
    with pytest.raises(LayoutError, match="of every 4 neighbouring elements|whole groups|does not fall"):
        t[part].recast(tw.uint32)
    assert t[0:8].recast(tw.uint32).to_numpy().tobytes() == bytes(range(8))
    assert tw.local_tile(t, (4,), (1,)).recast(tw.uint32).to_numpy().tobytes() == bytes(range(4, 8))


def test_out_of_range() -> None:
    t = tw.tensor(np.arange(12).reshape(3, 4))
    for coord in [(3, 0), (0, 4), (-1, 0), 12]:
        with pytest.raises(IndexError):
            t[coord]
    with pytest.raises(IndexError, match="index -1 is outside an extent of 12, .* an index counts from the front"):
        t[-1]
    overhanging = tw.local_tile(t, (2, 4), (1, 0))
    assert overhanging[0, 1] == 9
    with pytest.raises(IndexError, match=r"\(1,1\)"):
        overhanging[1, 1]
    assert "outside" in repr(overhanging)


REFUSED: dict[str, tuple[Any, str]] = {
    "deletion": (lambda t: t.__delitem__(0), "cannot be deleted"),
    "iteration": (lambda t: list(t), "range(size)"),
    "len": (len, ".size"),
    "part of a nested mode": (lambda t: t[(slice(0, 2), 0), 1], "local_tile"),
    "wrong rank": (lambda t: t[1, 2, 3], "(1,2,3)"),
    "shape of values": (lambda t: t.__setitem__(..., np.zeros((3, 3))), "(3,3)"),
    "too large a layout": (lambda t: tw.tensor(np.zeros(4), (4, 4)), "16"),
    "no elements": (lambda t: tw.tensor(np.zeros((0, 3))), "no elements"),
    "tile of another rank": (lambda t: tw.local_tile(t, (2, 2, 2), (0, 0, 0)), "3 modes"),
    "threads with gaps": (lambda t: tw.local_partition(t, Layout((2, 2), (1, 1)), 0), "step over"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    operation, words = REFUSED[name]
    with pytest.raises(LayoutError) as caught:
        operation(tw.tensor(np.arange(16).reshape(4, 4)))
    assert words in str(caught.value)


def test_repr() -> None:
    assert repr(tw.tensor(np.arange(6).reshape(2, 3))) == "host int64 (2,3):(3,1)\n0 1 2\n3 4 5"
    assert repr(tw.tensor(np.zeros((100, 100)))) == "host float64 (100,100):(100,1)  (10000 elements)"
    assert repr(tw.identity_tensor((4, 8))) == "Tensor(coordinate int32 (4,8):(1@0,1@1))"


class Recorder:
    """An engine as a kernel has one: addresses are expressions, and guards are kept."""

    def __init__(self, at: Any = 0, guards: tuple[Any, ...] = ()) -> None:
        self.at, self.guards = at, guards
        self.dtype, self.space = tw.float32, "global"

    def offset(self, elements: Any) -> Recorder:
        return Recorder(self.at + elements, self.guards)

    def load(self, index: Any) -> Any:
        return self.at + index

    def store(self, index: Any, value: Any) -> None:
        raise AssertionError

    def guard(self, dividend: Any, divisor: Any, what: str) -> Recorder:
        return Recorder(self.at, (*self.guards, (str(dividend), str(divisor), what)))

    def fragment(self, layout: Any, dtype: Any) -> Any:
        return NumpyEngine(np.zeros(layout.cosize, dtype.numpy))

    def recast(self, dtype: Any) -> Any:
        raise AssertionError


def test_dynamic_tiles_and_partitions() -> None:
    m, n, ld, x, y, thread, i = (Symbol(s) for s in ("m", "n", "ld", "x", "y", "thread", "i"))
    t = tw.make_tensor(Recorder(), Layout((m, n), (ld, 1)))
    tile = tw.local_tile(t, (32, 32), (x, y))
    assert tile.shape == (32, 32)
    assert tile.engine.guards == (("m", "32", "mode 0"), ("n", "32", "mode 1"))
    part = tw.local_partition(tile, (32, 8), thread)
    assert part.shape == (1, 4)
    assert part.engine.guards == tile.engine.guards
    values = {"m": 128, "n": 256, "ld": 260, "x": 2, "y": 5, "thread": 77, "i": 3}
    address = value_of(part[0, i], values)
    assert address == (2 * 32 + 77 % 32) * 260 + 5 * 32 + 77 // 32 + 3 * 8
    assert value_of(t[x, y], values) == 2 * 260 + 5
    along = tw.local_tile(t, (32, 8), (x, None))
    assert str(along.shape) == "(32, 8, ((n + 7) // 8))"
    assert value_of(along[1, 2, i], values) == (2 * 32 + 1) * 260 + 3 * 8 + 2


def test_swizzled_views_keep_the_swizzle() -> None:
    x = Symbol("x")
    layout = composition(Swizzle(2, 0, 3), Layout((8, 8), (8, 1)))
    row = tw.make_tensor(Recorder(), layout)[x, :]
    assert isinstance(row.layout, ComposedLayout)
    assert value_of(row[5], {"x": 3}) == layout(3, 5)


def test_engines_move() -> None:
    engine = NumpyEngine(np.arange(8)).offset(3)
    assert engine.load(2) == 5
    with pytest.raises(IndexError):
        engine.load(5)
    assert CoordinateEngine((1, 2)).offset((3, 4)).load((0, 1)) == (4, 7)
