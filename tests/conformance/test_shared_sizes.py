"""Shared memory of a size that the launch knows: places, sizes, limits; on both backends."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel
def reversed_rows(out, x):
    """A row of any length in shared memory, beside a static tensor and a second one behind it."""
    n = x.shape[1]
    fixed = tw.shared(tw.int32, 33)
    row = tw.shared(tw.float32, (n,))
    marks = tw.shared(tw.uint8, (n, 2))
    wide = tw.shared(tw.float64, tw.Layout((n,), (1,)))
    i, m = tw.thread_idx.x, tw.block_idx.x
    fixed[i] = i
    for j in range(i, n, 32):
        row[j] = x[m, j]
        marks[j, 1] = tw.uint8(1)
        wide[j] = x[m, j].to(tw.float64) * 2
    tw.sync_threads()
    for j in range(i, n, 32):
        back = n - 1 - j
        out[m, j] = row[back] + marks[back, 1].to(tw.float32) + wide[back].to(tw.float32) + fixed[i].to(tw.float32)


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100, 1000, 4000, 12000])
@pytest.mark.spread(4)
def test_tensors_one_behind_the_other(backend, n):
    """12000 takes over 48 KiB, which a kernel has to ask for."""
    host = np.arange(2 * n, dtype=np.float32).reshape(2, n) % 97
    out = backend.zeros((2, n), tw.float32)
    reversed_rows[2, 32](out, backend.put(host))
    expected = host[:, ::-1] * 3 + 1 + (np.arange(n) % 32).astype(np.float32)
    np.testing.assert_array_equal(backend.get(out), expected)


def test_one_launcher_with_changing_sizes(backend):
    launcher = reversed_rows[1, 32]
    for n in (64, 15000, 64, 200, 15000):
        host = np.ones((1, n), np.float32)
        out = backend.zeros((1, n), tw.float32)
        launcher(out, backend.put(host))
        np.testing.assert_array_equal(backend.get(out), 4 + (np.arange(n) % 32).astype(np.float32)[None])
        prepared = launcher.prepare(out, backend.put(host * 2))
        prepared()
        np.testing.assert_array_equal(backend.get(out), 7 + (np.arange(n) % 32).astype(np.float32)[None])


@tw.kernel
def by_number(out, n, scale: tw.float32):
    stage = tw.shared(tw.float32, (n,))
    twice = stage.recast(tw.uint16)
    i = tw.thread_idx.x
    for j in range(i, n, 32):
        stage[j] = j * scale
    tw.sync_threads()
    for j in range(i, n, 32):
        out[j] = stage[n - 1 - j]
        if twice[2 * j + 1] == 0 and j != 0:
            out[j] = -1.0


def test_a_size_by_a_number_that_changes_from_call_to_call(backend):
    launcher = by_number[1, 32]
    for n in (32, 20000, 1, 77, 20000):
        out = backend.zeros(n, tw.float32)
        launcher(out, n, 2.0)
        np.testing.assert_array_equal(backend.get(out), np.arange(n, dtype=np.float32)[::-1] * 2)
        launch = launcher.prepare(out, n, 1.0)
        launch()
        np.testing.assert_array_equal(backend.get(out), np.arange(n, dtype=np.float32)[::-1])


@pytest.mark.parametrize(
    ("n", "words"), [(60000, "takes 240000 bytes"), (2**30, "takes 4294967296 bytes"), (-3, "reaches -3 elements")]
)
def test_more_than_a_block_has_is_refused_before_the_launch(backend, n, words):
    out = backend.zeros(8, tw.float32)
    with pytest.raises(tw.ArgumentError, match=words) as caught:
        by_number[1, 32](out, n, 2.0)
    assert "tw.shared(tw.float32, (n,))" in str(caught.value)


@tw.kernel
def rows_of_four(out, n):
    a, b = tw.shared(tw.float32, (n, 4)), tw.shared(tw.float32, (n, 4))
    a[0, 0] = b[0, 0] = 1.0
    out[0] = a[0, 0] + b[0, 0]


@pytest.mark.parametrize("n", [2**28, 2**29, 2**30])
def test_sizes_do_not_wrap(backend, n):
    """4 n elements of 4 bytes are 0 in 32 bits."""
    with pytest.raises(tw.ArgumentError, match=f"takes {2 * n * 16} bytes"):
        rows_of_four[1, 1](backend.zeros(1, tw.float32), n)


@tw.kernel
def strided(out, x, pad):
    """The layout's strides are dynamic too; what lies between rows is not used."""
    stage = tw.shared(tw.float32, tw.Layout((8, x.shape[0]), (x.shape[0] + pad, 1)))
    i = tw.thread_idx.x
    for r in range(8):
        for j in range(i, x.shape[0], 32):
            stage[r, j] = x[j] + r
    tw.sync_threads()
    for r in range(8):
        for j in range(i, x.shape[0], 32):
            out[r, j] = stage[7 - r, x.shape[0] - 1 - j]


@pytest.mark.parametrize("pad", [0, 1, 5])
def test_dynamic_strides(backend, pad):
    host = np.arange(50, dtype=np.float32)
    out = backend.zeros((8, 50), tw.float32)
    strided[1, 32](out, backend.put(host), pad)
    np.testing.assert_array_equal(backend.get(out), host[::-1][None] + np.arange(8)[::-1][:, None])


def finds(kernel, *args):
    with tw.simulate(raise_errors=False) as run:
        kernel[1, 32](*args)
    return [finding.kind for finding in run.findings]


def test_what_the_simulator_finds_there():
    @tw.kernel
    def kernel(out, n, over: tw.constexpr, synchronised: tw.constexpr, written: tw.constexpr):
        a, b = tw.shared(tw.float32, (n,)), tw.shared(tw.float32, (n,))
        i = tw.thread_idx.x
        a[i + over] = 1.0
        if written:
            b[i] = 2.0
        if synchronised:
            tw.sync_threads()
        out[i] = a[31 - i + over] + b[31 - i]

    out = np.zeros(32, np.float32)
    assert finds(kernel, out, 32, 0, True, True) == []
    assert set(finds(kernel, out, 32, 1, True, True)) == {"out-of-bounds"}
    assert set(finds(kernel, out, 32, 0, False, True)) == {"race"}
    assert finds(kernel, out, 32, 0, True, False) == ["uninitialised-read"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda x: tw.shared(tw.float32, (x[0],)), "what only the device knows"),
        (lambda x: tw.shared(tw.float32, (tw.thread_idx.x,)), "what only the device knows"),
        (lambda x: tw.shared(tw.float32, tw.composition(tw.Swizzle(2, 0, 3), tw.Layout((x.shape[0],), (1,)))), "plain"),
    ],
)
def test_refusals(body, words):
    @tw.kernel
    def kernel(x):
        body(x)

    with pytest.raises(tw.LanguageError, match=words):
        kernel[1, 32].source(tw.spec(tw.int32, (8,)))


def test_it_is_taken_outside_of_loops_and_branches():
    @tw.kernel
    def kernel(x):
        for k in range(x.shape[0]):
            s = tw.shared(tw.int32, (x.shape[0],))
            s[tw.thread_idx.x] = k

    with pytest.raises(tw.LanguageError, match="inside of a loop or branch"):
        kernel[1, 32].source(tw.spec(tw.int32, (8,)))


def test_the_text_compiles():
    spec = tw.spec(tw.float32, 2)
    for arch in ("sm_80", "sm_90a"):
        text = reversed_rows[1, 32].source(spec, spec, arch=arch)
        assert "extern __shared__" in text
        assert reversed_rows[1, 32].ptx(spec, spec, arch=arch)
    assert "HIP_DYNAMIC" in text or "extern __shared__" in reversed_rows[1, 32].source(spec, spec, arch="gfx90a")
