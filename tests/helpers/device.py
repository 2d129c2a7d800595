"""A GPU of Python functions: memory, events with a clock, and launches of the kernels that it is told about.

It is no simulator of kernels: a kernel is a function of the driver's parameters that does in NumPy what the machine code
would do, and says how long that takes. What is tested with it is the way to the driver and back.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tests.unit.runtime.conftest import FakeCuda, forget_devices

from tilewright.runtime import driver

# (parameters, blocks) -> milliseconds
Run = Callable[["Parameters", int], float]


class Parameters:
    """The parameters of a launch, by position."""

    def __init__(self, pointers: Any) -> None:
        self._pointers = pointers

    def integer(self, n: int) -> int:
        return ctypes.c_int32.from_address(self._pointers[n]).value

    def real(self, n: int) -> float:
        return ctypes.c_float.from_address(self._pointers[n]).value

    def array(self, n: int, *shape: int) -> np.ndarray:
        """Return the row-major float32 array that a parameter points to."""
        address = ctypes.c_uint64.from_address(self._pointers[n]).value
        count = int(np.prod(shape))
        return np.frombuffer((ctypes.c_float * count).from_address(address), np.float32).reshape(shape)


class Device(FakeCuda):
    """One device that runs `kernels`, by name. `down` is what a kernel sets when it brings the device down."""

    def __init__(self, kernels: dict[str, Run], free_bytes: int = 1 << 30) -> None:
        super().__init__()
        self.kernels = kernels
        self.free_bytes = free_bytes
        self.clock = 0.0
        self.down = False
        self._times: dict[int, float] = {}
        self._names: list[str] = []

    def cuEventCreate(self, event: Any, flags: int) -> int:
        event._obj.value = len(self._times) + 1
        self._times[event._obj.value] = 0.0
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self._times[event.value] = self.clock
        return 0

    def cuEventElapsedTime_v2(self, milliseconds: Any, start: Any, end: Any) -> int:
        milliseconds._obj.value = self._times[end.value] - self._times[start.value]
        return 0

    def cuMemsetD32Async(self, address: Any, value: Any, count: Any, stream: Any) -> int:
        assert ctypes.sizeof(self.memory[address.value]) >= 4 * count.value
        self.clock += 0.1
        return 0

    def cuMemcpyDtoDAsync_v2(self, target: Any, source: Any, size: Any, stream: Any) -> int:
        ctypes.memmove(target.value, source.value, size.value)
        self.clock += 2 * size.value / 4e9
        return 0

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        free._obj.value = total._obj.value = self.free_bytes
        return 0

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, count: Any, function: Any, threads: int, shared: Any) -> int:
        count._obj.value = 3
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        return 0

    def cuModuleUnload(self, module: Any) -> int:
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        self._names.append(name.decode())
        function._obj.value = len(self._names)
        return 0

    def cuCtxSynchronize(self) -> int:
        return 700 if self.down else 0

    def cuLaunchKernelEx(self, configuration: Any, function: Any, parameters: Any, extra: Any) -> int:
        super().cuLaunchKernelEx(configuration, function, parameters, extra)
        x, y, z, *_ = self.launches[-1][0]
        self.clock += self.kernels[self._names[function.value - 1]](Parameters(parameters), x * y * z)
        return 0


@contextmanager
def installed(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Put a device in the place of the driver, and no array library beside it."""
    import sys

    from tilewright.demo import arrays

    for framework in ("torch", "cupy"):
        monkeypatch.setitem(sys.modules, framework, None)
    monkeypatch.setattr(arrays, "array_library", lambda: None)
    monkeypatch.setattr(driver, "library", lambda: device)
    forget_devices()
    gc.freeze()  # as in `install` of tests/unit/runtime/conftest.py
    try:
        yield device
    finally:
        gc.collect()  # arrays are freed while this driver is there
        forget_devices()
