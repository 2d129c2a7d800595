from __future__ import annotations

import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from tests.unit.runtime.conftest import FakeCuda

from tilewright.dtypes import bfloat16, float32
from tilewright.errors import ArgumentError, DeviceError
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.dlpack import _handed_out, make_capsule
from tilewright.runtime.memory import DeviceArray, Event
from tilewright.runtime.plan import Signature


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.bfloat16, np.bool_])
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 4)])
def test_there_and_back(fake_cuda: FakeCuda, dtype: type, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    result = DeviceArray.from_numpy(array).numpy()
    assert result.dtype == array.dtype
    np.testing.assert_array_equal(result, array)


def test_a_strided_array_is_copied_by_its_elements(fake_cuda: FakeCuda) -> None:
    array = np.arange(24.0).reshape(4, 6)[::-1, ::2]
    np.testing.assert_array_equal(DeviceArray.from_numpy(array).numpy(), array)


def test_the_memory_is_freed(fake_cuda: FakeCuda) -> None:
    array = DeviceArray((4,), "float32")
    assert len(fake_cuda.memory) == 1
    del array
    gc.collect()
    assert fake_cuda.memory == {}


def test_a_kernel_takes_it(two_devices: FakeCuda) -> None:
    array = DeviceArray((2, 3), "bfloat16", ordinal=1)
    assert describe(array) == ArrayInfo(array.pointer, (2, 3), (3, 1), bfloat16, 1)
    _, (call, values, described) = Signature(["x"]).read((array,))
    assert (values, call.layouts) == ((array.pointer,), (((2, 3), (3, 1)),))
    assert described == ()


def test_other_libraries_take_it(fake_cuda: FakeCuda) -> None:
    assert DeviceArray((2, 3)).__cuda_array_interface__["typestr"] == "<f4"
    assert DeviceArray((2, 3), bfloat16).__cuda_array_interface__["typestr"] == "<u2"
    assert DeviceArray((2, 3)).dtype is float32


def test_refusals(fake_cuda: FakeCuda) -> None:
    with pytest.raises(ArgumentError, match=r"expected float32 of shape \(4,\), got float64 of \(4,\)"):
        DeviceArray((4,)).fill_from(np.zeros(4))
    fake_cuda.fail["cuMemAlloc_v2"] = 2
    with pytest.raises(DeviceError, match="allocating 16 bytes on CUDA device 0 failed: CUDA_ERROR_2"):
        DeviceArray((4,))


def test_time_between_events(fake_cuda: FakeCuda) -> None:
    start, end = Event(), Event()
    start.record()
    end.record(5)
    assert start.seconds_until(end) == 0.0015


class Shown:
    """Memory that is shown by a capsule of ours, as one on the CPU."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **options: object) -> object:
        info = describe(self.array)
        assert info is not None
        return make_capsule(info.pointer, info.shape, info.dtype, 1, 0, self)


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.float64, np.int8, np.uint16, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 5)])
def test_a_capsule_shows_an_array(kind: type, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    found = np.from_dlpack(Shown(array))
    assert found.dtype == array.dtype and found.shape == shape
    np.testing.assert_array_equal(found, array)


def test_a_capsule_is_made_whatever_types_others_gave_pythons_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ctypes.pythonapi` is one object for all: JAX sets the types of its functions to its own."""
    for name in ("PyCapsule_New", "PyCapsule_GetPointer", "PyCapsule_IsValid"):
        monkeypatch.setattr(getattr(ctypes.pythonapi, name), "argtypes", [ctypes.CFUNCTYPE(None)])
    array = np.arange(3.0)
    np.testing.assert_array_equal(np.from_dlpack(Shown(array)), array)
    assert describe(Shown(array)).shape == (3,)


def test_a_capsule_keeps_memory_until_it_is_let_go_of() -> None:
    for take in (True, False):
        shown = Shown(np.ones(1000, np.float32))
        gone, count = weakref.ref(shown), len(_handed_out)
        held = np.from_dlpack(shown) if take else shown.__dlpack__()
        del shown
        gc.collect()
        assert gone() is not None and len(_handed_out) == count + 1
        if take:
            assert (held[::2] == 1).all()
        del held
        gc.collect()
        assert gone() is None and len(_handed_out) == count
