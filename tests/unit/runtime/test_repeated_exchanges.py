"""Products over ranks that are called again: the launches of calls that look at arrays, with nothing looked at."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers.shown_to_c import why_not_compiled
from tests.unit.runtime.test_compiled_calls import agree, by_c
from tests.unit.runtime.test_repeated_calls import BF16, Library, launched, torch

import tilewright as tw
from tilewright.compile import Lowered
from tilewright.distributed import ExchangeBuffer, products
from tilewright.errors import ArgumentError
from tilewright.recording import record_launches
from tilewright.runtime.nvrtc import CompiledModule, Resources

__all__ = ["by_c", "launched", "torch"]  # fixtures

M, N, K = 64, 128, 72
Launches = list[tuple[Any, ...]]


def sliced(tensor: Any, keys: Any) -> Any:
    pointer, shape, strides = tensor.pointer, [], []
    keys = keys if isinstance(keys, tuple) else (keys,)
    given = (*keys, *[slice(None)] * (len(tensor.shape) - len(keys)))
    for key, extent, stride in zip(given, tensor.shape, tensor.stride(), strict=True):
        first, last, _ = key.indices(extent) if isinstance(key, slice) else (key, 0, 1)
        pointer += first * stride * getattr(tw, tensor.dtype.name).bytes
        if isinstance(key, slice):
            shape.append(last - first)
            strides.append(stride)
    return type(tensor)(tuple(shape), tuple(strides), pointer=pointer, dtype=tensor.dtype.name)


def reshaped(tensor: Any, *shape: int) -> Any:
    extents = (math.prod(tensor.shape),) if shape == (-1,) else shape
    return type(tensor)(extents, pointer=tensor.pointer, dtype=tensor.dtype.name)


class Ranks:
    """Two ranks whose memory is all of one process."""

    rank, size = 0, 2

    def __init__(self, library: Library) -> None:
        state = {"__module__": "torch", "__getitem__": sliced, "reshape": reshaped}
        library.kind = type("Tensor", (library.kind,), state)
        self.library = library

    def symmetric(self, shape: tuple[int, ...], dtype: object) -> Any:
        return SimpleNamespace(peers=[self.library(shape, str(dtype)) for _ in range(2)])


class Calls:
    """Calls of one operation by one rank, each of other arrays."""

    def __init__(self, name: str, library: Library) -> None:
        gathers = name == "all_gather_matmul"
        self.function: Callable[..., Any] = getattr(tw.distributed, name)
        self.gathers, (self.rows, self.results) = gathers, (M, 2 * M) if gathers else (2 * M, M)
        self.library = library
        self.buffer = ExchangeBuffer(Ranks(library), (M, K if gathers else N), tw.bfloat16)

    def arrays(self, more: int = 0, offset: int = 0, major: str = "N") -> tuple[Any, Any, Any]:
        """Return x, w and out; `more` is that of columns, or of K, which ranks may have."""
        t, n, k = self.library, N + more * self.gathers, K + more * (not self.gathers)
        x = t((self.rows, k), BF16, pointer=next(t.pointers) + offset)
        return x, t((k, n), BF16, (1, k) if major == "K" else None), t((self.results, n), BF16)

    def __call__(self, *arrays: Any, **kind: Any) -> tuple[Any, Any, Any]:
        given = arrays or self.arrays(**kind)
        assert self.function(*given, self.buffer) is given[2]
        return given  # type: ignore[return-value]


def refuse(*given: Any) -> None:
    raise AssertionError("a repeated call looked at an array")


@contextmanager
def looking_at_nothing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("describe", "gathered_launch", "scattered_launch"):
            patch.setattr(products, name, refuse)
        yield


@pytest.fixture(autouse=True)
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels whose machine code nobody runs; to compile them takes long."""
    resources = Resources(**dict.fromkeys(Resources.__dataclass_fields__, 0))
    monkeypatch.setattr(
        Lowered, "_compile", lambda self, source: CompiledModule(source.name, "sm_90a", b"", "", resources)
    )


@pytest.fixture(params=["all_gather_matmul", "matmul_reduce_scatter"])
def calls(request: pytest.FixtureRequest, torch: Library, launched: Launches) -> Calls:
    return Calls(request.param, torch)


def test_a_repeated_call_launches_what_one_that_looks_would(calls: Calls, launched: Launches) -> None:
    """Of even and odd calls, as their slots differ, and with the number of the call."""
    calls(), calls()
    for number in (3, 4, 5):
        del launched[:]
        with looking_at_nothing():
            arrays = calls()
        assert calls.buffer.calls == number
        found, known = launched[:], dict(calls.buffer.met)
        calls.buffer.calls -= 1
        calls.buffer.met.clear()
        del launched[:]
        calls(*arrays)
        assert launched == found and len(found) == 1
        calls.buffer.met.update(known)


@pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled launcher: {why_not_compiled()}")
@pytest.mark.parametrize("name", ["all_gather_matmul", "matmul_reduce_scatter"])
def test_c_launches_what_python_would(name: str, torch: Library, launched: Launches, by_c: Launches) -> None:
    calls = Calls(name, torch)
    for _ in range(3):
        calls()
    for _ in range(2):
        del launched[:], by_c[:]
        with looking_at_nothing():
            arrays = calls()
        assert not launched and len(by_c) == 1
        calls.buffer.calls -= 1
        with record_launches():
            calls(*arrays)
        assert agree(launched, by_c)


def test_other_layouts_are_kinds_of_their_own(calls: Calls, launched: Launches) -> None:
    kinds: list[dict[str, Any]] = [{}, {"more": 64}, {"major": "K"}]
    for _ in range(2):
        for kind in kinds:
            calls(**kind)
            calls(**kind)
    del launched[:]
    with looking_at_nothing():
        for kind in (*kinds, *kinds[::2]):
            calls(**kind)
    assert len(launched) == 5
    x, w, out = calls.arrays(offset=2)  # no kernel takes it in one launch
    for _ in range(2):
        del launched[:]
        calls(x, w, out)
        assert len(launched) > 3


def test_what_does_not_fit_is_refused_and_counts_no_call(calls: Calls, launched: Launches) -> None:
    for _ in range(3):
        x, w, out = calls()
    for given, message in (
        ((x, calls.library((K + 1, N), BF16), out), "x has 72 columns, and w 73 rows"),
        ((x, w, out, 3), "buffer is an ExchangeBuffer, got int 3"),
        ((x, object(), out), "w is a matrix, got object"),
    ):
        with pytest.raises(ArgumentError, match=message):
            calls.function(*given, *([] if len(given) > 3 else [calls.buffer]))
    with calls.buffer, pytest.raises(ArgumentError, match="used by two operations at once"):
        calls.function(x, w, out, calls.buffer)
    assert calls.buffer.calls == 4
    calls.buffer.calls = 2**31 - 1
    with pytest.raises(ArgumentError, match="was used 2"):
        calls()


def test_recordings_see_repeated_calls(calls: Calls, launched: Launches) -> None:
    for _ in range(3):
        calls()
    with record_launches() as found:
        calls()
    assert len(found) == 1 and len(launched) == 4
    for number in (5, 6, 7, 8):
        calls()
        assert calls.buffer.calls == number
    with looking_at_nothing():
        calls()


def test_nothing_is_kept_alive(calls: Calls, launched: Launches) -> None:
    for _ in range(4):
        given = calls()
    kept = [weakref.ref(array) for array in (*given, *calls.buffer._slots, calls.buffer)]
    del given, calls.buffer
    gc.collect()
    assert [each() for each in kept] == [None] * len(kept)


def test_all_of_a_sum(torch: Library, launched: Launches) -> None:
    buffers = [ExchangeBuffer(Ranks(torch), (M, N), tw.bfloat16) for _ in range(2)]

    def call(arrays: Any) -> Launches:
        del launched[:]
        tw.distributed.matmul_all_reduce(*arrays, *buffers)
        return launched[:]

    for _ in range(4):
        arrays = torch((2 * M, K), BF16), torch((K, N), BF16), torch((2 * M, N), BF16)
        with pytest.MonkeyPatch.context() as patch:
            if buffers[0].calls > 1:
                patch.setattr(products, "scattered_launch", refuse)
            found = call(arrays)
        known = dict(buffers[0].met)
        for buffer in buffers:
            buffer.calls -= 1
        buffers[0].met.clear()
        assert call(arrays) == found and len(found) == 6
        buffers[0].met.update(known)
