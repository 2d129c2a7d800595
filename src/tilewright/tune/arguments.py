"""Arguments on their way to another process: arrays with their layout, large ones as a sample of their elements.

What pickles an array by its library may lose its strides or take more of its memory along than is used, and each task
would send all of it again. Here the memory under arrays is described, and made again in the library that they are of:
same shapes, strides and alignments, and arrays that share memory share it there too. The elements are sent up to
`_EXACT_BYTES`. Of more memory, `_SAMPLE` elements of the array are drawn and sent, and the memory is filled by drawing
from them: its numbers have the range and the frequencies of the user's, so that indices stay valid and a GPU draws
about as much power for them.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any  # Any: arguments of any type, arrays of any library

import numpy as np

from tilewright.bench.checking import read
from tilewright.dtypes import uint8
from tilewright.errors import ArgumentError
from tilewright.runtime import driver
from tilewright.runtime.arrays import ArrayInfo, Device, adapter_for
from tilewright.runtime.memory import copy_to_device, copy_to_host
from tilewright.tune.sending import Sent, receive, send

_LIBRARIES = ("numpy", "torch", "cupy")  # whose arrays are made again; others pickle as their library does it
_EXACT_BYTES = 1 << 20
_SAMPLE = 1 << 17
_PERIOD = (1 << 22) - 3  # of what is drawn: a prime, so that no two tiles of a matrix are alike
_ALIGNMENT = 256  # of memory, which is kept: allocators give no less on a GPU


@dataclass(frozen=True)
class _Memory:
    """Memory under arrays: its bytes, its address modulo `_ALIGNMENT`, and what it is filled with.

    `words` are all of it, or elements to draw from where that is less.
    """

    library: str
    device: Device
    size: int
    address: int
    words: np.ndarray[Any, Any]

    def make(self) -> tuple[Any, int]:
        """Return filled memory as a flat array of bytes of the library, and where in it this memory begins."""
        total = self.size + _ALIGNMENT
        if self.library == "numpy":
            flat = np.empty(total, np.uint8)
            address = flat.ctypes.data
        elif self.library == "torch":
            torch = importlib.import_module("torch")
            flat = torch.empty(total, dtype=torch.uint8, device="cpu" if self.device == "cpu" else _here(self.device))
            address = flat.data_ptr()
        else:
            cupy = importlib.import_module("cupy")
            with cupy.cuda.Device(_here(self.device)):
                flat = cupy.empty(total, np.uint8)
            address = flat.data.ptr
        begin = (self.address - address) % _ALIGNMENT
        self._fill(address + begin)
        return flat, begin

    def _fill(self, address: int) -> None:
        words = self.words
        if words.nbytes < self.size:
            words = words[np.random.default_rng(0).integers(0, len(words), _PERIOD)]
            words = np.resize(words, -(-self.size // words.itemsize))
        contents = words.view(np.uint8)[: self.size]
        device = self.device if self.device == "cpu" else _here(self.device)
        info = ArrayInfo(address, (self.size,), (1,), uint8, device)
        if isinstance(device, int):
            driver.synchronize(device)
            copy_to_device(info, contents)
        elif self.size:
            info.host()[...] = contents


@dataclass(frozen=True)
class _Array:
    """An array in one of the memories: at which byte its element (0, ..., 0) is, and its layout."""

    memory: int
    offset: int
    info: ArrayInfo  # without an address and an owner

    def make(self, library: str, flat: Any, begin: int) -> Any:
        """Return the array in its memory, which was made again."""
        info, start = self.info, begin + self.offset
        strides = tuple(stride * info.dtype.bytes for stride in info.strides)
        if library == "torch":
            torch = importlib.import_module("torch")
            typed = flat[: len(flat) - len(flat) % info.dtype.bytes].view(getattr(torch, info.dtype.name))
            return typed.as_strided(info.shape, info.strides, start // info.dtype.bytes)
        if library == "cupy":
            cupy = importlib.import_module("cupy")
            return cupy.ndarray(info.shape, info.dtype.numpy, flat.data + start, strides)
        made: np.ndarray[Any, Any] = np.ndarray(info.shape, info.dtype.numpy, flat.data, start, strides)
        made.flags.writeable = info.writable
        return made


@dataclass(frozen=True)
class Packed:
    """Arguments by name as they travel."""

    values: Mapping[str, bytes]
    arrays: Sequence[_Array]
    memories: Sequence[_Memory]

    def unpack(self) -> dict[str, Any]:
        """Return the arguments, in the process that they came to."""
        flats = [memory.make() for memory in self.memories]
        made = [x.make(self.memories[x.memory].library, *flats[x.memory]) for x in self.arrays]
        return {name: _Unpickler(data, made).load() for name, data in self.values.items()}


def pack(values: Mapping[str, Any], what: str) -> Packed:
    """Return arguments of `what` as they travel.

    Raises `ArgumentError` for one that Python cannot pickle, and for an epilogue that has no name at the top of a file.
    """
    arrays: list[tuple[Any, ArrayInfo, str]] = []
    pickled: dict[str, bytes] = {}
    for name, value in values.items():
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, arrays, _function_of(value), f"the {name} of {what}").dump(value)
        except ArgumentError:
            raise
        except Exception as error:  # what an object's own method raises
            raise ArgumentError(
                f"the argument {name} of {what} cannot be pickled: {error}",
                help="workers get a copy of each argument: pass arrays of NumPy, PyTorch or CuPy",
            ) from None
        pickled[name] = buffer.getvalue()
    return Packed(pickled, *_memories(arrays))


def like(array: Any) -> Any:
    """Return a new array of the same library, layout and alignment as one; None where that library has no way to."""
    adapter = adapter_for(array)
    if adapter is None or adapter.library not in _LIBRARIES:
        return None
    return pack({"array": array}, "a copy").unpack()["array"]


class _Pickler(pickle.Pickler):
    """Pickles an argument, with arrays and one function left out."""

    def __init__(
        self, buffer: io.BytesIO, arrays: list[tuple[Any, ArrayInfo, str]], function: object, what: str
    ) -> None:
        super().__init__(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        self._arrays = arrays
        self._function = function
        self._what = what

    def persistent_id(self, thing: Any) -> int | Sent | None:
        """Return what stands for an array or the function; None for what is pickled itself."""
        if self._function is not None and thing is self._function:
            return send(thing, self._what)
        adapter = adapter_for(thing)
        if adapter is None or adapter.library not in _LIBRARIES:
            return None
        for n, (known, _, _) in enumerate(self._arrays):
            if known is thing:
                return n
        self._arrays.append((thing, adapter.describe(thing), adapter.library))
        return len(self._arrays) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._arrays = arrays

    def persistent_load(self, place: Any) -> Any:
        """Return what an id stands for."""
        return receive(place) if isinstance(place, Sent) else self._arrays[place]


def _function_of(value: object) -> object:
    """Return the function that an argument is, or that it calls with some arguments filled in; None for others."""
    while isinstance(value, functools.partial):
        value = value.func
    return value if isinstance(value, types.FunctionType) else None


def _memories(arrays: Sequence[tuple[Any, ArrayInfo, str]]) -> tuple[tuple[_Array, ...], tuple[_Memory, ...]]:
    """Return where arrays lie, and the memory of those that meet, once."""
    found: list[_Array | None] = [None] * len(arrays)
    memories: list[_Memory] = []
    ranges = sorted(
        (str(info.device), library, low := info.pointer + info.lowest_offset * info.dtype.bytes,
         low + info.span * info.dtype.bytes, n)
        for n, (_, info, library) in enumerate(arrays)
    )  # fmt: skip
    groups: list[list[tuple[str, str, int, int, int]]] = []
    for reach in ranges:
        if groups and groups[-1][0][:2] == reach[:2] and reach[2] < max(r[3] for r in groups[-1]):
            groups[-1].append(reach)
        else:
            groups.append([reach])
    for group in groups:
        low, high = group[0][2], max(reach[3] for reach in group)
        members = [reach[4] for reach in group]
        for n in members:
            info = arrays[n][1]
            kept = replace(info, pointer=_ALIGNMENT, stream=None, owner=None)  # not null, which it may not be
            found[n] = _Array(len(memories), info.pointer - low, kept)
        memories.append(_memory([arrays[n] for n in members], low, high))
    return tuple(x for x in found if x is not None), tuple(memories)


def _memory(members: Sequence[tuple[Any, ArrayInfo, str]], low: int, high: int) -> _Memory:
    array, info, library = max(members, key=lambda member: member[1].span * member[1].dtype.bytes)
    if high - low <= _EXACT_BYTES:
        words = np.empty(0, np.uint8) if high == low else read_bytes(low, high - low, info.device)
    else:
        elements = read(array)
        draw = np.random.default_rng(0)
        places = tuple(draw.integers(0, extent, _SAMPLE) for extent in elements.shape)
        words = elements[places].view(f"u{info.dtype.bytes}")
    return _Memory(library, info.device, high - low, low % _ALIGNMENT, words)


def read_bytes(address: int, size: int, device: Device) -> np.ndarray[Any, Any]:
    """Return a copy of memory, after its device has done all its work."""
    info = ArrayInfo(address, (size,), (1,), uint8, device)
    if isinstance(device, int):
        driver.synchronize(device)
        return copy_to_host(info)[1]
    return np.array(info.host())


def _here(device: Device) -> int:
    """Return the device with the same number, or the first where this process has fewer."""
    assert isinstance(device, int)
    return device if device < driver.device_count() else 0
