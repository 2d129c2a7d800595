"""Describe arrays of any library: where their memory is, how it is laid out, and what a kernel may assume.

`describe` takes an array of NumPy, PyTorch, CuPy, or of any library that speaks `__cuda_array_interface__`
or DLPack, and gives an `ArrayInfo`. `ArrayClass` is the part of it that a compiled kernel depends on: two
arrays of one class run the same machine code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Union

from tilewright.dtypes import DType, float16
from tilewright.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

Device = Union[Literal["cpu"], int]  # an int is the ordinal of a CUDA device

VECTOR_BYTES = 16  # the widest access of one thread, up to which alignment is worth knowing
_WIDE_SPAN = 2**31  # element offsets from here on need 64 bits

# The greatest power of two, up to 16, that divides a number with these low four bits.
ALIGNMENT = tuple(n & -n or VECTOR_BYTES for n in range(VECTOR_BYTES))


@dataclass(frozen=True)
class StrideClass:
    """What a kernel may assume of one stride: its value, where that is static, and what divides it.

    `value` is 1 or 0 for strides that are always static, None for a dynamic one; `divisor` is the greatest
    power of two that divides it, up to 16 bytes, in elements.
    """

    value: int | None
    divisor: int


@dataclass(frozen=True)
class ArrayClass:
    """What a kernel is specialised on for one array argument.

    `extents` holds for each mode the power of two that divides its extent (up to 16 bytes, in elements),
    `alignment` that of the pointer in bytes. `wide` arrays need 64-bit element offsets. A stride of 0 is
    static only on a mode longer than 1, where it means that elements overlap.
    """

    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[StrideClass, ...]
    alignment: int
    wide: bool
    device: Device
    writable: bool

    @property
    def rank(self) -> int:
        return len(self.extents)

    @property
    def broadcast(self) -> tuple[int, ...]:
        """The modes along which all elements are one and the same: such an array is no output."""
        return tuple(mode for mode, stride in enumerate(self.strides) if stride.value == 0)


@dataclass(frozen=True)
class ArrayInfo:
    """One array: pointer to its element (0, ..., 0), shape, strides in elements, element type, device.

    `owner` keeps the memory alive. `stream` is the stream that the array's producer says its contents are
    ready on, None where it says nothing; the framework's current stream is another matter. `static` arrays
    have their whole layout compiled in.
    """

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: Device
    writable: bool = True
    stream: int | None = None
    static: bool = False
    owner: object = field(default=None, repr=False, compare=False)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_cuda(self) -> bool:
        return self.device != "cpu"

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def lowest_offset(self) -> int:
        """The offset of the element at the lowest address, in elements: 0 or, with negative strides, less."""
        return 0 if self.size == 0 else sum((e - 1) * s for e, s in zip(self.shape, self.strides, strict=True) if s < 0)

    @property
    def span(self) -> int:
        """The number of elements from the lowest address to the highest, both included."""
        return 0 if self.size == 0 else 1 + sum((e - 1) * abs(s) for e, s in zip(self.shape, self.strides, strict=True))

    @cached_property
    def specialisation(self) -> ArrayClass:
        """What a kernel is specialised on for this array."""
        widest = max(VECTOR_BYTES // self.dtype.bytes, 1)
        return ArrayClass(
            dtype=self.dtype,
            extents=tuple(_divisor(extent, widest) for extent in self.shape),
            strides=tuple(
                # In an array without elements none overlap.
                _stride_class(e if self.size else 1, s, widest)
                for e, s in zip(self.shape, self.strides, strict=True)
            ),
            alignment=ALIGNMENT[self.pointer % VECTOR_BYTES],
            wide=self.span > _WIDE_SPAN,
            device=self.device,
            writable=self.writable,
        )

    def host(self) -> np.ndarray[Any, Any]:
        """Return the memory of an array on the CPU as a NumPy array that shares and keeps it."""
        import numpy as np

        assert not self.is_cuda, self.device
        if isinstance(self.owner, np.ndarray):
            return self.owner
        # Types unknown to the interface are described by their bits.
        stranger = self.dtype.is_narrow_float and self.dtype is not float16
        array = np.asarray(_HostInterface(self, f"<u{self.dtype.bytes}" if stranger else self.dtype.numpy.str))
        return array.view(self.dtype.numpy) if stranger else array


@dataclass(frozen=True, eq=False)
class Static:
    """An array argument whose shape and strides a kernel is specialised on: what `tw.static(x)` gives."""

    array: object


class _HostInterface:
    """What `np.asarray` reads to make a view; the view keeps it, and it keeps the owner."""

    def __init__(self, info: ArrayInfo, typestr: str) -> None:
        self.info = info
        self.__array_interface__ = {
            "version": 3,
            "shape": info.shape,
            "typestr": typestr,
            "data": (info.pointer, not info.writable),
            "strides": tuple(stride * info.dtype.bytes for stride in info.strides),
        }


def _divisor(number: int, widest: int) -> int:
    return min(number & -number or widest, widest)


def _stride_class(extent: int, stride: int, widest: int) -> StrideClass:
    if stride == 1:
        return StrideClass(1, 1)
    if stride == 0 and extent > 1:
        return StrideClass(0, widest)
    return StrideClass(None, _divisor(stride, widest))


def describe(array: object) -> ArrayInfo | None:
    """Return what is known of an array, or None for what is no array.

    Raises `ArgumentError` for an array that no kernel can take, such as one of complex numbers.
    """
    from tilewright.runtime.adapters import adapter_for

    adapter = adapter_for(array)
    return None if adapter is None else adapter.describe(array)


def common_device(infos: Sequence[ArrayInfo], names: Sequence[str]) -> Device:
    """Return the device that all arrays are on; raise `ArgumentError` naming two that are apart.

    Without arrays it is the CPU.
    """
    for info, name in zip(infos, names, strict=True):
        if info.device != infos[0].device:
            raise ArgumentError(
                f"arguments {names[0]!r} and {name!r} are on different devices",
                details=[
                    f"{names[0]} is on {device_name(infos[0].device)}",
                    f"{name} is on {device_name(info.device)}",
                ],
                help="move all arrays of one launch to one device",
            )
    return infos[0].device if infos else "cpu"


def device_name(device: Device) -> str:
    """Return a device as people write it.

    >>> device_name("cpu"), device_name(1)
    ('cpu', 'cuda:1')
    """
    return device if isinstance(device, str) else f"cuda:{device}"
