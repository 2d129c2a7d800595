"""Launch kernels: pack the parameters into one buffer and call the driver with four ready pointers.

What `cuLaunchKernelEx` takes is laid out once for each compiled kernel, in one block of memory::

    grid, block, shared bytes | stream | attributes | parameter 0 | parameter 1 | ...

with a fixed array of pointers to the parameters beside it. A launch fills the block by one `struct` call and
calls the driver with arguments that ctypes need not convert. A block that is in flight belongs to one
thread: ctypes lets other threads run during the call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import index
from typing import Any, Union

from tilewright.arch import MAX_BLOCK, MAX_GRID, MAX_THREADS
from tilewright.dtypes import DType, bfloat16, int32
from tilewright.errors import ArgumentError, DeviceError
from tilewright.pickling import Refused
from tilewright.runtime.driver import Function, error_text, keep_loaded

Extent3 = Union[int, Sequence[int]]


# CUlaunchConfig: seven unsigned ints, stream, pointer to attributes, their number; there are none. What stands before
# the stream is packed once for each configuration, as bytes.
_CONFIG_FORMAT = "@28sQQI"
_FORMATS = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "bfloat16": "H",
    "float32": "f",
    "float64": "d",
}


@dataclass(frozen=True)
class PointerSlot:
    """A kernel parameter: the pointer of array argument `argument`."""

    argument: int


@dataclass(frozen=True)
class ExtentSlot:
    """A kernel parameter: an extent of an array argument."""

    argument: int
    mode: int
    dtype: DType = int32


@dataclass(frozen=True)
class StrideSlot:
    """A kernel parameter: a stride of an array argument, in elements."""

    argument: int
    mode: int
    dtype: DType = int32


@dataclass(frozen=True)
class ScalarSlot:
    """A kernel parameter: a number."""

    argument: int
    dtype: DType


Slot = Union[PointerSlot, ExtentSlot, StrideSlot, ScalarSlot]


@dataclass(frozen=True, eq=False)
class LaunchConfig:
    """Grid, block and dynamic shared memory of a launch, checked and as the driver wants them.

    `head` is what stands before the stream in a CUlaunchConfig.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    head: bytes = field(repr=False)


def launch_config(grid: Extent3, block: Extent3, shared_bytes: int = 0) -> LaunchConfig:
    """Return the configuration of a launch; raise `ArgumentError` for what no device can do.

    Grid and block are an int or up to three. Equal arguments give one object.
    """
    try:
        return _launch_config(grid, block, shared_bytes)
    except TypeError as error:
        if isinstance(error, ArgumentError):
            raise
    # Lists cannot be looked up, and need not be fast.
    return _launch_config(_three("grid", grid, MAX_GRID), _three("block", block, MAX_BLOCK), shared_bytes)


@lru_cache(maxsize=4096, typed=True)
def _launch_config(grid: Extent3, block: Extent3, shared_bytes: int) -> LaunchConfig:
    grid3 = _three("grid", grid, MAX_GRID)
    block3 = _three("block", block, MAX_BLOCK)
    threads = block3[0] * block3[1] * block3[2]
    if threads > MAX_THREADS:
        raise ArgumentError(f"block {block!r} has {threads} threads; a block has at most {MAX_THREADS}")
    head = struct.pack("@7I", *grid3, *block3, shared_bytes)
    return LaunchConfig(grid3, block3, shared_bytes, head)


def _three(name: str, extents: Extent3, limits: tuple[int, int, int]) -> tuple[int, int, int]:
    parts = extents if isinstance(extents, (tuple, list)) else (extents,)
    try:
        if any(isinstance(extent, bool) for extent in parts):
            raise TypeError
        given = [index(extent) for extent in parts]
    except TypeError:
        raise ArgumentError(f"{name} {extents!r} is neither an int nor a tuple of ints") from None
    if not 1 <= len(given) <= 3:
        raise ArgumentError(f"{name} {extents!r} has {len(given)} modes; it takes 1 to 3")
    x, y, z = (*given, 1, 1)[:3]
    for axis, extent, limit in zip("xyz", (x, y, z), limits, strict=True):
        if not 1 <= extent <= limit:
            raise ArgumentError(f"{name} {extents!r} has {extent} in {axis}; it takes 1 to {limit}")
    return x, y, z


# One block of launch memory: the buffer, pointers to the configuration in it and to the array of parameters.
_Frame = tuple[Any, ctypes.c_void_p, Any]
_Fill = Callable[[Any, LaunchConfig, int, tuple[Any, ...]], None]
_Launch = Callable[[Function, LaunchConfig, int, tuple[Any, ...]], None]


class Packer:
    """The launch memory of one compiled kernel.

    `slots` are the kernel's parameters in order, `starts` those of the argument plan whose readings it
    takes. Any number of threads may launch at once.
    """

    def __init__(self, slots: Sequence[Slot], starts: Sequence[int]) -> None:
        self.slots = tuple(slots)
        formats = [_slot_format(slot) for slot in self.slots]
        self._struct = struct.Struct(_CONFIG_FORMAT + "".join(formats))
        self._offsets = [
            struct.calcsize(_CONFIG_FORMAT + "".join(formats[: n + 1])) - struct.calcsize(formats[n])
            for n in range(len(formats))
        ]
        parameters = _parameter_values(self.slots, starts)
        self._fill = _compile_fill(parameters, self._struct)
        self._idle: list[_Frame] = []
        # launch(function, config, stream, values) launches a kernel with the values of one reading.
        self.launch = _compile_launch(self, parameters)

    def prepare(
        self,
        function: Function,
        config: LaunchConfig,
        stream: int,
        values: tuple[Any, ...],
        owners: Sequence[object] = (),
    ) -> PreparedLaunch:
        """Return a launch with everything packed. It keeps `owners`, the arguments, alive."""
        buffer, configuration, parameters = self._new_frame()
        try:
            self._fill(buffer, config, stream, values)
        except (struct.error, OverflowError, TypeError) as error:
            raise self._refusal(values, error) from error
        if stream:
            keep_loaded(function)
        return PreparedLaunch(function, config, (buffer, configuration, parameters), tuple(owners))

    def _new_frame(self) -> _Frame:
        buffer = ctypes.create_string_buffer(self._struct.size)
        address = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * max(len(self._offsets), 1))(*(address + offset for offset in self._offsets))
        return buffer, ctypes.c_void_p(address), pointers

    def _refusal(self, values: tuple[Any, ...], error: Exception) -> ArgumentError:
        return ArgumentError(
            "an argument does not fit into the kernel's parameter",
            details=[str(error), f"values: {values!r}", f"parameters: {self.slots!r}"],
        )


class PreparedLaunch(Refused):
    """A kernel with its arguments packed: calling it launches it, on the stream it was prepared for.

    It may be called from several threads at once; nothing in it changes.
    """

    _why_no_copy = (
        "it holds the addresses of the arrays that it was prepared for",
        "pickle the kernel and the arrays, and call kernel[grid, block].prepare(...) where they arrive",
    )
    __slots__ = ("_config", "_configuration", "_frame", "_function", "_handle", "_launch", "_owners", "_parameters")

    def __init__(self, function: Function, config: LaunchConfig, frame: _Frame, owners: tuple[object, ...]) -> None:
        self._function = function
        self._launch = function.launch
        self._handle = function.handle
        self._config = config
        self._frame = frame
        self._configuration = frame[1]
        self._parameters = frame[2]
        self._owners = owners

    def __call__(self) -> None:
        status = self._launch(self._configuration, self._handle, self._parameters, None)
        if status:
            finish_launch(status, self._function, self._config, self._configuration, self._parameters)


def finish_launch(
    status: int, function: Function, config: LaunchConfig, configuration: ctypes.c_void_p, parameters: Any
) -> None:
    """Try a refused launch again in the right context, and raise `DeviceError` where that fails too."""
    status = function.relaunch(status, configuration, parameters)
    if status == 0:
        return
    text = error_text(status)
    details = [f"grid {config.grid}, block {config.block}, {config.shared_bytes} bytes of dynamic shared memory"]
    help = None
    if status == 701:  # CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
        details.append(f"this kernel takes {function.registers} registers a thread")
        help = f"blocks of this kernel can have at most {function.max_threads} threads"
    elif status >= 700:
        help = "a kernel launched earlier failed on the device; the simulator (TILEWRIGHT_BACKEND=sim) names the line"
    raise DeviceError(f"launching kernel {function.name!r} failed: {text}", details=details, help=help)


def _slot_format(slot: Slot) -> str:
    return "Q" if isinstance(slot, PointerSlot) else _FORMATS[slot.dtype.name]


def _parameter_values(slots: Sequence[Slot], starts: Sequence[int]) -> list[str]:
    """Return the expressions that take each parameter out of the values `v` of a reading."""
    values = []
    for slot in slots:
        start = starts[slot.argument]
        if isinstance(slot, PointerSlot):
            values.append(f"v[{start}]")
        elif isinstance(slot, ExtentSlot):
            values.append(f"v[{start + 1}][{slot.mode}]")
        elif isinstance(slot, StrideSlot):
            values.append(f"v[{start + 2}][{slot.mode}]")
        else:
            values.append(f"bfloat16_bits(v[{start}])" if slot.dtype is bfloat16 else f"v[{start}]")
    return values


def _pack(parameters: Sequence[str]) -> str:
    return f"pack_into({', '.join(['buffer', '0', 'config.head', 'stream', '0', '0', *parameters])})"


def _compile_fill(parameters: Sequence[str], layout: struct.Struct) -> _Fill:
    """Write and compile the function that fills a buffer.

    For a pointer and an extent of one array it is::

    def fill(buffer, config, stream, v):
        pack_into(buffer, 0, config.head, stream, 0, 0, v[0], v[1][0])
    """
    names: dict[str, Any] = {"pack_into": layout.pack_into, "bfloat16_bits": _bfloat16_bits}
    exec(
        compile(f"def fill(buffer, config, stream, v):\n    {_pack(parameters)}", "<tilewright launch>", "exec"), names
    )
    fill: _Fill = names["fill"]
    return fill


_LAUNCH = """
def launch(function, config, stream, v):
    try:
        frame = idle.pop()
    except IndexError:
        frame = new_frame()
    buffer, configuration, parameters = frame
    try:
        {pack}
    except (struct_error, OverflowError, TypeError) as error:
        raise refusal(v, error) from error
    status = function.launch(configuration, function.handle, parameters, None)
    idle.append(frame)
    if stream:
        keep_loaded(function)
    if status:
        finish_launch(status, function, config, configuration, parameters)
"""


def _compile_launch(packer: Packer, parameters: Sequence[str]) -> _Launch:
    """Write and compile a packer's launch, with the filling of the buffer in place: a call less."""
    names: dict[str, Any] = {
        "idle": packer._idle,
        "new_frame": packer._new_frame,
        "pack_into": packer._struct.pack_into,
        "bfloat16_bits": _bfloat16_bits,
        "refusal": packer._refusal,
        "struct_error": struct.error,
        "finish_launch": finish_launch,
        "keep_loaded": keep_loaded,
    }
    exec(compile(_LAUNCH.format(pack=_pack(parameters)), "<tilewright launch>", "exec"), names)
    launch: _Launch = names["launch"]
    return launch


def _bfloat16_bits(value: Any) -> int:
    import numpy as np

    return int(np.asarray(value).astype(bfloat16.numpy).view(np.uint16))
