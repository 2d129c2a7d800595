"""How the value of one IR scalar or vector in all threads is held, and how masks combine.

A chunk of `B` blocks of `T` threads runs at once. A scalar value is one of

    a NumPy scalar       the same in every thread of every block
    an array (1, T)      the same in every block
    an array (B, 1)      the same in every thread of a block
    an array (B, T)

so that NumPy's broadcasting does the rest, and index arithmetic stays small. A vector value has one more axis at
the end, its lanes, and is always an array: (1, 1, lanes) up to (B, T, lanes). Held values are never changed
in place: whoever computes makes a new array, so a value may be kept without a copy.

A mask says which threads run: None for all of them, or a bool array of one of the shapes above.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Lanes: TypeAlias = (
    Any  # a NumPy scalar or array of any type: NumPy's typing has no name for "either, and arithmetic works"
)
Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
Mask: TypeAlias = "Array | None"


class Frame:
    """The state of the threads that run together: the value in each slot, and which threads are active."""

    __slots__ = ("mask", "values")

    def __init__(self, values: list[Lanes], mask: Mask = None) -> None:
        self.values: list[Lanes] = values
        self.mask: Mask = mask


def both(mask: Mask, other: Mask) -> Mask:
    """Return the mask of the threads that two masks have in common."""
    if mask is None:
        return other
    return mask if other is None else mask & other


def without(mask: Mask, excluded: Array) -> Array:
    """Return the mask of the threads of `mask` that are not in `excluded`."""
    return ~excluded if mask is None else mask & ~excluded


def merge(mask: Array, new: Lanes, old: Lanes) -> Lanes:
    """Return `new` where the mask holds and `old` elsewhere."""
    if new is old:
        return new
    if np.ndim(new) == 3 or np.ndim(old) == 3:
        mask = mask[..., None]
    return np.where(mask, new, old)


def same_bits(a: Lanes, b: Lanes, mask: Mask) -> bool:
    """Return whether two values have the same bits in the threads of a mask."""
    if a is b:
        return True
    if a is None or b is None:
        return False
    one, two = (at_least_2d(x) for x in (a, b))
    if mask is not None and max(one.ndim, two.ndim) == 3:  # vectors
        mask = mask[..., None]
    one, two, *masks = np.broadcast_arrays(one, two, *([] if mask is None else [mask]))
    if masks:
        one, two = one[masks[0]], two[masks[0]]
    return one.tobytes() == two.tobytes()


def at_least_2d(value: Lanes) -> Array:
    """Return a scalar value as an array with its two axes (blocks, threads)."""
    return np.asarray(value).reshape(1, 1) if np.ndim(value) == 0 else np.asarray(value)


def fill(value: Lanes, blocks: int, threads: int) -> Array:
    """Return the value as a full array (blocks, threads) or (blocks, threads, lanes); it may be read-only."""
    array = at_least_2d(value)
    return np.broadcast_to(array, (blocks, threads, *array.shape[2:]))


def pack(elements: Sequence[Lanes]) -> Array:
    """Return the vector of scalar values."""
    return np.stack(np.broadcast_arrays(*[at_least_2d(e) for e in elements]), axis=-1)


def extract(vector: Array, lane: int) -> Array:
    """Return one lane of a vector."""
    return np.ascontiguousarray(vector[..., lane])


def warps_of(mask: Mask, threads: int, warp: int) -> tuple[Array, Array]:
    """Return which warps have an active thread, and which have an inactive one: bool arrays (blocks or 1, warps)."""
    full = np.broadcast_to(np.True_ if mask is None else mask, (1 if mask is None else mask.shape[0], threads))
    split = by_warps(full, threads, warp)
    return np.asarray(split.any(axis=2)), ~np.asarray(split.all(axis=2))


def by_warps(array: Array, threads: int, warp: int) -> Array:
    """Return an array (blocks, threads) as (blocks, warps, lanes); what a last warp lacks repeats its first thread."""
    lanes = np.arange(-(-threads // warp) * warp)
    lanes = np.where(lanes < threads, lanes, lanes // warp * warp)
    return array[:, lanes].reshape(array.shape[0], -1, warp)


def over_warps(warps: Array, threads: int, warp: int) -> Array:
    """Return a value of each warp, (blocks, warps), as one of each thread."""
    return np.repeat(warps, warp, axis=1)[:, :threads]


def by_lanes(value: Array, warp: int) -> Array:
    """Return an array (blocks, threads, ...) as (blocks, warps, lanes, ...), zeros where a last warp is partial."""
    blocks, threads, *rest = value.shape
    missing = -threads % warp
    if missing:
        value = np.concatenate([value, np.zeros((blocks, missing, *rest), value.dtype)], axis=1)
    return value.reshape(blocks, -1, warp, *rest)


def by_threads(value: Array, threads: int) -> Array:
    """Return an array (blocks, warps, lanes, ...) as (blocks, threads, ...)."""
    return value.reshape(value.shape[0], -1, *value.shape[3:])[:, :threads]
