"""Arrays to a backend and back, comparing to the bit, and distances in units in the last place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

Array = np.ndarray[Any, Any]

INTEGERS = (tw.int32, tw.int64, tw.uint32)
EVERY_INTEGER = (*INTEGERS, tw.uint64, tw.int8, tw.uint8, tw.int16, tw.uint16)
FLOATS = (tw.float16, tw.bfloat16, tw.float32, tw.float64)
ALL = (tw.bool_, *INTEGERS, *FLOATS)

_ALIGNMENT = 256  # of all arrays made here, as of the GPU's allocations


class Backend:
    """Where kernels run. `put` makes arrays there, `strided` views of them, `get` brings them back."""

    name = ""

    def put(self, array: Array) -> Any:
        """Return a row-major copy, aligned to 256 bytes."""
        raise NotImplementedError

    def strided(self, memory: Any, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Any:
        """Return a view of a one-dimensional array; strides and offset count elements."""
        raise NotImplementedError

    def get(self, array: Any) -> Array:
        """Return the elements on the host, after all work is done."""
        raise NotImplementedError

    def zeros(self, shape: int | Sequence[int], dtype: Any) -> Any:
        return self.put(np.zeros(shape, tw.dtype(dtype).numpy))


class Simulator(Backend):
    """NumPy arrays, which run on the simulator."""

    name = "sim"

    def put(self, array: Array) -> Any:
        room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    def strided(self, memory: Any, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Any:
        size = memory.itemsize
        return np.lib.stride_tricks.as_strided(memory[offset:], shape, [s * size for s in strides])

    def get(self, array: Any) -> Array:
        return np.array(array)


class Gpu(Backend):
    """PyTorch's tensors; types that this PyTorch lacks travel as `DeviceArray`."""

    name = "cuda"

    def put(self, array: Array) -> Any:
        import torch

        type = getattr(torch, _torch_name(array.dtype), None)
        if type is None:
            from tilewright.runtime.memory import DeviceArray

            return DeviceArray.from_numpy(np.ascontiguousarray(array))
        bits = np.array(array, order="C").view(f"i{array.itemsize}")
        return torch.from_numpy(bits).cuda().view(type)

    def strided(self, memory: Any, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> Any:
        import torch

        if any(stride < 0 for stride in strides):
            pytest.skip("PyTorch's tensors have no negative strides")
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[memory.element_size()]
        return memory.view(bits).as_strided(tuple(shape), tuple(strides), offset).view(memory.dtype)

    def get(self, array: Any) -> Array:
        if hasattr(array, "numpy") and not hasattr(array, "cpu"):
            result: Array = array.numpy()
            return result
        import torch

        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[array.element_size()]
        host: Array = array.view(bits).cpu().contiguous().numpy()
        return host.view(tw.dtype(array.dtype).numpy)


def _torch_name(dtype: np.dtype[Any]) -> str:
    return "bool" if dtype == np.bool_ else dtype.name


def blocks(count: int, block: int = 128) -> int:
    """Return the number of blocks for so many threads, one at least."""
    return max(-(-count // block), 1)


# --- comparing -----------------------------------------------------------------------------------------


def bits_of(array: Array) -> Array:
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")


def assert_same_bits(actual: Array, expected: Array, what: object = "", inputs: Sequence[Array] = ()) -> None:
    """Compare to the last bit, signs of zeros included; any NaN equals any other."""
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype, (what, actual.dtype, expected.dtype)
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    same = bits_of(actual) == bits_of(expected)
    if actual.dtype.kind not in "biu":
        same |= np.isnan(actual) & np.isnan(expected)
    if not same.all():
        where = np.argwhere(~same)
        first = tuple(where[0])
        given = [x[first] for x in inputs]
        raise AssertionError(
            f"{what}: {len(where)} of {same.size} differ, first at {first} (inputs {given!r}): "
            f"got {actual[first]!r}, expected {expected[first]!r}"
        )


def ulps(actual: Array, exact: Array, rest: Array | float = 0.0) -> Array:
    """Return the distance from `exact + rest`, given in a wider type, in units in the last place of `actual`'s type.

    Infinities and NaN in the same places are at no distance; anywhere else they are infinitely far.
    """
    precision, lowest, _ = _SIGNIFICANDS[actual.dtype.name]
    with np.errstate(all="ignore"):
        nearest = exact.astype(actual.dtype)
        exponent = np.maximum(np.frexp(exact)[1] - 1, lowest) - precision + 1
        distance = np.abs(actual.astype(exact.dtype) - exact - rest) / np.ldexp(np.ones((), exact.dtype), exponent)
    special = ~np.isfinite(nearest) | ~np.isfinite(actual)
    same = (nearest == actual) | (np.isnan(nearest) & np.isnan(actual))
    result: Array = np.where(special, np.where(same, 0.0, np.inf), distance)
    return result


def assert_within(
    actual: Array,
    exact: Array,
    limit: float,
    what: object = "",
    inputs: Sequence[Array] = (),
    rest: Array | float = 0.0,
) -> None:
    """Compare with results in a wider type, exact + rest; `limit` is in units in the last place."""
    distance = ulps(actual, exact, rest)
    worst = int(np.argmax(distance))
    given = [x.ravel()[worst] for x in inputs]
    assert distance.ravel()[worst] <= limit, (
        f"{what}: {float(distance.ravel()[worst]):.3g} ulp from the exact result, {limit} allowed: "
        f"at {given!r} got {actual.ravel()[worst]!r}, exact {exact.ravel()[worst]!r}"
    )


# --- references computed apart from NumPy's own conversions ----------------------------------------------


def wrapped(value: int, dtype: tw.DType) -> int:
    """Return an integer modulo 2**bits, in the range of the type."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.highest else value


_SIGNIFICANDS = {"float16": (11, -14, 15), "bfloat16": (8, -126, 127), "float32": (24, -126, 127),
                 "float64": (53, -1022, 1023)}  # fmt: skip


def rounded(value: float | Fraction, dtype: tw.DType) -> Any:
    """Return a number rounded once, to nearest even, to a float type: by integer arithmetic."""
    kind = dtype.numpy.type
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf")) or value == 0):
        return kind(value)
    exact = Fraction(value)
    if exact == 0:
        return kind(0)
    precision, lowest, highest = _SIGNIFICANDS[dtype.name]
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, lowest) - precision + 1)
    steps = round(magnitude / unit)  # Python rounds a Fraction's halves to even
    result = steps * unit
    if result >= Fraction(2) ** (highest + 1):
        return kind("-inf" if exact < 0 else "inf")
    return kind(float(result if exact > 0 else -result)) if result else kind(-0.0 if exact < 0 else 0.0)


# --- inputs --------------------------------------------------------------------------------------------


def edge_values(dtype: tw.DType) -> Array:
    """Return the values of a type at which operations go wrong, and a few ordinary ones."""
    random = np.random.default_rng(dtype.bits)
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        low, high = dtype.lowest, dtype.highest
        chosen = [0, 1, 2, 3, 7, 31, 32, 100, low, low + 1, high, high - 1, high // 2, high // 3]
        chosen += [-1, -2, -3, -7, -100] if dtype.is_signed else []
        chosen = [v for v in chosen if low <= v <= high]
        some = random.integers(low, high, 8, dtype=dtype.numpy, endpoint=True)
        return np.concatenate([np.array(chosen, dtype.numpy), some])
    info = ml_dtypes.finfo(dtype.numpy)
    positive = [0.0, 1.0, 1.5, 2.0, 3.0, 0.1, 1e-3, 10.0, 255.0, 1 + float(info.eps), float("inf")]
    positive += [float(x) for x in (info.max, info.tiny, info.smallest_subnormal, info.smallest_normal)]
    positive += np.abs(random.standard_normal(5)).tolist()
    return np.array([*positive, *[-x for x in positive], float("nan")]).astype(dtype.numpy)


def pairs(dtype: tw.DType, keep: Callable[[Any, Any], bool] = lambda a, b: True) -> tuple[Array, Array]:
    """Return all pairs of edge values that `keep` allows, as two arrays."""
    values = edge_values(dtype)
    kept = [(a, b) for a in values for b in values if keep(a, b)]
    return np.array([a for a, _ in kept], values.dtype), np.array([b for _, b in kept], values.dtype)
