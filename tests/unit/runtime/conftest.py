"""A CUDA driver of Python functions, to test on machines without a GPU."""

from __future__ import annotations

import ctypes
import gc
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from tilewright.runtime import driver


class FakeCuda:
    """The functions of libcuda that `runtime` calls, on a number of devices that hold nothing.

    `current` is the stack of current contexts; context 1000 + n is the primary context of device n. Launches
    are recorded as (grid and block and shared bytes, stream, pointers of the parameters).
    """

    def __init__(self, devices: int = 1) -> None:
        self.devices = devices
        self.current: list[int] = []
        self.launches: list[tuple[Any, ...]] = []
        self.waits: list[tuple[int | None, int | None]] = []
        self.dynamic_shared: list[int] = []
        self.capability = (9, 0)
        self.fail: dict[str, int] = {}
        self.required_context: int | None = None
        self.memory: dict[int, Any] = {}
        self._recorded: int | None = None
        self.loaded = 0
        self.unloaded: list[tuple[int, int, int]] = []  # current context, module, capture mode
        self.capture_mode = 0

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def cuInit(self, flags: int) -> int:
        return self.fail.get("cuInit", 0)

    def cuGetErrorName(self, status: int, text: Any) -> int:
        names = {100: b"CUDA_ERROR_NO_DEVICE", 201: b"CUDA_ERROR_INVALID_CONTEXT", 200: b"CUDA_ERROR_INVALID_IMAGE"}
        text._obj.value = names.get(status, b"CUDA_ERROR_%d" % status)
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"words for %d" % status
        return 0

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 13000
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.devices
        return self.fail.get("cuDeviceGetCount", 0)

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = ordinal
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"Fake GPU %d" % device.value
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:
        memory._obj.value = 2**33
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        known = {
            75: self.capability[0],
            76: self.capability[1],
            16: 132,
            36: 3201000,
            37: 6144,
            38: 50 << 20,
            8: 49152,
            97: 232448,
        }
        value._obj.value = known[attribute]
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 1000 + device.value
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.current[-1] if self.current else None
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.current[-1:] = [context.value]
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.current.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        self.current.pop()
        return 0

    def cuCtxSynchronize(self) -> int:
        return self.fail.get("cuCtxSynchronize", 0)

    def cuEventCreate(self, event: Any, flags: int) -> int:
        event._obj.value = 7
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self._recorded = stream.value
        return 0

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> int:
        self.waits.append((self._recorded, stream.value))
        return 0

    def cuEventDestroy_v2(self, event: Any) -> int:
        return 0

    def cuPointerGetAttribute(self, value: Any, attribute: int, pointer: Any) -> int:
        value._obj.value = pointer.value >> 40  # device n holds the addresses from n << 40
        return 0

    def cuEventSynchronize(self, event: Any) -> int:
        return 0

    def cuEventElapsedTime(self, milliseconds: Any, start: Any, end: Any) -> int:
        milliseconds._obj.value = 1.5
        return 0

    cuEventElapsedTime_v2 = cuEventElapsedTime

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        if "cuMemAlloc_v2" in self.fail:
            return self.fail["cuMemAlloc_v2"]
        memory = ctypes.create_string_buffer(size.value)
        address._obj.value = ctypes.addressof(memory)
        self.memory[address._obj.value] = memory
        return 0

    def cuMemFree_v2(self, address: Any) -> int:
        del self.memory[address.value]
        return 0

    def cuMemcpyHtoD_v2(self, target: Any, source: Any, size: Any) -> int:
        ctypes.memmove(target.value, source.value, size.value)
        return 0

    def cuMemcpyDtoH_v2(self, target: Any, source: Any, size: Any) -> int:
        ctypes.memmove(target.value, source.value, size.value)
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.capture_mode, mode._obj.value = mode._obj.value, self.capture_mode
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        self.unloaded.append((self.current[-1], module.value, self.capture_mode))
        return 0

    def cuModuleLoadData(self, module: Any, cubin: bytes) -> int:
        self.loaded += 1
        module._obj.value = 5 + self.loaded
        return self.fail.get("cuModuleLoadData", 0)

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 6
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        self.dynamic_shared.append(value)
        return self.fail.get("cuFuncSetAttribute", 0)

    def cuFuncGetAttribute(self, value: Any, attribute: int, function: Any) -> int:
        value._obj.value = {0: 512, 3: 0, 4: 128}[attribute]
        return 0

    def cuLaunchKernelEx(self, configuration: Any, function: Any, parameters: Any, extra: Any) -> int:
        if self.required_context is not None and self.current[-1:] != [self.required_context]:
            return 201
        words = ctypes.string_at(configuration.value, 56)
        *extents, stream, attributes, count = struct.unpack("@7IQQI4x", words)
        assert attributes == count == 0
        self.launches.append((tuple(extents), stream, list(parameters)))
        return self.fail.get("cuLaunchKernelEx", 0)


class Checked:
    """A library of Python functions that are called through prototypes, which every call has to agree with."""

    def __init__(self, functions: object) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        function = CheckedFunction(name, getattr(self._functions, name))
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Any:
        """Return a function without a prototype, which takes ctypes' own objects only."""
        function = getattr(self._functions, name)

        def call(*args: Any) -> Any:
            assert all(isinstance(x, (ctypes._SimpleCData, ctypes.Array)) for x in args if x is not None), args
            return function(*args)

        return call


class CheckedFunction:
    """A function that takes what ctypes would take by `argtypes`; without them it refuses every call."""

    argtypes: tuple[Any, ...] | None = None
    restype: Any = None

    def __init__(self, name: str, function: Any) -> None:
        self.name, self.function = name, function

    def __call__(self, *args: Any) -> Any:
        assert self.argtypes is not None and self.restype is not None, f"{self.name} has no prototype"
        assert len(args) == len(self.argtypes), (self.name, args)
        for kind, value in zip(self.argtypes, args, strict=True):
            kind.from_param(value)
            if isinstance(value, int):  # what does not fit would be cut off
                assert kind(value).value == value, (self.name, value)
        return self.function(*args)


CACHED = ("library", "entry_points", "_count", "device_properties", "primary_context", "_launcher")


def forget_devices() -> None:
    """Empty the driver module's memory of what it found."""
    for name in CACHED:
        found = getattr(driver, name)
        if hasattr(found, "cache_clear"):
            found.cache_clear()
    gc.collect()
    driver._retired.clear()
    driver._kept.clear()


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeCuda) -> FakeCuda:
    forget_devices()
    gc.freeze()  # what other tests left alive is not looked through again by each collection of this one
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Checked(fake))
    return fake


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """One fake device in the place of the driver."""
    yield install(monkeypatch, FakeCuda())
    forget_devices()


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    """Two fake devices in the place of the driver."""
    yield install(monkeypatch, FakeCuda(devices=2))
    forget_devices()
