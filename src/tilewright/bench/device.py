"""The stopwatch of a GPU: events on the current stream, the flush of the L2 cache, and CUDA graphs.

Everything but graphs goes through the driver, on the stream that PyTorch or CuPy calls its current one (the default
stream where neither is imported), so that work of any library is timed alike. A stand-in for `Stopwatch` with a clock
of its own is how the timing is tested without a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any, Protocol

from tilewright.errors import DeviceError
from tilewright.runtime import driver
from tilewright.runtime.memory import DeviceArray, Event

Run = Callable[[], object]

_FLUSH_BYTES = 256 << 20  # several times the largest L2 cache there is


class Stopwatch(Protocol):
    """What timing needs of a device."""

    flush_bytes: int

    def host_seconds(self) -> float:
        """Return the host's clock."""

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""

    def flush(self) -> None:
        """Queue a write over more memory than the L2 cache holds."""

    def mark(self) -> Any:  # Any: an event
        """Queue a mark whose time the device notes when it gets there."""

    def milliseconds(self, start: Any, end: Any) -> float:
        """Wait for two marks and return the device's time between them."""

    def capture(self, run: Run, count: int) -> Run | None:
        """Return what replays `count` calls of `run` by one launch, or None where they cannot be captured."""


class Gpu:
    """The stopwatch of one CUDA device, the current one of PyTorch or CuPy.

    Raises `DeviceError` where no GPU can be used.
    """

    def __init__(self, ordinal: int | None = None) -> None:
        reason = driver.why_unavailable()
        if reason is not None:
            raise DeviceError(
                "timing needs a GPU, and none can be used here",
                details=[reason],
                help="on the simulator time means nothing: check results there, and count with "
                "tw.simulate(profile=True)",
            )
        self.ordinal: int = current_ordinal() if ordinal is None else ordinal
        self._scratch: DeviceArray | None = None
        self.flush_bytes: int = max(_FLUSH_BYTES, 2 * driver.device_properties(self.ordinal).l2_bytes)

    def host_seconds(self) -> float:
        return time.perf_counter()

    def synchronize(self) -> None:
        driver.synchronize(self.ordinal)

    def flush(self) -> None:
        if self._scratch is None:
            self._scratch = DeviceArray((self.flush_bytes // 4,), "int32", ordinal=self.ordinal)
        with driver.device_context(self.ordinal):
            status = driver.library().cuMemsetD32Async(
                ctypes.c_uint64(self._scratch.pointer),
                ctypes.c_uint(0),
                ctypes.c_size_t(self.flush_bytes // 4),
                ctypes.c_void_p(current_stream(self.ordinal)),
            )
        driver.check(status, "flushing the L2 cache")

    def mark(self) -> Event:
        event = Event(self.ordinal)
        event.record(current_stream(self.ordinal))
        return event

    def milliseconds(self, start: Event, end: Event) -> float:
        return start.seconds_until(end) * 1000

    def capture(self, run: Run, count: int) -> Run | None:
        for name, capture in (("torch", _capture_torch), ("cupy", _capture_cupy)):
            if name in sys.modules and (name != "torch" or torch_with_cuda() is not None):
                # What a framework says of work that cannot be captured (a wait, memory of another stream) differs
                # between releases; the work can then only be launched call by call.
                with contextlib.suppress(Exception):
                    return capture(run, count)
                self.synchronize()
        return None


def torch_with_cuda() -> Any | None:  # Any: PyTorch, which may be absent
    """Return PyTorch where it is imported and sees a GPU."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


def current_ordinal() -> int:
    """Return the current device of PyTorch or CuPy; 0 where neither is imported."""
    torch = torch_with_cuda()
    if torch is not None:
        return int(torch.cuda.current_device())
    cupy = sys.modules.get("cupy")
    return 0 if cupy is None else int(cupy.cuda.runtime.getDevice())


def current_stream(ordinal: int) -> int:
    """Return the handle of the current stream of PyTorch or CuPy; 0, the default stream, where neither is imported."""
    torch = torch_with_cuda()
    if torch is not None:
        return int(torch.cuda.current_stream(ordinal).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return 0
    with cupy.cuda.Device(ordinal):
        return int(cupy.cuda.get_current_stream().ptr)


def _capture_torch(run: Run, count: int) -> Run:
    """Capture on the current stream, or on another one where that is the default stream, which cannot be captured.

    autograd runs each backward function on the stream of its forward pass, so that a run with gradients can be captured
    only where both were on one stream that is not the default one.
    """
    torch = sys.modules["torch"]
    stream = torch.cuda.current_stream()
    if stream == torch.cuda.default_stream():
        stream = torch.cuda.Stream()
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch.cuda.synchronize()
    has_ended = False
    try:
        with warnings.catch_warnings(record=True) as told, torch.cuda.stream(stream):
            warnings.simplefilter("always")
            graph.capture_begin(pool=pool)
            try:
                for _ in range(count):
                    run()
            finally:
                graph.capture_end()
                has_ended = True
        if any("graph is empty" in str(each.message).lower() for each in told):
            raise DeviceError("the work went to a stream of its own, as that of a prepared launch does")
    except Exception:
        if not has_ended:  # a graph that has ended gives its pool back itself, and twice ends the process
            _recover_torch(pool)
        raise
    replay: Run = graph.replay
    return replay


def _recover_torch(pool: Any) -> None:  # Any: torch's handle
    """Undo what a failed capture leaves of torch: memory that goes to its pool, and a generator that counts for it.

    Nothing in torch takes back a capture. Its random numbers raise "Offset increment outside graph capture" until
    another capture has ended well.
    """
    torch = sys.modules["torch"]
    device = torch.cuda.current_device()
    for name in ("_cuda_endAllocateToPool", "_cuda_releasePool"):
        with contextlib.suppress(Exception):  # as far as the capture came, and where torch has them
            getattr(torch._C, name)(device, pool)
    with contextlib.suppress(Exception):
        graph, small = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin()
            small.zero_()
            graph.capture_end()


def _capture_cupy(run: Run, count: int) -> Run:
    cupy = sys.modules["cupy"]
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            for _ in range(count):
                run()
        finally:
            graph = stream.end_capture()
    replay: Run = graph.launch
    return replay
