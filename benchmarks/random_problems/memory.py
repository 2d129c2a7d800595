"""Arrays with guard bands, in NumPy's memory or in PyTorch's, and what a trial does with whole arrays there.

An array lies inside of an allocation of its own, with a band before and behind it. Bands and the padding between rows
are filled with a pattern. Where an input is read beside its elements, NaN (for integers, a large number) gets into the
sums; where a result is written beside its elements, the pattern is gone.

Random numbers come from pools that NumPy draws, one for each type and style: a problem has the same numbers on every
backend, so that what fails on a GPU can be repeated in the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from benchmarks.random_problems.layouts import Placed, row_major

import tilewright as tw

ALIGNMENT = 256
BAND = 4096  # bytes before and behind an array
POOL = 1_048_583  # numbers of a pool: a prime, so that rows of a matrix begin at different ones
BITS = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}
STYLES = ("normal", "whole", "wide")


@cache
def pool(dtype: tw.DType, style: str) -> np.ndarray[Any, Any]:
    """Return random numbers of a type: normal ones, small whole ones, or normal ones of many magnitudes."""
    random = np.random.default_rng([dtype.bits, STYLES.index(style), len(dtype.name)])
    if dtype.is_integer:
        low, high = (-4, 5) if style == "whole" else (max(dtype.lowest, -128), min(dtype.highest, 255) + 1)
        return random.integers(max(low, dtype.lowest), high, POOL).astype(dtype.numpy)
    if style == "whole":
        most = 4 if dtype.bits == 8 else 3
        return random.integers(-most, most + 1, POOL).astype(dtype.numpy)
    values = random.standard_normal(POOL)
    if style == "wide":
        values *= np.exp2(random.uniform(-10, 6, POOL))
    if dtype.bits == 8:
        values = values.clip(-16, 16)
    return values.astype(dtype.numpy)


@dataclass(frozen=True)
class Held:
    """An array and the allocation that it lies in, both by their bits; `array` is what the library gets."""

    dtype: tw.DType
    allocation: Any
    bits: Any
    array: Any


class Memory:
    """Where arrays are. `xp` has the functions that NumPy and PyTorch have under one name."""

    xp: Any = np
    band = BAND
    is_on_gpu = False
    goes_backwards = True  # whether arrays may have negative strides
    fills = True  # whether the numbers count: kernels that are compiled ahead see none

    def allocate(self, size: int, bytes: int) -> Any:
        """Return `size` numbers by their bits, aligned to 256 bytes."""
        room = np.empty(size * bytes + ALIGNMENT, np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        return room[start : start + size * bytes].view(BITS[bytes])

    def strided(self, allocation: Any, placed: Placed, offset: int) -> Any:
        strides = [step * allocation.itemsize for step in placed.strides]
        return np.lib.stride_tricks.as_strided(allocation[offset:], placed.shape, strides)

    def typed(self, bits: Any, dtype: tw.DType) -> Any:
        return bits.view(dtype.numpy)

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        """Return a row-major copy of an array of NumPy's types."""
        return np.array(array, order="C")

    def wide(self, array: Any) -> Any:
        """Return the numbers as float64."""
        return np.asarray(array).astype(np.float64)

    def copied(self, array: Any) -> Any:
        return np.array(array)

    def tiled(self, numbers: Any, count: int) -> Any:
        return np.tile(numbers, count)

    def repeated(self, array: Any, count: int, axis: int) -> Any:
        return np.repeat(array, count, axis)

    def equal(self, one: Any, other: Any) -> bool:
        return bool(np.array_equal(one, other))

    def finish(self) -> None:
        """Wait until all is computed, and raise what went wrong."""

    def by_bits(self, array: Any) -> Any:
        return np.ascontiguousarray(array).view(BITS[array.dtype.itemsize])

    # --- the same wherever arrays are ---

    def hold(self, dtype: tw.DType, placed: Placed) -> Held:
        """Return an array for a result or for numbers, with nothing in it yet."""
        band = self.band // dtype.bytes
        allocation = self.allocate(2 * band + placed.begin + placed.span, dtype.bytes)
        bits = self.strided(allocation, placed, band + placed.begin)
        return Held(dtype, allocation, bits, self.typed(bits, dtype))

    def fill(self, held: Held, byte: int) -> None:
        """Fill the whole allocation with a byte."""
        if self.fills:
            held.allocation[...] = int.from_bytes(bytes([byte]) * held.dtype.bytes, "little", signed=True)

    def is_untouched_beside(self, held: Held, byte: int) -> bool:
        """Say whether all but the array's elements is still that byte; the elements are lost."""
        pattern = int.from_bytes(bytes([byte]) * held.dtype.bytes, "little", signed=True)
        held.bits[...] = pattern
        return bool((held.allocation == pattern).all())

    def numbers(self, dtype: tw.DType, placed: Placed, style: str, begin: int) -> Held:
        """Return an array of numbers of a pool, from its place `begin` on, in an allocation that is poisoned."""
        held = self.hold(dtype, placed)
        if not self.fills:
            return held
        self.fill(held, 0x5A if dtype.is_integer else 0xFF)
        shape = [1 if step == 0 else extent for extent, step in zip(placed.shape, placed.strides, strict=True)]
        count, drawn = int(np.prod(shape)), self._pool(dtype, style)
        begin %= POOL
        if begin + count > POOL:
            drawn = self.tiled(drawn, -(-(begin + count) // POOL))
        part = tuple(slice(0, 1) if step == 0 else slice(None) for step in placed.strides)
        held.bits[part] = drawn[begin : begin + count].reshape(shape)
        return held

    def from_host(self, array: np.ndarray[Any, Any], placed: Placed | None = None) -> Held:
        """Return an array of NumPy's inside of bands, row-major and aligned if nothing else is said."""
        dtype = tw.dtype(array.dtype)
        held = self.hold(dtype, placed or row_major(array.shape))
        self.fill(held, 0x5A if dtype.is_integer else 0xFF)
        held.bits[...] = self.put(np.ascontiguousarray(array).view(BITS[dtype.bytes]))  # ahead, too: offsets are read
        return held

    def _pool(self, dtype: tw.DType, style: str) -> Any:
        key = dtype, style
        if key not in self._pools:
            self._pools[key] = self.put(pool(dtype, style).view(BITS[dtype.bytes]))
        return self._pools[key]

    def __init__(self) -> None:
        self._pools: dict[Any, Any] = {}

    def checksum(self, held: Held) -> int:
        """Return a number that changes where an element or its surroundings do."""
        return int(held.allocation.sum()) if self.fills else 0


class Nowhere(Memory):
    """Memory of which nothing but addresses counts: kernels are compiled for arrays there, and none runs."""

    fills = False
    goes_backwards = False


class Torch(Memory):
    """PyTorch's memory: a GPU's, or the CPU's, whose tensors the simulator takes."""

    goes_backwards = False

    def __init__(self, device: str) -> None:
        import torch

        super().__init__()
        self.xp: Any = torch
        self.device = device
        self.is_on_gpu = device == "cuda"

    def allocate(self, size: int, bytes: int) -> Any:
        kind = getattr(self.xp, BITS[bytes])
        room = self.xp.empty(size + ALIGNMENT // bytes, dtype=kind, device=self.device)
        start = -room.data_ptr() % ALIGNMENT // bytes
        return room[start : start + size]

    def strided(self, allocation: Any, placed: Placed, offset: int) -> Any:
        return allocation.as_strided(placed.shape, placed.strides, allocation.storage_offset() + offset)

    def typed(self, bits: Any, dtype: tw.DType) -> Any:
        return bits.view(getattr(self.xp, dtype.name))

    def put(self, array: np.ndarray[Any, Any]) -> Any:
        return self.xp.from_numpy(np.array(array, order="C")).to(self.device)

    def wide(self, array: Any) -> Any:
        return array.to(self.xp.float32).double() if array.element_size() == 1 else array.double()

    def copied(self, array: Any) -> Any:
        return array.clone()

    def tiled(self, numbers: Any, count: int) -> Any:
        return numbers.repeat(count)

    def repeated(self, array: Any, count: int, axis: int) -> Any:
        return self.xp.repeat_interleave(array, count, axis)

    def equal(self, one: Any, other: Any) -> bool:
        return bool(self.xp.equal(one, other))

    def finish(self) -> None:
        if self.is_on_gpu:
            self.xp.cuda.synchronize()

    def by_bits(self, array: Any) -> Any:
        return array.contiguous().view(getattr(self.xp, BITS[array.element_size()]))


def memory_of(backend: str) -> Memory:
    """Return where arrays of a backend are: "sim", "cpu" (the simulator with PyTorch's tensors), "cuda", "ahead"."""
    if backend == "ahead":
        return Nowhere()
    return Memory() if backend == "sim" else Torch(backend)
