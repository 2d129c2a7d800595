"""Global memory's sectors: how many pieces of 32 bytes a request of a warp touches.

The model: a request touches each distinct sector once, however many lanes want bytes of it. The fewest sectors are
those that the distinct bytes asked for would fill. A copy past L1 (cp.async.cg) touches at least as many as it writes
pieces of 32 bytes of shared memory; `backends/sim/measure.py` counts both. Source: Nsight Compute's documentation,
"Memory tables" (sectors and requests of L1/TEX); `benchmarks/counters.py` compares 38 kernels with the counters of an
H200, all equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

SECTOR_BITS = 5
SECTOR = 1 << SECTOR_BITS


def sectors(addresses: Array, active: Array, width: int) -> tuple[Array, Array]:
    """Return the sectors of requests and the distinct bytes they ask for: two arrays (requests,).

    `addresses` (requests, lanes) are in bytes, multiples of `width`, the bytes that each lane accesses: a power of
    two, at most 32.

    >>> lanes = np.arange(32)[None, :]
    >>> [int(sectors(stride * 4 * lanes, lanes >= 0, 4)[0][0]) for stride in (0, 1, 2, 8)]
    [1, 4, 8, 32]
    """
    some = active.any(axis=1)
    shift = width.bit_length() - 1
    units = addresses >> shift
    if not active.all():
        first = np.take_along_axis(units, active.argmax(axis=1)[:, None], axis=1)
        units = np.where(active, units, first)
    if (units[:, 1:] < units[:, :-1]).any():
        units = np.sort(units, axis=1)
    places = units >> (SECTOR_BITS - shift)
    return _distinct(places) * some, _distinct(units) * some * width


def _distinct(ordered: Array) -> Array:
    """Return how many distinct numbers each sorted row has."""
    count: Array = np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=1) + 1
    return count


def fewest_sectors(requested: Array) -> Array:
    """Return the fewest sectors that so many distinct bytes fill."""
    return -(-requested // SECTOR)
