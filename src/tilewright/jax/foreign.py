"""A foreign function of XLA that calls functions of Python, on the CPU and on CUDA devices; without a compiler.

XLA calls a C function with a frame that holds pointers to the arguments and results, the stream, and what allocates
memory. Here that C function is made by `ctypes`, and reads the frame in Python: some tens of microseconds a call,
and nothing to build where Tilewright is installed. It runs when work is put on the stream, as
compiled foreign functions do, so that kernels are launched in order with XLA's own.

Source: `xla/ffi/api/c_api.h`, API version 0.1 and later, which `jax.ffi.include_dir()` has.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import math
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple  # Any: classes of ctypes, and functions' results

import numpy as np

import jax
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_of
from tilewright.errors import ArgumentError
from tilewright.kernels import results
from tilewright.runtime import driver
from tilewright.runtime.arrays import Adapter, ArrayInfo, Device, FastAccess, describe
from tilewright.runtime.dlpack import row_major
from tilewright.runtime.views import View, view_class

TARGET = "tilewright"
_EXECUTE, _METADATA, _INTERNAL = 3, 1, 13
_INT = 0xFFFFFFFF  # of a word that holds an int
_ALIGNMENT = 16  # bytes, the most that XLA takes in a call; what it gives is aligned to 256
_TYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16", 8: "uint32", 9: "uint64",
    10: "float16", 11: "float32", 12: "float64", 16: "bfloat16", 19: "float8_e5m2", 20: "float8_e4m3fn",
}  # fmt: skip


def _struct(name: str, **fields: Any) -> Any:
    """Return a struct of XLA's; all begin with their size and a pointer to extensions."""
    first = [("struct_size", c_size_t), ("extension", c_void_p)]
    return type(name, (ctypes.Structure,), {"_fields_": [*first, *fields.items()]})


# A frame is 21 words, which are read at once, as attributes of ctypes' structures take longer: a size, a pointer to
# extensions, the API, a context, the stage, and three lists, the arguments, results and attributes. A list is a size, a
# pointer to extensions, the number of items, their types (of attributes also names), and pointers to them.
_FRAME_WORDS, _BUFFER_WORDS, _SPAN_WORDS = 21, 6, 2
_Version = _struct("Version", major=c_int, minor=c_int)
_FUNCTIONS = (
    "error_create", "error_message", "error_destroy", "register", "stream_get", "type_register", "context_get",
    "state_set", "state_get", "allocate", "free",
)  # fmt: skip
_Api = _struct("Api", version=_Version, internal=c_void_p, **dict.fromkeys(_FUNCTIONS, c_void_p))
_ErrorCreate = _struct("ErrorCreate", message=c_char_p, code=c_int)
_ErrorMessage = _struct("ErrorMessage", error=c_void_p, message=c_char_p)
_Stream = _struct("Stream", context=c_void_p, stream=c_void_p)
_Allocate = _struct("Allocate", context=c_void_p, size=c_size_t, alignment=c_size_t, data=c_void_p)
_Free = _struct("Free", context=c_void_p, size=c_size_t, data=c_void_p)


class _Metadata(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("version", _Version), ("traits", c_uint32), ("state", c_int64)]


class _Extension(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("type", c_int), ("next", c_void_p), ("metadata", POINTER(_Metadata))]


_Handler = ctypes.CFUNCTYPE(c_void_p, c_void_p)


class _Place(NamedTuple):
    """Where an argument or a result lies."""

    pointer: int
    shape: tuple[int, ...]
    dtype: DType

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.bytes


# --- what functions are given on a GPU -------------------------------------------------------------------------------


class _Current(threading.local):
    call: _Call


_current = _Current()
_BUFFERS = Adapter("xla", lambda array: array, FastAccess("", "", ""), lambda ordinal: _current.call.stream)
if TYPE_CHECKING:
    _View = View
else:
    _View = view_class(_BUFFERS)


class Buffer(_View):
    """An array of a program of XLA on a GPU, while that runs; kernels and Tilewright's functions take it."""

    __slots__ = ()

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def reshape(self, *shape: Any) -> Buffer:
        """Return the same memory with another shape, as NumPy's method does; one extent may be -1."""
        wanted = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        others = math.prod(extent for extent in wanted if extent != -1)
        if -1 in wanted and others:
            wanted = tuple(self.size // others if extent == -1 else extent for extent in wanted)
        if math.prod(wanted) != self.size or min(wanted, default=0) < 0:
            raise ArgumentError(f"an array of shape {self.shape} has no shape {tuple(shape)}")
        return Buffer(self.pointer, wanted, row_major(wanted), self.dtype, self.device, self.writable, None)


_strides = lru_cache(4096)(row_major)


def _buffer(place: _Place, ordinal: int, is_writable: bool) -> Buffer:
    return Buffer(place.pointer, place.shape, _strides(place.shape), place.dtype, ordinal, is_writable, None)


def _maker(shape: tuple[int, ...], dtype: DType, device: Device) -> results.Maker:
    def make() -> tuple[Any, int]:
        made = _current.call.make(shape, dtype)
        return made, made.pointer

    return make


results.MAKERS["xla"] = _maker


class _Call:
    """A call by XLA: the frame, and memory that was made for its function."""

    def __init__(self, context: int, api: Any, inputs: list[_Place], outputs: list[_Place]) -> None:
        self._context, self._api, self.inputs, self.outputs = context, api, inputs, outputs
        self._made: list[tuple[int, int]] = []
        self._left = list(outputs)
        self._stream: int | None = None

    @property
    def stream(self) -> int:
        if self._stream is None:
            found = _Stream(ctypes.sizeof(_Stream), None, self._context, None)
            self._ask("stream_get", found)
            self._stream = found.stream or 0
        return self._stream

    def _ask(self, name: str, question: Any) -> None:
        error = _function(getattr(self._api, name))(ctypes.byref(question))
        if not error:
            return
        text = _ErrorMessage(ctypes.sizeof(_ErrorMessage), None, error, None)
        _function(self._api.error_message)(ctypes.byref(text))
        message = (text.message or b"").decode(errors="replace")
        gone = (c_size_t * 3)(24, 0, error)
        _function(self._api.error_destroy)(ctypes.byref(gone))
        raise ArgumentError(f"XLA refuses {name}: {message}")

    def make(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """Return memory: that of a result that looks like it and that nothing has yet, or some until the call ends."""
        for place in self._left:
            if place[1:] == (tuple(shape), dtype):
                self._left.remove(place)
                return _buffer(place, self.ordinal, True)
        return self._scratch(tuple(shape), dtype)

    def _scratch(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        place = _Place(0, shape, dtype)
        wanted = _Allocate(ctypes.sizeof(_Allocate), None, self._context, max(place.bytes, 1), _ALIGNMENT, None)
        self._ask("allocate", wanted)
        self._made.append((wanted.data, wanted.size))
        return _buffer(place._replace(pointer=wanted.data), self.ordinal, True)

    def on_gpu(self, function: Callable[..., Any], count: int) -> None:
        """Call a function with arrays on a GPU, and see that what it returns lies where XLA wants it."""
        somewhere = next((x.pointer for x in (*self.inputs, *self.outputs) if x.pointer), 0)
        self.ordinal = driver.ordinal_of_pointer(somewhere) if somewhere and driver.device_count() > 1 else 0
        before, _current.call = getattr(_current, "call", None), self
        try:
            given = [_buffer(x, self.ordinal, False) for x in self.inputs]
            if count:  # the results' memory is the function's to fill
                function(*given, *(_buffer(x, self.ordinal, True) for x in self.outputs))
                return
            self._bring(_several(function(*given), len(self.outputs)))
        finally:
            for data, size in self._made:  # XLA gives it to work behind this on the stream
                self._ask("free", _Free(ctypes.sizeof(_Free), None, self._context, size, data))
            _current.call = before  # type: ignore[assignment]

    def _bring(self, found: Sequence[Any]) -> None:
        """Copy results that lie elsewhere; first away from where other results belong."""
        moves = []
        for n, (array, place) in enumerate(zip(found, self.outputs, strict=True)):
            if type(array) is Buffer and _is_in_place(array, place):
                continue
            info = _as_found(array)
            _check(n, info.shape, info.dtype, place)
            if info.size and info.strides != row_major(info.shape) and info.span != info.size:
                raise ArgumentError(f"result {n} has the strides {info.strides}, and XLA takes row-major arrays")
            if info.pointer != place.pointer and info.size:
                moves.append((info, place))
        stream = c_void_p(self.stream) if moves else None
        if len(moves) > 1:
            for n, (info, place) in enumerate(moves):
                beside = self._scratch(place.shape, place.dtype)
                _copy(beside.pointer, info.pointer, place.bytes, stream, self.ordinal)
                moves[n] = describe(beside) or info, place
        for info, place in moves:
            _copy(place.pointer, info.pointer, place.bytes, stream, self.ordinal)

    def on_host(self, function: Callable[..., Any], count: int) -> None:
        """Call a function with NumPy arrays over the same memory."""
        given, into = [_array(x) for x in self.inputs], [_array(x) for x in self.outputs]
        for x in given:
            x.flags.writeable = False
        if count:
            function(*given, *into)
            return
        for n, (found, place) in enumerate(zip(_several(function(*given), len(into)), into, strict=True)):
            array = np.asarray(found)
            _check(n, array.shape, dtype_of(array.dtype), self.outputs[n])
            np.copyto(place, array)


@lru_cache(64)
def _function(pointer: int) -> Any:
    return ctypes.CFUNCTYPE(c_void_p, c_void_p)(pointer)


@lru_cache(256)
def _array_type(item: Any, count: int) -> Any:
    return item * count


def _words(start: int, count: int) -> list[int]:
    """Return words of memory."""
    words: list[int] = _array_type(c_uint64, count).from_address(start)[:] if count else []
    return words


def _places(count: int, items: int) -> list[_Place]:
    found = []
    for item in _words(items, count):  # buffers, as there is no other type of argument
        _, _, code, data, rank, extents = _words(item, _BUFFER_WORDS)
        shape, dtype = _kind(code & _INT, *_words(extents, rank))
        found.append(_Place(data, shape, dtype))
    return found


@lru_cache(4096)
def _kind(code: int, *shape: int) -> tuple[tuple[int, ...], DType]:
    """Return the shape and element type of a buffer."""
    if code not in _TYPES:
        raise ArgumentError(f"XLA's element type {code} is not one of Tilewright")
    return shape, dtype_of(_TYPES[code])


def _is_in_place(array: Buffer, place: _Place) -> bool:
    return (array.pointer, array.shape, array.dtype) == place and array.strides == _strides(place.shape)


def _array(place: _Place) -> np.ndarray[Any, Any]:
    if not place.bytes:
        return np.empty(place.shape, place.dtype.numpy)
    memory = memoryview((c_char * place.bytes).from_address(place.pointer))
    array: np.ndarray[Any, Any] = np.ndarray(place.shape, place.dtype.numpy, memory)
    return array


def _several(found: Any, count: int) -> Sequence[Any]:
    several = found if isinstance(found, (tuple, list)) else (found,)
    if len(several) != count:
        raise ArgumentError(f"the function returned {len(several)} arrays, and its shapes say {count}")
    return several


def _as_found(array: Any) -> ArrayInfo:
    info = describe(array)
    if info is None or not info.is_cuda:
        raise ArgumentError(
            f"the function returned {type(array).__name__}, and on a GPU it has to be an array there",
            help="take a parameter `out` and write into it, or return what functions of Tilewright return",
        )
    return info


def _check(n: int, shape: tuple[int, ...], dtype: DType, place: _Place) -> None:
    if (tuple(shape), dtype) != (place.shape, place.dtype):
        raise ArgumentError(
            f"result {n} is {dtype} of shape {tuple(shape)}, and `shape` said {place.dtype} of {place.shape}"
        )


def _copy(to: int, start: int, bytes: int, stream: Any, ordinal: int) -> None:
    with driver.device_context(ordinal):
        status = driver.library().cuMemcpyDtoDAsync_v2(c_uint64(to), c_uint64(start), c_size_t(bytes), stream)
    driver.check(status, "copying a result")


# --- the foreign function --------------------------------------------------------------------------------------------


class _Known(NamedTuple):
    function: Callable[..., Any]
    results: int  # that the function is given memory for, behind its inputs


_known: dict[bytes, _Known] = {}
# Programs on several devices call from several threads, and kernels are traced by one at a time.
_one_at_a_time = threading.RLock()


def _handle(address: int, is_on_gpu: bool) -> int | None:
    _, extension, at, context, stage, _, _, *lists = _words(address, _FRAME_WORDS)
    api = _Api.from_address(at)
    if extension:
        asked = _Extension.from_address(extension)
        if asked.type == _METADATA:
            asked.metadata.contents.version.major = api.version.major
            asked.metadata.contents.version.minor = api.version.minor
            asked.metadata.contents.traits = 0
            return None
    if stage & _INT != _EXECUTE:
        return None
    try:
        count, _, items, _, _, results, _, into, _, _, attributes, _, names, texts = lists
        call = _Call(context, api, _places(count, items), _places(results, into))
        label = _attribute(attributes, names, texts, b"call")
        if label not in _known:
            raise ArgumentError(
                f"{label.decode()} has not been called in this process, and a program compiled in another one calls it",
                help="import the same code, and call the operator once with such arguments",
            )
        with _one_at_a_time:
            (call.on_gpu if is_on_gpu else call.on_host)(*_known[label])
    except BaseException as exception:  # an interrupt too: through a C function it would go nowhere
        text = f"{type(exception).__name__}: {exception}".encode()
        made = _ErrorCreate(ctypes.sizeof(_ErrorCreate), None, text, _INTERNAL)
        error: int = _function(api.error_create)(ctypes.byref(made))
        return error
    return None


def _attribute(count: int, names: int, items: int, name: bytes) -> bytes:
    """Return the text of an attribute."""
    for named, item in zip(_words(names, count), _words(items, count), strict=True):
        if count == 1 or _text(named) == name:
            return _text(item)
    raise ArgumentError(f"the call has no attribute {name!r}")


def _text(span: int) -> bytes:
    start, size = _words(span, _SPAN_WORDS)
    text: bytes = _array_type(c_char, size).from_address(start).raw
    return text


@atexit.register
def _wait_for_programs() -> None:
    """Wait for the arrays that are alive while Python runs: later XLA's threads and Python would wait for each other.

    A program whose results were dropped is not known here.
    """
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):  # of a program that has failed
            array.block_until_ready()


# They live as long as the process: XLA keeps their addresses.
_ON_HOST = _Handler(lambda address: _handle(address, False))
_ON_GPU = _Handler(lambda address: _handle(address, True))


def _register() -> None:
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_ON_HOST), platform="cpu")
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_ON_GPU), platform="CUDA")


_register()


def known(function: Callable[..., Any], name: str, results: int) -> str:
    """Make a function of Python known to XLA's programs, and return what they call it: its name, if that is free.

    Programs are kept by JAX's cache and in packages, and run in other processes, so the name has to say all that tells
    the function from others. It is called with arrays of NumPy on the CPU and with `Buffer` on a GPU, and behind them
    with the memory of so many `results`; where there are none, it returns arrays.
    """
    entry, label, number = _Known(function, results), name, 0
    while _known.setdefault(label.encode(), entry) is not entry:
        number += 1
        label = f"{name}#{number}"
    return label


def call(label: str, shapes: Any, vmap: str, arrays: Sequence[Any]) -> Any:
    """Call a known function with arrays of JAX, in a program or at once; `shapes` are those of its results."""
    return jax.ffi.ffi_call(TARGET, shapes, vmap_method=vmap)(*arrays, call=label)
