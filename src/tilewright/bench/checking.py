"""What candidates compute: keep, restore, spoil and compare arrays, and check each candidate before it is timed.

Works on what a kernel takes: NumPy arrays, and CUDA arrays through `runtime.arrays`. What is kept of a CUDA array
stays on its device.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.bench.device import Gpu, Run, Stopwatch
from tilewright.bench.timing import call_on_device
from tilewright.dtypes import DType, dtype
from tilewright.errors import ArgumentError, CheckError
from tilewright.runtime import driver
from tilewright.runtime.arrays import ArrayInfo, describe
from tilewright.runtime.memory import DeviceArray, copy_to_device, copy_to_host

# The largest error, relative to the greatest value, that another order of summation is expected to make.
_TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 4e-2}
_COARSE = 0.2  # 8-bit floats


def read(array: Any) -> np.ndarray[Any, Any]:  # Any: an array of any library
    """Return a copy of an array on the host, after the device has done all its work."""
    info = _info(array)
    if info.is_cuda:
        assert isinstance(info.device, int), info
        driver.synchronize(info.device)
        return copy_to_host(info)[0]
    return np.array(info.host())


def fill(array: Any, value: object) -> None:  # Any: an array of any library
    """Give all elements of an array one value."""
    info = _info(array)
    if info.is_cuda:
        assert isinstance(info.device, int), info
        driver.synchronize(info.device)
        view, memory = copy_to_host(info)
        view[...] = value
        copy_to_device(info, memory)
    else:
        info.host()[...] = value


def spoil(array: Any) -> None:  # Any: an array of any library
    """Fill an array with what no kernel computes: NaN, the lowest integer, True."""
    fill(array, _odd(_info(array).dtype))


def share_memory(a: Any, b: Any) -> bool:  # Any: arrays of any library
    """Say whether the address ranges of two arrays on one device meet."""
    first, second = describe(a), describe(b)
    if first is None or second is None or first.device != second.device:
        return False
    (low, high), (other_low, other_high) = _range(first), _range(second)
    return low < other_high and other_low < high


class Kept:
    """The contents of an array at one time, to be restored."""

    def __init__(self, array: Any) -> None:  # Any: an array of any library
        self._info = info = _info(array)
        if not info.is_cuda:
            self._host = np.array(info.host(), order="K")
            return
        assert isinstance(info.device, int), info
        driver.synchronize(info.device)
        self._copy = DeviceArray((max(info.span * info.dtype.bytes, 1),), "uint8", ordinal=info.device)
        self._move(self._copy.pointer, self._lowest)
        driver.synchronize(info.device)

    def restore(self, stream: int = 0) -> None:
        """Write the contents back; on a GPU it is queued on `stream`."""
        if self._info.is_cuda:
            self._move(self._lowest, self._copy.pointer, stream)
        else:
            self._info.host()[...] = self._host

    @property
    def _lowest(self) -> int:
        return self._info.pointer + self._info.lowest_offset * self._info.dtype.bytes

    def _move(self, target: int, source: int, stream: int = 0) -> None:
        info = self._info
        assert isinstance(info.device, int), info
        with driver.device_context(info.device):
            status = driver.library().cuMemcpyDtoDAsync_v2(
                ctypes.c_uint64(target),
                ctypes.c_uint64(source),
                ctypes.c_size_t(info.span * info.dtype.bytes),
                ctypes.c_void_p(stream),
            )
        driver.check(status, "copying an array on the device")


def greatest_error(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Return max |found - expected| / max |expected|, both as float64; 0 where all is equal.

    Infinite where shapes differ, or where one has a NaN or an infinity that the other has not.

    >>> greatest_error(np.array([1.0, 4.5]), np.array([1.0, 5.0]))
    0.1
    """
    if found.shape != expected.shape:
        return float("inf")
    if found.size == 0:
        return 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    # Large integers are compared as they are: as float64 two neighbours may be one.
    same = np.asarray(found == expected) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a) & np.isfinite(b) | same).all():
        return float("inf")
    with np.errstate(invalid="ignore"):
        difference = float(np.where(same, 0.0, np.abs(a - b)).max())
    magnitude = float(np.abs(b[np.isfinite(b)]).max(initial=0.0))
    return difference / magnitude if magnitude else float("inf")


def tolerance_of(element: object) -> float:
    """Return the default tolerance for `greatest_error` of an element type: 0 for integers, float32 1e-4."""
    kind = dtype(element)
    if not kind.is_float:
        return 0.0
    return _TOLERANCES.get(kind.name, _COARSE)


def _range(info: ArrayInfo) -> tuple[int, int]:
    low = info.pointer + info.lowest_offset * info.dtype.bytes
    return low, low + info.span * info.dtype.bytes


def _odd(kind: DType) -> Any:  # Any: a NumPy scalar
    if kind.kind == "bool":
        return True
    return kind.lowest if kind.is_integer else kind.numpy.type(float("nan"))


def _info(array: Any) -> ArrayInfo:
    info = describe(array)
    if info is None:
        raise ArgumentError(
            f"expected an array, got {type(array).__name__}",
            help="name the arrays that candidates write, or let each candidate return its result",
        )
    return info


class Checker:
    """Runs each candidate once and compares what it computes with the reference."""

    def __init__(
        self,
        candidates: Mapping[str, Run],
        reference: object,
        outputs: object,
        spoiled: bool,
        tolerance: float | None,
        watch: Stopwatch,
    ) -> None:
        self._candidates = candidates
        self._outputs = _arrays(outputs)
        self._kept = [Kept(array) for array in self._outputs]
        self._spoiled = spoiled
        self._tolerance = tolerance
        self._watch = watch
        if isinstance(reference, str):
            if reference not in candidates:
                raise ArgumentError(f"the reference {reference!r} is not among: {', '.join(candidates)}")
            self._expected: list[Any] | None = self._results(reference)
        else:
            self._expected = None if reference is None else [read(array) for array in _arrays(reference)]

    def check(self, name: str) -> float | None:
        """Run a candidate; return the greatest error of its results, None without a reference."""
        if self._expected is None:
            self._call(name)
            return None
        results = self._results(name)
        if len(results) != len(self._expected):
            raise ArgumentError(
                f"candidate {name!r} gives {len(results)} arrays, the reference has {len(self._expected)}",
                help="name the arrays that candidates write: outputs=C, or a tuple of them",
            )
        worst = 0.0
        for result, expected in zip(results, self._expected, strict=True):
            error = greatest_error(result, expected)
            limit = tolerance_of(result.dtype) if self._tolerance is None else self._tolerance
            if not error <= limit:
                raise CheckError(
                    f"candidate {name!r} is wrong: its greatest error is {error:.3g} of the greatest value, "
                    f"and {limit:.3g} is allowed"
                )
            worst = max(worst, error)
        return worst

    def _results(self, name: str) -> list[Any]:
        for array, kept in zip(self._outputs, self._kept, strict=True):
            if self._spoiled:
                spoil(array)
            else:
                kept.restore()
        returned = self._call(name)
        self._watch.synchronize()
        return [read(array) for array in (self._outputs or _arrays(returned))]

    def _call(self, name: str) -> object:
        run = self._candidates[name]
        return call_on_device(run) if isinstance(self._watch, Gpu) else run()

    def restore(self) -> None:
        """Give the outputs their first contents back, where candidates read them."""
        if not self._spoiled:
            for kept in self._kept:
                kept.restore()


def _arrays(value: object) -> Sequence[Any]:  # Any: arrays of any library
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)
