"""Texts and refusals of tensors at addresses, recasts and shared bytes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

ADDRESSES = tw.spec(tw.uint64, (4,))
X = tw.spec(tw.float32, (64,))


def signature(text):
    return text[text.index("(") : text.index(") {")]


@tw.kernel
def writes(out, x, addresses):
    p = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
    p[tw.thread_idx.x] = x[tw.thread_idx.x]
    out[0] = x[0]


@tw.kernel
def reads(out, x, addresses):
    p = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
    out[tw.thread_idx.x] = x[tw.thread_idx.x] + p[tw.thread_idx.x]


def test_nothing_is_promised_where_addresses_are_written():
    text = writes[1, 64].source(X, X, ADDRESSES)
    assert "__restrict__" not in text
    assert "float* const p = (float*)addresses[0];" in text
    text = reads[1, 64].source(X, X, ADDRESSES)
    assert "const float* __restrict__ x" in signature(text)
    assert "const float* const p = (const float*)addresses[0];" in text


def test_a_view_that_is_written_takes_the_promise_from_its_array():
    @tw.kernel
    def kernel(out, x):
        out[0] = x[0]
        x.recast(tw.uint16)[1] = tw.uint16(1)
        out[1] = x[0]

    text = kernel[1, 1].source(X, X)
    assert "float* x" in signature(text) and "__restrict__" not in text
    assert text.count("= x[0];") == 2  # the store changes what the second load gives
    lowered = kernel[1, 1].lower(X, X)
    assert lowered.written == {"out", "x"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_recast_registers_stay_registers(arch):
    @tw.kernel
    def kernel(out, x):
        r = tw.registers(tw.float32, 4)
        tw.copy(tw.local_tile(x, (4,), (tw.thread_idx.x,)), r)
        halves = r.recast(tw.bfloat16)
        total = tw.float32(0)
        for k in range(8):
            total += halves[k].to(tw.float32)
        out[tw.thread_idx.x] = total

    ptx = kernel[1, 16].ptx(X, X, arch=arch)
    assert ".local" not in ptx


@pytest.mark.parametrize("arch", ["sm_80", "gfx90a"])
def test_texts_compile_for_both_vendors(arch):
    @tw.kernel
    def kernel(out, addresses):
        a, b = tw.shared_union(a=(tw.float32, 64), b=(tw.uint16, 64))
        p = tw.make_tensor(tw.pointer(addresses[0], tw.float32), tw.Layout(64))
        i = tw.thread_idx.x
        a[i] = p[i]
        tw.sync_threads()
        out[i] = a.recast(tw.uint32)[63 - i].to(tw.float32)
        tw.sync_threads()
        b[i] = tw.uint16(1)
        tw.sync_threads()
        p[i] = b[63 - i].to(tw.float32)

    text = kernel[1, 64].source(X, ADDRESSES, arch=arch)
    assert "unsigned char a_or_b[256];" in text
    assert "float* const a = (float*)a_or_b;" in text
    if arch != "gfx90a":
        kernel[1, 64].ptx(X, ADDRESSES, arch=arch)


def test_shared_bytes_are_placed_together_and_beside_others():
    @tw.kernel
    def kernel(out):
        other = tw.shared(tw.float32, 100)
        a, b = tw.shared_union(a=(tw.float32, 64), b=(tw.float64, 64), alignment=256)
        i = tw.thread_idx.x
        other[i] = 1.0
        a[i] = 1.0
        tw.sync_threads()
        out[i] = a[63 - i] + other[i]
        tw.sync_threads()
        b[i] = tw.float64(2)
        tw.sync_threads()
        out[i] = b[63 - i].to(tw.float32) + other[63 - i]

    lowered = kernel[1, 64].lower(X)
    placed = {b.name: b for b in lowered.kernel.buffers() if b.space.value == "shared"}
    assert placed["a"].offset == placed["b"].offset
    assert placed["a"].offset % 256 == 0
    first, second = sorted([(placed["other"].offset, 400), (placed["b"].offset, 512)])
    assert first[0] + first[1] <= second[0]


def test_bytes_are_in_use_as_long_as_a_view_is():
    @tw.kernel
    def kernel(out):
        i = tw.thread_idx.x
        a = tw.shared(tw.float32, 64)
        bits = a.recast(tw.uint32)
        bits[i] = tw.uint32(5)
        tw.sync_threads()
        b = tw.shared(tw.float32, 64)
        b[i] = 1.0
        tw.sync_threads()
        out[i] = bits[63 - i].to(tw.float32) + b[63 - i]

    out = np.zeros(64, np.float32)
    kernel[1, 64](out)
    assert (out == 6).all()
    lowered = kernel[1, 64].lower(X)
    assert lowered.kernel.shared_bytes == 512


def test_arrays_that_are_written_by_the_address_that_was_chosen_are_outputs():
    @tw.kernel
    def kernel(x, y, z, c):
        t = x if c > 0 else y
        t[tw.thread_idx.x] = z[tw.thread_idx.x]

    assert kernel[1, 64].lower(X, X, X, 1).written == {"x", "y"}
    x, y, z = (np.zeros(64, np.float32) for _ in range(3))
    z.setflags(write=False)
    kernel[1, 64](x, y, z, 1)
    y.setflags(write=False)
    with pytest.raises(tw.ArgumentError, match="'y' is written by the kernel, and the array is read-only"):
        kernel[1, 64](x, y, z, 1)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a: tw.pointer(tw.thread_idx.x, tw.float32), "an int64 or a uint64, got int32"),
        (lambda a: tw.pointer("x", tw.float32), "an int64 or a uint64, got 'x'"),
        (lambda a: tw.pointer(a[0], tw.float32, align=2), "at least the 4 bytes"),
        (lambda a: tw.pointer(a[0], tw.float32, align=24), "a power of two"),
        (lambda a: tw.pointer(a[0], tw.tfloat32), "memory does not hold tfloat32"),
        (lambda a: tw.shared_union(a=(tw.float32, 4)), "at least two tensors"),
        (lambda a: tw.shared_union(a=(tw.float32, 4), b=4), "b is .element type, layout."),
        (lambda a: tw.shared_union(a=(tw.float32, 4), b=(tw.float32, a.shape)), "b has a dynamic layout"),
    ],
)
def test_refusals(call, words):
    @tw.kernel
    def kernel(a):
        call(a)

    with pytest.raises(tw.TilewrightError, match=words):
        kernel[1, 32].source(ADDRESSES)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ([], "at least one array"),
        (np.zeros(3), "a list of at least one array"),
        ([np.zeros(3), 3], r"arrays\[1\] is 3, which is not an array"),
        ([np.zeros(3, complex)], r"arrays\[0\] cannot be used: complex128"),
    ],
)
def test_what_addresses_refuses(arrays, words):
    with pytest.raises(tw.ArgumentError, match=words):
        tw.addresses(arrays)


def test_addresses_keep_their_arrays_and_are_not_copied():
    import copy
    import gc
    import pickle
    import weakref

    class Array(np.ndarray):
        pass

    array = np.zeros(4, np.float32).view(Array)
    gone = weakref.ref(array)
    held = tw.addresses([array])
    del array
    gc.collect()
    assert gone() is not None
    assert copy.copy(held) is held
    for use in (copy.deepcopy, pickle.dumps):
        with pytest.raises(tw.ArgumentError, match="addresses"):
            use(held)
    del held
    gc.collect()
    assert gone() is None
