"""The stopwatch asks the driver for the right things, on the stream that the framework calls its current one."""

from __future__ import annotations

import contextlib
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.runtime.conftest import FakeCuda

import tilewright as tw
from tilewright.bench.device import Gpu, current_ordinal, current_stream
from tilewright.bench.machine import Monitor, Sampler, driver_release, machine
from tilewright.runtime import driver


class Cuda(FakeCuda):
    """The fake driver with memory, and a note of each fill and each event."""

    def __init__(self) -> None:
        super().__init__(devices=2)
        self.fills: list[tuple[int, int, int | None]] = []
        self.events: list[int | None] = []

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        address._obj.value = 1 << 20
        self.memory[1 << 20] = size.value
        return self.fail.get("cuMemAlloc_v2", 0)

    def cuMemFree_v2(self, address: Any) -> int:
        return 0

    def cuMemsetD32Async(self, address: Any, value: Any, count: Any, stream: Any) -> int:
        self.fills.append((address.value, 4 * count.value, stream.value))
        return 0

    def cuEventRecord(self, event: Any, stream: Any) -> int:
        self.events.append(stream.value)
        return 0


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    fake = Cuda()
    cached = (driver._count, driver.device_properties, driver.primary_context)
    for function in cached:
        function.cache_clear()
    monkeypatch.setattr(driver, "library", lambda: fake)
    yield fake
    for function in cached:
        function.cache_clear()


def framework(monkeypatch: pytest.MonkeyPatch, stream: int, ordinal: int = 0) -> None:
    torch = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        is_available=lambda: True,
        current_device=lambda: ordinal,
        current_stream=lambda _: types.SimpleNamespace(cuda_stream=stream),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_the_flush_is_larger_than_the_cache_and_on_the_current_stream(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework(monkeypatch, stream=77)
    watch = Gpu()
    watch.flush()
    watch.flush()
    ((address, size, stream), again) = cuda.fills
    assert size == watch.flush_bytes >= 2 * driver.device_properties(0).l2_bytes
    assert cuda.memory[address] >= size and stream == 77 and again == (address, size, 77)
    start = watch.mark()
    assert watch.milliseconds(start, watch.mark()) == 1.5
    assert cuda.events == [77, 77]


def test_a_large_cache_makes_a_larger_flush(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    attribute = cuda.cuDeviceGetAttribute

    def large(value: Any, number: int, device: Any) -> int:
        result = attribute(value, number, device)
        if number == 38:
            value._obj.value = 300 << 20
        return result

    cuda.cuDeviceGetAttribute = large  # type: ignore[method-assign]
    assert Gpu().flush_bytes == 600 << 20


def test_the_frameworks_device_is_taken(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    framework(monkeypatch, stream=5, ordinal=1)
    assert current_ordinal() == 1 and current_stream(1) == 5
    watch = Gpu()
    assert watch.ordinal == 1
    watch.mark()
    assert cuda.current == [], "the context that was current is current again"
    monkeypatch.setitem(sys.modules, "torch", None)
    assert current_stream(0) == 0 and current_ordinal() == 0


def test_no_room_for_the_flush_is_told(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    cuda.fail["cuMemAlloc_v2"] = 2
    with pytest.raises(tw.DeviceError, match="allocating"):
        Gpu().flush()


def test_what_cannot_be_captured_gives_none(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    framework(monkeypatch, stream=5)  # without graphs

    def run() -> None:
        raise AssertionError

    assert Gpu().capture(run, 3) is None
    monkeypatch.setitem(sys.modules, "torch", None)
    assert Gpu().capture(run, 3) is None


class Torch:
    """A torch whose captures are counted; one that fails leaves random numbers and the allocator as torch's does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, current: str = "default") -> None:
        self.current, self.spoiled, self.pools = current, False, []  # type: ignore[var-annotated]
        self.captured_on: list[str] = []
        self.released = 0  # a graph that has ended releases its pool itself, and one release more ends the process
        self.ends_with: Any = lambda: None
        framework(monkeypatch, stream=5)
        torch: Any = sys.modules["torch"]
        torch.zeros = lambda *_, device: types.SimpleNamespace(zero_=lambda: None)
        torch._C = types.SimpleNamespace(
            _cuda_endAllocateToPool=lambda device, pool: self.pools.remove(pool),
            _cuda_releasePool=self.release,
        )
        cuda = torch.cuda
        cuda.current_stream = lambda *_: self.current
        cuda.default_stream, cuda.Stream = (lambda: "default"), (lambda: "side")
        cuda.graph_pool_handle, cuda.synchronize, cuda.stream = (lambda: "pool"), (lambda: None), self.stream
        cuda.CUDAGraph = lambda: types.SimpleNamespace(
            capture_begin=self.begin, capture_end=self.end, replay=lambda: "replayed"
        )

    @contextlib.contextmanager
    def stream(self, name: str) -> Iterator[None]:
        before, self.current = self.current, name
        try:
            yield
        finally:
            self.current = before

    def release(self, device: int, pool: str) -> None:
        self.released += 1

    def begin(self, pool: str | None = None) -> None:
        assert self.current != "default", "the default stream cannot be captured"
        self.spoiled = True
        self.captured_on.append(self.current)
        self.pools.append(pool)

    def end(self) -> None:
        ends_with, self.ends_with = self.ends_with, lambda: None
        ends_with()
        self.pools.pop()
        self.spoiled = False


@pytest.mark.parametrize(("current", "taken"), [("default", "side"), ("own", "own")])
def test_a_capture_is_on_the_current_stream_where_that_can_be(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, current: str, taken: str
) -> None:
    torch, calls = Torch(monkeypatch, current), []
    replay = Gpu(0).capture(lambda: calls.append(torch.current), 3)
    assert replay is not None and replay() == "replayed"
    assert calls == [taken] * 3 and torch.captured_on == [taken] and torch.current == current


def test_work_for_another_stream_is_not_captured(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a prepared launch's is: its graph is empty, as torch warns, and takes no time."""
    torch = Torch(monkeypatch)
    torch.ends_with = lambda: warnings.warn("The CUDA Graph is empty.", stacklevel=2)
    assert Gpu(0).capture(lambda: None, 3) is None
    assert torch.released == 0
    torch.ends_with = lambda: warnings.warn("Something else.", stacklevel=2)
    assert Gpu(0).capture(lambda: None, 3) is not None


@pytest.mark.parametrize("fails", ["run", "end", "both"])
def test_a_failed_capture_leaves_torch_as_it_was(cuda: Cuda, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """Its stream is current again, its allocator's pool is closed, and its generator gives numbers again."""

    def fail() -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    torch = Torch(monkeypatch)
    if fails != "run":
        torch.ends_with = fail
    assert Gpu(0).capture(fail if fails != "end" else lambda: None, 3) is None
    assert not torch.spoiled and not torch.pools and torch.current == "default"


MACHINE = sys.modules[Monitor.__module__]  # `tilewright.bench.machine` is the function of that name


def test_without_nvml_all_is_unknown_and_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MACHINE, "_nvml", lambda: None)
    monitor = Monitor()
    assert set(monitor.as_json().values()) == {None}
    with Sampler(monitor) as samples:
        pass
    assert samples.sm_clocks == [] and driver_release() is None


@pytest.mark.parametrize("missing", ["package", "library"])
def test_nvml_may_be_missing(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = None
    if missing == "library":
        module = FakeNvml("pynvml")
        module.nvmlInit = module.fail  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "pynvml", module)
    MACHINE._nvml.cache_clear()
    try:
        assert MACHINE._nvml() is None and driver_release() is None
    finally:
        MACHINE._nvml.cache_clear()


class FakeNvml(types.ModuleType):
    """NVIDIA's NVML package, with one device."""

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def nvmlInit(self) -> None:
        pass

    def fail(self, *arguments: Any) -> Any:
        raise self.NVMLError

    nvmlDeviceGetTemperature = nvmlDeviceGetEnforcedPowerLimit = nvmlDeviceGetMaxClockInfo = fail

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlDeviceGetHandleByPciBusId(self, address: bytes) -> int:
        return {b"0000:01:00.0": 11}[address]

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind] if handle == 11 else 0

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return 412_500


def test_nvml_is_asked_by_pci_address_and_in_its_units(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def bus_id(address: Any, size: int, device: Any) -> int:
        address.value = b"0000:%02d:00.0" % device.value
        return 0

    cuda.cuDeviceGetPCIBusId = bus_id  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    MACHINE._nvml.cache_clear()
    try:
        check_monitor()
        assert driver_release() == "580.95.05"
    finally:
        MACHINE._nvml.cache_clear()


def check_monitor() -> None:
    found = Monitor(1).as_json()
    assert found["sm_clock_mhz"] == 1980 and found["memory_clock_mhz"] == 3201 and found["power_w"] == 412.5
    assert found["temperature_c"] is None and found["power_limit_w"] is None
    with Sampler(Monitor(1), seconds=0.001) as samples:
        while len(samples.powers) < 3:
            pass
    assert set(samples.sm_clocks) == {1980} and set(samples.powers) == {412.5}


def test_the_machine_is_described_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "device_count", lambda: 0)
    found = machine()
    assert found["gpu"] is None and found["versions"]["tilewright"] == tw.__version__
