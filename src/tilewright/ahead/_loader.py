"""The part of a package's Python loader that is the same for every package: arrays, checks, the driver.

Each package has a copy of this file's text, so that it needs nothing but Python and NVIDIA's driver for CUDA 12.0 or
later. It imports little, and touches the driver when the first kernel is launched.
"""

import ctypes
import os
import struct
import sys

_INT_MAX = 2**31 - 1
_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "uint32": 4, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "tfloat32": 4,
}  # fmt: skip
_INTERFACE = {
    "b1": "bool", "u1": "uint8", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64", "u2": "uint16",
    "u4": "uint32", "u8": "uint64", "f2": "float16", "f4": "float32", "f8": "float64",
}  # fmt: skip
_FORMATS = {
    "bool": "?", "uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "uint32": "I",
    "uint64": "Q", "float16": "e", "float32": "f", "float64": "d",
}  # fmt: skip


class PackageError(ValueError):
    """An argument that a kernel of the package was not compiled for, or a driver that refused."""


class Array:
    """An array on a GPU: the address of its first element, extents, strides in elements, and the type if it is known.

    It may stand for an array in any call. `torch` is whether PyTorch owns it.
    """

    __slots__ = ("data", "dtype", "shape", "strides", "torch")

    def __init__(self, data, shape, strides=None, dtype=None, torch=False):
        self.data, self.shape, self.dtype, self.torch = data, tuple(shape), dtype, torch
        if strides is None:
            step, found = 1, []
            for extent in reversed(self.shape):
                found.append(step)
                step *= extent
            strides = reversed(found)
        self.strides = tuple(strides)

    @staticmethod
    def of(x, where):
        """Return what is known of an array of PyTorch, or of any library with __cuda_array_interface__."""
        if isinstance(x, Array):
            return x
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(x, torch.Tensor):
            if not x.is_cuda:
                raise PackageError(f"{where} is on {x.device}, and the kernel runs on a GPU")
            if x.requires_grad and torch.is_grad_enabled():
                raise PackageError(f"{where} requires a gradient, and none flows through the kernel: pass x.detach()")
            name = str(x.dtype).rpartition(".")[2]
            data = x.data_ptr() if x.untyped_storage().data_ptr() else 0  # of a view it would be its offset
            return Array(data, tuple(x.shape), x.stride(), name, True)
        interface = getattr(x, "__cuda_array_interface__", None)
        if interface is None:
            raise PackageError(f"{where} is a {type(x).__name__}, and an array on a GPU is needed")
        kind = interface["typestr"]
        dtype = _INTERFACE.get(kind[1:], str(getattr(x, "dtype", kind)))
        size = _BYTES.get(dtype, 1)
        steps = interface.get("strides")
        strides = None if steps is None else [step // size for step in steps]
        return Array(interface["data"][0], interface["shape"], strides, dtype)

    def reach(self, size):
        """Return the first byte and the byte behind the last one; of an array without elements, nothing."""
        low, high = self.data, self.data + size
        for extent, stride in zip(self.shape, self.strides):
            if extent == 0:
                return self.data, self.data
            step = (extent - 1) * stride * size
            low, high = (low + step, high) if step < 0 else (low, high + step)
        return low, high


class _ArrayArgument:
    """What a kernel takes for granted: of each mode (extent, divisor, stride, divisor), None where it is any."""

    def __init__(self, name, dtype, modes, alignment, wide, written, read):
        self.name, self.dtype, self.modes, self.alignment = name, dtype, modes, alignment
        self.wide, self.written, self.read = wide, written, read

    def take(self, function, x):
        where = f"{function}: {self.name}"
        found = Array.of(x, where)
        if found.dtype is not None and found.dtype != self.dtype:
            raise PackageError(f"{where} is of {found.dtype}, and the kernel takes {self.dtype}")
        if len(found.shape) != len(self.modes):
            raise PackageError(f"{where} has {len(found.shape)} modes, and the kernel takes {len(self.modes)}")
        if found.data % self.alignment:
            raise PackageError(f"{where} begins at {found.data:#x}, and the kernel takes multiples of {self.alignment}")
        for n, (extent, divisor, stride, step) in enumerate(self.modes):
            have = found.shape[n]
            require(have >= 0, f"{where}: extent {n} is {have}")
            if have != extent if extent is not None else have % divisor:
                wanted = extent if extent is not None else f"multiples of {divisor}"
                raise PackageError(f"{where}: extent {n} is {have}, and the kernel takes {wanted}")
            if found.strides[n] != stride and have > 1 if stride is not None else found.strides[n] % step:
                wanted = stride if stride is not None else f"multiples of {step}"
                raise PackageError(f"{where}: stride {n} is {found.strides[n]}, and the kernel takes {wanted}")
        low, high = found.reach(_BYTES[self.dtype])
        if not found.data and low < high:
            raise PackageError(f"{where} has elements, and its memory was freed")
        if not self.wide and (high - low) // _BYTES[self.dtype] > _INT_MAX:
            raise PackageError(f"{where} spans 2**31 elements or more, and the kernel counts them in 32 bits")
        return found


class _NumberArgument:
    """A number that each launch gives."""

    def __init__(self, name, dtype):
        self.name, self.dtype = name, dtype

    def take(self, function, x):
        number = x.item() if hasattr(x, "item") else x
        _pack(bytearray(8), 0, self.dtype, number, f"{function}: {self.name}")  # the grid computes with it
        return number


class _Variant:
    """A kernel compiled for one compute capability; its functions of a launch's arguments give what it takes."""

    def __init__(self, capability, exact, file, entry, block, grid, shared, checks, values, maps, attributes, cluster):
        self.capability, self.exact, self.file, self.entry = capability, exact, file, entry
        self.block, self.grid, self.shared, self.checks = block, grid, shared, checks
        self.values, self.maps, self.attributes, self.cluster = values, maps, attributes, cluster
        self.kernel, self.allowed = None, {}

    def load(self, device, shared):
        driver = _driver()
        if self.kernel is None:
            with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), self.file), "rb") as file:
                image = file.read()
            library, kernel = ctypes.c_void_p(), ctypes.c_void_p()
            none = [None, None, 0, None, None, 0]
            _check(driver.cuLibraryLoadData(ctypes.byref(library), image, *none), f"loading {self.file}")
            _check(driver.cuLibraryGetKernel(ctypes.byref(kernel), library, self.entry.encode()), "finding the kernel")
            self.kernel = kernel
        if shared > 48 * 1024 and self.allowed.get(device, 0) < shared:
            _check(driver.cuKernelSetAttribute(8, shared, self.kernel, device), "asking for shared memory")
            self.allowed[device] = shared
        if self.cluster > 8:
            _check(driver.cuKernelSetAttribute(14, 1, self.kernel, device), "asking for large clusters")
        return self.kernel


class _Function:
    """A kernel of the package. Call it with its arguments in order; `stream` is a CUDA handle."""

    def __init__(self, name, doc, arguments, variants):
        self.__name__, self.__doc__, self.arguments, self.variants = name, doc, arguments, variants

    def __call__(self, *args, stream=None):
        name = self.__name__
        if len(args) != len(self.arguments):
            takes = ", ".join(argument.name for argument in self.arguments)
            raise PackageError(f"{name} takes ({takes}), got {len(args)} arguments")
        taken = [argument.take(name, x) for argument, x in zip(self.arguments, args)]
        self._refuse_overlaps(taken)
        driver, device = _driver(), ctypes.c_int()
        if stream is None:
            stream = _torch_stream() if any(getattr(x, "torch", False) for x in taken) else 0
        if driver.cuCtxGetDevice(ctypes.byref(device)):
            raise PackageError(f"{name}: no CUDA context is current in this thread: any array made on a GPU makes one")
        variant = self._variant(device.value)
        grid = variant.grid(*taken)
        if 0 in grid:
            return
        for axis, (blocks, (most, size)) in enumerate(zip(grid, variant.checks(*taken))):
            if not 0 < blocks <= most or blocks % size:
                more = f" in clusters of {size}" if size > 1 else ""
                limit = f"at most {most}{more} are possible"
                raise PackageError(f"{name}: {blocks} blocks along {'xyz'[axis]}, and {limit}")
        shared = variant.shared(*taken)
        kernel = variant.load(device.value, shared)
        # Each parameter in 8 bytes of its own; tensor maps behind them, at multiples of 64.
        values, maps = variant.values(*taken), variant.maps(*taken)
        memory = ctypes.create_string_buffer(8 * len(values) + 128 * len(maps) + 64)
        start = ctypes.addressof(memory)
        places = [start + 8 * n for n in range(len(values))]
        for n, (kind, value) in enumerate(values):
            _pack(memory, 8 * n, kind, value, name)
        place = -(-(start + 8 * len(values)) // 64) * 64
        for map in maps:
            _encode(driver, place, name, *map)
            places.append(place)
            place += 128
        attributes = b"".join(
            struct.pack("=ii", id, 0) + struct.pack(f"={len(value)}i", *value).ljust(64, b"\0")
            for id, value in variant.attributes
        )
        held = ctypes.create_string_buffer(attributes, max(len(attributes), 1))
        config = struct.pack(
            "@7IQQI4x", *grid, *variant.block, shared, stream, ctypes.addressof(held) if attributes else 0,
            len(variant.attributes),
        )  # fmt: skip
        pointers = (ctypes.c_void_p * max(len(places), 1))(*places)
        _check(driver.cuLaunchKernelEx(config, kernel, pointers, None), f"launching {name}")

    def _variant(self, device):
        major, minor = _capability(device)
        fit = [
            v for v in self.variants
            if v.capability[0] == major and (v.capability[1] == minor if v.exact else v.capability[1] <= minor)
        ]  # fmt: skip
        if not fit:
            raise PackageError(f"{self.__name__} has no machine code for a GPU of compute capability {major}.{minor}")
        return max(fit, key=lambda v: (v.capability[1], v.exact))

    def _refuse_overlaps(self, taken):
        arrays = [(a, x) for a, x in zip(self.arguments, taken) if isinstance(a, _ArrayArgument)]
        for read, x in arrays:
            for written, y in arrays:
                if read.written or not written.written:
                    continue
                low, high = x.reach(_BYTES[read.dtype])
                first, last = y.reach(_BYTES[written.dtype])
                if low < high and first < last and first < high and low < last:
                    raise PackageError(
                        f"{self.__name__}: {read.name} shares memory with {written.name}, which is written"
                    )

    def __repr__(self):
        return f"<kernel {self.__name__}({', '.join(argument.name for argument in self.arguments)})>"


def require(condition, message):
    """Raise `PackageError` where a condition of a launch does not hold."""
    if not condition:
        raise PackageError(message)


def quotient(a, b):
    """Return a / b rounded to 0, as C has it; 0 for b = 0."""
    return 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder_of(a, b):
    """Return what `quotient` leaves."""
    return 0 if b == 0 else a - b * quotient(a, b)


def reduced(x, bits, signed):
    """Return x modulo 2**bits, as an integer of so many bits holds it."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if signed and x >> (bits - 1) else x


smaller, larger = min, max


def _pack(memory, place, kind, value, name):
    try:
        if kind == "bfloat16":  # to the nearest, ties to even; a NaN stays one
            bits = struct.unpack("=I", struct.pack("=f", value))[0]
            rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
            struct.pack_into("=H", memory, place, 0x7FC0 if value != value else rounded & 0xFFFF)
            return
        struct.pack_into(f"={_FORMATS[kind]}", memory, place, value)
    except (struct.error, OverflowError, TypeError) as error:
        raise PackageError(f"{name}: {value!r} does not fit into a parameter of {kind}: {error}") from None


def _encode(driver, place, function, name, kind, size, address, extents, strides, box, steps, swizzle, fill):
    """Encode a tensor map; `strides` are in elements, and of a mode with one element any will do."""
    require(
        address % 16 == 0, f"{function}: TMA takes addresses that are multiples of 16; {name} begins at {address:#x}"
    )
    pitches = []
    for n, (extent, stride) in enumerate(zip(extents, strides)):
        require(1 <= extent <= 2**32, f"{function}: TMA takes extents from 1 to 2**32, and one of {name} is {extent}")
        pitch = stride * size
        fits = pitch % 16 == 0 and 0 <= pitch < 2**40
        wanted = f"{function}: TMA takes strides that are multiples of 16 bytes, and one of {name} is {pitch} bytes"
        require(fits or n == 0 or extent == 1, wanted)
        if n:
            pitches.append(pitch if fits else 16)
    rank = len(extents)
    status = driver.cuTensorMapEncodeTiled(
        ctypes.c_void_p(place), kind, rank, ctypes.c_void_p(address), (ctypes.c_uint64 * rank)(*extents),
        (ctypes.c_uint64 * max(rank - 1, 1))(*pitches), (ctypes.c_uint32 * rank)(*box),
        (ctypes.c_uint32 * rank)(*steps), 0, swizzle, 2, fill,
    )  # fmt: skip
    _check(status, "encoding a tensor map")


_known = {}


def _driver():
    if "driver" not in _known:
        name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
        try:
            driver = ctypes.CDLL(name)
        except OSError as error:
            raise PackageError(f"no CUDA driver: {error}") from None
        for needed in ("cuLibraryLoadData", "cuKernelSetAttribute", "cuLaunchKernelEx", "cuTensorMapEncodeTiled"):
            if not hasattr(driver, needed):
                raise PackageError(f"the CUDA driver has no {needed}: one for CUDA 12.0 or later is needed")
        _check_with(driver, driver.cuInit(0), "starting the CUDA driver")
        _known["driver"] = driver
    return _known["driver"]


def _capability(device):
    if device not in _known:
        found = []
        for attribute in (75, 76):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
            value = ctypes.c_int()
            _check(_driver().cuDeviceGetAttribute(ctypes.byref(value), attribute, device), "asking for the capability")
            found.append(value.value)
        _known[device] = tuple(found)
    return _known[device]


def _torch_stream():
    return sys.modules["torch"].cuda.current_stream().cuda_stream


def _check(status, what):
    _check_with(_driver(), status, what)


def _check_with(driver, status, what):
    if status:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(name))
        raise PackageError(f"{what} failed: {(name.value or b'an unknown error').decode()}")
