"""Copies between GPUs by their copy engines, on a stream of their own: they take no multiprocessor from kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from tilewright.runtime import driver

_NON_BLOCKING = 1  # flag of a stream: it does not wait for the default stream
_NO_TIMING = 2  # flag of an event
_AT_LEAST = 0  # flag of a wait: until the number there is not smaller
_UNIFIED = 4  # kind of memory: the pointer says whose it is


class Copy(NamedTuple):
    """A copy of `rows` of `bytes` each, `pitch` bytes apart, and the flags, 32-bit numbers in memory, that order it.

    It begins when `number` is at `ready` (0: at once), and `number` is written to `flag` behind it.
    """

    target: int
    source: int
    bytes: int
    rows: int
    pitch: int
    flag: int
    ready: int
    number: int


class _Side(ctypes.Structure):
    """Where a copy of rows reads or writes (half of the driver API's CUDA_MEMCPY2D)."""

    _fields_ = (
        ("x", ctypes.c_size_t),
        ("y", ctypes.c_size_t),
        ("kind", ctypes.c_int),
        ("host", ctypes.c_void_p),
        ("device", ctypes.c_uint64),
        ("array", ctypes.c_void_p),
        ("pitch", ctypes.c_size_t),
    )


class _Rows(ctypes.Structure):
    """A copy of rows (CUDA_MEMCPY2D)."""

    _fields_ = (("source", _Side), ("target", _Side), ("bytes", ctypes.c_size_t), ("rows", ctypes.c_size_t))

    @classmethod
    def of(cls, target: int, source: int, bytes: int, rows: int, pitch: int) -> _Rows:
        """Return a copy between memory of which either side may belong to another device."""
        sides = (_Side(kind=_UNIFIED, device=pointer, pitch=pitch) for pointer in (source, target))
        return cls(*sides, bytes, rows)


class CopyStream:
    """A stream of a device for copies to other devices (CUDA driver API, "Stream Memory Operations").

    Copies within a device do not go through it: kernels make them, and find no free multiprocessor beside one that
    waits for the copies behind them.
    """

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._stream, self._event = ctypes.c_void_p(), ctypes.c_void_p()
        cuda = driver.library()
        with driver.device_context(ordinal):
            driver.check(cuda.cuStreamCreate(ctypes.byref(self._stream), _NON_BLOCKING), "creating a stream")
            driver.check(cuda.cuEventCreate(ctypes.byref(self._event), _NO_TIMING), "creating an event")

    def follow(self, stream: int) -> None:
        """Wait for all work that another stream has been given."""
        self._order(ctypes.c_void_p(stream), self._stream)

    def lead(self, stream: int) -> None:
        """Let another stream wait for all work that this one has been given."""
        self._order(self._stream, ctypes.c_void_p(stream))

    def put(self, copies: Iterable[Copy]) -> None:
        """Make copies, one after another."""
        cuda, stream = driver.library(), self._stream
        with driver.device_context(self.ordinal):
            for target, source, bytes, rows, pitch, flag, ready, number in copies:
                if ready:
                    driver.check(cuda.cuStreamWaitValue32_v2(stream, ready, number, _AT_LEAST), "waiting for a flag")
                if bytes == pitch:
                    status = cuda.cuMemcpyDtoDAsync_v2(target, source, bytes * rows, stream)
                else:
                    status = cuda.cuMemcpy2DAsync_v2(ctypes.byref(_Rows.of(target, source, bytes, rows, pitch)), stream)
                driver.check(status, "copying to another GPU")
                driver.check(cuda.cuStreamWriteValue32_v2(stream, flag, number, 0), "writing a flag")

    def _order(self, first: ctypes.c_void_p, then: ctypes.c_void_p) -> None:
        cuda = driver.library()
        with driver.device_context(self.ordinal):
            driver.check(cuda.cuEventRecord(self._event, first), "recording an event")
            driver.check(cuda.cuStreamWaitEvent(then, self._event, 0), "waiting for an event")


@lru_cache(maxsize=64)
def copy_stream(ordinal: int) -> CopyStream:
    """Return the stream for copies of a device."""
    return CopyStream(ordinal)
