"""The barrier of the grid: it orders all blocks, and all of them have to come."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel
def rounds(x, y, count: tw.constexpr, first: tw.constexpr, second: tw.constexpr):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    n = x.size
    for _ in range(count):
        y[i] = x[(i + 1) % n] + x[i]
        if first:
            tw.sync_grid()
        x[i] = y[i]
        if second:
            tw.sync_grid()


@pytest.mark.parametrize(("first", "second"), [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize("threads", [32, 96])
def test_both_are_needed(first: bool, second: bool, threads: int) -> None:
    x = np.arange(12 * threads, dtype=np.int32)
    expected = x.copy()
    for _ in range(3):
        expected = expected + np.roll(expected, -1)
    with tw.simulate(raise_errors=False) as run:
        rounds[12, threads](x, np.zeros_like(x), 3, first, second)
    assert bool(run.findings) != (first and second)
    if first and second:
        assert np.array_equal(x, expected)


@tw.kernel
def beside_waits(out, x, flags, sync: tw.constexpr):
    """Blocks wait for each other by flags, and then meet."""
    block, thread = tw.block_idx.x, tw.thread_idx.x
    if thread == 0:
        if block > 0:
            while tw.load(flags, block - 1) == 0:
                pass
        tw.store(flags, block, 1)
    x[block, thread] = block
    if sync:
        tw.sync_grid()
    out[block, thread] = x[(block + 1) % tw.grid_dim.x, thread]


@pytest.mark.parametrize("sync", [True, False])
def test_beside_loops_that_wait(sync: bool) -> None:
    out, x = np.zeros((5, 64), np.int32), np.zeros((5, 64), np.int32)
    with tw.simulate(raise_errors=False) as run:
        beside_waits[5, 64](out, x, np.zeros(5, np.int32), sync)
    assert bool(run.findings) != sync
    if sync:
        assert np.array_equal(out[:, 0], [1, 2, 3, 4, 0])


@tw.kernel
def some_blocks(x, waits: tw.constexpr):
    if waits:
        while tw.load(x, 0) == 1:
            pass
    if tw.block_idx.x < 3:
        tw.sync_grid()


def test_blocks_that_are_missing() -> None:
    with pytest.raises(tw.CheckError, match="a barrier of the grid is reached by 3 of its 4 blocks"):
        some_blocks[4, 32](np.zeros(1, np.int32), False)
    with pytest.raises(tw.CheckError, match="deadlock") as raised:
        some_blocks[4, 32](np.zeros(1, np.int32), True)
    assert "all threads of the grid: 96 of 128 have arrived" in str(raised.value)


@tw.kernel
def some_threads(x):
    if tw.thread_idx.x < 16:
        tw.sync_grid()


def test_a_branch_of_some_threads_is_refused() -> None:
    with pytest.raises(tw.LanguageError, match="tw.sync_grid is in a branch that only some threads"):
        some_threads[1, 32](np.zeros(1, np.int32))


@tw.kernel
def plain(x):
    x[tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x] = 1


def test_a_grid_that_does_not_fit() -> None:
    x = np.zeros(257 * 1024, np.int32)
    with pytest.raises(tw.ArgumentError, match="grid of 257 blocks does not fit") as raised:
        plain.configure(cooperative=True)[257, 1024](x)
    assert "simulator holds 256" in str(raised.value)
    plain.configure(cooperative=True)[256, 1024](x)
    plain[257, 1024](x)
    assert x.all()
    with pytest.raises(tw.ArgumentError, match="cooperative is 1; expected True or False"):
        plain.configure(cooperative=1)


def test_a_cooperative_launch_says_so_to_the_driver() -> None:
    """The block of parameters has one attribute, CU_LAUNCH_ATTRIBUTE_COOPERATIVE with the value 1."""
    import ctypes
    import struct

    from tilewright.dtypes import int32
    from tilewright.runtime.attributes import COOPERATIVE
    from tilewright.runtime.launch import Packer, ScalarSlot, launch_config

    class Function:
        handle, name = None, "f"

        def __init__(self) -> None:
            self.seen: list[tuple[int, ...]] = []

        def launch(self, configuration, handle, parameters, extra) -> int:
            head = ctypes.string_at(configuration, 52)
            *extents, stream, attributes, count = struct.unpack("@7IQQI", head)
            attribute = struct.unpack("@i4xi", ctypes.string_at(attributes, 12)) if count else ()
            number = ctypes.cast(parameters[0], ctypes.POINTER(ctypes.c_int)).contents.value
            self.seen.append((extents[0], extents[3], stream, count, *attribute, number))
            return 0

    for cooperative, expected in ((True, (7, 32, 0, 1, 2, 1, 5)), (False, (7, 32, 0, 0, 5))):
        function, admitted = Function(), []

        def admit(function, config, stream, admitted=admitted):
            admitted.append((config.grid, stream))
            return function

        packer = Packer([ScalarSlot(0, int32)], [0], attributes=(COOPERATIVE,) * cooperative)
        launch = packer.bind((None,), function, (), None, admit if cooperative else None)
        launch(launch_config(7, 32), 0, (5,))
        assert function.seen == [expected]
        assert admitted == ([((7, 1, 1), 0)] if cooperative else [])
