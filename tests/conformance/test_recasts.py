"""The same bytes as elements of another type: arguments, shared memory and registers, on both backends."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

TYPES = (tw.uint8, tw.int16, tw.bfloat16, tw.float16, tw.float32, tw.uint32, tw.int64, tw.float64)
PAIRS = [(a, b) for a in TYPES for b in TYPES if a is not b]
BYTES = 1024


def some_bytes():
    """Bytes that are no NaN in any of the types, whose bits a conversion would not keep."""
    return (np.arange(BYTES) * 37 % 113).astype(np.uint8)


@tw.kernel
def through_global(out, x, new: tw.constexpr):
    source, target = x.recast(new), out.recast(new)
    i = tw.thread_idx.x
    for k in range(source.size // 32):
        target[k * 32 + i] = source[k * 32 + i]


@tw.kernel
def through_shared(out, x, new: tw.constexpr, count: tw.constexpr):
    stage = tw.shared(x.dtype, count)
    i = tw.thread_idx.x
    for k in range(count // 32):
        stage[k * 32 + i] = x[k * 32 + i]
    tw.sync_threads()
    seen, target = stage.recast(new), out.recast(new)
    for k in range(seen.size // 32):
        target[k * 32 + i] = seen[k * 32 + i]


@tw.kernel
def through_registers(out, x, new: tw.constexpr, each: tw.constexpr):
    """A thread's elements are contiguous: what it holds of the other type is, too."""
    r = tw.registers(x.dtype, each)
    i = tw.thread_idx.x
    tw.copy(tw.local_tile(x, (each,), (i,)), r)
    seen = r.recast(new)
    target = tw.local_tile(out.recast(new), (seen.size,), (i,))
    for k in tw.static_range(seen.size):
        target[k] = seen[k]


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=str)
@pytest.mark.spread(6)
def test_the_same_bits_come_back(backend, old, new):
    data = some_bytes().view(old.numpy)
    x = backend.put(data)
    count, each = BYTES // old.bytes, BYTES // 32 // old.bytes
    for kernel, args in ((through_global, ()), (through_shared, (count,)), (through_registers, (each,))):
        out = backend.zeros(data.shape, old)
        kernel[1, 32](out, x, new, *args)
        np.testing.assert_array_equal(backend.get(out).view(np.uint8), some_bytes(), err_msg=kernel.__name__)


@tw.kernel
def written_in_parts(out, x):
    """Bytes written through the narrow view are read through the wide one, and again after a change there."""
    r = tw.registers(tw.float32, 2)
    halves = r.recast(tw.uint16)
    i = tw.thread_idx.x
    for k in tw.static_range(4):
        halves[k] = x[4 * i + k]
    r[0] = r[0] + 1
    low = halves[0]
    halves[0] = tw.uint16(0)
    out[i, 0] = r[0]
    out[i, 1] = r[1]
    out[i, 2] = low.to(tw.float32)


def test_writes_through_one_type_are_read_through_the_other(backend):
    wide = np.arange(1, 65, dtype=np.float32) / 7
    x, out = backend.put(wide.view(np.uint16)), backend.zeros((32, 3), tw.float32)
    written_in_parts[1, 32](out, x)
    first = wide[::2] + np.float32(1)
    expected = np.stack(
        [
            (first.view(np.uint32) & 0xFFFF0000).view(np.float32),
            wide[1::2],
            (first.view(np.uint32) & 0xFFFF).astype(np.float32),
        ],
        axis=1,
    )
    np.testing.assert_array_equal(backend.get(out), expected)


@tw.kernel
def in_order(out, x, s: tw.constexpr):
    """A load before a store through the other type must not stand for the one after it."""
    memory = tw.shared(tw.uint32, 32)
    narrow = memory.recast(tw.uint8)
    i = tw.thread_idx.x
    memory[i] = x[i]
    first = memory[i]
    narrow[4 * i + s] = tw.uint8(255)
    second = memory[i]
    bits = x.recast(tw.int32)
    before = x[i]
    bits[i] = tw.int32(7)
    out[i, 0], out[i, 1], out[i, 2], out[i, 3] = first, second, before, x[i]


@pytest.mark.parametrize("s", range(4))
def test_loads_and_stores_of_two_types_keep_their_order(backend, s):
    data = (np.arange(32) * 1_000_003).astype(np.uint32)
    x, out = backend.put(data), backend.zeros((32, 4), tw.uint32)
    in_order[1, 32](out, x, s)
    expected = np.stack([data, data | np.uint32(255 << 8 * s), data, np.full(32, 7, np.uint32)], axis=1)
    np.testing.assert_array_equal(backend.get(out), expected)


@tw.kernel
def matrix(out, x, by: tw.constexpr):
    """Rows of a matrix whose extents the launch knows: the mode of stride 1 takes the parts."""
    seen = x.recast(tw.uint16)
    i = tw.thread_idx.x
    for r in range(seen.shape[0]):
        for c in range(seen.shape[1]):
            if i == 0:
                out[r, c] = seen[r, c]


def test_dynamic_layouts_to_narrower_elements(backend):
    memory = backend.put(np.arange(64, dtype=np.float32))
    x = backend.strided(memory, (3, 8), (16, 1), 4)
    out = backend.zeros((3, 16), tw.uint16)
    matrix[1, 1](out, x, 2)
    host = np.arange(64, dtype=np.float32).reshape(4, 16)[:3, 4:12].copy()
    np.testing.assert_array_equal(backend.get(out), host.view(np.uint16))


@tw.kernel
def wide_rows(out, x):
    seen = x.recast(tw.float32)
    i = tw.thread_idx.x
    if i < seen.shape[1]:
        for r in range(seen.shape[0]):
            out[r, i] = seen[r, i]


def test_dynamic_layouts_to_wider_elements(backend):
    host = np.arange(3 * 16, dtype=np.float32).reshape(3, 16)
    out = backend.zeros((3, 16), tw.float32)
    wide_rows[1, 32](out, backend.put(host.view(np.uint16)))
    np.testing.assert_array_equal(backend.get(out), host)
    with pytest.raises(tw.TilewrightError):  # rows of 7 elements do not fall into pairs
        wide_rows[1, 32](out, backend.put(np.zeros((3, 7), np.uint16)))


@tw.kernel
def vector_view(out, x):
    """Copies take vectors of either type."""
    r = tw.registers(tw.bfloat16, 8)
    i = tw.thread_idx.x
    tw.copy(tw.local_tile(x.recast(tw.bfloat16), (8,), (i,)), r)
    tw.copy(r.recast(tw.uint32), tw.local_tile(out, (4,), (i,)))


def test_copies_of_views_take_vectors(backend):
    data = (np.arange(128) * 2654435761 % 2**30).astype(np.uint32)
    x, out = backend.put(data), backend.zeros(128, tw.uint32)
    vector_view[1, 32](out, x)
    np.testing.assert_array_equal(backend.get(out), data)
    spec = tw.spec(tw.uint32, (128,))
    assert "uint4" in vector_view[1, 32].source(spec, spec)


@tw.kernel
def epilogue(out, x, n: tw.constexpr):
    """Stages first, results later, in the same bytes; the results are seen as pairs too."""
    stage, result = tw.shared_union(stage=(tw.bfloat16, n), result=(tw.float32, n))
    i = tw.thread_idx.x
    stage[i] = x[i]
    tw.sync_threads()
    value = stage[n - 1 - i].to(tw.float32) * 2
    tw.sync_threads()
    result[i] = value
    tw.sync_threads()
    out[i] = result.recast(tw.uint16)[2 * (n - 1 - i) + 1]


def test_tensors_that_share_bytes(backend):
    host = np.arange(64, dtype=np.float32).astype(tw.bfloat16.numpy)
    out = backend.zeros(64, tw.uint16)
    epilogue[1, 64](out, backend.put(host), 64)
    expected = ((host.astype(np.float32) * 2).view(np.uint32) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(backend.get(out), expected)


@pytest.mark.parametrize("mode", ["start", "alignment", "bool", "operand", "layout"])
def test_refusals(backend, mode):
    @tw.kernel
    def wrong(x):
        if mode == "start":
            tw.Tensor(x.engine.offset(tw.thread_idx.x), tw.Layout(2)).recast(tw.uint32)
        elif mode == "alignment":
            x.recast(tw.int64)
        elif mode == "bool":
            x.recast(tw.bool_)
        elif mode == "operand":
            x.recast(tw.tfloat32)
        else:
            tw.registers(tw.uint16, tw.Layout((3, 2), (1, 3))).recast(tw.uint32)

    memory = backend.put(np.zeros(64, np.uint16))
    with pytest.raises(tw.TilewrightError):
        wrong[1, 32](backend.strided(memory, (16,), (1,), 1) if mode == "alignment" else memory)
