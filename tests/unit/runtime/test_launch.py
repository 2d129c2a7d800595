from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any

import numpy as np
import pytest
from tests.unit.runtime.conftest import FakeCuda
from tests.unit.runtime.fake_arrays import Tensor

import tilewright as tw
from tilewright.dtypes import bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint8
from tilewright.errors import ArgumentError, DeviceError
from tilewright.runtime.driver import Function, load_function
from tilewright.runtime.launch import (
    ExtentSlot,
    Packer,
    PointerSlot,
    ScalarSlot,
    StrideSlot,
    launch_config,
)
from tilewright.runtime.plan import Signature


class Recorder:
    """Reads a launch's parameters as the driver would, while the call lasts."""

    def __init__(self, *types: Any, status: int = 0) -> None:
        self.types = types
        self.status = status
        self.seen: list[tuple[Any, ...]] = []
        self.function = Function("kernel", 0, ctypes.c_void_p(6), self)

    def __call__(self, configuration: Any, handle: Any, parameters: Any, extra: Any) -> int:
        assert handle is self.function.handle
        assert extra is None
        self.seen.append(tuple(kind.from_address(parameters[n]).value for n, kind in enumerate(self.types)))
        return self.status


def test_parameters_reach_the_driver() -> None:
    a, b = Tensor((4, 8), pointer=4096), Tensor((300, 5), (-7, 1), pointer=(1 << 45) + 16)
    plan, (call, values, _) = Signature(["a", "b", "n", "alpha"]).read((a, b, -3, 0.25))
    slots = [
        PointerSlot(0),
        ExtentSlot(0, 1),
        PointerSlot(1),
        ScalarSlot(3, float32),
        StrideSlot(1, 0, int64),
        ExtentSlot(1, 0),
        ScalarSlot(2, int32),
    ]
    recorder = Recorder(
        ctypes.c_uint64, ctypes.c_int32, ctypes.c_uint64, ctypes.c_float, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32
    )
    Packer(slots, plan.starts).launch(recorder.function, launch_config(1, 32), 0, values, call.layouts)
    assert recorder.seen == [(4096, 8, (1 << 45) + 16, 0.25, -7, 300, -3)]


@pytest.mark.parametrize("taken", [(0,), (3,), (3, 0), (1, 2), (3, 2, 1, 0), (0, 1, 2, 3), ()])
def test_a_kernel_takes_some_of_the_values(taken: tuple[int, ...]) -> None:
    args = Tensor((4, 8), pointer=4096), -3, Tensor((5,), pointer=1 << 45), 7
    plan, (call, values, _) = Signature(["a", "n", "b", "m"]).read(args)
    slots = [ScalarSlot(n, int32) if n % 2 else PointerSlot(n) for n in taken]
    recorder = Recorder(*(ctypes.c_int32 if n % 2 else ctypes.c_uint64 for n in taken))
    packer = Packer(slots, plan.starts)
    packer.bind(call.layouts, recorder.function)(launch_config(1, 32), 0, values)
    packer.prepare(recorder.function, launch_config(1, 32), 0, values, call.layouts)()
    assert recorder.seen == [tuple((4096, -3, 1 << 45, 7)[n] for n in taken)] * 2


def test_every_type_of_scalar() -> None:
    cases = [
        (True, bool_, ctypes.c_bool, True),
        (np.int8(-3), int8, ctypes.c_int8, -3),
        (np.uint8(200), uint8, ctypes.c_uint8, 200),
        (2**40, int64, ctypes.c_int64, 2**40),
        (np.float64(0.1), float64, ctypes.c_double, 0.1),
        (1.5, float16, ctypes.c_uint16, 0x3E00),
        (1.5, bfloat16, ctypes.c_uint16, 0x3FC0),
        (np.bool_(False), bool_, ctypes.c_bool, False),
        (3, float32, ctypes.c_float, 3.0),
        (float("inf"), float32, ctypes.c_float, float("inf")),
    ]
    args = tuple(case[0] for case in cases)
    plan, (_, values, _) = Signature([f"x{n}" for n in range(len(args))]).read(args)
    recorder = Recorder(*(case[2] for case in cases))
    slots = [ScalarSlot(n, case[1]) for n, case in enumerate(cases)]
    Packer(slots, plan.starts).launch(recorder.function, launch_config(1, 32), 0, values)
    assert recorder.seen == [tuple(case[3] for case in cases)]


def test_parameters_are_aligned() -> None:
    packer = Packer([ScalarSlot(0, bool_), PointerSlot(1), ScalarSlot(2, int8), ScalarSlot(3, float64)], (0, 1, 2, 3))
    frame = packer._new_frame(b"")
    configuration, parameters = frame.configuration, frame.parameters
    assert [address % size for address, size in zip(parameters, (1, 8, 1, 8), strict=True)] == [0] * 4
    assert parameters[0] - (configuration.value or 0) == 56 - 4  # the last field needs no padding after it


def test_grid_block_stream_and_shared_memory(fake_cuda: FakeCuda) -> None:
    function = load_function(b"cubin", "kernel", dynamic_shared_bytes=100_000)
    fake_cuda.current = [1000]
    Packer([], ()).launch(function, launch_config((2, 3), 64, 100_000), 99, ())
    ((extents, stream, _),) = fake_cuda.launches
    assert (extents, stream) == ((2, 3, 1, 64, 1, 1, 100_000), 99)


def test_a_prepared_launch() -> None:
    plan, (_, values, _) = Signature(["a", "n"]).read((Tensor((4,)), 5))
    recorder = Recorder(ctypes.c_uint64, ctypes.c_int32)
    packer = Packer([PointerSlot(0), ScalarSlot(1, int32)], plan.starts)
    launch = packer.prepare(recorder.function, launch_config(1, 32), 0, values)
    other = packer.prepare(recorder.function, launch_config(1, 32), 0, (8192, 6))
    launch()
    other()
    launch()
    assert recorder.seen == [(4096, 5), (8192, 6), (4096, 5)]


def test_a_prepared_launch_keeps_its_arguments() -> None:
    class Owner:
        pass

    import gc
    import weakref

    owner = Owner()
    alive = weakref.ref(owner)
    launch = Packer([], ()).prepare(Recorder().function, launch_config(1, 32), 0, (), owners=[owner])
    del owner
    gc.collect()
    assert alive() is not None
    del launch
    gc.collect()
    assert alive() is None


def count_frames(packer: Packer) -> list[Any]:
    """Return a list that holds the launch memory that a packer makes from here on."""
    made: list[Any] = []
    new_frame = packer._new_frame

    def counted(fixed: bytes) -> Any:
        made.append(new_frame(fixed))
        return made[-1]

    packer._new_frame = counted  # type: ignore[method-assign]
    return made


def test_threads_do_not_share_memory_in_flight() -> None:
    """Each thread stops inside its launch until all are there, then reads its own value."""
    count = 8
    barrier = threading.Barrier(count)
    seen: list[int] = []

    def stop_and_read(configuration: Any, handle: Any, parameters: Any, extra: Any) -> int:
        barrier.wait(10)
        seen.append(ctypes.c_int32.from_address(parameters[0]).value)
        return 0

    function = Function("kernel", 0, ctypes.c_void_p(6), stop_and_read)
    packer = Packer([ScalarSlot(0, int32)], (0,))
    frames = count_frames(packer)
    threads = [
        threading.Thread(target=packer.launch, args=(function, launch_config(1, 32), 0, (n,))) for n in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(count))
    assert len(frames) == count


def test_memory_is_used_again() -> None:
    packer = Packer([ScalarSlot(0, int32)], (0,))
    frames = count_frames(packer)
    recorder = Recorder(ctypes.c_int32)
    for n in range(100):
        packer.launch(recorder.function, launch_config(1, 32), 0, (n,))
    assert len(frames) == 1
    assert recorder.seen == [(n,) for n in range(100)]


@pytest.mark.parametrize("value", [2**31, 0.5])
def test_a_value_that_does_not_fit(value: object) -> None:
    packer = Packer([ScalarSlot(0, int32)], (0,))
    with pytest.raises(ArgumentError, match="does not fit into the kernel's parameter"):
        packer.launch(Recorder().function, launch_config(1, 32), 0, (value,))
    with pytest.raises(ArgumentError, match="does not fit into the kernel's parameter"):
        packer.prepare(Recorder().function, launch_config(1, 32), 0, (value,))


# Configurations


def test_configurations_are_remembered() -> None:
    assert launch_config((2, 3), 64) is launch_config((2, 3), 64)
    config = launch_config([2, np.int64(3)], (8, 8, 2), 1024)
    assert (config.grid, config.block, config.shared_bytes) == ((2, 3, 1), (8, 8, 2), 1024)
    assert struct.unpack("@7I", config.head) == (2, 3, 1, 8, 8, 2, 1024)


@pytest.mark.parametrize(
    ("grid", "block", "words"),
    [
        ((4, -1), 32, r"grid \(4, -1\) has -1 in y; it takes 0 to 65535"),
        ((1, 1, 65536), 32, r"has 65536 in z"),
        (2**31, 32, r"has 2147483648 in x"),
        (1, 1025, r"block 1025 has 1025 in x; it takes 1 to 1024"),
        (1, (1, 1, 65), r"has 65 in z; it takes 1 to 64"),
        (1, (64, 32), r"block \(64, 32\) has 2048 threads; a block has at most 1024"),
        ((1, 2, 3, 4), 32, r"has 4 modes; it takes 1 to 3"),
        ((), 32, r"has 0 modes"),
        (7.5, 32, r"grid 7.5 is neither an int nor a tuple of ints"),
        (1, "32", r"block '32' is neither an int nor a tuple of ints"),
        ([1, None], 32, r"grid \[1, None\] is neither"),
    ],
)
def test_configurations_that_no_device_can_do(grid: Any, block: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        launch_config(grid, block)


# Refused launches


def test_a_thread_without_a_context_gets_one(fake_cuda: FakeCuda) -> None:
    function = load_function(b"cubin", "kernel")
    fake_cuda.required_context = 1000
    assert fake_cuda.current == []
    packer = Packer([], ())
    packer.launch(function, launch_config(1, 32), 0, ())
    assert len(fake_cuda.launches) == 1
    assert fake_cuda.current == [1000]  # so that the next launch needs no second try
    packer.prepare(function, launch_config(1, 32), 0, ())()
    assert len(fake_cuda.launches) == 2


def test_a_thread_in_another_context_keeps_it(fake_cuda: FakeCuda) -> None:
    function = load_function(b"cubin", "kernel")
    fake_cuda.required_context = 1000
    fake_cuda.current = [5555]
    Packer([], ()).launch(function, launch_config(1, 32), 0, ())
    assert len(fake_cuda.launches) == 1
    assert fake_cuda.current == [5555]


@pytest.mark.parametrize("current", [[], [1000], [1001]])
def test_a_launch_on_the_second_device(two_devices: FakeCuda, current: list[int]) -> None:
    function = load_function(b"cubin", "kernel", ordinal=1)
    two_devices.required_context = 1001
    two_devices.current = list(current)
    Packer([], ()).launch(function, launch_config(1, 32), 0, ())
    assert len(two_devices.launches) == 1
    assert two_devices.current == current


def test_a_refused_launch_says_what_was_asked(fake_cuda: FakeCuda) -> None:
    function = load_function(b"cubin", "my_kernel")
    fake_cuda.current = [1000]
    fake_cuda.fail["cuLaunchKernelEx"] = 701
    with pytest.raises(DeviceError) as caught:
        Packer([], ()).launch(function, launch_config((2, 2), 1024, 512), 0, ())
    assert str(caught.value) == (
        "launching kernel 'my_kernel' failed: CUDA_ERROR_701 (words for 701)\n"
        "  grid (2, 2, 1), block (1024, 1, 1), 512 bytes of dynamic shared memory\n"
        "  this kernel takes 128 registers a thread\n"
        "  help: blocks of this kernel can have at most 512 threads"
    )
    fake_cuda.fail["cuLaunchKernelEx"] = 719
    with pytest.raises(DeviceError, match="a kernel launched earlier failed"):
        Packer([], ()).prepare(function, launch_config(1, 32), 0, ())()


def test_resident_blocks_do_not_depend_on_the_grid() -> None:
    @tw.kernel
    def fill(y):
        y[tw.thread_idx.x] = 1

    y = np.zeros(512, np.float32)
    assert fill[1, 512].resident_blocks(y) == fill[7, 512].resident_blocks(y=y) == 512
    assert fill[1, 128].resident_blocks(y) == 2048
    assert not y.any()
