"""`tw.matmul` on a GPU that is a stand-in: what is launched, where, and what a call met before still does."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.one_family import only
from tests.unit.runtime.conftest import FakeCuda, forget_devices, install
from tests.unit.runtime.fake_arrays import Tensor

import tilewright as tw
from tilewright import launch, specialise
from tilewright.arch import default_arch
from tilewright.backends.cuda import CudaSource
from tilewright.compile import Lowered, lower
from tilewright.ir.core import TensorMap
from tilewright.ir.maps import MapValues
from tilewright.kernels import choice, dispatch, results
from tilewright.kernels import matmul as entry
from tilewright.kernels._hopper_kernel import matmul_warpgroups
from tilewright.kernels._multistage_kernel import matmul_tiles
from tilewright.kernels._split_k_kernel import add_splits
from tilewright.kernels._stream_k_kernel import add_pieces
from tilewright.kernels.hopper_plan import HopperConfiguration, StreamConfiguration
from tilewright.kernels.multistage import Multistage
from tilewright.launch import _Variant
from tilewright.recording import record_launches, trace_launches
from tilewright.runtime import compiled as launcher

MEGABYTE = 1 << 20
STREAM = 77

# A class of its own, whose adapter is made with the stand-in for torch of these tests.
DeviceTensor: Any = type("Tensor", (Tensor,), {"__module__": "torch"})
TORCH = SimpleNamespace(_C=SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: STREAM))


# What was traced, for all tests: a kernel is launched on a device of each test's own, and traced in seconds.
_traced: dict[Any, Lowered] = {}


def lowered_once(function: Any, arguments: Any, **options: Any) -> Lowered:
    key = function.__code__, tuple(arguments.items()), tuple(options.items())
    if key not in _traced:
        _traced[key] = lower(function, arguments, **options)
    return _traced[key]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """A device without a compiler, whose driver encodes no tensor maps: machine code is empty."""

    def compiled(lowered: Lowered, source: CudaSource) -> Any:
        return SimpleNamespace(cubin=b"", name=source.name)

    launcher.wait()  # a launcher that is built in the middle of a test takes the place of Python's
    monkeypatch.setattr(choice, "FAMILIES", (Multistage(),))
    entry._signature.cache_clear()
    monkeypatch.setattr(Lowered, "_compile", compiled)
    monkeypatch.setattr(launch, "lower", lowered_once)
    monkeypatch.setitem(sys.modules, "torch", TORCH)
    yield install(monkeypatch, FakeCuda())
    forget_devices()
    matmul_tiles.forget()
    entry._signature.cache_clear()


def matrix(number: int, *shape: int, strides: tuple[int, ...] | None = None, dtype: str = "bfloat16") -> Any:
    return DeviceTensor(shape, strides, pointer=number * MEGABYTE, dtype=dtype)


def test_grid_covers_the_result(gpu: FakeCuda) -> None:
    a, b, out = matrix(1, 300, 64), matrix(2, 64, 200), matrix(3, 300, 200)
    tw.matmul(a, b, out=out)
    tile = tw.matmul.explain(a, b, out=out).choice
    assert tile is not None
    m, n, _ = tile.configuration.tile
    ((extents, stream, _),) = gpu.launches
    assert stream == STREAM
    assert extents[:4] == (-(-300 // m) * -(-200 // n), 1, 1, tile.configuration.threads)


def test_batch_modes_that_stay_apart_are_launches(gpu: FakeCuda) -> None:
    tw.matmul(matrix(1, 4, 1, 16, 64), matrix(2, 9, 64, 32), out=matrix(3, 4, 9, 16, 32))
    assert len(gpu.launches) == 4


def test_empty_results_launch_nothing(gpu: FakeCuda) -> None:
    tw.matmul(matrix(1, 0, 8), matrix(2, 8, 4), out=matrix(3, 0, 4))
    tw.matmul(matrix(1, 0, 8, 8), matrix(2, 0, 8, 4), out=matrix(3, 0, 8, 4))
    assert gpu.launches == []


def test_a_call_is_planned_once(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = []
    plan_call = entry.plan_call
    monkeypatch.setattr(entry, "plan_call", lambda *args: planned.append(1) or plan_call(*args))
    for call in range(3):
        tw.matmul(matrix(1 + call, 96, 64), matrix(5 + call, 64, 96), out=matrix(10 + call, 96, 96))
    assert len(planned) == 1 and len(gpu.launches) == 3
    misaligned = DeviceTensor((96, 64), pointer=MEGABYTE + 8, dtype="bfloat16")
    tw.matmul(misaligned, matrix(5, 64, 96), out=matrix(10, 96, 96))
    assert len(planned) == 2


def test_overlap_is_found_from_addresses(gpu: FakeCuda) -> None:
    a, b = matrix(1, 64, 64), matrix(2, 64, 64)
    behind = DeviceTensor((64, 64), pointer=MEGABYTE + 64 * 64 * 2, dtype="bfloat16")
    tw.matmul(a, b, out=behind)
    inside = DeviceTensor((64, 64), pointer=MEGABYTE + 64 * 62 * 2, dtype="bfloat16")
    with pytest.raises(tw.ArgumentError, match="out shares memory with a"):
        tw.matmul(a, b, out=inside)
    # Columns beside those of a, in the same rows.
    beside = DeviceTensor((64, 64), (128, 1), pointer=MEGABYTE + 128, dtype="bfloat16")
    tw.matmul(matrix(1, 64, 64, strides=(128, 1)), b, out=beside)
    assert len(gpu.launches) == 2


def test_target_is_that_of_the_device(gpu: FakeCuda) -> None:
    gpu.capability = (7, 5)
    with pytest.raises(tw.ArgumentError, match="no kernel multiplies bfloat16 and bfloat16 on sm_75"):
        tw.matmul(matrix(1, 72, 72), matrix(2, 72, 72), out=matrix(3, 72, 72))


def test_arguments_are_classified_once(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls of a kind make no views, aligned or not, and pass what the first passed, with their own pointers."""

    def multiply(first: int, shift: int = 0) -> None:
        a = DeviceTensor((4, 96, 64), (96 * 72, 72, 1), pointer=first * MEGABYTE + shift, dtype="bfloat16")
        b = DeviceTensor((64, 96), pointer=(first + 1) * MEGABYTE, dtype="bfloat16")
        out = DeviceTensor((4, 96, 96), (96 * 104, 104, 1), pointer=(first + 2) * MEGABYTE, dtype="bfloat16")
        tw.matmul(a, b, out=out, alpha=first)

    def launches(first: int, *, shift: int = 0) -> list[Any]:
        gpu.launches.clear()
        multiply(first, shift)
        ((extents, stream, parameters),) = gpu.launches
        values = [ctypes.string_at(address, 4) for address in parameters]  # pointers below 4 GB have no more
        return [extents[:7], stream, *values]

    with trace_launches(default_arch()):  # the first call may be traced alone
        multiply(1)
    seen = {shift: launches(1, shift=shift) for shift in (0, 8)}
    monkeypatch.setattr(dispatch.View, "__init__", lambda *args: pytest.fail("a view was made"))
    for shift, expected in seen.items():
        assert launches(1, shift=shift) == expected
        assert launches(5, shift=shift) != expected
    monkeypatch.undo()
    with record_launches() as recorded:  # an observer sees the arguments
        assert launches(1) == seen[0]
    assert len(recorded) == 1
    assert launches(1) == seen[0]
    traced: list[Any] = []
    specialise = _Variant._specialise
    monkeypatch.setattr(_Variant, "_specialise", lambda *args: (traced.append(args), specialise(*args))[1])
    matmul_tiles.forget()  # what was compiled is not launched again
    assert launches(1) == seen[0] and launches(1) == seen[0]
    assert len(traced) == 1


def test_alignment_of_each_launch_of_a_call(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pointers at 4 and at 12 bytes are of one kind of call; one element further on they are aligned to 8 and to 16."""
    traced: list[Any] = []
    specialise = _Variant._specialise
    monkeypatch.setattr(_Variant, "_specialise", lambda *args: (traced.append(args), specialise(*args))[1])
    b = DeviceTensor((64, 64), pointer=2 * MEGABYTE, dtype="float32")
    out = DeviceTensor((2, 3, 64, 64), (128 * 64 * 8, 64 * 64 * 2, 64, 1), pointer=4 * MEGABYTE, dtype="float32")
    counts = []
    for shift in (4, 12, 4, 12):
        strides = (64 * 64 * 7 + 1, 64 * 64 * 2, 64, 1)
        a = DeviceTensor((2, 3, 64, 64), strides, pointer=MEGABYTE + shift, dtype="float32")
        gpu.launches.clear()
        tw.matmul(a, b, out=out)
        counts.append((len(gpu.launches), len(traced)))
    assert counts == [(2, 2), (2, 3), (2, 3), (2, 3)]


# --- the Hopper family ---------------------------------------------------------------------------------------


@pytest.fixture
def hopper(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """A GPU whose driver encodes tensor maps: it remembers address, extents and strides of each."""
    gpu.maps = []

    def encode(map: TensorMap, values: MapValues, address: int) -> bytes:
        gpu.maps.append((map.buffer.name, address, values.extents, values.strides))
        return bytes(128)

    monkeypatch.setattr(specialise, "encode", encode)
    yield gpu
    for kernel in (matmul_warpgroups, add_splits, add_pieces):
        kernel.forget()


def test_blocks_stay_and_maps_are_made_once(hopper: FakeCuda) -> None:
    a, b, out = matrix(1, 4096, 1024), matrix(20, 1024, 4096), matrix(40, 4096, 4096)
    with only(HopperConfiguration((128, 256, 64), (8, 1), 4), 132):
        for _ in range(3):
            tw.matmul(a, b, out=out)
    assert [extents[:4] for extents, _, _ in hopper.launches] == [(132, 1, 1, 384)] * 3
    assert sorted(hopper.maps) == [
        ("A", MEGABYTE, (1024, 4096, 1), (1, 1024, 0)),
        ("B", 20 * MEGABYTE, (4096, 1024, 1), (1, 4096, 0)),
        ("D", 40 * MEGABYTE, (4096, 4096, 1), (1, 4096, 0)),
    ]


def test_splits_of_k_are_added_up_by_a_second_launch(hopper: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory that each call asks the library of its arrays for."""
    made = []

    def maker(shape: tuple[int, ...], dtype: tw.DType, device: object) -> Any:
        return lambda: made.append((shape, dtype)) or (object(), 800 * MEGABYTE)

    monkeypatch.setattr(results, "_torch_maker", maker)
    a, b, out = matrix(1, 250, 4096), matrix(100, 4096, 250, strides=(256, 1)), matrix(200, 250, 250)
    with only(HopperConfiguration((128, 128, 64), (8, 1), 4, splits=8), 132):
        for _ in range(2):
            tw.matmul(a, b, out=out)
    assert made == [((8, 250, 252), tw.float32)] * 2
    # 250 rows of 125 pairs, each of which 4 threads add up: 512 threads a multiprocessor.
    assert [extents[:4] for extents, _, _ in hopper.launches] == [(32, 1, 1, 384), (489, 1, 1, 256)] * 2
    assert ("D", 800 * MEGABYTE, (252, 250, 8), (1, 252, 250 * 252)) in hopper.maps  # rows of whole 16 bytes


def test_pieces_of_k_are_added_up_by_a_second_launch(hopper: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 68 tiles behind a wave, in up to 199 pieces; calls met before pass each kernel what the others did."""
    made = []

    def maker(shape: tuple[int, ...], dtype: tw.DType, device: object) -> Any:
        return lambda: made.append((shape, dtype)) or (object(), 800 * MEGABYTE)

    monkeypatch.setattr(results, "_torch_maker", maker)
    a, b, out, c = matrix(1, 1280, 2048), matrix(100, 2048, 5120), matrix(200, 1280, 5120), matrix(300, 1280, 5120)
    seen = []
    with only(StreamConfiguration((128, 256, 64), (8, 1), 4), 132):
        for call in range(3):
            if call == 2:
                monkeypatch.setattr(dispatch.View, "__init__", lambda *args: pytest.fail("a view was made"))
            hopper.launches.clear()
            tw.matmul(a, b, out=out, c=c, beta=2 + call)
            assert [extents[:4] for extents, _, _ in hopper.launches] == [(132, 1, 1, 384), (32, 68, 1, 256)]
            passed = [[ctypes.string_at(address, 4) for address in p] for _, _, p in hopper.launches]
            assert all((800 * MEGABYTE).to_bytes(4, "little") in values for values in passed)
            assert all(np.float32(2 + call).tobytes() in values for values in passed)
            # What only the addition takes: the tiles of K, and the blocks.
            assert (32).to_bytes(4, "little") in passed[1] and (132).to_bytes(4, "little") in passed[1]
            beta = np.float32(2 + call).tobytes()
            seen.append([[value for value in values if value != beta] for values in passed])
    assert made == [((199, 128, 256), tw.float32)] * 3
    assert seen[0] == seen[1] == seen[2]


def test_slices_of_k_are_two_launches_and_memory_of_the_library(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes memory of its own: torch gives it back to this stream, and keeps it where a graph is captured."""
    taken, seen = [], {}

    def empty(shape: tuple[int, ...], **options: Any) -> Any:
        taken.append(shape)
        return DeviceTensor(shape, pointer=(100 + len(taken)) * MEGABYTE, dtype="float32")

    monkeypatch.setattr(TORCH, "empty", empty, raising=False)
    monkeypatch.setattr(TORCH, "float32", "float32", raising=False)
    monkeypatch.setattr(TORCH, "device", str, raising=False)
    arrays = matrix(1, 64, 8192, dtype="float32"), matrix(2, 8192, 62, dtype="float32")
    choice = tw.matmul.explain(*arrays, out=matrix(9, 64, 62, dtype="float32")).choice
    assert choice is not None and choice.configuration.splits > 1
    splits = choice.configuration.splits
    for call in range(3):
        if call == 2:  # a call met before makes no views, and passes what the others did
            monkeypatch.setattr(dispatch.View, "__init__", lambda *args: pytest.fail("a view was made"))
        gpu.launches.clear()
        tw.matmul(*arrays, out=matrix(9, 64, 62, dtype="float32"), alpha=call)
        (first, _, sums), (_, _, added) = gpu.launches
        assert first[0] == splits and all(stream == STREAM for _, stream, _ in gpu.launches)
        assert taken[call:] == [(splits, 64, 64)]
        workspace = ((101 + call) * MEGABYTE).to_bytes(4, "little")  # pointers below 4 GB have no more
        of_sums, of_added = ([ctypes.string_at(address, 4) for address in p] for p in (sums, added))
        assert workspace in of_sums and workspace in of_added
        others = [[value for value in values if value != workspace] for values in (of_sums, of_added)]
        assert seen.setdefault(0, others[0]) == others[0]
        assert np.float32(call).tobytes() in others[1] and np.float32(1).tobytes() in others[0]
