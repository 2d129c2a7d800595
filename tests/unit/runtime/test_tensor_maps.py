"""Tensor maps on the way to the driver: what is encoded, how often, and where launches find it."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from tests.helpers.compilers import has_nvrtc
from tests.unit.runtime.conftest import FakeCuda
from tests.unit.runtime.fake_arrays import Tensor

import tilewright as tw
from tilewright.errors import ArgumentError, DeviceError
from tilewright.ir.core import TensorMap
from tilewright.ir.maps import MapValues
from tilewright.runtime import driver
from tilewright.runtime.tensor_maps import encode

has_nvrtc()  # before the driver's stand-in takes the place of every library

SWIZZLED = tw.ComposedLayout(tw.Swizzle(3, 3, 3), 0, tw.row_major((16, 64)))


@pytest.fixture
def exchange() -> tw.Kernel:
    """A kernel of its own for each test: what it has loaded belongs to the test's driver."""

    @tw.kernel
    def exchange(out, x, n, layout: tw.constexpr):
        """Load from x and store to out, n rows further on."""
        smem, full = tw.shared(x.dtype, layout), tw.mbarrier(1)
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            full.arrive_expect_tx(16 * 64 * 2)
            tw.copy(tw.atoms.SM90_TMA_LOAD, tw.local_tile(tw.guarded(x), (16, 64), (n, 0)), smem, barrier=full)
            full.wait(0)
            tw.copy(tw.atoms.SM90_TMA_STORE, smem, tw.local_tile(tw.guarded(out), (16, 64), (n, 0)))
            tw.tma_store_commit()
            tw.tma_store_wait(0)

    return exchange


OwnTensor: Any = Tensor


class Encoder:
    """Stands for cuTensorMapEncodeTiled: keeps what it was given, and numbers the maps."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.status = 0
        self.steps: list[int] | None = None  # between elements, None: all are adjacent

    def __call__(
        self, map: int, kind: int, rank: int, address: int, extents: Any, strides: Any, box: Any, steps: Any, *rest: int
    ) -> int:
        assert map % 64 == 0 and list(steps) == (self.steps or [1] * rank)
        self.calls.append((kind, rank, address, list(extents), list(strides), list(box), *rest))
        ctypes.memset(map, len(self.calls), 128)
        return self.status


@pytest.fixture
def encoder(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    found = Encoder()
    fake_cuda.cuTensorMapEncodeTiled = found  # type: ignore[attr-defined]
    fake_cuda.current = [1000]
    # What is known of a class is kept: each test has one of its own, with its own framework.
    monkeypatch.setattr(sys.modules[__name__], "OwnTensor", type("Tensor", (Tensor,), {"__module__": "torch"}))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(
        _cuda_getCurrentRawStream=lambda ordinal: 0)))  # fmt: skip
    return found


@pytest.fixture
def seen(fake_cuda: FakeCuda) -> list[tuple[Any, ...]]:
    """The pointers and the maps of each launch: (out, x, byte of the first map, byte of the second map)."""
    found: list[tuple[Any, ...]] = []
    launch = fake_cuda.cuLaunchKernelEx

    def read(configuration: Any, function: Any, parameters: Any, extra: Any) -> int:
        # out and x come first; the number n behind them, and the two maps at the end.
        maps = [ctypes.string_at(parameters[k], 128) for k in (3, 4)]
        assert all(parameters[k] % 64 == 0 and len(set(data)) == 1 for k, data in zip((3, 4), maps, strict=True))
        pointers = [ctypes.c_uint64.from_address(parameters[k]).value for k in (0, 1)]
        found.append((*pointers, maps[0][0], maps[1][0]))
        return launch(configuration, function, parameters, extra)

    fake_cuda.cuLaunchKernelEx = read  # type: ignore[assignment, method-assign]
    return found


def half(shape: tuple[int, int], pointer: int, strides: tuple[int, int] | None = None) -> Any:
    return OwnTensor(shape, strides, pointer=pointer, dtype="float16")


def test_what_is_encoded(exchange: tw.Kernel, encoder: Encoder, seen: list[tuple[Any, ...]]) -> None:
    exchange[1, 32](half((100, 72), 4096), half((100, 72), 1 << 45, (128, 1)), 2, SWIZZLED)
    swizzle_128, promotion, zeros, plain = 3, 2, 0, 0
    assert encoder.calls == [
        (6, 2, 1 << 45, [72, 100], [256], [64, 16], plain, swizzle_128, promotion, zeros),
        (6, 2, 4096, [72, 100], [144], [64, 16], plain, swizzle_128, promotion, zeros),
    ]
    assert seen == [(4096, 1 << 45, 1, 2)]


def test_each_launch_has_the_maps_of_its_arrays(
    exchange: tw.Kernel, encoder: Encoder, seen: list[tuple[Any, ...]]
) -> None:
    launch = exchange[1, 32]
    other = 1 << 20
    for pointer, rows, expected in [(4096, 64, (1, 2)), (4096, 64, (1, 2)), (8192, 64, (3, 4)), (4096, 80, (5, 6)),
                                    (8192, 64, (3, 4)), (4096, 64, (1, 2))]:  # fmt: skip
        for n in (0, 1):  # a number that no map depends on
            launch(half((64, 64), pointer), half((rows, 64), other), n, SWIZZLED)
        assert seen[-2:] == [(pointer, other, *expected)] * 2
    assert len(encoder.calls) == 6


def test_a_prepared_launch_keeps_its_maps(exchange: tw.Kernel, encoder: Encoder, seen: list[tuple[Any, ...]]) -> None:
    first = exchange[1, 32].prepare(half((64, 64), 4096), half((64, 64), 1 << 20), 0, SWIZZLED)
    second = exchange[1, 32].prepare(half((64, 64), 8192), half((64, 64), 1 << 20), 0, SWIZZLED)
    for launch in (first, second, first):
        launch()
    assert seen == [(4096, 1 << 20, 1, 2), (8192, 1 << 20, 3, 4), (4096, 1 << 20, 1, 2)]


def test_what_no_map_describes_is_refused(exchange: tw.Kernel, encoder: Encoder, seen: list[tuple[Any, ...]]) -> None:
    good = half((64, 64), 1 << 20)
    for bad, text in (
        (half((64, 64), 4096 + 8), "'out': TMA takes addresses that are multiples of 16, .* begins at 0x1008"),
        (half((64, 64), 4096, (68, 1)), "mode 1 has 68 elements of 2 bytes: 136"),
        (half((0, 64), 4096), "mode 1 of the tensor that TMA copies has extent 0"),
    ):
        with pytest.raises(ArgumentError, match=text):
            exchange[1, 32](bad, good, 0, SWIZZLED)
    assert not seen


def test_rows_that_end_between_16_bytes_are_loaded_and_not_stored(
    exchange: tw.Kernel, encoder: Encoder, seen: list[tuple[Any, ...]]
) -> None:
    """Every such call is refused, also behind one that was not; no map is encoded for it."""
    good, odd = half((64, 64), 1 << 20), half((64, 60), 1 << 21, (64, 1))
    exchange[1, 32](good, odd, 0, SWIZZLED)
    for launch in (exchange[1, 32], exchange[1, 32].prepare, exchange[1, 32]):
        with pytest.raises(ArgumentError, match="'out': a store by TMA writes whole 16 bytes .* rows have 60 elements"):
            launch(odd, good, 0, SWIZZLED)
    assert len(seen) == 1 and len(encoder.calls) == 2


def test_what_the_driver_refuses(exchange: tw.Kernel, encoder: Encoder, seen: list[tuple[Any, ...]]) -> None:
    encoder.status = 200
    with pytest.raises(DeviceError, match=r"encoding the tensor map of 'x' failed: .*\n.*box \(64, 16\) of float16"):
        exchange[1, 32](half((64, 64), 4096), half((64, 64), 1 << 20), 0, SWIZZLED)
    assert not seen


def test_a_thread_without_a_context(
    exchange: tw.Kernel, encoder: Encoder, fake_cuda: FakeCuda, seen: list[tuple[Any, ...]]
) -> None:
    """As that which computes gradients: maps are encoded in the context of the device that has the array."""
    refusing = Encoder()

    def encode_in_context(*args: Any) -> int:
        refusing.status = 0 if fake_cuda.current else 201
        return refusing(*args)

    fake_cuda.cuTensorMapEncodeTiled = encode_in_context  # type: ignore[attr-defined]
    fake_cuda.current = []
    exchange[1, 32](half((64, 64), 4096), half((64, 64), 1 << 20), 0, SWIZZLED)
    assert len(refusing.calls) == 4 and len(seen) == 1 and not fake_cuda.current


def test_bits_are_encoded_as_unsigned(encoder: Encoder) -> None:
    """One map for what is combined bit by bit, another one for what is stored or combined as numbers."""

    @tw.kernel
    def kernel(out, x):
        smem = tw.shared(tw.int64, tw.row_major((4, 16)))
        smem[tw.thread_idx.x % 4, tw.thread_idx.x // 4] = x[0, 0]
        tw.fence_proxy_async()
        tw.sync_threads()
        if tw.thread_idx.x == 0:
            tile = tw.local_tile(tw.guarded(out), (4, 16), (0, 0))
            for kind in tw.static_range(3):
                atoms = tw.atoms.SM90_TMA_REDUCE_OR, tw.atoms.SM90_TMA_REDUCE_MAX, tw.atoms.SM90_TMA_REDUCE_XOR
                tw.copy(atoms[kind], smem, tile)
            tw.tma_store_commit()
            tw.tma_store_wait()

    array = OwnTensor((8, 16), pointer=4096, dtype="int64")
    kernel[1, 64](array, OwnTensor((8, 16), pointer=1 << 20, dtype="int64"))
    unsigned, signed = 4, 5
    assert [call[0] for call in encoder.calls] == [unsigned, signed]


def test_pixels_are_encoded_by_corners(fake_cuda: FakeCuda) -> None:
    @tw.kernel
    def kernel(x):
        smem, full = tw.shared(tw.float16, SWIZZLED), tw.mbarrier(1)
        if tw.thread_idx.x == 0:
            cols = tw.im2col(x, (3, 5), stride=(2, 1), padding=(1, 2), dilation=(1, 2))
            tw.copy(tw.atoms.SM90_TMA_LOAD_IM2COL, tw.local_tile(cols[0, 1], (16, 64), (0, 0)), smem, barrier=full)

    calls: list[tuple[Any, ...]] = []

    def read(map: int, kind: int, rank: int, address: int, *rest: Any) -> int:
        extents, strides, lows, highs, channels, pixels, steps, *modes = rest
        plain = [number if isinstance(number, int) else number.value for number in (channels, pixels)]
        arrays = [list(array) for array in (extents, strides, lows, highs)]
        calls.append((kind, rank, address, *arrays, *plain, list(steps), *modes))
        return 0

    fake_cuda.cuTensorMapEncodeIm2col = read  # type: ignore[attr-defined]
    fake_cuda.cuTensorMapEncodeTiled = read  # type: ignore[attr-defined]
    (map,) = kernel.lower(tw.spec("float16", (2, 8, 10, 128)), block=32).kernel.tensor_maps
    encode(map, MapValues(0, (128, 10, 8, 2), (1, 128, 1280, 10240)), 1 << 45)
    swizzle_128, promotion, zeros, plain = 3, 2, 0, 0
    # Space from the fastest mode on: the last position of a filter of 5 and dilation 2 begins 6 before the last pixel.
    corners = [-2, -1], [2 - 8, 1 - 2]
    assert calls == [
        (6, 4, 1 << 45, [128, 10, 8, 2], [256, 2560, 20480], *corners, 64, 16, [1, 1, 2, 1], plain, swizzle_128,
         promotion, zeros)
    ]  # fmt: skip


def test_steps_are_encoded_with_what_they_skip(encoder: Encoder) -> None:
    @tw.kernel
    def kernel(x):
        smem, full = tw.shared(tw.float16, SWIZZLED), tw.mbarrier(1)
        if tw.thread_idx.x == 0:
            tile = tw.local_tile(tw.guarded(x), (48, 64), (0, 0))
            tile = tw.composition(tile, (tw.Layout(16, 3), tw.Layout(64)))
            tw.copy(tw.atoms.SM90_TMA_LOAD, tile, smem, barrier=full)

    (map,) = kernel.lower(tw.spec("float16", (64, 64)), block=32).kernel.tensor_maps
    encoder.steps = [1, 3]
    encode(map, MapValues(0, (64, 64), (1, 64)), 4096)
    assert encoder.calls[-1][5] == [64, 48]


def test_a_driver_without_tensor_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "library", object)
    (map,) = one_map()
    with pytest.raises(DeviceError, match=r"cannot encode tensor maps, .* version 12.0 can"):
        encode(map, MapValues(0, (64, 64), (1, 64)), 4096)


def one_map() -> tuple[TensorMap, ...]:
    @tw.kernel
    def kernel(x):
        smem, full = tw.shared(tw.float16, SWIZZLED), tw.mbarrier(1)
        if tw.thread_idx.x == 0:
            tw.copy(tw.atoms.SM90_TMA_LOAD, tw.local_tile(tw.guarded(x), (16, 64), (0, 0)), smem, barrier=full)

    return kernel.lower(tw.spec("float16", (64, 64)), block=32).kernel.tensor_maps
