"""Arrays after a launch that raised: the error says what they may hold, and they are put back where that is wanted."""

import pickle

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.backends.sim.machine import Machine
from tilewright.errors import ROLLBACK_VARIABLE, ArgumentError, CheckError


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv(ROLLBACK_VARIABLE, raising=False)


@tw.kernel
def races(y, x):
    tile = tw.shared(x.dtype, 64)
    y[tw.thread_idx.x] = x[tw.thread_idx.x]
    tile[tw.thread_idx.x] = x[tw.thread_idx.x]
    y[tw.thread_idx.x] = tile[(tw.thread_idx.x + 1) % 64]


@tw.kernel
def overruns(y, x):
    y[tw.thread_idx.x] = x[tw.thread_idx.x]
    y[tw.thread_idx.x + 1000] = x[tw.thread_idx.x]


@tw.kernel
def deadlocks(y, x):
    y[tw.thread_idx.x] = x[tw.thread_idx.x]
    barrier = tw.named_barrier(1, 64)
    if tw.warp_id() == 0 or x[0] > 1e9:
        barrier.sync()


@tw.kernel
def asserts(y, x):
    y[tw.thread_idx.x] = x[tw.thread_idx.x]
    tw.device_assert(tw.thread_idx.x < 5, "five")


@tw.kernel
def adds(y, x):
    tw.atomic_add(y, tw.thread_idx.x % 2, x[tw.thread_idx.x])
    tw.device_assert(tw.thread_idx.x < 5, "five")


KERNELS = (races, overruns, deadlocks, asserts)


def bits(array):
    """Return the memory that an array is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.tobytes("A")


def fail(launch, error=CheckError, **options):
    with tw.simulate(**options), pytest.raises(error) as caught:
        launch()
    return caught.value


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_the_error_says_what_the_arrays_hold(kernel):
    x, y = np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32)
    error = fail(lambda: kernel[1, 64](y, x))
    assert y.any() and (error.outputs, error.rolled_back) == (("y",), False)
    last = (
        "y may hold partial or wrong results; tw.simulate(rollback=True) or TILEWRIGHT_SIM_ROLLBACK=1 puts arrays back"
    )
    assert str(error).splitlines()[-1] == last
    y[:] = 7
    error = fail(lambda: kernel[1, 64](y, x), rollback=True)
    assert (y == 7).all() and error.rolled_back
    assert str(error).splitlines()[-1] == "y holds what it held before the launch"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def arrays(dtype):
    """Yield arrays of 64 elements that lie in memory in all ways, filled with every pattern of bits."""
    size = np.dtype(dtype).itemsize
    memory = np.random.default_rng(0).integers(0, 256, 64 * 4 * size, np.uint8)
    memory[: 8 * size] = 0xFF  # NaN of floats
    memory[size - 1 : 8 * size : size] = 0x7F  # signalling and quiet, of both signs
    if np.dtype(dtype) == np.bool_:
        memory &= 1
    whole = memory.view(dtype)
    yield from (
        whole[:64],
        whole[64:128],
        whole[::2][:64],
        whole[::4],
        whole[:64][::-1],
        whole[128:][::-2],
        memory[8 * size : 72 * size].view(dtype),
    )


TYPES = [
    np.float32,
    np.float64,
    np.float16,
    np.int8,
    np.int64,
    np.uint32,
    np.bool_,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
]


@pytest.mark.parametrize("dtype", TYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_bit_is_put_back(dtype):
    @tw.kernel
    def writes(y):
        y[tw.thread_idx.x] = y[63 - tw.thread_idx.x]
        tw.device_assert(tw.thread_idx.x != 5, "no")

    for y in arrays(dtype):
        before = bits(y)
        fail(lambda: writes[1, 64](y), rollback=True)
        assert bits(y) == before
        fail(lambda: writes[1, 64](y))
        assert bits(y) != before


@pytest.mark.parametrize("check", [True, False])
def test_gaps_between_rows_and_overlapping_views_are_put_back(check):
    @tw.kernel
    def scribbles(a, b, c):
        i = tw.thread_idx.x
        a[i % 4, i // 4] = 1.0
        b[i] = 2.0
        c[i % 4, i // 4] = 3.0
        b[i + 3] = 4.0
        a[i % 3, i // 4 + 5] = 5.0  # in the gaps
        c[i % 4, i // 4 + 100_000] = 6.0

    memory = np.random.default_rng(1).standard_normal(400).astype(np.float32)
    before = memory.tobytes()
    rows = memory[:80].reshape(4, 20)
    a, b, c = rows[:, 3:7], memory[10:30], rows.T[4:8, :].T[::-1]
    error = fail(lambda: scribbles[1, 16](a, b, c), rollback=True, check=check)
    assert memory.tobytes() == before
    assert str(error).splitlines()[-1] == "a, b, c hold what they held before the launch"
    fail(lambda: scribbles[1, 16](a, b, c), check=check)
    assert memory.tobytes() != before and (memory[8] == 5) == (not check)


def test_atomics_and_only_what_is_written():
    x, y = np.arange(64, dtype=np.int32), np.zeros(2, np.int32)
    error = fail(lambda: adds[1, 64](y, x), rollback=True)
    assert y.tolist() == [0, 0] and error.outputs == ("y",)

    @tw.kernel
    def reads(x):
        tw.device_assert(x[tw.thread_idx.x] < 5, "five")

    error = fail(lambda: reads[1, 64](x), rollback=True)
    assert error.outputs == () and "launch" not in str(error).splitlines()[-1]
    empty = np.zeros(0, np.int32)
    fail(lambda: overruns[1, 4](empty, x), rollback=True)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, ZeroDivisionError])
def test_whatever_stops_a_launch(error, monkeypatch):
    @tw.kernel
    def double(y):
        i = tw.block_idx.x * 256 + tw.thread_idx.x
        y[i] = 2 * y[i]

    y = np.ones(256 * 1024, np.int32)
    begin = Machine.begin

    def stops(machine, first, blocks):
        if first:
            assert (y == 2).any()
            raise error
        begin(machine, first, blocks)

    monkeypatch.setattr(Machine, "begin", stops)
    caught = fail(lambda: double[1024, 256](y), error, rollback=True)
    assert (y == 1).all()
    if hasattr(caught, "__notes__"):
        assert caught.__notes__ == ["y holds what it held before the launch"]
    fail(lambda: double[1024, 256](y), error)
    assert (y == 2).any() and (y == 1).any()


def test_who_decides(monkeypatch):
    x = np.arange(1, 65, dtype=np.float32)

    def is_put_back(**options):
        y = np.zeros(64, np.float32)
        fail(lambda: races[1, 64](y, x), **options)
        return not y.any()

    assert [is_put_back(), is_put_back(rollback=True), is_put_back(rollback=False)] == [False, True, False]
    with tw.simulate(rollback=True):
        assert [is_put_back(), is_put_back(rollback=False), is_put_back(nan=True)] == [True, False, True]
    y = np.zeros(64, np.float32)
    monkeypatch.setenv(ROLLBACK_VARIABLE, "1")
    with pytest.raises(CheckError):
        races[1, 64](y, x)
    assert not y.any()
    with pytest.raises(CheckError):
        races[1, 64].prepare(y, x)()
    assert not y.any()
    assert [is_put_back(), is_put_back(rollback=False)] == [True, False]
    for value, expected in (("0", False), ("", False)):
        monkeypatch.setenv(ROLLBACK_VARIABLE, value)
        assert is_put_back() is expected
    monkeypatch.setenv(ROLLBACK_VARIABLE, "yes")
    assert "TILEWRIGHT_SIM_ROLLBACK is 'yes'" in str(fail(lambda: races[1, 64](y, x), ArgumentError))
    assert not y.any()


def test_what_ends_without_an_error_stays():
    x, y = np.arange(1, 65, dtype=np.float32), np.zeros(64, np.float32)
    with tw.simulate(rollback=True, raise_errors=False) as run:
        races[1, 64](y, x)
    assert run.findings and y.all()
    y[:] = 0
    with tw.simulate(rollback=True, raise_errors=False, check=False), pytest.raises(CheckError):
        overruns[1, 64](y, x)  # which cannot go on
    assert not y.any()

    @tw.kernel
    def copy(y, x):
        y[tw.thread_idx.x] = x[tw.thread_idx.x]

    with tw.simulate(rollback=True):
        copy[1, 64](y, x)
    assert np.array_equal(x, y)
