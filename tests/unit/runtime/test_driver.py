from __future__ import annotations

import ctypes
import gc

import pytest
from tests.unit.runtime.conftest import FakeCuda, forget_devices

from tilewright.errors import DeviceError
from tilewright.runtime import driver
from tilewright.runtime.launch import Packer, launch_config


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    forget_devices()
    monkeypatch.setattr(ctypes, "CDLL", refuse)


def test_without_a_driver(no_driver: None) -> None:
    assert driver.device_count() == 0
    assert "no CUDA driver" in (driver.why_unavailable() or "")
    with pytest.raises(DeviceError, match=r"no CUDA driver: .* cannot be loaded") as caught:
        driver.load_function(b"cubin", "kernel")
    assert "simulator" in (caught.value.help or "")


def test_a_driver_that_cannot_start(fake_cuda: FakeCuda) -> None:
    fake_cuda.fail["cuInit"] = 100
    assert driver.device_count() == 0
    assert driver.why_unavailable() == "the CUDA driver cannot start: CUDA_ERROR_NO_DEVICE (words for 100)"


def test_a_driver_without_devices(fake_cuda: FakeCuda) -> None:
    fake_cuda.devices = 0
    assert driver.device_count() == 0
    assert driver.why_unavailable() == "the CUDA driver sees no device"
    with pytest.raises(DeviceError, match="there is no CUDA device 0; the driver sees 0"):
        driver.device_properties(0)


def test_an_old_driver(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(value: object) -> int:
        value._obj.value = 11040  # type: ignore[attr-defined]
        return 0

    monkeypatch.setattr(fake_cuda, "cuDriverGetVersion", version)
    with pytest.raises(DeviceError, match=r"version 11.4; version 11.8 or later is needed"):
        driver.library()


def test_properties(two_devices: FakeCuda) -> None:
    assert driver.why_unavailable() is None
    assert driver.device_count() == 2
    found = driver.device_properties(1)
    assert (found.name, found.capability, found.multiprocessors) == ("Fake GPU 1", (9, 0), 132)
    assert (found.shared_bytes, found.shared_bytes_optin, found.memory_bytes) == (49152, 232448, 2**33)
    assert (found.l2_bytes, found.driver_version, found.arch.name) == (50 << 20, (13, 0), "sm_90a")


def test_shared_memory_is_raised_only_over_48_kilobytes(fake_cuda: FakeCuda) -> None:
    driver.load_function(b"cubin", "kernel", dynamic_shared_bytes=48 * 1024)
    assert fake_cuda.dynamic_shared == []
    driver.load_function(b"cubin", "kernel", dynamic_shared_bytes=48 * 1024 + 16)
    assert fake_cuda.dynamic_shared == [48 * 1024 + 16]
    fake_cuda.fail["cuFuncSetAttribute"] = 1
    with pytest.raises(DeviceError, match="giving kernel 'kernel' 300000 bytes") as caught:
        driver.load_function(b"cubin", "kernel", dynamic_shared_bytes=300_000)
    assert caught.value.details == ("a block on CUDA device 0 can have 232448 bytes, static and dynamic together",)
    assert fake_cuda.current == []


def test_machine_code_of_another_device(fake_cuda: FakeCuda) -> None:
    fake_cuda.fail["cuModuleLoadData"] = 200
    with pytest.raises(DeviceError, match=r"loading kernel 'k' on CUDA device 0 failed: CUDA_ERROR_INVALID_IMAGE"):
        driver.load_function(b"cubin", "k")
    assert fake_cuda.current == []  # the context was left again


def test_attributes_of_a_function(fake_cuda: FakeCuda) -> None:
    function = driver.load_function(b"cubin", "kernel")
    assert (function.registers, function.local_bytes, function.max_threads) == (128, 0, 512)


def test_synchronize(fake_cuda: FakeCuda) -> None:
    driver.synchronize()
    fake_cuda.fail["cuCtxSynchronize"] = 700
    with pytest.raises(DeviceError, match="waiting for CUDA device 0 failed: CUDA_ERROR_700") as caught:
        driver.synchronize()
    assert "TILEWRIGHT_BACKEND=sim" in (caught.value.help or "")


def test_order_streams(two_devices: FakeCuda) -> None:
    driver.order_streams(first=8, then=9, ordinal=1)
    assert two_devices.waits == [(8, 9)]
    assert two_devices.current == []


def test_the_device_of_a_pointer(two_devices: FakeCuda) -> None:
    assert driver.ordinal_of_pointer((1 << 40) + 512) == 1


# Modules that are used no more


def test_a_module_is_unloaded_when_the_next_is_loaded_after_its_function_is_gone(fake_cuda: FakeCuda) -> None:
    first, second = driver.load_function(b"cubin", "first"), driver.load_function(b"cubin", "second")
    del first
    gc.collect()
    assert fake_cuda.unloaded == []  # whoever let it go may be recording a graph
    third = driver.load_function(b"cubin", "third")
    relaxed = 2  # otherwise unloading would spoil a graph that is being recorded
    assert fake_cuda.unloaded == [(1000, 6, relaxed)] and fake_cuda.capture_mode == 0
    assert second.name == "second" and third.name == "third"


@pytest.mark.parametrize("prepared", [False, True])
def test_what_a_graph_may_have_recorded_stays_loaded(fake_cuda: FakeCuda, prepared: bool) -> None:
    fake_cuda.current = [1000]
    packer, config = Packer([], ()), launch_config(1, 32)
    for stream in (0, 77):
        function = driver.load_function(b"cubin", "kernel")
        if prepared:
            packer.prepare(function, config, stream, ())()
        else:
            packer.launch(function, config, stream, ())
        del function
        gc.collect()
    driver.load_function(b"cubin", "other")
    assert [module for _, module, _ in fake_cuda.unloaded] == [6]  # the one on the default stream, not that on 77


def test_a_prepared_launch_keeps_its_module(fake_cuda: FakeCuda) -> None:
    fake_cuda.current = [1000]
    launch = Packer([], ()).prepare(driver.load_function(b"cubin", "kernel"), launch_config(1, 32), 0, ())
    gc.collect()
    driver.load_function(b"cubin", "other")
    assert fake_cuda.unloaded == []
    launch()
