from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.unit.runtime.conftest import FakeCuda
from tests.unit.runtime.fake_arrays import CupyArray, InterfaceArray, Parameter, SparseTensor, Tensor

from tilewright.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64, uint8
from tilewright.errors import ArgumentError
from tilewright.runtime import plan as plan_module
from tilewright.runtime.arrays import ArrayInfo, Static
from tilewright.runtime.plan import Constexpr, Scalar, Signature, freeze


def key_of(*args: Any, constexpr: tuple[str, ...] = ()) -> tuple[object, object]:
    """Return plan and key: what decides which compiled kernel runs."""
    names = [f"x{n}" for n in range(len(args))]
    signature = SIGNATURES.setdefault((len(args), constexpr), Signature(names, constexpr))
    plan, (call, _, _) = signature.read(args)
    return plan, call.key


SIGNATURES: dict[object, Signature] = {}


def test_values_of_a_reading() -> None:
    signature = Signature(["a", "n", "layout", "b"], ["layout"])
    a, b = Tensor((4, 8), pointer=4096), Tensor((3,), (2,), pointer=8192)
    plan, (call, values, described) = signature.read((a, 7, "row", b))
    assert values == (4096, 7, 8192)
    assert call.layouts == (((4, 8), (8, 1)), None, ((3,), (2,)))
    assert plan.starts == (0, 1, 2, 2)
    assert described == ()
    assert plan.describe((a, 7, "row", b)) == (
        ArrayInfo(4096, (4, 8), (8, 1), float32, 0),
        Scalar(7, int32),
        Constexpr("row"),
        ArrayInfo(8192, (3,), (2,), float32, 0),
    )


@pytest.mark.parametrize(
    "other",
    [
        Tensor((64, 128), pointer=1 << 20),
        Tensor((68, 256)),  # other extents, equally divisible
        Tensor((64, 128), (132, 1)),
    ],
)
def test_one_kernel_for_arrays_alike(other: object) -> None:
    assert key_of(Tensor((64, 128))) == key_of(other)


@pytest.mark.parametrize(
    "other",
    [
        Tensor((64, 128), dtype="int32"),
        Tensor((64, 128, 1)),
        Tensor((63, 128)),
        Tensor((64, 128), (130, 1)),
        Tensor((64, 128), (1, 64)),
        Tensor((64, 128), (0, 1)),
        Tensor((64, 128), index=1),
        Tensor((64, 128), pointer=4104),
        Tensor((64, 128), pointer=4100),
        Tensor((2**20, 2**12)),
        Static(Tensor((64, 128))),
        InterfaceArray((64, 128), read_only=True),
    ],
)
def test_another_kernel_for_arrays_that_differ(other: object, fake_cuda: FakeCuda) -> None:
    assert key_of(Tensor((64, 128))) != key_of(other)


def test_alignment_is_told_apart_by_argument() -> None:
    aligned, other = Tensor((4,)), Tensor((4,), pointer=4104)
    keys = [key_of(a, b) for a in (aligned, other) for b in (aligned, other)]
    assert len(set(keys)) == 4


def test_static_arrays_are_told_apart_by_shape() -> None:
    keys = {key_of(Static(Tensor(shape))) for shape in ((64, 128), (68, 128), (64, 256), (64, 128))}
    assert len(keys) == 3


def test_writable_is_part_of_the_key(fake_cuda: FakeCuda) -> None:
    array = np.zeros((4, 4), np.float32)
    writable = key_of(array)
    array.flags.writeable = False
    assert key_of(array) != writable


# Scalars


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (3, int32),
        (-(2**31), int32),
        (2**31, int64),
        (0.5, float32),
        (True, bool_),
        (np.float64(0.5), float64),
        (np.float16(0.5), float16),
        (np.uint8(5), uint8),
        (np.int64(5), int64),
        (np.longlong(5), int64),
        (np.bool_(True), bool_),
        (ml_dtypes.bfloat16(1.5), bfloat16),
        (IntEnum("Side", "LEFT RIGHT").RIGHT, int32),
    ],
)
def test_type_of_a_scalar(value: Any, dtype: object) -> None:
    plan, (_, values, _) = Signature(["x"]).read((value,))
    assert plan.describe((value,)) == (Scalar(value, dtype),)  # type: ignore[arg-type]
    assert values == (value,)


def test_the_value_of_a_scalar_is_not_in_the_key() -> None:
    assert key_of(3) == key_of(2**31 - 1) == key_of(-(2**31))
    assert key_of(3) != key_of(2**31)
    assert key_of(2**31) == key_of(-(2**40))
    assert key_of(0.5) == key_of(1e30)
    assert key_of(3) != key_of(True)


def test_an_int_over_64_bits() -> None:
    with pytest.raises(ArgumentError, match="argument 'n' is 9223372036854775808, which does not fit"):
        Signature(["n"]).plan((1,)).describe((2**63,))


# Compile-time arguments


@dataclass(frozen=True)
class Tile:
    m: int


def test_constexpr_values_are_in_the_key() -> None:
    def key(value: object) -> object:
        return key_of(value, constexpr=("x0",))

    assert key(3) == key(3) != key(4)
    assert key(Tile(3)) == key(Tile(3)) != key(Tile(4))
    assert key((1, 2)) == key((1, 2))
    distinct = [1, 1.0, True, "1", (1,), (1.0,), (True,), ((1,),), 0, 0.0, -0.0, False, None, (), Tile(1)]
    assert len({repr(key(value)) + str(id(key(value)[0])) for value in distinct}) == len(distinct)  # type: ignore[index]


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, np.zeros(3), (1, [2])])
def test_constexpr_has_to_be_hashable(value: Any) -> None:
    signature = Signature(["tile"], ["tile"])
    with pytest.raises(ArgumentError, match="argument 'tile' is a compile-time constant and must be hashable"):
        signature.read((value,))


def test_freeze() -> None:
    assert freeze((1, (2.0, "x"))) == freeze((1, (2.0, "x")))
    assert freeze((1, 2)) != freeze((1, 2.0))
    assert freeze(2.0) != freeze(np.float64(2.0))
    assert freeze(float("nan")) == freeze(float("nan"))


def test_none_is_a_compile_time_argument() -> None:
    plan, (_, values, _) = Signature(["bias"]).read((None,))
    assert values == ()
    assert plan.describe((None,)) == (Constexpr(None),)


# Refusals


@pytest.mark.parametrize("value", ["text", {1, 2}, object(), 1j, np.complex64(1), np.dtype("float32"), float])
def test_what_no_kernel_takes(value: object) -> None:
    with pytest.raises(ArgumentError, match=r"argument 'x' is a .*; a kernel takes arrays and numbers") as caught:
        Signature(["x"]).read((value,))
    assert caught.value.help == "for a compile-time argument write x: tw.constexpr"


@pytest.mark.parametrize("array", [Tensor((4,), dtype="complex64"), np.zeros(3, complex), SparseTensor((4,))])
def test_an_array_that_no_kernel_takes_is_named(array: object) -> None:
    with pytest.raises(ArgumentError, match="argument 'src' cannot be used: "):
        Signature(["dst", "src"]).read((Tensor((4,)), array))


def test_an_unforeseen_error_is_passed_on() -> None:
    class Broken(Tensor):
        broken = False

        def data_ptr(self) -> int:
            if self.broken:
                raise OSError("the memory is gone")
            return 4096

    signature = Signature(["x"])
    tensor = Broken((4,))
    signature.read((tensor,))
    tensor.broken = True
    with pytest.raises(OSError, match="the memory is gone"):
        signature.read((tensor,))


# Plans


def test_a_plan_for_each_combination_of_types() -> None:
    signature = Signature(["a", "n"])
    first, _ = signature.read((Tensor((4,)), 3))
    assert signature.read((Tensor((8, 8)), 4))[0] is first
    assert signature.plan((Tensor((4,)), 3)) is first
    second, (_, values, _) = signature.read((Parameter((4,)), 0.5))
    assert second is not first
    assert values[-1] == 0.5
    assert first.read(Parameter((4,)), 3) is None
    assert signature.read((Tensor((4,)), 3))[0] is first


def test_no_parameters() -> None:
    plan, reading = Signature([]).read(())
    assert (reading[0].key, *reading[1:]) == ((), (), ())
    assert plan.describe(()) == ()


def test_byte_strides_become_elements() -> None:
    signature = Signature(["a"])
    for _ in range(2):  # once computed, once remembered
        _, (call, values, _) = signature.read((CupyArray((4, 8), (32, 2)),))
        assert (values, call.layouts) == ((8192,), (((4, 8), (16, 1)),))


def test_the_memory_of_shapes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "_MAX_CALLS", 10)
    kind = type("Tensor", (Tensor,), {"__module__": "torch"})
    signature = Signature(["a"])
    keys = [signature.read((kind((n, 4)),))[1][0].key for n in range(4, 100, 4)]
    assert len(set(keys)) == 1
    assert 0 < len(signature.plan((kind((4,)),)).calls) <= 10


# Streams


def torch_kind(stream: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    getter = SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: stream + ordinal)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=getter))
    return type("Tensor", (Tensor,), {"__module__": "torch"})


def test_the_current_stream_of_the_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch_kind(70, monkeypatch)
    plan, _ = Signature(["a", "b"]).read((kind((4,)), kind((4,))))
    assert plan.stream(0) == 70
    assert plan.stream(1) == 71


def test_the_stream_of_an_interface(fake_cuda: FakeCuda) -> None:
    plan, (_, _, described) = Signature(["a", "b"]).read(
        (InterfaceArray((4,), stream=9), InterfaceArray((4,), stream=8))
    )
    assert plan.stream(0, described) == 9
    assert fake_cuda.waits == [(8, 9)]


def test_no_stream_named_is_the_default_stream(fake_cuda: FakeCuda) -> None:
    plan, (_, _, described) = Signature(["a"]).read((InterfaceArray((4,)),))
    assert plan.stream(0, described) == 0
    assert fake_cuda.waits == []


def test_the_framework_waits_for_an_interface(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch_kind(70, monkeypatch)
    plan, (_, _, described) = Signature(["a", "b"]).read((InterfaceArray((4,), stream=9), kind((4,))))
    assert plan.stream(0, described) == 70
    assert fake_cuda.waits == [(9, 70)]


def test_both_names_of_the_default_stream_are_one(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch_kind(0, monkeypatch)
    plan, (_, _, described) = Signature(["a", "b"]).read((InterfaceArray((4,), stream=1), kind((4,))))
    assert plan.stream(0, described) == 0
    assert fake_cuda.waits == []


def test_the_alignment_of_pointers_is_part_of_what_finds_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch_kind(70, monkeypatch)
    signature = Signature(["a", "b"])

    def call(first: int, second: int) -> Any:
        return signature.read((kind((4,), pointer=first), kind((4,), pointer=second)))[1][0]

    assert call(4096, 8192) is call(64, 16) is not call(4096, 8200)
    assert call(4096, 8200) is call(32, 24) is not call(4104, 8192)
    assert call(4097, 8192).key != call(4098, 8192).key


def test_a_plan_whose_arrays_are_of_one_framework_has_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch_kind(70, monkeypatch)
    assert Signature(["a", "n"]).plan((kind((4,)), 3)).current_stream(2) == 72
    assert Signature(["a"]).plan((np.zeros(4, np.float32),)).current_stream is None


def test_arrays_of_several_kinds_have_no_stream_in_common(fake_cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torch_kind(70, monkeypatch)
    assert Signature(["a", "b"]).plan((kind((4,)), InterfaceArray((4,)))).current_stream is None
