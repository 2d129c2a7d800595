"""What a launch may look like: grids, arguments of all kinds, kernels of all kinds."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from tests.conformance.harness import ALL, Backend, assert_same_bits

import tilewright as tw


@tw.kernel
def places(out):
    """Every thread of every block writes where it is, at its own place."""
    bx, by, bz = tw.block_idx.x, tw.block_idx.y, tw.block_idx.z
    tx, ty, tz = tw.thread_idx.x, tw.thread_idx.y, tw.thread_idx.z
    block = bx + tw.grid_dim.x * (by + tw.grid_dim.y * bz)
    thread = tx + tw.block_dim.x * (ty + tw.block_dim.y * tz)
    out[block, thread, 0] = bx + 100 * by + 10000 * bz
    out[block, thread, 1] = tx + 100 * ty + 10000 * tz
    out[block, thread, 2] = tw.grid_dim.x + 100 * tw.grid_dim.y + 10000 * tw.grid_dim.z
    out[block, thread, 3] = tw.block_dim.x + 1100 * tw.block_dim.y + 1210000 * tw.block_dim.z


@pytest.mark.parametrize("grid", [1, 7, (5,), (3, 4), (2, 3, 4), [2, 2], (1, 1, 6)], ids=str)
@pytest.mark.parametrize("block", [1, 33, (8, 4), (4, 3, 5), (1, 1, 64), 1024], ids=str)
def test_grids_and_blocks(backend: Backend, grid: object, block: object) -> None:
    extents = [[*(x if isinstance(x, (tuple, list)) else (x,)), 1, 1][:3] for x in (grid, block)]
    blocks, threads = (int(np.prod(e)) for e in extents)
    out = backend.zeros((blocks, threads, 4), tw.int32)
    places[grid, block](out)
    found = backend.get(out)

    def coordinates(extent: list[int]) -> np.ndarray:
        z, y, x = np.meshgrid(*(np.arange(n) for n in extent[::-1]), indexing="ij")
        return (x + 100 * y + 10000 * z).ravel()

    assert np.array_equal(found[:, :, 0], np.repeat(coordinates(extents[0])[:, None], threads, axis=1))
    assert np.array_equal(found[:, :, 1], np.repeat(coordinates(extents[1])[None], blocks, axis=0))
    assert (found[:, :, 2] == extents[0][0] + 100 * extents[0][1] + 10000 * extents[0][2]).all()
    assert (found[:, :, 3] == extents[1][0] + 1100 * extents[1][1] + 1210000 * extents[1][2]).all()


@tw.kernel
def add_to(x, value):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        x[i] = x[i] + value


def test_grid_from_the_arguments(backend: Backend) -> None:
    x = backend.zeros(1000, tw.float32)
    add_to[lambda array, value: -(-array.shape[0] // 64), 64](x, 2.0)
    add_to[lambda array, value: (int(value), 1), 100](x, 5.0)
    expected = np.full(1000, 2.0, np.float32)
    expected[:500] += 5
    assert_same_bits(backend.get(x), expected)


NUMBERS = (
    3, -3, 2.5, True, np.int32(-7), np.int64(9), np.uint32(5), np.float16(0.5), np.float32(0.25), np.float64(1.5),
    np.bool_(True),
)  # fmt: skip


@pytest.mark.parametrize("value", NUMBERS, ids=lambda v: type(v).__name__)
def test_numbers_as_arguments(backend: Backend, value: object) -> None:
    x = backend.put(np.arange(10, dtype=np.float64))
    add_to[1, 32](x, value)
    assert_same_bits(backend.get(x), np.arange(10) + np.float64(value))  # type: ignore[arg-type]


def test_a_bfloat16_number_as_argument(backend: Backend) -> None:
    x = backend.put(np.arange(10, dtype=np.float32))
    add_to[1, 32](x, tw.bfloat16(0.375))
    assert_same_bits(backend.get(x), np.arange(10, dtype=np.float32) + np.float32(0.375))


@tw.kernel
def number_types(out, a, b, seen: tw.constexpr):
    seen(a.dtype, b.dtype)
    out[0] = a.to(tw.float64)
    out[1] = b.to(tw.float64)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (5, tw.int32),
        (2**40, tw.int64),
        (-(2**31), tw.int32),
        (1.5, tw.float32),
        (True, tw.bool_),
        (np.uint32(2**32 - 1), tw.uint32),
    ],
)
def test_types_of_numbers(backend: Backend, value: object, dtype: tw.DType) -> None:
    found = []
    out = backend.zeros(2, tw.float64)
    number_types[1, 1](out, value, value, lambda *types: found.extend(types))
    assert found == [dtype, dtype]
    assert backend.get(out).tolist() == [float(value)] * 2  # type: ignore[arg-type]


@tw.kernel
def with_defaults(out, scale=2.0, shift: tw.constexpr = 1):
    out[tw.thread_idx.x] = tw.thread_idx.x * scale + shift


def test_keywords_and_defaults(backend: Backend) -> None:
    out = backend.zeros(8, tw.float32)
    with_defaults[1, 8](out)
    assert backend.get(out).tolist() == [2 * i + 1 for i in range(8)]
    with_defaults[1, 8](out, shift=-1, scale=0.5)
    assert backend.get(out).tolist() == [0.5 * i - 1 for i in range(8)]


@tw.kernel
def optional(out, bias):
    i = tw.thread_idx.x
    out[i] = i
    if bias is not None:
        out[i] = i + bias[i]


def test_an_argument_that_is_none(backend: Backend) -> None:
    out = backend.zeros(8, tw.int32)
    optional[1, 8](out, None)
    assert backend.get(out).tolist() == list(range(8))
    optional[1, 8](out, backend.put(np.full(8, 10, np.int32)))
    assert backend.get(out).tolist() == list(range(10, 18))


@tw.kernel
def whole_layout(out, x, seen: tw.constexpr):
    seen(x.shape, x.stride)
    tw.copy(x, out)


def test_static_arrays(backend: Backend) -> None:
    """All extents and strides are Python ints in the kernel."""
    found: list[object] = []
    memory = np.arange(100, dtype=np.int32)
    x = backend.strided(backend.put(memory), (4, 6), (10, 1), 2)
    out = backend.zeros((4, 6), tw.int32)
    whole_layout[1, 1](tw.static(out), tw.static(x), lambda shape, stride: found.extend((shape, stride)))
    assert found == [(4, 6), (10, 1)]
    assert np.array_equal(backend.get(out), memory[2:42].reshape(4, 10)[:, :6])


@tw.kernel
def double(out, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size:
        out[i] = 2 * x[i]


@pytest.mark.parametrize("dtype", ALL[1:], ids=str)
def test_arrays_of_no_elements(backend: Backend, dtype: tw.DType) -> None:
    out = backend.put(np.full(4, 3).astype(dtype.numpy))
    double[1, 32](out, backend.zeros(0, dtype))
    assert backend.get(out).astype(float).tolist() == [3.0] * 4


@tw.kernel
def double_matrix(out, x):
    for i in range(tw.thread_idx.x, x.shape[0], tw.block_dim.x):
        for j in range(x.shape[1]):
            out[i, j] = 2 * x[i, j]


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (7, 3)], ids=str)
def test_matrices_of_few_elements(backend: Backend, shape: tuple[int, int]) -> None:
    x = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape)
    out = backend.zeros(shape, tw.float32)
    double_matrix[1, 4](out, backend.put(x))
    assert_same_bits(backend.get(out), 2 * x)


def test_in_place(backend: Backend) -> None:
    """One array as input and output."""
    x = backend.put(np.arange(300, dtype=np.int32))
    double[3, 128](x, x)
    double[3, 128](x, x)
    assert np.array_equal(backend.get(x), 4 * np.arange(300))


@tw.kernel
def reverse_in_place(x):
    """Each thread swaps two elements."""
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    if i < x.size // 2:
        a, b = x[i], x[x.size - 1 - i]
        x[i], x[x.size - 1 - i] = b, a


def test_swap_in_place(backend: Backend) -> None:
    x = np.random.default_rng(0).standard_normal(301).astype(np.float32)
    there = backend.put(x)
    reverse_in_place[2, 128](there)
    assert_same_bits(backend.get(there), x[::-1].copy())


@tw.kernel
def read_again(out, x):
    """What the second read finds depends on whether the two are one array."""
    i = tw.thread_idx.x
    before = x[i]
    out[i] = before + 1
    out[i] = x[i] * 10


@pytest.mark.parametrize("prepared", [False, True])
def test_reads_after_writes_to_the_same_array(backend: Backend, prepared: bool) -> None:
    for together in (False, True, False):
        x = backend.put(np.arange(64, dtype=np.int32))
        out = x if together else backend.zeros(64, tw.int32)
        if prepared:
            read_again[1, 64].prepare(out, x)()
        else:
            read_again[1, 64](out, x)
        assert np.array_equal(backend.get(out), 10 * (np.arange(64) + together))


def test_overlapping_views(backend: Backend) -> None:
    """Input and output are parts of one array, and each thread writes behind what all read."""
    memory = backend.put(np.arange(128, dtype=np.int32))
    double[1, 64](backend.strided(memory, (64,), (1,), 64), backend.strided(memory, (64,), (1,), 0))
    assert np.array_equal(backend.get(memory), np.concatenate([np.arange(64), 2 * np.arange(64)]))


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_ranks(backend: Backend, rank: int) -> None:
    shape = (2, 3, 4, 5)[:rank]

    @tw.kernel
    def copy_all(dst, src):
        for i in range(tw.thread_idx.x, src.size, tw.block_dim.x):
            dst[i] = src[i]  # a linear index goes through all modes, the first one fastest

    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    out = backend.zeros(shape, tw.int32)
    copy_all[1, 7](out, backend.put(x))
    assert np.array_equal(backend.get(out), x)


# --- kernels of all kinds ------------------------------------------------------------------------------


class Scaler:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @tw.kernel
    def run(self, x):
        i = tw.thread_idx.x
        x[i] = x[i] * self.factor + self.offset()

    def offset(self) -> int:
        return self.factor + 1


def test_methods(backend: Backend) -> None:
    x = backend.put(np.arange(8, dtype=np.int32))
    two, three = Scaler(2), Scaler(3)
    two.run[1, 8](x)
    three.run[1, 8](x)
    two.run[1, 8](x)
    assert backend.get(x).tolist() == [((i * 2 + 3) * 3 + 4) * 2 + 3 for i in range(8)]


def test_closures_and_kernels_made_in_a_loop(backend: Backend) -> None:
    kernels = []
    for power in range(4):

        @tw.kernel
        def raise_to(out, x):
            i = tw.thread_idx.x
            out[i] = x[i] ** power  # it is what is tested: the value at the call

        kernels.append((raise_to, power))
    x = np.arange(8, dtype=np.int32)
    out = backend.zeros(8, tw.int32)
    raise_to[1, 8](out, backend.put(x))
    assert np.array_equal(backend.get(out), x**3)

    def make(factor: int) -> tw.Kernel:
        @tw.kernel
        def scale(out, x):
            i = tw.thread_idx.x
            out[i] = x[i] * factor

        return scale

    for factor in (2, 5):
        make(factor)[1, 8](out, backend.put(x))
        assert np.array_equal(backend.get(out), factor * x)


FACTOR = 3


@tw.kernel
def by_global(x):
    x[tw.thread_idx.x] *= FACTOR


def test_changed_globals_are_seen(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    x = backend.put(np.arange(8, dtype=np.int32))
    by_global[1, 8](x)
    monkeypatch.setitem(globals(), "FACTOR", 7)
    by_global[1, 8](x)
    assert backend.get(x).tolist() == [21 * i for i in range(8)]


def test_functions_as_arguments(backend: Backend) -> None:
    @tw.kernel
    def apply(out, x, function: tw.constexpr):
        i = tw.thread_idx.x
        out[i] = function(x[i])

    x = np.arange(8, dtype=np.int32)
    out = backend.zeros(8, tw.int32)
    for function in (lambda v: v + 1, lambda v: v * v, abs):
        apply[1, 8](out, backend.put(x), function)
        assert np.array_equal(backend.get(out), function(x))


def test_prepared_launches(backend: Backend) -> None:
    """Arguments are packed once; each call runs the kernel on what the arrays hold then."""
    x, y = backend.put(np.arange(8, dtype=np.int32)), backend.put(np.full(8, 100, np.int32))
    twice, once = double[1, 32].prepare(x, x), double[1, 32].prepare(y, x)
    twice()
    twice()
    once()
    assert np.array_equal(backend.get(x), 4 * np.arange(8))
    assert np.array_equal(backend.get(y), 8 * np.arange(8))


def test_many_specialisations_of_one_kernel(backend: Backend) -> None:
    """Types, alignments, contiguity and sizes alternate, so that a wrong cached choice would show."""
    for _ in range(2):
        for dtype in (tw.int32, tw.float32, tw.float64):
            memory = np.arange(200).astype(dtype.numpy)
            for offset, stride, count in ((0, 1, 64), (1, 1, 64), (4, 2, 64), (0, 1, 63), (2, 3, 60)):
                view = backend.strided(backend.put(memory), (count,), (stride,), offset)
                out = backend.zeros(count, dtype)
                double[1, 64](out, view)
                assert_same_bits(backend.get(out), 2 * memory[offset::stride][:count])


def test_launches_from_several_threads(backend: Backend) -> None:
    """They trace, compile and launch one kernel at once, each with arrays and numbers of its own."""

    @tw.kernel
    def mix(out, x, factor, offset, rounds: tw.constexpr):
        i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
        if i < x.size:
            value = x[i]
            for _ in range(rounds):
                value = value * factor + offset
            out[i] = value

    failures: list[object] = []
    barrier = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            host = np.arange(257 + number, dtype=np.int32)
            x, out = backend.put(host), backend.zeros(host.size, tw.int32)
            barrier.wait()
            for step in range(20):
                rounds = 1 + (number + step) % 3
                mix[4, 128](out, x, number + 1, step, rounds)
                expected = host
                for _ in range(rounds):
                    expected = expected * (number + 1) + step
                if not np.array_equal(backend.get(out), expected):
                    failures.append((number, step))
        except Exception as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
