from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.runtime.conftest import FakeCuda
from tests.unit.runtime.fake_arrays import (
    CupyArray,
    DLPackArray,
    InterfaceArray,
    Parameter,
    SparseTensor,
    Tensor,
)

from tilewright.dtypes import bfloat16, bool_, float16, float32, float64, int8, int32, uint16
from tilewright.errors import ArgumentError
from tilewright.runtime.arrays import (
    ArrayInfo,
    Static,
    StrideClass,
    _torch_adapter,
    adapter_for,
    common_device,
    describe,
)
from tilewright.runtime.dlpack import _DataType, _element_type, _get_pointer, _Managed, make_capsule, read_capsule
from tilewright.runtime.plan import Signature
from tilewright.runtime.views import view_class


def info_of(array: object) -> ArrayInfo:
    info = describe(array)
    assert info is not None
    return info


# NumPy


def test_numpy() -> None:
    array = np.zeros((3, 5), np.float32)
    info = info_of(array)
    assert info == ArrayInfo(array.ctypes.data, (3, 5), (5, 1), float32, "cpu")
    assert info.host() is array
    assert (info.rank, info.size, info.span, info.lowest_offset) == (2, 15, 15, 0)


def test_negative_strides_point_at_the_first_element() -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)[::-1, ::-2]
    info = info_of(array)
    assert info.strides == (-4, -2)
    assert ctypes.c_int32.from_address(info.pointer).value == array[0, 0] == 11
    assert (info.span, info.lowest_offset) == (11, -10)


def test_read_only_broadcast_and_empty() -> None:
    array = np.broadcast_to(np.ones(4, np.float64), (3, 4))
    info = info_of(array)
    assert not info.writable
    assert info.specialisation.broadcast == (0,)
    assert not info.specialisation.writable
    empty = info_of(np.zeros((0, 4), np.int8))
    assert (empty.size, empty.span) == (0, 0)
    scalar = info_of(np.zeros((), np.int32))
    assert (scalar.shape, scalar.strides, scalar.span) == ((), (), 1)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros(3, np.complex64), "complex64 is not an element type"),
        (np.zeros(3, ">f4"), "other byte order"),
        (np.zeros(3, [("a", "f4"), ("b", "f4")]), "is a record"),
        (np.zeros(3, [("a", "f4"), ("b", "i2")])["a"], "not multiples"),
        (np.array([object()]), "object is not an element type"),
        (np.array(["text"]), "not an element type"),
    ],
)
def test_numpy_arrays_that_no_kernel_takes(array: np.ndarray[Any, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        describe(array)


@pytest.mark.parametrize("thing", [None, 3, 2.5, "text", (1, 2), [1.0], np.float32(1), np.ndarray, dict])
def test_what_is_no_array(thing: object) -> None:
    assert describe(thing) is None


# What kernels are specialised on


def test_specialisation() -> None:
    info = ArrayInfo(4096 + 8, (6, 4, 7), (64, 1, 4), float32, 0)
    kind = info.specialisation
    assert kind.extents == (2, 4, 1)
    assert kind.strides == (StrideClass(None, 4), StrideClass(1, 1), StrideClass(None, 4))
    assert (kind.alignment, kind.wide, kind.rank, kind.device) == (8, False, 3, 0)


@pytest.mark.parametrize(("dtype", "widest"), [(int8, 16), (float16, 8), (float32, 4), (float64, 2)])
def test_divisibility_ends_at_sixteen_bytes(dtype: Any, widest: int) -> None:
    kind = ArrayInfo(0, (1024, 0, -0), (-512, 3, 0), dtype, 0).specialisation
    assert kind.extents == (widest, widest, widest)
    assert [stride.divisor for stride in kind.strides] == [widest, 1, widest]


@pytest.mark.parametrize(("offset", "alignment"), [(0, 16), (1, 1), (2, 2), (4, 4), (6, 2), (8, 8), (12, 4), (16, 16)])
def test_alignment(offset: int, alignment: int) -> None:
    assert ArrayInfo(4096 + offset, (4,), (1,), float32, 0).specialisation.alignment == alignment


def test_a_stride_of_zero_on_one_element_is_no_broadcast() -> None:
    kind = ArrayInfo(4096, (1, 2), (0, 0), float32, 0).specialisation
    assert kind.strides == (StrideClass(None, 4), StrideClass(0, 4))


def test_wide_arrays() -> None:
    assert not ArrayInfo(4096, (2**31,), (1,), int8, 0).specialisation.wide
    assert ArrayInfo(4096, (2**31 + 1,), (1,), int8, 0).specialisation.wide
    assert ArrayInfo(4096, (2, 2), (-(2**31), 1), int8, 0).specialisation.wide


# PyTorch, CuPy


def test_torch_by_its_names() -> None:
    info = info_of(Tensor((4, 8), dtype="bfloat16", index=2))
    assert info == ArrayInfo(4096, (4, 8), (8, 1), bfloat16, 2)
    assert info_of(Parameter((4,), device="cpu")).device == "cpu"


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (Tensor((4,), dtype="complex64"), "torch.complex64 is not an element type"),
        (Tensor((4,), device="mps"), "it is on the device"),
        (Tensor((4,), device="meta"), "it is on the device"),
        (SparseTensor((4,)), "which has no strides"),
    ],
)
def test_tensors_that_no_kernel_takes(tensor: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        describe(tensor)


def test_real_torch() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).t().requires_grad_()
    info = info_of(tensor)
    assert (info.shape, info.strides, info.dtype, info.device) == ((4, 3), (1, 4), float32, "cpu")
    host = info.host()
    host[1, 2] = 99
    assert tensor[1, 2].item() == 99
    half = torch.ones(3, dtype=torch.bfloat16)
    view = info_of(half).host()
    assert view.dtype == ml_dtypes.bfloat16
    view[1] = 2.5
    assert half.tolist() == [1.0, 2.5, 1.0]
    assert info_of(torch.nn.Parameter(torch.zeros(2))).dtype is float32
    assert info_of(torch.zeros(2, dtype=torch.bool)).dtype is bool_
    with pytest.raises(ArgumentError, match="layout"):
        describe(torch.eye(3).to_sparse())
    with pytest.raises(ArgumentError, match="meta"):
        describe(torch.empty(3, device="meta"))
    with pytest.raises(ArgumentError, match="with the other sign"):
        describe(torch.ones(3, dtype=torch.complex64).conj().imag)


def test_a_host_view_keeps_the_memory() -> None:
    class Owner:
        pass

    memory = np.arange(6, dtype=np.float32)
    owner = Owner()
    alive = weakref.ref(owner)
    view = ArrayInfo(memory.ctypes.data + 20, (3, 2), (-2, 1), float32, "cpu", writable=False, owner=owner).host()
    del owner
    gc.collect()
    assert alive() is not None
    assert not view.flags.writeable
    assert view[1, 0] == 3
    del view
    gc.collect()
    assert alive() is None


def test_current_stream_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(cuda_stream=77)
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda ordinal: stream))
    monkeypatch.setitem(sys.modules, "torch", torch)
    kind = type("Tensor", (Tensor,), {"__module__": "torch"})  # a type that no adapter is known of yet
    adapter = adapter_for(kind((4,)))
    assert adapter is not None and adapter.current_stream is not None
    assert adapter.current_stream(0) == 77
    torch._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: 88 + ordinal)
    adapter = adapter_for(type("Tensor", (Tensor,), {"__module__": "torch"})((4,)))
    assert adapter is not None and adapter.current_stream is not None
    assert adapter.current_stream(1) == 89


def test_cupy_by_its_names() -> None:
    info = info_of(CupyArray((4, 8), (-16, 2), device=1))
    assert info == ArrayInfo(8192, (4, 8), (-8, 1), float16, 1)


# __cuda_array_interface__


def test_interface(fake_cuda: FakeCuda) -> None:
    assert info_of(InterfaceArray((2, 3))) == ArrayInfo(4096, (2, 3), (3, 1), float32, 0)
    strided = info_of(InterfaceArray((2, 3), "<i4", strides=(4, 8), read_only=True, stream=9))
    assert strided == ArrayInfo(4096, (2, 3), (1, 2), int32, 0, writable=False, stream=9)
    assert info_of(InterfaceArray((0,), pointer=None)).pointer == 0


class Null(DLPackArray):
    """An array whose library shows a null pointer, `offset` bytes behind which its elements are."""

    def __init__(self, shape: tuple[int, ...], offset: int = 0) -> None:
        super().__init__(np.empty(0, np.float32))
        self.shape, self.offset = shape, offset

    def __dlpack__(self, **options: Any) -> Any:
        capsule = make_capsule(0, self.shape, float32, 1, 0, None)
        shown = ctypes.cast(_get_pointer(capsule, b"dltensor"), ctypes.POINTER(_Managed))[0]
        shown.tensor.byte_offset = self.offset
        return capsule


def freed(*shape: int, pointer: int = 0) -> Any:
    tensor = Tensor(shape, pointer=pointer)
    tensor.is_freed = True
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        freed,
        lambda *shape: freed(*shape, pointer=64),
        lambda *shape: freed(*shape, pointer=2**32),
        lambda *shape: CupyArray(shape, tuple(2 for _ in shape), pointer=0),
        lambda *shape: InterfaceArray(shape, pointer=None),
        lambda *shape: Null(shape),
        lambda *shape: Null(shape, 64),
        lambda *shape: view_class(_torch_adapter())(0, shape, (1,) * len(shape), float32, 0, True, None),
        lambda *shape: Static(freed(*shape)),
    ],
)
def test_freed_memory_is_refused_where_there_are_elements(fake_cuda: FakeCuda, make: Any) -> None:
    signature = Signature(["y", "x"])
    for y in (np.zeros(1), Tensor((1,))):
        for x in (make(4), make(0), make(4), make(0), make(2, 3), make()):
            if x.shape == (0,) if hasattr(x, "shape") else x.array.shape == (0,):
                assert signature.read((y, x))[1][1][1] in (0, 64, 2**32)
                continue
            with pytest.raises(ArgumentError, match="^argument 'x' cannot be used: its memory was freed: .* is null"):
                signature.read((y, x))


def test_a_low_address_may_be_memory() -> None:
    signature = Signature(["x"])
    for pointer in (16, 4096, 2**33 - 16, 2**33):
        call, values, _ = signature.read((Tensor((4,), pointer=pointer),))[1]
        assert values == (pointer,)
        assert call is signature.read((Tensor((4,), pointer=1 << 45),))[1][0]


def test_interface_set_on_the_object(fake_cuda: FakeCuda) -> None:
    holder = SimpleNamespace(__cuda_array_interface__=InterfaceArray((4,), "|b1").__cuda_array_interface__)
    assert info_of(holder).dtype is bool_
    assert describe(SimpleNamespace()) is None


def test_interface_on_the_second_device(two_devices: FakeCuda) -> None:
    assert info_of(InterfaceArray((4,), pointer=(1 << 40) + 256)).device == 1


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (InterfaceArray((4,), "<c8"), "complex64"),
        (InterfaceArray((4,), ">f4"), "byte order"),
        (InterfaceArray((4,), strides=(6,)), "not multiples"),
        (InterfaceArray((4,), extra={"mask": object()}), "masked"),
    ],
)
def test_interfaces_that_no_kernel_takes(array: object, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        describe(array)


# DLPack


@pytest.mark.parametrize("generation", [0, 1])
def test_dlpack(generation: int) -> None:
    array = np.arange(24, dtype=np.uint16).reshape(4, 6)[:, ::2]
    info = info_of(DLPackArray(array, generation))
    assert info == ArrayInfo(array.ctypes.data, (4, 3), (6, 2), uint16, "cpu")
    host = info.host()
    np.testing.assert_array_equal(host, array)
    host[2, 1] = 500
    assert array[2, 1] == 500


@pytest.mark.parametrize(
    ("code", "name"),
    [(10, "float8_e4m3fn"), (11, "float8_e4m3fnuz"), (12, "float8_e5m2"), (13, "float8_e5m2fnuz")],
)
def test_eight_bit_floats_of_dlpack(code: int, name: str) -> None:
    """The codes of dlpack.h."""
    assert _element_type(_DataType(code, 8, 1)).name == name
    with pytest.raises(ArgumentError, match=f"type code {code} of 16 bits"):
        _element_type(_DataType(code, 16, 1))


def test_dlpack_keeps_the_memory_and_gives_it_back() -> None:
    array = np.arange(6, dtype=np.float64)
    alive = sys.getrefcount(array)
    info = info_of(DLPackArray(array))
    assert sys.getrefcount(array) > alive
    del info
    gc.collect()
    assert sys.getrefcount(array) == alive


def test_dlpack_read_only() -> None:
    array = np.arange(6, dtype=np.float64)
    array.flags.writeable = False
    assert not info_of(DLPackArray(array)).writable
    with pytest.raises(ArgumentError, match="does not show it by DLPack"):
        describe(DLPackArray(array, generation=0))  # cannot say read-only, so NumPy refuses


def test_dlpack_of_something_else() -> None:
    with pytest.raises(ArgumentError, match="not a fresh DLPack capsule"):
        read_capsule(object())
    capsule = np.arange(3).__dlpack__()
    np.from_dlpack(SimpleNamespace(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (1, 0)))
    with pytest.raises(ArgumentError, match="not a fresh DLPack capsule"):
        read_capsule(capsule)  # consumed


def test_dlpack_on_another_kind_of_device() -> None:
    class OnMetal:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 8, 0

        def __dlpack__(self, **options: object) -> object:
            raise AssertionError

    with pytest.raises(ArgumentError, match="DLPack device kind 8"):
        describe(OnMetal())


def test_jax_arrays_are_read_only() -> None:
    kind = type("ArrayImpl", (DLPackArray,), {"__module__": "jaxlib.xla_extension", "is_deleted": lambda self: False})
    assert not info_of(kind(np.zeros(4))).writable


def test_dlpack_complex() -> None:
    with pytest.raises(ArgumentError, match="type code 5 of 64 bits"):
        describe(DLPackArray(np.zeros(4, np.complex64)))


# Static arrays, devices


def test_static() -> None:
    assert info_of(Static(np.zeros((2, 3), np.float32))).static
    assert info_of(Static(Tensor((2, 3)))).device == 0
    with pytest.raises(ArgumentError, match="holds no array"):
        describe(Static(3))


def test_common_device() -> None:
    cpu, first, second = (ArrayInfo(4096, (4,), (1,), float32, device) for device in ("cpu", 0, 1))  # type: ignore[arg-type]
    assert common_device([first, first], ["a", "b"]) == 0
    assert common_device([], []) == "cpu"
    with pytest.raises(ArgumentError) as caught:
        common_device([first, first, second], ["a", "b", "c"])
    assert str(caught.value) == (
        "arguments 'a' and 'c' are on different devices\n"
        "  a is on cuda:0\n"
        "  c is on cuda:1\n"
        "  help: move all arrays of one launch to one device"
    )
    with pytest.raises(ArgumentError, match="different devices"):
        common_device([cpu, second], ["a", "b"])
