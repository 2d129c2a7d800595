"""The CUDA driver: devices, contexts, modules and functions, through ctypes on libcuda.

The launch path needs four arguments and no conversion (`cuLaunchKernelEx`); that costs 0.3 microseconds
through ctypes and over one through the bindings, hence ctypes for the little that is needed beside it. All
work happens in each device's primary context, which PyTorch, CuPy and JAX use too.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.arch import Arch
from tilewright.errors import DeviceError
from tilewright.runtime.libraries import WINDOWS
from tilewright.runtime.prototypes import DRIVER, declared

# Values of CUdevice_attribute, CUpointer_attribute and CUfunction_attribute in cuda.h.
_DEVICE_ATTRIBUTES = {
    "shared_bytes": 8,
    "multiprocessors": 16,
    "memory_clock_khz": 36,
    "memory_bus_bits": 37,
    "l2_bytes": 38,
    "capability_major": 75,
    "capability_minor": 76,
    "shared_bytes_optin": 97,
}
_POINTER_ORDINAL = 9
_FUNCTION_REGISTERS = 4
_FUNCTION_LOCAL_BYTES = 3
_FUNCTION_THREADS = 0
_FUNCTION_MAX_DYNAMIC_SHARED = 8
_FUNCTION_LARGE_CLUSTERS = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED

# The statuses of a launch in a thread whose current context is none, or another device's.
WRONG_CONTEXT = (201, 400, 709)
_CAPTURE_MODE_RELAXED = 2
_LOWEST_VERSION = 11080  # the first with cuLaunchKernelEx

Launcher = Callable[[Any, Any, Any, Any], int]  # Any: ctypes pointers
_C_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int).__mro__[1]  # the class of all functions of C libraries


@dataclass(frozen=True)
class DeviceProperties:
    """What one CUDA device is and has."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    shared_bytes: int
    shared_bytes_optin: int
    memory_bytes: int
    memory_clock_khz: int
    memory_bus_bits: int
    driver_version: tuple[int, int]

    @property
    def bandwidth(self) -> float | None:
        """The bytes a second that DRAM moves at its clock, two bits a clock on each line; None where it is not told."""
        return self.memory_clock_khz * 1e3 * 2 * self.memory_bus_bits / 8 or None

    @property
    def arch(self) -> Arch:
        """The target to compile for."""
        return Arch.of_device(self.capability)


@cache
def library() -> ctypes.CDLL:
    """Load and initialise the driver, or raise `DeviceError` that says why there is none."""
    name = "nvcuda.dll" if WINDOWS else "libcuda.so.1"
    try:
        cuda = declared(ctypes.CDLL(name), DRIVER)
    except OSError as error:
        raise DeviceError(
            f"no CUDA driver: {name} cannot be loaded",
            details=[str(error)],
            help="kernels on NumPy arrays run on the simulator; for a GPU install NVIDIA's driver",
        ) from None
    status = cuda.cuInit(0)
    if status != 0:
        raise DeviceError(f"the CUDA driver cannot start: {error_text(status, cuda)}")
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if version.value < _LOWEST_VERSION:
        raise DeviceError(
            "the CUDA driver is of version {}.{}; version 11.8 or later is needed".format(*_version(version.value)),
            help="update NVIDIA's driver",
        )
    return cuda


def error_text(status: int, cuda: ctypes.CDLL | None = None) -> str:
    """Return the driver's name and words for a status, such as "CUDA_ERROR_INVALID_VALUE (invalid argument)"."""
    cuda = library() if cuda is None else cuda
    texts = []
    for function in (cuda.cuGetErrorName, cuda.cuGetErrorString):
        text = ctypes.c_char_p()
        function(status, ctypes.byref(text))
        texts.append((text.value or b"unknown").decode())
    return f"{texts[0]} ({texts[1]})"


def check(status: int, what: str, details: Sequence[str] = (), help: str | None = None) -> None:
    """Raise `DeviceError` unless `status` is success; `what` is the failed act, such as "loading a module"."""
    if status != 0:
        raise DeviceError(f"{what} failed: {error_text(status)}", details=details, help=help)


def why_unavailable() -> str | None:
    """Return why no GPU can be used, or None when one can."""
    try:
        count = _count()
    except DeviceError as error:
        return str(error)
    return None if count else "the CUDA driver sees no device"


def device_count() -> int:
    """Return the number of CUDA devices; 0 where there is no driver."""
    return 0 if why_unavailable() is not None else _count()


@cache
def _count() -> int:
    count = ctypes.c_int()
    status = library().cuDeviceGetCount(ctypes.byref(count))
    check(status, "counting the CUDA devices")
    return count.value


@cache
def device_properties(ordinal: int = 0) -> DeviceProperties:
    """Return what CUDA device number `ordinal` is and has."""
    cuda = library()
    device = _device(ordinal)
    name = ctypes.create_string_buffer(256)
    check(cuda.cuDeviceGetName(name, len(name), device), "asking for a device's name")
    memory = ctypes.c_size_t()
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device), "asking for a device's memory")
    values = {}
    for attribute, number in _DEVICE_ATTRIBUTES.items():
        value = ctypes.c_int()
        check(cuda.cuDeviceGetAttribute(ctypes.byref(value), number, device), f"asking for a device's {attribute}")
        values[attribute] = value.value
    return DeviceProperties(
        ordinal=ordinal,
        name=name.value.decode(),
        capability=(values["capability_major"], values["capability_minor"]),
        multiprocessors=values["multiprocessors"],
        l2_bytes=values["l2_bytes"],
        shared_bytes=values["shared_bytes"],
        shared_bytes_optin=values["shared_bytes_optin"],
        memory_bytes=memory.value,
        memory_clock_khz=values["memory_clock_khz"],
        memory_bus_bits=values["memory_bus_bits"],
        driver_version=driver_version(),
    )


def driver_version() -> tuple[int, int]:
    """Return the newest CUDA version that the driver supports, such as (13, 0)."""
    version = ctypes.c_int()
    check(library().cuDriverGetVersion(ctypes.byref(version)), "asking for the driver's version")
    return _version(version.value)


def _version(number: int) -> tuple[int, int]:
    return number // 1000, number % 1000 // 10


def _device(ordinal: int) -> ctypes.c_int:
    count = _count()
    if not 0 <= ordinal < count:
        raise DeviceError(f"there is no CUDA device {ordinal}; the driver sees {count}")
    device = ctypes.c_int()
    check(library().cuDeviceGet(ctypes.byref(device), ordinal), f"opening CUDA device {ordinal}")
    return device


@cache
def primary_context(ordinal: int) -> ctypes.c_void_p:
    """Return the primary context of a device, retained until the process ends."""
    context = ctypes.c_void_p()
    status = library().cuDevicePrimaryCtxRetain(ctypes.byref(context), _device(ordinal))
    check(status, f"opening the primary context of CUDA device {ordinal}")
    return context


def current_context() -> int | None:
    """Return the address of this thread's current context, or None where it has none."""
    context = ctypes.c_void_p()
    check(library().cuCtxGetCurrent(ctypes.byref(context)), "asking for the current context")
    return context.value


@contextlib.contextmanager
def device_context(ordinal: int) -> Iterator[None]:
    """Make the primary context of a device current for the body of a `with`."""
    cuda = library()
    check(cuda.cuCtxPushCurrent_v2(primary_context(ordinal)), f"making CUDA device {ordinal} current")
    try:
        yield
    finally:
        cuda.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def synchronize(ordinal: int = 0) -> None:
    """Wait until a device has done all its work; errors of kernels that ran show here."""
    with device_context(ordinal):
        check(
            library().cuCtxSynchronize(),
            f"waiting for CUDA device {ordinal}",
            help="a kernel launched before this point failed; the simulator (TILEWRIGHT_BACKEND=sim) names the line",
        )


def order_streams(first: int, then: int, ordinal: int) -> None:
    """Make work that is launched on stream `then` wait for what stream `first` holds now."""
    cuda = library()
    event = ctypes.c_void_p()
    with device_context(ordinal):
        check(cuda.cuEventCreate(ctypes.byref(event), 2), "creating an event")  # 2: no timing
        try:
            check(cuda.cuEventRecord(event, ctypes.c_void_p(first)), "recording an event")
            check(cuda.cuStreamWaitEvent(ctypes.c_void_p(then), event, 0), "waiting for an event")
        finally:
            cuda.cuEventDestroy_v2(event)


def ordinal_of_pointer(pointer: int) -> int:
    """Return the number of the device whose memory holds a pointer."""
    ordinal = ctypes.c_int()
    with device_context(0):  # the question needs some context, of whichever device
        status = library().cuPointerGetAttribute(ctypes.byref(ordinal), _POINTER_ORDINAL, ctypes.c_uint64(pointer))
    check(status, f"asking which device holds the pointer 0x{pointer:x}")
    return ordinal.value


@dataclass(frozen=True)
class EntryPoints:
    """The addresses that a launch from C needs: `cuLaunchKernelEx`, and with several devices `cuCtxGetCurrent`.

    A thread launches on a device in its primary `context`. With one device `get_context` is 0: that is not asked.
    """

    launch: int
    get_context: int
    context: int


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel loaded on one device, ready for `cuLaunchKernelEx`.

    `launch` is what a launch calls with (configuration, handle, parameters, None), where the arguments are
    ctypes pointers; it returns the driver's status. `entry` is how C calls the same, None where it cannot.
    """

    name: str
    ordinal: int
    handle: ctypes.c_void_p
    launch: Launcher
    entry: EntryPoints | None = None

    def relaunch(self, status: int, configuration: ctypes.c_void_p, parameters: ctypes.c_void_p) -> int:
        """Launch again where the first try failed only for the thread's current context; return the status.

        A thread that has no context keeps the device's primary context from here on, so that its next
        launch needs no second try. A thread in another context gets that one back.
        """
        if status not in WRONG_CONTEXT:
            return status
        cuda = library()
        if current_context() is None:
            check(cuda.cuCtxSetCurrent(primary_context(self.ordinal)), f"making CUDA device {self.ordinal} current")
            return int(cuda.cuLaunchKernelEx(configuration, self.handle, parameters, None))
        with device_context(self.ordinal):
            return int(cuda.cuLaunchKernelEx(configuration, self.handle, parameters, None))

    @property
    def registers(self) -> int:
        """The registers of one thread, as loaded."""
        return self._attribute(_FUNCTION_REGISTERS)

    @property
    def local_bytes(self) -> int:
        """The local memory of one thread, in bytes."""
        return self._attribute(_FUNCTION_LOCAL_BYTES)

    @property
    def max_threads(self) -> int:
        """The most threads that one block of this kernel can have."""
        return self._attribute(_FUNCTION_THREADS)

    def resident_blocks(self, threads: int, dynamic_shared_bytes: int) -> int:
        """Return how many blocks of so many threads the whole device holds at once."""
        blocks = ctypes.c_int()
        with device_context(self.ordinal):
            check(
                library().cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    ctypes.byref(blocks), self.handle, threads, dynamic_shared_bytes
                ),
                f"asking how many blocks of kernel {self.name!r} fit",
            )
        return blocks.value * device_properties(self.ordinal).multiprocessors

    def active_clusters(self, configuration: Any) -> int:
        """Return how many clusters of a CUlaunchConfig with a cluster dimension the whole device holds at once."""
        clusters = ctypes.c_int()
        with device_context(self.ordinal):
            check(
                library().cuOccupancyMaxActiveClusters(ctypes.byref(clusters), self.handle, configuration),
                f"asking how many clusters of kernel {self.name!r} fit",
            )
        return clusters.value

    def allow_large_clusters(self) -> None:
        """Let clusters of the kernel have more than the 8 blocks that every GPU with clusters can place."""
        with device_context(self.ordinal):
            check(
                library().cuFuncSetAttribute(self.handle, _FUNCTION_LARGE_CLUSTERS, 1),
                f"allowing kernel {self.name!r} clusters of more than 8 blocks",
            )

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        check(library().cuFuncGetAttribute(ctypes.byref(value), number, self.handle), "asking for a kernel's attribute")
        return value.value


def load_function(cubin: bytes, name: str, *, ordinal: int = 0, dynamic_shared_bytes: int = 0) -> Function:
    """Load a cubin on a device and return its kernel `name`.

    `dynamic_shared_bytes` is the most that a launch will ask for; over 48 KB the kernel's limit is raised.
    The module is unloaded when another is loaded after the function is gone, unless `keep_loaded` was told of it.
    """
    cuda = library()
    _unload_retired()
    module, handle = ctypes.c_void_p(), ctypes.c_void_p()
    with device_context(ordinal):
        check(
            cuda.cuModuleLoadData(ctypes.byref(module), cubin),
            f"loading kernel {name!r} on CUDA device {ordinal}",
            help="machine code runs on the architecture it was compiled for, under a driver as new as its compiler",
        )
        check(cuda.cuModuleGetFunction(ctypes.byref(handle), module, name.encode()), f"finding kernel {name!r}")
        if dynamic_shared_bytes > 48 * 1024:
            limit = device_properties(ordinal).shared_bytes_optin
            check(
                cuda.cuFuncSetAttribute(handle, _FUNCTION_MAX_DYNAMIC_SHARED, dynamic_shared_bytes),
                f"giving kernel {name!r} {dynamic_shared_bytes} bytes of dynamic shared memory",
                details=[f"a block on CUDA device {ordinal} can have {limit} bytes, static and dynamic together"],
            )
    function = Function(name, ordinal, handle, _launcher(ordinal), entry_points(ordinal))
    # Here and now another thread may be anywhere, in the midst of capturing a graph: what is retired waits.
    weakref.finalize(function, _retired.append, (ordinal, module)).atexit = False
    return function


# Functions that were launched on a stream of their own. Such a stream may be recording a CUDA graph, which launches
# the function again without our knowledge: its module stays loaded. The legacy default stream (0) cannot be recorded.
_kept: set[Function] = set()
keep_loaded: Callable[[Function], None] = _kept.add

_retired: list[tuple[int, ctypes.c_void_p]] = []  # modules whose function is gone, by device


def _unload_retired() -> None:
    """Unload the modules of functions that are gone. The driver waits for what still runs of them."""
    while _retired:
        try:
            ordinal, module = _retired.pop()
        except IndexError:  # another thread took the last one
            return
        cuda = library()
        with device_context(ordinal):
            # Otherwise a graph that any thread is recording becomes invalid.
            mode = ctypes.c_int(_CAPTURE_MODE_RELAXED)
            cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
            cuda.cuModuleUnload(module)  # a device that is lost refuses, and there is nothing to be done
            cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@cache
def entry_points(ordinal: int) -> EntryPoints | None:
    """Return how launches on a device are made from C, None where the driver's functions are not those of a library."""
    launch, get_context = (_address(library(), name) for name in ("cuLaunchKernelEx", "cuCtxGetCurrent"))
    if launch is None or get_context is None:
        return None
    if _count() == 1:
        return EntryPoints(launch, 0, 0)
    return EntryPoints(launch, get_context, primary_context(ordinal).value or 0)


def _address(cuda: ctypes.CDLL, name: str) -> int | None:
    function = cuda[name]
    is_of_library = isinstance(function, _C_FUNCTION)
    return ctypes.cast(function, ctypes.c_void_p).value if is_of_library else None


@cache
def _launcher(ordinal: int) -> Launcher:
    """Return the driver's launch function, with a check of the current context where there are more devices.

    With one device there is one primary context, and a thread without it is refused by the driver, which
    `Function.relaunch` mends. With more, the check costs 0.4 microseconds a launch.
    """
    # An item of a library is a function of its own, without arguments' types: a launch gives ctypes pointers, which
    # need no conversion, and to be told so again costs 0.13 microseconds each time.
    launch: Launcher = library()["cuLaunchKernelEx"]
    if _count() == 1:
        return launch
    wanted = primary_context(ordinal).value

    def launch_in_context(configuration: Any, handle: Any, parameters: Any, extra: Any) -> int:
        if current_context() == wanted:
            return launch(configuration, handle, parameters, extra)
        with device_context(ordinal):
            return launch(configuration, handle, parameters, extra)

    return launch_in_context
