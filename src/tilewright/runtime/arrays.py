"""Describe arrays of any library: where their memory is, how it is laid out, and what a kernel may assume.

`describe` takes an array of NumPy, PyTorch, CuPy, or of any library that speaks `__cuda_array_interface__`
or DLPack, and gives an `ArrayInfo`. `ArrayClass` is the part of it that a compiled kernel depends on: two
arrays of one class run the same machine code.

Each kind of array has an `Adapter`, which reads its pointer, shape, strides, type and device. It is chosen by the
array's type, once for each type. No array library is imported here: a type that comes from PyTorch is recognised by
the names of its classes. Some adapters also give the Python expressions of the launch path (`FastAccess`), and those
of PyTorch and CuPy the framework's current stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, Union, cast

from tilewright.arch import VECTOR_BYTES
from tilewright.dtypes import DType, dtype, float16
from tilewright.errors import ArgumentError
from tilewright.runtime.dlpack import CPU_KINDS, CUDA_KINDS, read_capsule, row_major

if TYPE_CHECKING:
    import numpy as np

StreamGetter = Callable[[int], int]  # the current stream of a device in its framework
Device = Union[Literal["cpu"], int]  # an int is the ordinal of a CUDA device
ArrayLayout = tuple[tuple[int, ...], tuple[int, ...]]  # shape, and strides in elements
Layouts = tuple[Union[ArrayLayout, None], ...]  # of the arrays of a call, None for a number among them

LEGACY_STREAM = 1  # the default stream's handle in the two array protocols; the driver takes it as well
_WIDE_SPAN = 2**31  # element offsets from here on need 64 bits

# No GPU's memory begins below this address, so a lower pointer is looked at closer: where PyTorch's memory was freed,
# that of a view is the view's offset.
LOW_ADDRESSES = 1 << 33

# Alignment is worth knowing up to the widest access: the greatest power of two, up to 16, that divides a number with
# these low four bits.
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
        """The modes along which all elements are one and the same: such an array cannot be an output."""
        return tuple(mode for mode, stride in enumerate(self.strides) if stride.value == 0)


@dataclass(frozen=True)
class ArrayInfo:
    """One array: pointer to its element (0, ..., 0), shape, strides in elements, element type, device.

    `owner` keeps the memory alive. `stream` is the stream that the array's producer says its contents are
    ready on, None where it says nothing; the framework's current stream is another matter. `static` arrays
    have their whole layout compiled in.

    Raises `ArgumentError` for an array that has elements and whose memory was freed.
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

    def __post_init__(self) -> None:
        if not self.pointer and 0 not in self.shape:
            raise ArgumentError(
                f"its memory was freed: the pointer of an array of shape {self.shape} is null",
                help="allocate and fill it before the call; parameters that FSDP has resharded, by unshard()",
            )

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
        is_by_bits = self.dtype.is_narrow_float and self.dtype is not float16
        array = np.asarray(_HostInterface(self, f"<u{self.dtype.bytes}" if is_by_bits else self.dtype.numpy.str))
        return array.view(self.dtype.numpy) if is_by_bits else array


@dataclass(frozen=True, eq=False)
class Static:
    """An array argument whose shape and strides a kernel is specialised on: what `tw.static(x)` gives."""

    array: object


@dataclass(frozen=True)
class ArraySpec:
    """Stands for an array where only its kind matters: in `kernel.source(...)` and its like."""

    info: ArrayInfo

    def __repr__(self) -> str:
        info, dense = self.info, 1
        for extent, stride in zip(reversed(info.shape), reversed(info.strides), strict=True):
            if stride != dense:
                rest = f", stride={info.strides}"
                break
            dense *= extent
        else:
            rest = ""
        rest += f", align={info.pointer}" if info.pointer != VECTOR_BYTES else ""
        return f"tw.spec({info.dtype!r}, {info.shape}{rest})"


class _HostInterface:
    """What `np.asarray` reads to make a view; the view keeps it, and it keeps the owner."""

    def __init__(self, info: ArrayInfo, typestr: str) -> None:
        self.owner = info.owner
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


def describe(array: object, name: str = "") -> ArrayInfo | None:
    """Return what is known of an array, or None for what is not an array.

    Raises `ArgumentError`, in which it has a `name`, for an array that no kernel can take, such as one of complex
    numbers.
    """
    adapter = adapter_for(array)
    try:
        return None if adapter is None else adapter.describe(array)
    except ArgumentError as error:
        if not name:
            raise
        raise ArgumentError(f"{name} cannot be used: {error.summary}", details=error.details, help=error.help) from None


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


# --- adapters ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FastAccess:
    """Python expressions that read an array `{a}` within a fraction of a microsecond.

    `identity` is a list of expressions, which with the shape have to change whenever anything but the pointer changes
    that a kernel is specialised on, or gets passed.
    """

    pointer: str
    shape: str
    identity: str


@dataclass(frozen=True, eq=False)
class Adapter:
    """How to read arrays of one type. `current_stream` gives a device's current stream in its framework."""

    library: str
    describe: Callable[[Any], ArrayInfo]  # Any: an array of the adapter's library
    fast: FastAccess | None = None
    current_stream: StreamGetter | None = None


def _element_type(found: object) -> DType:
    try:
        return dtype(found)
    except TypeError:
        raise ArgumentError(f"{found} is not an element type of Tilewright") from None


def _elements(byte_strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    if any(stride % size for stride in byte_strides):
        raise ArgumentError(f"its strides of {byte_strides} bytes are not multiples of the element's {size} bytes")
    return tuple(stride // size for stride in byte_strides)


# NumPy


def _describe_numpy(array: Any) -> ArrayInfo:
    if not array.dtype.isnative:
        raise ArgumentError(f"its type {array.dtype!r} has the other byte order")
    if array.dtype.names is not None:
        raise ArgumentError(f"its type {array.dtype} is a record")
    element = _element_type(array.dtype)
    return ArrayInfo(
        pointer=array.__array_interface__["data"][0],
        shape=array.shape,
        strides=_elements(array.strides, element.bytes),
        dtype=element,
        device="cpu",
        writable=array.flags.writeable,
        owner=array,
    )


def _numpy_adapter() -> Adapter:
    pointer = "{a}.__array_interface__['data'][0]"
    identity = "{a}.strides, {a}.dtype, {a}.flags.writeable"
    return Adapter("numpy", _describe_numpy, FastAccess(pointer, "{a}.shape", identity))


# PyTorch


def _describe_torch(tensor: Any) -> ArrayInfo:
    kind = tensor.device.type
    if kind not in ("cpu", "cuda"):
        raise ArgumentError(f"it is on the device {tensor.device}", help="move it to the CPU or to a CUDA device")
    try:
        pointer, strides = tensor.data_ptr(), tuple(tensor.stride())
        if pointer < LOW_ADDRESSES and not tensor.untyped_storage().data_ptr():
            pointer = 0
    except RuntimeError:
        if str(tensor.layout) == "torch.strided":
            raise ArgumentError(
                f"it is a {type(tensor).__name__}, which has no memory of its own",
                help="operators of tw.torch, such as tw.torch.matmul, take DTensors and work under torch.func; "
                "a kernel takes the tensor inside: x.to_local()",
            ) from None
        raise ArgumentError(f"it is a tensor of layout {tensor.layout}, which has no strides and no pointer") from None
    if tensor.is_neg():
        raise ArgumentError("its memory has its numbers with the other sign", help="pass tensor.resolve_neg()")
    return ArrayInfo(
        pointer=pointer,
        shape=tuple(tensor.shape),
        strides=strides,
        dtype=_element_type(tensor.dtype),
        device="cpu" if kind == "cpu" else tensor.device.index,
        owner=tensor,
    )


def _torch_stream(ordinal: int) -> int:
    return int(sys.modules["torch"].cuda.current_stream(ordinal).cuda_stream)


def _torch_adapter() -> Adapter:
    # The underscored function takes 0.1 microseconds in place of 2; torch.compile relies on it too.
    torch = sys.modules.get("torch")
    raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
    # x.numpy() is not needed anywhere: it refuses bfloat16 and tensors that require grad.
    # Where a tensor is contiguous, its shape tells its strides, and the question is cheaper than the strides. Negative
    # views have no plan: they are refused.
    # get_device() is -1 on the CPU, and hashes faster than the device object.
    identity = "None if {a}.is_neg() else {a}.is_contiguous() or {a}.stride(), {a}.dtype, {a}.get_device()"
    return Adapter("torch", _describe_torch, FastAccess("{a}.data_ptr()", "{a}.shape", identity), raw or _torch_stream)


_EXCHANGE = "__dlpack_c_exchange_api__"
# Subclasses of tensors may answer in their own ways, which C would pass over.
_EXCHANGED = (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))


def exchange_of(kind: type) -> Any:  # Any: a capsule
    """Return how PyTorch shows tensors of a type to C, by DLPack's exchange API (from 2.10 on), or None."""
    return getattr(kind, _EXCHANGE, None) if (kind.__module__, kind.__qualname__) in _EXCHANGED else None


# CuPy


def _describe_cupy(array: Any) -> ArrayInfo:
    element = _element_type(array.dtype)
    return ArrayInfo(
        pointer=array.data.ptr,
        shape=array.shape,
        strides=_elements(array.strides, element.bytes),
        dtype=element,
        device=array.data.device_id,
        owner=array,
    )


def _cupy_stream(ordinal: int) -> int:
    cuda = sys.modules["cupy"].cuda
    with cuda.Device(ordinal):
        return int(cuda.get_current_stream().ptr)


def _cupy_adapter() -> Adapter:
    fast = FastAccess("{a}.data.ptr", "{a}.shape", "{a}.strides, {a}.dtype, {a}.data.device_id")
    return Adapter("cupy", _describe_cupy, fast, _cupy_stream)


# __cuda_array_interface__ and DLPack


def _describe_interface(array: Any) -> ArrayInfo:
    interface = array.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise ArgumentError("it is a masked array")
    typestr = interface["typestr"]
    if typestr[0] == ">":
        raise ArgumentError(f"its type {typestr} has the other byte order")
    import numpy as np

    element = _element_type(np.dtype(typestr))
    shape = tuple(interface["shape"])
    byte_strides = interface.get("strides")
    pointer, read_only = interface["data"]
    return ArrayInfo(
        pointer=pointer or 0,
        shape=shape,
        strides=row_major(shape) if byte_strides is None else _elements(tuple(byte_strides), element.bytes),
        dtype=element,
        device=_ordinal_of_pointer(pointer or 0),
        writable=not read_only,
        stream=interface.get("stream"),
        owner=array,
    )


def _ordinal_of_pointer(pointer: int) -> int:
    """Return the device that holds a pointer: the interface does not say."""
    from tilewright.runtime import driver

    return driver.ordinal_of_pointer(pointer) if pointer and driver.device_count() > 1 else 0


def _describe_dlpack(array: Any) -> ArrayInfo:
    # Arrays of JAX are immutable, which their capsules do not say.
    is_jax = type(array).__module__.partition(".")[0] in ("jax", "jaxlib")
    if is_jax and array.is_deleted():
        raise ArgumentError(
            f"its memory was freed: JAX deleted this array of shape {array.shape}",
            help="call it with what replaced the array: a function of jax.jit deletes the arguments that it donates",
        )
    kind, ordinal = array.__dlpack_device__()
    if kind not in (*CPU_KINDS, *CUDA_KINDS):
        raise ArgumentError(f"it is on DLPack device kind {int(kind)}, neither a CPU nor a CUDA device")
    device: Device = ordinal if kind in CUDA_KINDS else "cpu"
    # The producer makes this stream wait for the array's contents; the launch then follows this stream.
    stream = None if device == "cpu" else LEGACY_STREAM
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 1))
    except (TypeError, BufferError):  # a producer of the first generation, or one that shows no read-only arrays
        try:
            capsule = array.__dlpack__(stream=stream)
        except (TypeError, BufferError, RuntimeError) as error:
            raise ArgumentError(f"its library does not show it by DLPack: {error}") from error
    tensor = read_capsule(capsule)
    return ArrayInfo(
        pointer=tensor.pointer,
        shape=tensor.shape,
        strides=tensor.strides,
        dtype=tensor.dtype,
        device=device,
        writable=tensor.writable and not is_jax,
        stream=stream,
        owner=capsule,
    )


_INTERFACE = Adapter("__cuda_array_interface__", _describe_interface)
_DLPACK = Adapter("DLPack", _describe_dlpack)
_JAX = Adapter("jax", _describe_dlpack)


def adapter_for(array: object) -> Adapter | None:
    """Return the adapter for an array, or None for what is not an array."""
    found = adapter_of_type(cast("Hashable", type(array)))
    if found is None and hasattr(array, "__cuda_array_interface__") and not isinstance(array, type):
        return _INTERFACE  # some holders set it on the object, not on the class
    return found


def _refuse_masked(array: Any) -> ArrayInfo:
    raise ArgumentError(
        "it is a masked array, and a kernel would take its masked elements for numbers",
        help="pass array.filled(value), or array.data and array.mask as two arguments",
    )


def _refuse_fake(tensor: Any) -> ArrayInfo:
    raise ArgumentError(
        f"it is a {type(tensor).__name__}, which torch traces with and which has no memory",
        help="make the function that launches an operator: tw.torch.op",
    )


def _refuse_tracer(array: Any) -> ArrayInfo:
    raise ArgumentError(
        f"it is a {type(array).__name__}, which JAX traces with and which has no memory",
        help="call it outside of jax.jit, jax.grad and jax.vmap, or as a function of tw.jax: tw.jax.op makes one",
    )


@cache
def adapter_of_type(kind: type) -> Adapter | None:
    """Return the adapter for arrays of a type, or None for what are not arrays."""
    own: Adapter | None = getattr(kind, "__tilewright_adapter__", None)  # a class of views, see views.py
    if own is not None:
        return own
    for base in kind.__mro__:
        library = base.__module__.partition(".")[0]
        if base.__name__ == "MaskedArray" and library == "numpy":
            return Adapter("numpy.ma", _refuse_masked)
        if base.__name__ == "ndarray" and library == "numpy":
            return _numpy_adapter()
        if base.__name__ in ("FakeTensor", "FunctionalTensor") and library == "torch":
            return Adapter("torch._subclasses", _refuse_fake)
        if base.__name__ == "Tensor" and library == "torch":
            return _torch_adapter()
        if library in ("jax", "jaxlib") and base.__name__ in ("Tracer", "ArrayImpl", "Array"):
            # Tracers call themselves arrays too, and come first.
            return Adapter("jax tracer", _refuse_tracer) if base.__name__ == "Tracer" else _JAX
        if base.__name__ == "ndarray" and library == "cupy":
            return _cupy_adapter()
        if base.__name__ == "generic" and library == "numpy":  # NumPy's scalars speak DLPack too
            return None
        if base.__name__ == "DeviceArray" and base.__module__ == "tilewright.runtime.memory":
            fast = FastAccess("{a}.pointer", "{a}.shape", "{a}.dtype, {a}.ordinal")
            return Adapter("tilewright", _describe_device_array, fast)
    if kind is Static:
        return Adapter("static", _describe_static)
    # DLPack first: JAX has both, and only DLPack knows bfloat16 and arrays on the CPU.
    if hasattr(kind, "__dlpack__"):
        return _DLPACK
    return _INTERFACE if hasattr(kind, "__cuda_array_interface__") else None


def _describe_device_array(array: Any) -> ArrayInfo:
    return ArrayInfo(array.pointer, array.shape, array.strides, array.dtype, array.ordinal, owner=array)


def _describe_static(static: Static) -> ArrayInfo:
    adapter = adapter_for(static.array)
    if adapter is None:
        raise ArgumentError(f"tw.static({static.array!r}) holds no array")
    return replace(adapter.describe(static.array), static=True)
