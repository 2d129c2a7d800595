"""Launch kernels: pack the parameters into one buffer and call the driver with four ready pointers.

What `cuLaunchKernelEx` takes is laid out once for each compiled kernel, in one block of memory::

    grid, block, shared bytes | stream | attributes | pointers and numbers | extents and strides

with a fixed array of pointers to the parameters beside it. Extents and strides are those of a kind of call: they are
packed and checked once, when it is bound. Pointers and numbers stand in the order in which a reading has them, so that
one `struct` call fills the block, none picked out. The driver is called with ctypes pointers that are there already. A
block that is in flight belongs to one thread: ctypes lets other threads run during the call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from operator import index, itemgetter
from typing import Any, Protocol, Union, cast

from tilewright.arch import MAX_BLOCK, MAX_GRID, MAX_THREADS
from tilewright.dtypes import DType, bfloat16, int32
from tilewright.errors import ArgumentError, DeviceError
from tilewright.pickling import Refused
from tilewright.runtime.arrays import ArrayLayout, Layouts, StreamGetter
from tilewright.runtime.attributes import Attribute, encoded
from tilewright.runtime.compiled import launcher
from tilewright.runtime.driver import Function, _kept, error_text, keep_loaded
from tilewright.runtime.options import shown_cluster
from tilewright.runtime.recent import Recent
from tilewright.runtime.tensor_maps import MAP_ALIGNMENT, MAP_BYTES

Extent3 = Union[int, Sequence[int]]


# CUlaunchConfig: seven unsigned ints, stream, pointer to attributes, their number; mostly there are none, and these are
# zeros. What stands before the stream is packed once for each configuration, as bytes.
_CONFIG_FORMAT = "@28sQ12x"
_ATTRIBUTES_FORMAT = "@28sQQI"
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
_COMPILED_FORMATS = frozenset("?bBhHiIqQfd")  # what the compiled launcher packs


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


def computed_grid(grid: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Return what the function of a grid says for the arguments of a launch."""
    try:
        return grid(*args)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # within the function
        raise ArgumentError(
            f"the function of the grid does not take the arguments of the kernel: {error}",
            help="it gets all of them by position, defaults too: lambda y, *_: tw.ceil_div(y.shape[0], 256)",
        ) from None


@dataclass(frozen=True, eq=False)
class LaunchConfig:
    """Grid, block, dynamic shared memory and clusters of a launch, checked and as the driver wants them.

    `head` is what stands before the stream in a CUlaunchConfig.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    head: bytes = field(repr=False)
    cluster: tuple[int, int, int] = (1, 1, 1)

    @property
    def is_empty(self) -> bool:
        """True of a grid without blocks: its launch does nothing, and the driver would refuse it."""
        return 0 in self.grid


def launch_config(
    grid: Extent3, block: Extent3, shared_bytes: int = 0, cluster: tuple[int, int, int] = (1, 1, 1)
) -> LaunchConfig:
    """Return the configuration of a launch; raise `ArgumentError` for what no device can do.

    Grid and block are an int or up to three; `cluster` divides the grid. Equal arguments give one object.
    """
    try:
        return _launch_config(grid, block, shared_bytes, cluster)
    except TypeError as error:
        if isinstance(error, ArgumentError):
            raise
    # Lists cannot be looked up, and need not be fast.
    return _launch_config(_three("grid", grid, MAX_GRID), _three("block", block, MAX_BLOCK), shared_bytes, cluster)


@lru_cache(maxsize=4096, typed=True)
def _launch_config(grid: Extent3, block: Extent3, shared_bytes: int, cluster: tuple[int, int, int]) -> LaunchConfig:
    grid3 = _three("grid", grid, MAX_GRID)
    block3 = _three("block", block, MAX_BLOCK)
    threads = block3[0] * block3[1] * block3[2]
    if threads > MAX_THREADS:
        raise ArgumentError(f"block {block!r} has {threads} threads; a block has at most {MAX_THREADS}")
    for axis, blocks, extent in zip("xyz", grid3, cluster, strict=True):
        if blocks % extent:
            raise ArgumentError(
                f"grid {grid!r} has {blocks} blocks in {axis}, and {shown_cluster(cluster)} do not divide it",
                help=f"launch a multiple of {extent} blocks in {axis}: {-(-blocks // extent) * extent}, say, where "
                "blocks without work leave behind the last cluster barrier",
            )
    head = struct.pack("@7I", *grid3, *block3, shared_bytes)
    return LaunchConfig(grid3, block3, shared_bytes, head, cluster)


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
    least = 0 if name == "grid" else 1
    for axis, extent, limit in zip("xyz", (x, y, z), limits, strict=True):
        if not least <= extent <= limit:
            raise ArgumentError(f"{name} {extents!r} has {extent} in {axis}; it takes {least} to {limit}")
    return x, y, z


class EncodeMaps(Protocol):
    """Gives the tensor maps of a launch, of which there are `count`, one after another.

    `key` are the places of the values that they depend on, beside the layouts.
    """

    count: int
    key: Sequence[int]

    def __call__(self, layouts: Layouts, values: tuple[Any, ...]) -> bytes:
        """Return them; raise `ArgumentError` for what no map can describe."""


class _Frame:
    """One block of launch memory: the buffer, pointers to the configuration in it and to the array of parameters.

    `maps` is where tensor maps stand in it, and `mapped` the values for which those are that stand there.
    """

    __slots__ = ("buffer", "configuration", "mapped", "maps", "parameters")

    def __init__(self, buffer: Any, maps: int, offsets: Sequence[int]) -> None:
        address = ctypes.addressof(buffer)
        self.buffer: Any = buffer
        self.configuration: ctypes.c_void_p = ctypes.c_void_p(address)
        self.parameters: Any = (ctypes.c_void_p * max(len(offsets), 1))(*(address + offset for offset in offsets))
        self.maps: int = address + maps
        self.mapped: Any = None


Launch = Callable[..., None]  # (config, stream, values), and the function where none is bound

# Two arrays of a reading, the written one and the one that is only read, by the positions of their pointers, and the
# bounds between which the difference of the pointers means that they share memory.
Pair = tuple[int, int, int, int]

_MAX_BOUND = 256  # kinds of calls for which `Packer.launch` remembers what it packed
_UNFIT = (struct.error, OverflowError, TypeError)  # what `struct` raises for a value that does not fit


class Packer:
    """The launch memory of one compiled kernel.

    `slots` are the kernel's parameters in order, `starts` those of the argument plan whose readings it takes,
    `attributes` what the driver is told of every launch. Any number of threads may launch at once.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        starts: Sequence[int],
        *,
        attributes: Sequence[Attribute] = (),
        maps: EncodeMaps | None = None,
    ) -> None:
        self.slots: tuple[Slot, ...] = tuple(slots)
        self._maps = maps
        given = encoded(tuple(attributes))
        self._attributes = (given.address, given.count) if attributes else ()
        configuration = _ATTRIBUTES_FORMAT if attributes else _CONFIG_FORMAT
        changing = [slot for slot in slots if isinstance(slot, (PointerSlot, ScalarSlot))]
        changing.sort(key=lambda slot: starts[slot.argument])
        fixed = [slot for slot in slots if isinstance(slot, (ExtentSlot, StrideSlot))]
        self._places = [(starts[slot.argument], _is_bfloat16(slot)) for slot in changing]
        self._pick = _picker(self._places)
        self._fixed = [_place(slot, starts) for slot in fixed]
        self._fixed_struct = struct.Struct("@" + "".join(map(_slot_format, fixed)))
        head = configuration + "".join(map(_slot_format, changing)) + "0q"  # what is fixed begins at a multiple of 8
        self._struct = struct.Struct(head)
        changing_offsets = _offsets(configuration, changing)
        places: dict[Slot, int] = dict(zip(changing, changing_offsets, strict=True))
        formats = ["" if _is_bfloat16(slot) else _slot_format(slot) for slot in changing]
        self._compiled_slots = tuple(zip((place for place, _ in self._places), formats, changing_offsets, strict=True))
        offsets = _offsets("@", fixed)
        places.update((slot, self._struct.size + offset) for slot, offset in zip(fixed, offsets, strict=True))
        self._offsets = [places[slot] for slot in self.slots]
        self._bound: Recent[Hashable, Launch] = Recent(_MAX_BOUND)

    def bind(
        self,
        layouts: Layouts = (),
        function: Function | None = None,
        pairs: Sequence[Pair] = (),
        aliased: Callable[[], Function] | None = None,
        admitted: Callable[[Function, LaunchConfig, int], Function] | None = None,
    ) -> Launch:
        """Return launch(config, stream, values) for readings with these extents and strides.

        A call in which a pair of arrays shares memory launches what `aliased` returns in place of `function`, and that
        of a kernel whose blocks run together what `admitted` makes of it for a stream, once they are known to fit.
        Raises `ArgumentError` for an extent or a stride that does not fit into its parameter.
        """
        fixed, bound = self._pack_fixed(layouts), cast("Function", function)
        idle: list[_Frame] = []
        new_frame, pack_into = self._new_frame, self._struct.pack_into
        # Most kernels take all values as they are: then nothing has to be picked.
        takes_all = self._places == [(n, False) for n in range(len(layouts))]
        pick = None if takes_all else self._pick
        attributes, maps = self._attributes, self._maps
        mapped_by = None if maps is None else itemgetter(*maps.key)

        def launch(config: LaunchConfig, stream: int, values: tuple[Any, ...], function: Function = bound) -> None:
            for written, read, low, high in pairs:  # as `share_memory`, without the call
                if low < values[written] - values[read] < high:
                    assert aliased is not None
                    function = aliased()
            if admitted is not None:
                function = admitted(function, config, stream)
            try:
                frame = idle.pop()
            except IndexError:
                frame = new_frame(fixed)
            if mapped_by is not None and frame.mapped != (mapped := mapped_by(values)):
                assert maps is not None
                _put_maps(frame, maps(layouts, values))
                frame.mapped = mapped
            configuration, parameters = frame.configuration, frame.parameters
            try:
                taken = values if pick is None else pick(values)
                pack_into(frame.buffer, 0, config.head, stream, *attributes, *taken)
            except _UNFIT as error:
                raise self._refusal(values, error) from error
            status = function.launch(configuration, function.handle, parameters, None)
            idle.append(frame)
            if stream:
                keep_loaded(function)
            if status:
                finish_launch(status, function, config, configuration, parameters)

        return launch

    def form(
        self,
        library: Any,
        layouts: Layouts,
        function: Function,
        pairs: Sequence[Pair],
        admitted: Callable[[Function, LaunchConfig, int], Function] | None,
        stream_of: StreamGetter,
        shared_bytes: int,
    ) -> Any:  # Any: the compiled launcher, and what it makes of a kind of call
        """Return what the compiled launcher launches calls of a kind with, as `bind`; None where it cannot.

        `stream_of` gives the current stream of a device, `shared_bytes` is the dynamic shared memory of each launch.
        """
        entry = function.entry
        if entry is None or not all(kind in _COMPILED_FORMATS for _, kind, _ in self._compiled_slots):
            return None
        block = bytearray(bytes(self._struct.size) + self._pack_fixed(layouts))
        if self._attributes:
            struct.pack_into("@QI", block, struct.calcsize("@28sQ"), *self._attributes)
        maps = self._maps
        try:
            return library.Form(
                function, function.handle.value or 0, entry.launch, entry.get_context, entry.context, stream_of,
                function.ordinal, _kept, _finish_compiled, admitted, maps, layouts, shared_bytes, len(layouts),
                bytes(block), tuple(self._offsets), self._compiled_slots, tuple(pairs),
                0 if maps is None else maps.count, () if maps is None else tuple(maps.key),
            )  # fmt: skip
        except (ValueError, OverflowError):  # more parameters than it takes
            return None

    def launch(
        self, function: Function, config: LaunchConfig, stream: int, values: tuple[Any, ...], layouts: Layouts = ()
    ) -> None:
        """Launch a kernel with the values and layouts of one reading."""
        bound = self._bound.get(layouts) or self._bound.add(layouts, self.bind(layouts))
        bound(config, stream, values, function)

    def prepare(
        self,
        function: Function,
        config: LaunchConfig,
        stream: int,
        values: tuple[Any, ...],
        layouts: Layouts = (),
        owners: Sequence[object] = (),
    ) -> Callable[[], None]:
        """Return a launch with everything packed. It keeps `owners`, the arguments, alive."""
        frame = self._new_frame(self._pack_fixed(layouts))
        if self._maps is not None:
            _put_maps(frame, self._maps(layouts, values))
        try:
            self._struct.pack_into(frame.buffer, 0, config.head, stream, *self._attributes, *self._pick(values))
        except _UNFIT as error:
            raise self._refusal(values, error) from error
        if stream:
            keep_loaded(function)
        return compiled_launch(PreparedLaunch(function, config, frame, tuple(owners)))

    def _pack_fixed(self, layouts: Layouts) -> bytes:
        extents = [cast("ArrayLayout", layouts[start])[part][mode] for start, part, mode in self._fixed]
        try:
            return self._fixed_struct.pack(*extents)
        except _UNFIT as error:
            raise self._refusal(layouts, error) from error

    def _new_frame(self, fixed: bytes) -> _Frame:
        size, count = self._struct.size + len(fixed), 0 if self._maps is None else self._maps.count
        # Tensor maps stand at the end, at multiples of their alignment.
        buffer = ctypes.create_string_buffer(bytes(self._struct.size) + fixed, size + count * MAP_BYTES + MAP_ALIGNMENT)
        first = _place_of_maps(buffer, count)
        return _Frame(buffer, first, [*self._offsets, *(first + n * MAP_BYTES for n in range(count))])

    def _refusal(self, values: Sequence[Any], error: Exception) -> ArgumentError:
        return ArgumentError(
            "an argument does not fit into the kernel's parameter",
            details=[str(error), f"values: {values!r}", f"parameters: {self.slots!r}"],
        )


def _place_of_maps(buffer: Any, count: int) -> int:
    """Return where tensor maps begin in launch memory: as far behind as they fit, aligned."""
    address = ctypes.addressof(buffer)
    last = address + len(buffer) - count * MAP_BYTES
    return int(last // MAP_ALIGNMENT * MAP_ALIGNMENT - address)


def _put_maps(frame: _Frame, encoded: bytes) -> None:
    """Write the tensor maps of a launch into its memory."""
    # At once: a slice of a buffer is written byte by byte, which takes 10 microseconds for three maps.
    ctypes.memmove(frame.maps, encoded, len(encoded))


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
        self._configuration = frame.configuration
        self._parameters = frame.parameters
        self._owners = owners

    def __repr__(self) -> str:
        return f"<prepared launch: grid {self._config.grid}, block {self._config.block}>"

    def __call__(self) -> None:
        status = self._launch(self._configuration, self._handle, self._parameters, None)
        if status:
            self._finish(status)

    def _finish(self, status: int) -> None:
        """Finish a launch that gave a status; 0 is of one that was not made, in another device's context."""
        if status:
            finish_launch(status, self._function, self._config, self._configuration, self._parameters)
        else:
            self()


def compiled_launch(prepared: PreparedLaunch) -> Callable[[], None]:
    """Return a prepared launch that the compiled launcher makes, the same one where there is none."""
    entry = prepared._function.entry
    library = None if entry is None else launcher()
    if library is None or entry is None:
        return prepared
    addresses = prepared._configuration, prepared._handle, ctypes.cast(prepared._parameters, ctypes.c_void_p)
    made: Callable[[], None] = _compiled_class(library)(
        entry.launch, entry.get_context, entry.context, *(each.value or 0 for each in addresses), prepared._finish
    )
    return made


@cache
def _compiled_class(library: Any) -> Any:  # Any: the compiled launcher, and a class of which a base is in it
    """Return the class of prepared launches that the compiled launcher makes."""
    state = {"__slots__": (), "_why_no_copy": PreparedLaunch._why_no_copy, "__module__": __name__}
    return type("PreparedLaunch", (library.Prepared, Refused), state)


def _finish_compiled(
    status: int, function: Function, config: LaunchConfig, configuration: int, parameters: int
) -> None:
    """Finish a launch of the compiled launcher that was refused; the memory is its own until this returns."""
    finish_launch(status, function, config, ctypes.c_void_p(configuration), ctypes.c_void_p(parameters))


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


def share_memory(pairs: Sequence[Pair], values: tuple[Any, ...]) -> bool:
    """Say whether the arrays of a pair share memory in a call with these values."""
    return any(low < values[written] - values[read] < high for written, read, low, high in pairs)


def _slot_format(slot: Slot) -> str:
    return "Q" if isinstance(slot, PointerSlot) else _FORMATS[slot.dtype.name]


def _offsets(before: str, slots: Sequence[Slot]) -> list[int]:
    """Return where each parameter begins in a block that has the format `before` in front of them."""
    formats = [_slot_format(slot) for slot in slots]
    ends = [struct.calcsize(before + "".join(formats[: n + 1])) for n in range(len(formats))]
    return [end - struct.calcsize(kind) for end, kind in zip(ends, formats, strict=True)]


def _place(slot: ExtentSlot | StrideSlot, starts: Sequence[int]) -> tuple[int, int, int]:
    """Return where an extent or a stride stands: the array, its shape or its strides, and the mode."""
    return starts[slot.argument], 0 if isinstance(slot, ExtentSlot) else 1, slot.mode


def _is_bfloat16(slot: Slot) -> bool:
    return isinstance(slot, ScalarSlot) and slot.dtype is bfloat16


def _picker(places: Sequence[tuple[int, bool]]) -> Callable[[tuple[Any, ...]], Sequence[Any]]:
    """Return what takes pointers and numbers out of the values of a reading, numbers of type bfloat16 as their bits."""
    positions = [position for position, _ in places]
    if len(places) > 1 and not any(is_bfloat16 for _, is_bfloat16 in places):
        return itemgetter(*positions)
    return lambda values: [_bfloat16_bits(values[n]) if is_bfloat16 else values[n] for n, is_bfloat16 in places]


def _bfloat16_bits(value: Any) -> int:
    import numpy as np

    return int(np.asarray(value).astype(bfloat16.numpy).view(np.uint16))
