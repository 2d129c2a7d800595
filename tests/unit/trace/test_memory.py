"""Shared memory, registers, atomics, asynchronous copies and barriers, as the language offers them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tests.helpers.language import compiles, run, zeros

import tilewright as tw


def test_shared_memory_is_shared_and_registers_are_not():
    @tw.kernel
    def rotate(out, x):
        i = tw.thread_idx.x
        smem = tw.shared(x.dtype, 32)
        mine = tw.registers(x.dtype, (2, 1))
        mine[0, 0] = x[i]
        smem[i] = mine[0, 0] * 2
        tw.sync_threads()
        mine[1, 0] = smem[(i + 1) % 32]
        out[i] = mine[1, 0] + mine[0, 0]

    x = np.arange(32, dtype=np.int32)
    assert np.array_equal(run(rotate, zeros(32), x, block=32), 2 * np.roll(x, -1) + x)
    compiles(rotate, tw.spec("int32", 1), tw.spec("int32", 1), block=32)


def test_buffers_with_disjoint_lifetimes_share_their_bytes():
    @tw.kernel
    def phases(out, x):
        i = tw.thread_idx.x
        first = tw.shared("float32", 64)
        first[i] = x[i]
        tw.sync_threads()
        a = first[63 - i]
        tw.sync_threads()
        second = tw.shared(tw.float32, 64)
        second[i] = a + 1
        tw.sync_threads()
        out[i] = second[63 - i]

    x = np.arange(64, dtype=np.float32)
    assert np.array_equal(run(phases, zeros(64, np.float32), x, block=64), x + 1)
    assert phases.lower(*[tw.spec("float32", 1)] * 2, block=64).kernel.shared_bytes == 256
    compiles(phases, *[tw.spec("float32", 1)] * 2, block=64)


def test_shared_memory_allocated_in_a_loop():
    @tw.kernel
    def inner(out, n):
        i = tw.thread_idx.x
        for k in range(n):
            tile = tw.shared("int32", 8)
            tile[i] = i * k
            tw.sync_threads()
            out[k, i] = tile[7 - i]
            tw.sync_threads()

    out = run(inner, np.zeros((3, 8), np.int32), 3, block=8)
    assert np.array_equal(out, np.arange(3)[:, None] * (7 - np.arange(8)))


def test_uninitialised_shared_memory_is_found():
    @tw.kernel
    def forgotten(out):
        smem = tw.shared("int32", 4)
        out[tw.thread_idx.x] = smem[tw.thread_idx.x]

    with pytest.raises(tw.CheckError, match="uninitialised read: load smem"):
        run(forgotten, zeros(4), block=4)


def test_fragment_like_takes_shape_type_and_order():
    @tw.kernel
    def fragments(out, x):
        tile = tw.local_tile(x, (2, 4), (0, 0))
        like = tw.fragment_like(tile)
        other = tw.fragment_like(tile, "float16")
        plain = tw.fragment_like(tw.Layout((2, 2)), tw.int32)
        assert (like.shape, like.dtype, like.space) == ((2, 4), tw.float32, "register")
        assert like.stride == (4, 1)
        assert other.dtype is tw.float16
        tw.copy(tile, like)
        tw.fill(plain, 1)
        out[0] = like[1, 3] + plain[1, 1]

    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert run(fragments, zeros(1, np.float32), x).tolist() == [8]


# --- atomics ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64", "float16", "bfloat16"])
def test_atomic_add(dtype):
    @tw.kernel
    def histogram(out, old):
        i = tw.thread_idx.x
        bins = tw.shared(out.dtype, 2)
        if i < 2:
            bins[i] = 0
        tw.sync_threads()
        tw.atomic_add(bins, i % 2, 1)
        old[i + 48 * tw.block_idx.x] = tw.atomic_add(out, (0, i % 2), 1).to(tw.int32)
        tw.sync_threads()
        if i < 2:
            tw.atomic_add(out, (1, i), bins[i])

    element = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    out, old = np.zeros((2, 2), element), zeros(96)
    histogram[2, 48](out, old)
    assert out.astype(int).tolist() == [[48, 48], [48, 48]]
    compiles(histogram, tw.spec(dtype, 2), tw.spec("int32", 1), block=48)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
def test_atomic_extremes(dtype):
    @tw.kernel
    def extremes(out, x):
        i = tw.thread_idx.x
        tw.atomic_max(out, 0, x[i])
        tw.atomic_min(out, 1, x[i])

    x = np.array([3, 9, 1, 4], dtype)
    if dtype[0] != "u":
        x[2] = -7
    out = np.array([x[0], x[0]])
    assert run(extremes, out, x, block=4).tolist() == [x.max(), x.min()]
    compiles(extremes, tw.spec(dtype, 1), tw.spec(dtype, 1), block=4)


def test_atomics_that_do_not_exist_are_refused():
    @tw.kernel
    def narrow(out):
        tw.atomic_max(out, 0, 1)

    @tw.kernel
    def private(out):
        mine = tw.registers("int32", 1)
        tw.atomic_add(mine, 0, 1)

    @tw.kernel
    def bits_of_a_float(out):
        tw.atomic_or(out, 0, 1.0)

    @tw.kernel
    def misspelt(out):
        tw.atomic_add(out, 0, 1, sem="seq_cst")

    with pytest.raises(tw.LanguageError, match="atomic max does not exist for int8"):
        run(narrow, zeros(1, np.int8))
    with pytest.raises(tw.LanguageError, match="atomic or does not exist for float32"):
        run(bits_of_a_float, zeros(1, np.float32))
    with pytest.raises(tw.LanguageError, match="sem is 'seq_cst'"):
        run(misspelt, zeros(1))
    with pytest.raises(
        tw.LanguageError, match="atomic_add works on global and shared memory, not on a register tensor"
    ):
        run(private, zeros(1))


# --- asynchronous copies ---------------------------------------------------------------------------------


@tw.kernel
def pipeline(out, x, stages: tw.constexpr):
    """Sum rows of 32 through shared memory, with copies under way `stages - 1` rows ahead."""
    i = tw.thread_idx.x
    rows = tw.shared(x.dtype, tw.Layout((8, 8, stages)))
    threads = tw.Layout((8,))
    n = x.shape[0]
    for s in tw.static_range(stages - 1):
        tw.copy(tw.local_tile(x[s, i, :], (8,), (0,)), rows[i, :, s])
        tw.cp_async_commit()
    total = tw.float32(0)
    for k in range(n):
        ahead = k + stages - 1
        if ahead < n:
            tw.copy(tw.local_tile(x[ahead, i, :], (8,), (0,)), rows[i, :, ahead % stages])
        tw.cp_async_commit()
        tw.cp_async_wait(stages - 1)
        tw.sync_threads()
        for j in tw.static_range(8):
            total += rows[(i + 1) % threads.size, j, k % stages]
        tw.sync_threads()
    out[i] = total


@pytest.mark.parametrize("stages", [2, 3])
def test_groups_of_asynchronous_copies(stages):
    x = np.random.default_rng(0).normal(size=(6, 8, 8)).astype(np.float32)
    out = run(pipeline, zeros(8, np.float32), x, stages, block=8)
    assert np.allclose(out, np.roll(x.sum((0, 2)), -1), atol=1e-5)
    text = compiles(pipeline, tw.spec("float32", 1), tw.spec("float32", (6, 8, 8)), stages, block=8)
    assert "cp.async" in text


def test_missing_wait_is_found():
    @tw.kernel
    def hasty(out, x):
        i = tw.thread_idx.x
        smem = tw.shared(x.dtype, (8, 4))
        tw.copy(tw.local_tile(x[i, :], (4,), (0,)), smem[i, :])
        tw.sync_threads()
        out[i] = smem[i, 0]

    with pytest.raises(tw.CheckError, match="missing wait"):
        run(hasty, zeros(8, np.float32), np.ones((8, 4), np.float32), block=8)


def test_warp_barrier():
    @tw.kernel
    def warp(out):
        smem = tw.shared("int32", 32)
        i = tw.lane_id()
        if tw.warp_id() == 1:
            smem[i] = i
            tw.sync_warp()
            out[i] = smem[31 - i]

    assert run(warp, zeros(32), block=64).tolist() == list(range(31, -1, -1))
    compiles(warp, tw.spec("int32", 1), block=64)


def test_predicated_copy():
    @tw.kernel
    def predicated(out, x):
        i = tw.thread_idx.x
        part = tw.registers("float32", 4)
        tw.copy(tw.local_tile(x, (4,), (i,)), part, pred=4 * i + 4 <= x.size)
        tw.copy(part, tw.local_tile(out[i, :], (4,), (0,)))

    x = np.arange(10, dtype=np.float32)
    out = run(predicated, np.ones((3, 4), np.float32), x, block=3)
    assert out.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 0, 0, 0]]


def test_axpby():
    @tw.kernel
    def combine(y, x, a):
        i = tw.thread_idx.x
        tw.axpby(a, x[i, :], 2, y[i, :])

    x, y = np.ones((2, 4), np.float32), np.full((2, 4), 3, np.float32)
    assert run(combine, y, x, 0.5, block=2).tolist() == [[6.5] * 4] * 2


@pytest.mark.parametrize(
    ("shape", "stride"),
    [((4, 2), (1, 1)), ((2, 4), (1, 1)), ((4, 3, 2), (1, 1, 1)), ((8, 2), (1, 1)), ((4, 2, 2), (1, 4, 1))],
)
@pytest.mark.parametrize("element", [np.float32, np.float16])
def test_windows_that_overlap_by_single_elements_are_copied_by_them(shape, stride, element):
    windows, whole = tw.Layout(shape, stride), tw.Layout(shape)

    @tw.kernel
    def k(out, x):
        tw.copy(tw.make_tensor(x.engine, windows), tw.make_tensor(out.engine, whole))

    @tw.kernel
    def by_pred(out, x):
        tw.copy(tw.make_tensor(x.engine, windows), tw.make_tensor(out.engine, whole), pred=x[0] >= 0)

    def aligned(array):
        room = np.zeros(array.nbytes + 256, np.uint8)
        copy = room[-room.ctypes.data % 256 :][: array.nbytes].view(array.dtype)
        copy[:] = array
        return copy

    x = aligned(np.arange(64, dtype=element))
    for kernel in (k, by_pred):
        out = aligned(np.zeros(whole.size, element))
        kernel[1, 1](tw.static(out), tw.static(x))
        assert [float(v) for v in out] == [float(windows(n)) for n in range(whole.size)]


@pytest.mark.parametrize("memory", [tw.shared, tw.registers])
@pytest.mark.parametrize(("moved", "columns", "fits"), [(0, 8, True), (0, 9, False), (4, 7, True), (4, 8, False)])
def test_a_layout_does_not_reach_beyond_memory_of_the_kernel(memory, moved, columns, fits):
    """Of 64 words seen as 128 halves, from the first one on or from a later one."""

    @tw.kernel
    def k(out):
        halves = memory(tw.float32, tw.Layout((64,))).recast(tw.float16)
        seen = tw.make_tensor(halves.engine.offset(moved), tw.Layout((16, columns)))
        tw.clear(seen)
        out[0] = seen[15, columns - 1].to(tw.float32)

    if fits:
        k[1, 1](np.ones(1, np.float32))
    else:
        with pytest.raises(tw.LayoutError, match=rf"reaches {16 * columns} elements, .* has {128 - moved}"):
            k[1, 1](np.ones(1, np.float32))
