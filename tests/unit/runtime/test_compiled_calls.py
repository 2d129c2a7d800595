"""Kernels and finished functions whose launches C makes: what the driver is given, and when Python looks again."""

from __future__ import annotations

import ctypes
import itertools
import threading
from typing import Any

import pytest
from tests.helpers.shown_to_c import c_function, shown_kind, why_not_compiled
from tests.helpers.slow import rest_is_slow
from tests.unit.runtime.conftest import FakeCuda
from tests.unit.runtime.test_repeated_calls import BF16, CALLS, STEP, Library, launched, torch

import tilewright as tw
from tilewright.errors import ArgumentError
from tilewright.recording import record_launches
from tilewright.runtime import compiled, driver
from tilewright.runtime.launch import Packer, PointerSlot

__all__ = ["launched", "torch"]  # fixtures

pytestmark = pytest.mark.skipif(why_not_compiled() is not None, reason=f"no compiled launcher: {why_not_compiled()}")

SHIFT = 2.0


@pytest.fixture
def by_c(torch: Library, fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What C gives the driver: grid and block, and the parameters. `launched` are Python's launches, as they are."""
    assert compiled.wait() is not None
    torch.kind = shown_kind()
    torch.kind.requires_grad = False
    found: list[tuple[Any, ...]] = []
    sizes: dict[int, list[int]] = {}
    form = Packer.form

    def get_function(function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 100 + module.value
        return 0

    def counted(self: Packer, library: Any, layouts: Any, function: Any, *rest: Any, **options: Any) -> Any:
        maps = 0 if self._maps is None else self._maps.count
        sizes[function.handle.value] = [8 if isinstance(s, PointerSlot) else s.dtype.bytes for s in self.slots] + [
            128
        ] * maps
        return form(self, library, layouts, function, *rest, **options)

    def launch(configuration: int, handle: int, parameters: Any) -> int:
        passed = (ctypes.string_at(parameters[n], size) for n, size in enumerate(sizes[handle]))
        found.append((ctypes.string_at(configuration, 28), *passed))
        return 0

    entry, function = c_function(launch)
    monkeypatch.setattr(fake_cuda, "cuModuleGetFunction", get_function)
    monkeypatch.setattr(driver, "entry_points", lambda ordinal: function and entry)
    monkeypatch.setattr(Packer, "form", counted)
    return found


def agree(launched: list[tuple[Any, ...]], by_c: list[tuple[Any, ...]]) -> bool:
    """Say whether launches are the same; of Python's parameters 8 bytes are known, of which not all may be theirs."""
    assert len(launched) == len(by_c)
    for python, c in zip(launched, by_c, strict=True):
        assert python[0] == c[0]
        for theirs, ours in zip(python[1:], c[1:], strict=True):
            assert theirs[: len(ours)] == ours[:8]
    return True


def product(t: Library) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (t((128, 64), BF16), t((64, 128), BF16)), {"alpha": 0.5}


FUNCTIONS: dict[str, Any] = {
    **{name: CALLS[name] for name in ("softmax", "rms_norm, statistics", "permute", "attention on Hopper")},
    "matmul": (tw.matmul, product),
}


@pytest.mark.parametrize("name", rest_is_slow(FUNCTIONS, *(FUNCTIONS.keys() - {"attention on Hopper"})))
def test_a_repeated_call_launches_what_pythons_launcher_would(
    name: str,
    torch: Library,
    launched: list[tuple[Any, ...]],
    by_c: list[tuple[Any, ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    function, arguments = FUNCTIONS[name]
    for _ in range(2):
        args, options = arguments(torch)
        function(*args, **options)
    args, options = arguments(torch)
    state = next(torch.pointers)
    del launched[:], by_c[:]
    torch.pointers = itertools.count(state, STEP)
    function(*args, **options)
    assert not launched
    found = by_c[:]
    assert found
    torch.pointers = itertools.count(state, STEP)  # results are made at the same places again
    with record_launches():  # then Python's launcher does it
        getattr(function, "__wrapped__", function)(*args, **options)
    assert agree(launched, found)


@pytest.fixture
def scale() -> tw.Kernel:
    """A kernel that was never launched."""

    @tw.kernel
    def scale(out, x, n, alpha, mode: tw.constexpr):
        i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
        if i < n:
            out[i] = alpha * x[i] + SHIFT if mode == "scale" else x[i]

    return scale


@tw.kernel(cluster=2)
def clusters(out, x):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    out[i] = x[i]


def shifted(by: float) -> tw.Kernel:
    names: list[float] = [by]

    @tw.kernel
    def shift(out, x):
        out[tw.thread_idx.x] = x[tw.thread_idx.x] + names[0]

    shift.names = names
    return shift


def same(launched: list[Any], by_c: list[Any], launch: Any, *args: Any) -> None:
    """Launch by C, and by Python as a recording has it."""
    del launched[:], by_c[:]
    launch(*args)
    assert not launched
    with record_launches():
        launch(*args)
    assert agree(launched, by_c)


def test_launches_of_a_kernel(scale: tw.Kernel, torch: Library, launched: list[Any], by_c: list[Any]) -> None:
    x, y = torch((64,)), torch((64,))
    for grid in (1, (2, 1), 3):
        scale[grid, 32](x, y, 5, 0.5, "scale")
        scale[grid, 32](x, y, 5, 0.5, "scale")
        same(launched, by_c, scale[grid, 32], torch((64,)), torch((64,)), -7, 1.0, "scale")
    for args in (
        (x, y, 5, 0.5, "copy"),
        (x, y, 2**31 - 1, float("inf"), "scale"),
        (x, torch((64,), strides=(2,)), 5, 0.5, "scale"),
    ):
        for _ in range(2):
            scale[1, 32](*args)
        same(launched, by_c, scale[1, 32], *args)


def test_clusters_are_asked_for_once(torch: Library, launched: list[Any], by_c: list[Any], fake_cuda: FakeCuda) -> None:
    asked: list[int] = []

    def active(count: Any, function: Any, configuration: Any) -> int:
        asked.append(1)
        count._obj.value = 66
        return 0

    fake_cuda.cuOccupancyMaxActiveClusters = active  # type: ignore[attr-defined]
    x, y = torch((128,)), torch((128,))
    for _ in range(4):
        clusters[4, 32](x, y)
    assert (len(launched), len(by_c), len(asked)) == (2, 2, 1)
    same(launched, by_c, clusters[4, 32], y, torch((128,)))


def test_arrays_that_share_memory_have_code_of_their_own(
    scale: tw.Kernel, torch: Library, launched: list[Any], by_c: list[Any]
) -> None:
    x, y = torch((64,)), torch((64,))
    for _ in range(3):
        scale[1, 32](x, y, 5, 0.5, "scale")
    assert (len(launched), len(by_c)) == (2, 1)
    scale[1, 32](x, x, 5, 0.5, "scale")
    assert (len(launched), len(by_c)) == (3, 1)


def test_what_a_kernel_captures_is_seen_to_change(
    torch: Library, launched: list[Any], by_c: list[Any], fake_cuda: FakeCuda
) -> None:
    kernel, x, y = shifted(1.0), torch((64,)), torch((64,))
    for _ in range(3):
        kernel[1, 32](x, y)
    assert (len(launched), len(by_c), fake_cuda.loaded) == (2, 1, 1)
    kernel.names[0] = 3.0  # type: ignore[attr-defined]
    for _ in range(3):
        kernel[1, 32](x, y)
    assert (len(launched), len(by_c), fake_cuda.loaded) == (4, 2, 2)


@pytest.mark.parametrize("name", ["softmax", "rms_norm, statistics", "matmul"])
def test_freed_memory_is_refused_by_calls_that_c_makes(
    name: str, torch: Library, launched: list[Any], by_c: list[Any]
) -> None:
    function, arguments = FUNCTIONS[name]
    for _ in range(3):
        args, options = arguments(torch)
        function(*args, **options)
    assert by_c
    del launched[:], by_c[:]
    for place in range(len(args)):
        for pointer in (0, 64):  # that of a view is its offset
            args, options = arguments(torch)
            args[place].pointer, args[place].is_freed = pointer, True
            with pytest.raises(ArgumentError, match="cannot be used: its memory was freed"):
                function(*args, **options)
    assert not launched and not by_c
    args, options = arguments(torch)
    function(*args, **options)
    assert by_c and not launched


def test_launches_with_freed_memory_are_refused(
    scale: tw.Kernel, torch: Library, launched: list[Any], by_c: list[Any]
) -> None:
    x, y, empty = torch((64,)), torch((64,)), torch((0,))
    empty.pointer = 0
    for _ in range(3):
        scale[1, 32](x, y, 5, 0.5, "scale")
        scale[1, 32](x, empty, 0, 0.5, "scale")
    assert (len(launched), len(by_c)) == (4, 2)
    assert by_c[-1][2] == bytes(8)  # C makes also launches of an array without elements
    del launched[:], by_c[:]
    for pointer in (0, 64):
        y.pointer, y.is_freed = pointer, True
        with pytest.raises(ArgumentError, match="^argument 'x' cannot be used: its memory was freed"):
            scale[1, 32](x, y, 5, 0.5, "scale")
    assert not launched and not by_c


def test_python_launches_until_it_is_built(
    scale: tw.Kernel, torch: Library, launched: list[Any], by_c: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What repeats a launch says so, and is made anew."""
    library, found = compiled.launcher(), [None]
    monkeypatch.setattr(compiled, "launcher", lambda: found[0])
    monkeypatch.setattr(compiled, "is_settled", lambda: found[0] is not None)
    args = torch((64,)), torch((64,)), 5, 0.5, "scale"
    values = args[0].data_ptr(), args[1].data_ptr(), 5, 0.5
    for _ in range(3):
        scale[1, 32](*args)
    again = scale[1, 32].repeat(args)
    assert again is not None
    assert again(values)
    assert (len(launched), len(by_c)) == (4, 0)
    found[0] = library
    assert not again(values)
    again = scale[1, 32].repeat(args)
    assert again is not None
    assert again(values)
    for _ in range(2):
        scale[1, 32](*args)
    assert (len(launched), len(by_c)) == (5, 2)


def test_errors_are_those_of_pythons_launcher(
    scale: tw.Kernel, torch: Library, launched: list[Any], by_c: list[Any]
) -> None:
    x, y = torch((64,)), torch((64,))
    for _ in range(3):
        scale[1, 32](x, y, 5, 0.5, "scale")
    for args in ((x, y, 2**64, 0.5, "scale"), (x, y, 5, 0.5, ["scale"]), (x, y, 5, "0.5", "scale"), (x, y)):
        with pytest.raises(ArgumentError) as by_python, record_launches():
            scale[1, 32](*args)
        with pytest.raises(ArgumentError) as found:
            scale[1, 32](*args)
        assert str(found.value) == str(by_python.value)


def test_prepared_launches(
    scale: tw.Kernel, torch: Library, launched: list[Any], by_c: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch((64,)), torch((64,))
    for _ in range(3):
        scale[1, 32](x, y, 5, 0.5, "scale")
    prepared = scale[1, 32].prepare(x, y, 5, 0.5, "scale")
    assert isinstance(prepared, compiled.launcher().Prepared)
    threads = [threading.Thread(target=prepared) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert by_c == [by_c[0]] * 3
