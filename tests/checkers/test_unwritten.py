"""Outputs that a launch wrote in part: told of where the grid is too small, and not where a part was meant."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim import Finding


@tw.kernel
def scale(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        y[i] = 2 * x[i]


@tw.kernel
def tiles(y, x):
    tile = (tw.block_idx.x, tw.block_idx.y)
    threads = tw.Layout((16, 8))
    source, target = (tw.local_partition(tw.local_tile(t, (16, 16), tile), threads, tw.thread_idx.x) for t in (x, y))
    tw.copy(source, target)


@tw.kernel
def row_sums(y, x):
    total = tw.float32(0)
    for k in range(tw.thread_idx.x, x.shape[1], 32):
        total += x[tw.block_idx.x, k]
    for step in (16, 8, 4, 2, 1):
        total += tw.shuffle_xor(total, step)
    if tw.thread_idx.x == 0:
        y[tw.block_idx.x] = total


@tw.kernel
def interior(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x + 1
    if i < x.size - 1:
        y[i] = x[i - 1] + x[i + 1]


@tw.kernel
def first_n(y, x, n):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < n:
        y[i] = x[i]


@tw.kernel
def where_positive(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if x[i] > 0:
        y[i] = x[i]


@tw.kernel
def scatter(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    y[x[i].to(tw.int32)] = x[i]


@tw.kernel
def single(y, x):
    if tw.thread_idx.x == 0:
        y[0] = x[0]


@tw.kernel
def in_place(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    y[i] += x[i]


@tw.kernel
def every_other(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    y[2 * i] = x[i]


@tw.kernel
def constant_indices(y):
    y[0], y[1], y[2] = 1.0, 2.0, 3.0


@tw.kernel
def constant_loop(y):
    for i in range(4):
        y[i] = 1.0


@tw.kernel
def first_row(y):
    y[0, tw.thread_idx.x] = 1.0


@tw.kernel
def first_tile(y):
    tile = tw.local_tile(y, (16, 64), (0, 0))
    tw.fill(tw.local_partition(tile, tw.Layout((1, 32)), tw.thread_idx.x), 1.0)


@tw.kernel
def first_slice(y):
    part = y[0:32]
    for i in tw.static_range(4):
        part[tw.thread_idx.x + 8 * i] = 1.0


@tw.kernel
def constant_mask(y):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < 64:
        y[i] = 1.0


@tw.kernel
def as_long_as_the_input(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    y[i] = x[i]


@tw.kernel
def one_after_the_other(y, x):
    i = tw.thread_idx.x
    y[i] = x[i]
    y[x.size + i] = -x[i]


@tw.kernel
def part_of_the_tile(y, x):
    tile = (tw.block_idx.x,)
    source, target = (tw.local_partition(tw.local_tile(t, (256,), tile), 128, tw.thread_idx.x) for t in (x, y))
    target[0] = source[0]


@tw.kernel
def by_the_last_lane(y):
    if tw.thread_idx.x == tw.block_dim.x - 1:
        y[tw.block_idx.x] = 1.0


@tw.kernel
def long_chain(y, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    k = i
    for _ in tw.static_range(1500):
        k = k ^ (i + 1)
    y[i + (k & 0)] = x[i]


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def found(kernel, grid, block, *arguments, **options) -> list[Finding]:
    with tw.simulate(**options) as run:
        kernel[grid, block](*arguments)
    return list(run.findings)


TOLD = [
    (scale, 3, 256, (ones(1000), ones(1000)), 768, "232 of 1000 elements of y were not written, from y[768] on"),
    (tiles, (4, 3), 128, (ones(64, 64), ones(64, 64)), 48, "1024 of 4096 elements of y were not written"),
    (tiles, (3, 4), 128, (ones(64, 64), ones(64, 64)), 48 * 64, "from y[48, 0] on"),
    (row_sums, 5, 32, (ones(8), ones(8, 40)), 5, "3 of 8 elements of y"),
    (as_long_as_the_input, 2, 32, (ones(96), ones(96)), 64, "32 of 96 elements of y"),
    (as_long_as_the_input, 1, 32, (ones(96), ones(64)), 32, "64 of 96 elements of y"),
    (part_of_the_tile, 1, 128, (ones(256), ones(256)), 128, "128 of 256 elements of y"),
    (by_the_last_lane, 5, 32, (ones(8),), 5, "3 of 8 elements of y"),
    (long_chain, 1, 32, (ones(64), ones(64)), 32, "32 of 64 elements of y"),
]
SILENT = [
    (scale, 4, 256, (ones(1000), ones(1000))),
    (interior, 4, 256, (ones(1000), ones(1000))),
    (first_n, 4, 256, (ones(1000), ones(1000), 512)),
    (first_n, 2, 256, (ones(1000), ones(1000), 512)),
    (where_positive, 2, 32, (ones(128), ones(64))),
    (where_positive, 2, 32, (ones(128), np.repeat(np.float32([1, 0]), 32))),
    (scatter, 1, 32, (ones(64), np.arange(32, dtype=np.float32))),
    (single, 1, 32, (ones(4), ones(4))),
    (in_place, 1, 32, (ones(64), ones(64))),
    (every_other, 1, 32, (ones(64), ones(64))),
    (scale, 1, 32, (ones(64)[:32], ones(32))),
    (scale, 1, 32, (ones(64), ones(32))),
    (constant_indices, 1, 1, (ones(8),)),
    (constant_loop, 1, 1, (ones(8),)),
    (first_row, 1, 32, (ones(8, 32),)),
    (first_tile, 1, 32, (ones(64, 64),)),
    (first_slice, 1, 8, (ones(64),)),
    (constant_mask, 2, 32, (ones(128),)),
    (as_long_as_the_input, 2, 32, (ones(96), ones(64))),
    (row_sums, 5, 32, (ones(8), ones(5, 40))),
    (one_after_the_other, 1, 8, (ones(40), ones(8))),
]


@pytest.mark.parametrize(("kernel", "grid", "block", "arguments", "first", "text"), TOLD, ids=lambda x: "")
def test_a_grid_that_is_too_small(kernel, grid, block, arguments, first, text) -> None:
    (finding,) = found(kernel, grid, block, *arguments)
    assert (finding.kind, finding.buffer, finding.index) == ("unwritten-output", "y", first)
    assert text in finding.message and "launch more blocks" in finding.message
    assert found(kernel, grid, block, *arguments, unwritten=False) == []
    with pytest.warns(tw.TilewrightWarning, match="unwritten output") as warned:
        kernel[grid, block](*arguments)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(("kernel", "grid", "block", "arguments"), SILENT, ids=lambda x: "")
def test_a_part_that_was_meant(kernel, grid, block, arguments) -> None:
    assert found(kernel, grid, block, *arguments) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel[grid, block](*arguments)


def test_errors_are_raised_with_it_and_it_alone_is_not() -> None:
    @tw.kernel
    def races(y, x):
        y[tw.thread_idx.x] = x[tw.thread_idx.x]
        x[0] = 1.0

    with pytest.raises(tw.CheckError) as raised:
        races[1, 32](ones(64), ones(64))
    assert [f.kind for f in raised.value.findings] == ["race", "race", "unwritten-output"]  # type: ignore[attr-defined]
    assert "race" in str(raised.value).splitlines()[0]
