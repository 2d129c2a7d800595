"""Guarded tiles in expressions: outside, operands read as the fill and targets are not written, by the accesses of tw.copy."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.helpers.machine_code import opcodes

import tilewright as tw

ROWS, COLUMNS = 16, 32  # of a tile; a thread has 2 rows of 4 elements
TILES = tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout((8, 8), (8, 1)), tw.Layout((2, 4), (4, 1)))
SHAPES = [(32, 64), (33, 61), (5, 3), (16, 36)]


def parts_of(*tensors: Any, fill: Any = 0) -> list[Any]:
    """Return a thread's parts of tiles of tensors."""
    block, thread = (tw.block_idx.y, tw.block_idx.x), TILES.get_slice(tw.thread_idx.x)
    tiles = [tw.local_tile(t, TILES.tile_shape, block, guard=True, fill=fill) for t in tensors]
    return [thread.partition_S(tile) for tile in tiles]


def launch(kernel: Any, *args: Any) -> None:
    rows, columns = args[0].shape
    kernel[(-(-columns // COLUMNS), -(-rows // ROWS)), TILES.size](*args)


def matrix(shape: tuple[int, int], dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape)) % 97 + 1).reshape(shape).astype(dtype)


@tw.kernel
def expression(y, x, a: tw.float32, how: tw.constexpr):
    y_part, x_part = parts_of(y, x)
    r = tw.fragment_like(x_part)
    tw.fill(r, 3.0)
    if how == "2 * t + r":
        y_part[...] = 2 * x_part + r
    elif how == "a * t + t":
        y_part[...] = a * x_part + x_part
    elif how == "function":
        y_part[...] = tw.maximum(x_part, 5) - abs(x_part)
    elif how == "in place":
        y_part[...] = x_part
        y_part += r
        y_part[...] *= 2
    elif how == "convert":
        y_part[...] = x_part.to(tw.int32).to(tw.float32)
    elif how == "number":
        y_part[...] = a
    elif how == "condition":
        y_part[...] = tw.where(x_part > 10, x_part, -x_part)
    elif how == "itself":
        y_part[...] = +x_part
    elif how == "fma":
        y_part[...] = tw.fma(x_part, x_part, 1.0)


RESULTS = {
    "2 * t + r": lambda x: 2 * x + 3,
    "a * t + t": lambda x: np.float32(0.5) * x + x,
    "function": lambda x: np.maximum(x, 5) - abs(x),
    "in place": lambda x: 2 * (x + 3),
    "convert": lambda x: x,
    "number": lambda x: np.full_like(x, 0.5),
    "condition": lambda x: np.where(x > 10, x, -x),
    "itself": lambda x: x,
    "fma": lambda x: x * x + 1,
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("how", RESULTS)
@pytest.mark.spread(4)
def test_tiles_compute_inside(how: str, shape: tuple[int, int]) -> None:
    x = matrix(shape)
    y = np.full((shape[0] + 2, shape[1] + 4), -7, np.float32)  # what is outside of the view must stay
    launch(expression, y[: shape[0], : shape[1]], x, 0.5, how)
    np.testing.assert_array_equal(y[: shape[0], : shape[1]], RESULTS[how](x))
    assert (y[shape[0] :] == -7).all() and (y[:, shape[1] :] == -7).all()


@pytest.mark.parametrize("dtype", [tw.float16, tw.bfloat16, tw.uint8, tw.int64, tw.bool_, tw.float8_e4m3fn], ids=str)
def test_all_element_types(dtype: tw.DType) -> None:
    @tw.kernel
    def copied(y, x):
        y_part, x_part = parts_of(y, x)
        y_part[...] = x_part.to(tw.float32).to(y.dtype)

    x = (matrix((17, 35)) % 2).astype(dtype.numpy)
    y = np.zeros((17, 35), dtype.numpy)
    launch(copied, y, x)
    assert (y.view(np.uint8) == x.view(np.uint8)).all()


@pytest.mark.parametrize("n", [1, 7, 8, 30, 31])
@pytest.mark.spread(2)
def test_what_is_outside_takes_part_as_the_fill(n: int) -> None:
    @tw.kernel
    def totals(out, x):
        tile = tw.local_tile(x, 8, tw.thread_idx.x, guard=True, fill=-float("inf"))
        zeros = tw.local_tile(x, 8, tw.thread_idx.x, guard=True)
        most = tw.reduce(tile, "max", group="warp")
        inside = tw.where(tw.inside(zeros), zeros, float("-inf"))
        if tw.thread_idx.x == 0:
            out[0], out[1] = most, inside.reduce("max")
            out[2], out[3] = tile.reduce("max"), zeros.reduce("add")
        upto = tw.scan(zeros)
        tw.local_tile(x, 8, tw.thread_idx.x, guard=True)[...] = upto

    x = -matrix((1, n))[0]
    out = np.zeros(4, np.float32)
    expected = x.copy()
    totals[1, 32](out, x)
    np.testing.assert_array_equal(out, [-1, expected[:8].max(), expected[:8].max(), expected[:8].sum()])
    np.testing.assert_array_equal(x, np.cumsum(expected))


def test_a_tile_that_is_read_and_written_moves() -> None:
    """All elements are read before the first is written, where the two overlap too."""

    @tw.kernel
    def shift(x):
        g = tw.guarded(x, fill=99)
        tw.local_tile(g, 8, 0)[...] = tw.local_tile(tw.domain_offset(1, g), 8, 0)

    x = np.arange(6, dtype=np.float32)
    shift[1, 1](x)
    assert x.tolist() == [1, 2, 3, 4, 5, 99]


def test_repeated_elements_differ_where_one_is_outside() -> None:
    """At stride 0 elements are at one place; one of them may be inside and another not."""

    @tw.kernel
    def spread(out, x):
        row = tw.guarded(tw.make_tensor(x.engine, tw.Layout((3, 4), (0, 1))))
        out[...] = tw.local_tile(row, (4, 4), (0, 0)) + 0

    out = np.full((4, 4), 9, np.float32)
    spread[1, 1](tw.static(out), np.arange(1, 5, dtype=np.float32))
    assert out.tolist() == [[1, 2, 3, 4]] * 3 + [[0] * 4]


def test_a_guarded_fragment_is_copied_after_what_writes_it() -> None:
    """A loop of operations does not pass a read of registers that it writes."""

    @tw.kernel
    def pad(out, x):
        r = +x
        r *= 2
        padded = tw.local_tile(tw.guarded(r, fill=5), 8, 0)
        r += 1
        out[...] = padded * 10 + 0

    out = np.zeros(8, np.float32)
    pad[1, 1](tw.static(out), tw.static(np.arange(6, dtype=np.float32)))
    assert out.tolist() == [10, 30, 50, 70, 90, 110, 50, 50]


def test_operands_may_not_be_read_where_a_branch_excludes_them() -> None:
    @tw.kernel
    def kernel(y, x):
        y_part, x_part = parts_of(y, x)
        if tw.thread_idx.x < 16:
            y_part[...] = x_part + 1

    x, y = matrix((15, 31)), np.zeros((15, 31), np.float32)
    with tw.simulate(unwritten=False):
        launch(kernel, y, x)
    expected = np.where((np.arange(15) // 2 < 2)[:, None], x + 1, 0)
    np.testing.assert_array_equal(y, expected)


@tw.kernel
def by_copies(y, x, a: tw.float32, b: tw.float32):
    y_part, x_part = parts_of(y, x)
    values = tw.fragment_like(x_part)
    tw.copy(x_part, values)
    for i in range(values.size):
        values[i] = (a * values[i].to(tw.float32) + b).to(y.dtype)
    tw.copy(values, y_part)


@tw.kernel
def by_expression(y, x, a: tw.float32, b: tw.float32):
    y_part, x_part = parts_of(y, x)
    y_part[...] = a * x_part + b


@pytest.mark.parametrize("columns", [8192, 8190])
@pytest.mark.parametrize("dtype", [tw.float16, tw.float32], ids=str)
@pytest.mark.spread(4)
def test_an_expression_costs_what_copies_cost(dtype: tw.DType, columns: int) -> None:
    spec = tw.spec(dtype, (8192, columns))
    args = (spec, spec, 0.5, 0.25)
    short, long = (k.sass(*args, block=64, arch="sm_90a") for k in (by_expression, by_copies))
    for name in ("LDG", "STG", "FFMA", "BRA"):
        counts = [sorted(op for op in opcodes(text) if op.startswith(name)) for text in (short, long)]
        assert counts[0] == counts[1], name
    used, by_hand = (k.resources(*args, block=64, arch="sm_90a") for k in (by_expression, by_copies))
    assert used.local_bytes == used.spill_stores == 0
    assert used.registers <= by_hand.registers + 4
    assert "LDL" not in opcodes(short)


def test_a_number_is_written_by_vectors() -> None:
    @tw.kernel
    def clear(y):
        (part,) = parts_of(y)
        part[...] = 1.5

    text = clear.source(tw.spec(tw.float32, (33, 64)), block=64)
    assert re.findall(r"\*\((\w+)\*\)&y", text) == ["float4"] * 2, text


def test_host_tiles_compute() -> None:
    x = tw.tensor(np.arange(1, 7, dtype=np.float32).reshape(2, 3))
    tile = tw.local_tile(x, (2, 2), (0, 1), guard=True, fill=-1)
    assert (2 * tile + 1).to_numpy().tolist() == [[7, -1], [13, -1]]
    assert tile.reduce("add", 1).to_numpy().tolist() == [2, 5]
    tile += 10
    assert x.to_numpy().tolist() == [[1, 2, 13], [4, 5, 16]]
    tile[...] = tile * 2
    assert x.to_numpy().tolist() == [[1, 2, 26], [4, 5, 32]]
    tile[:, 1] = 77
    assert x.to_numpy().tolist() == [[1, 2, 26], [4, 5, 32]]


def test_what_fits_no_registers_is_refused_with_the_line() -> None:
    @tw.kernel
    def whole(y, x):
        tw.guarded(y)[...] = tw.guarded(x) + 1

    with pytest.raises(tw.LanguageError, match="needs a static shape"):
        whole[1, 1].source(tw.spec(tw.float32, (8,)), tw.spec(tw.float32, (8,)))

    @tw.kernel
    def too_wide(y, x):
        (tile,) = parts_of(y)
        tile[...] = tw.registers(tw.float32, (3, 1, 1))

    with pytest.raises(tw.LayoutError, match="do not match"):
        too_wide[1, 64].source(tw.spec(tw.float32, (33, 64)), tw.spec(tw.float32, (8,)))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_modes_of_extent_1_that_are_added_match_any_extent(shape: tuple[int, int]) -> None:
    """`tw.append` and `tw.prepend` work on guarded tiles too, of vectors beside a matrix."""

    @tw.kernel
    def outer(y, x, z):
        i, j = tw.block_idx.y, tw.block_idx.x
        rows, columns = tw.local_tile(x, 8, i, guard=True), tw.local_tile(z, 8, j, guard=True)
        tw.local_tile(y, (8, 8), (i, j), guard=True)[...] = tw.append(rows) * tw.prepend(columns)

    m, n = shape
    x, z, y = np.arange(m, dtype=np.float32), np.arange(n, dtype=np.float32), np.full(shape, -1, np.float32)
    outer[(-(-n // 8), -(-m // 8)), 1](y, x, z)
    np.testing.assert_array_equal(y, np.outer(x, z))
