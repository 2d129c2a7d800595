"""What a warp's request takes of memory: wavefronts of shared memory's banks, sectors of global memory.

Shared memory
-------------

A word of 4 bytes lies in bank `address / 4 mod 32`. In one wavefront each bank delivers one word, to all
lanes that want it. A request is served in phases, and a phase takes as many wavefronts as its busiest bank has
distinct words:

    up to 4 bytes a lane    one phase of 32 lanes
    8 bytes                 two phases of 16 lanes
    16 bytes                four phases of 8 lanes

Two neighbouring phases of 8 bytes (all 32 lanes) or of 16 bytes (the quarters of one half) are served as one where
every active lane i finds lane i ^ 1 inactive or at its own address, or every active lane i so finds lane i ^ 2: that
is how broadcasts and sparse warps save wavefronts. ldmatrix and stmatrix take a phase a matrix, 8 rows of 16 bytes,
and cp.async writes in phases without being joined. An atomic update of a word is a pass of its own for each lane
that makes one; where the compiler lets one lane do so for its warp, only that lane is active.

Sources: the CUDA programming guide, "Shared memory" of compute capability 5.x and later, for banks and broadcast;
NVIDIA's forum on LDS.64 and LDS.128 for the phases. The joining is not documented: it is what measurements with
Nsight Compute's counters show. `benchmarks/counters.py` compares 38 kernels with the counters of an H200: equal but for
cp.async of 16 bytes past L1 into rows padded to 80 bytes, where ncu counts 15 wavefronts a request and this model 8.

A wave of 64 lanes on an AMD target: the LDS of CDNA also has 32 banks of 4 bytes, 128 bytes a clock, so a request of
the wave is counted as two halves of 32 lanes, each by the rules above. Which lanes of a wider access go together
and which broadcasts join is taken from NVIDIA's GPUs and was not measured on one of AMD's. Source for the banks: AMD,
"Instinct MI300 instruction set architecture", chapter "Local data share".

The fewest wavefronts are the phases that have an active lane; of atomics, the updates of the busiest word.

A product of a warpgroup (wgmma) reads its operands in shared memory by core matrices, 8 lines of 16 bytes (PTX ISA,
"Asynchronous Warpgroup Level Matrix Shared Memory Layout"). `core_wavefronts` counts a pass of all banks for each, and
as many more as two of its lines share banks: every layout that a descriptor describes, swizzled or not, has none. That
is arithmetic on addresses; how the hardware orders these reads is not documented, and no counter was compared. That A
and B are read once a warpgroup, 128 bytes a clock, is what rates measured on H800 fit (arXiv 2402.13499, 2501.12084).
Bulk copies write and read boxes, which are compact in shared memory: passes of 128 bytes, without conflicts.

Global memory
-------------

A request touches each distinct sector once, however many lanes want bytes of it. The fewest sectors are
those that the distinct bytes asked for would fill. A copy past L1 (cp.async.cg) touches at least as many as it writes
pieces of 32 bytes of shared memory; `backends/sim/measure.py` counts both. Source: Nsight Compute's documentation,
"Memory tables" (sectors and requests of L1/TEX); `benchmarks/counters.py` compares 38 kernels with the counters of an
H200, all equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

WARP = 32
BANKS = 32
WORD = 4  # bytes that a bank delivers at once
ROW = BANKS * WORD  # bytes that all banks deliver at once
SECTOR_BITS = 5
LINE = 128  # bytes: a line of the second-level cache
SECTOR = 1 << SECTOR_BITS  # bytes: the least that global memory moves, a quarter of a cache line

_JOINED = ("load", "store")


def wavefronts(addresses: Array, active: Array, width: int, kind: str = "load") -> tuple[Array, Array]:
    """Return the wavefronts of requests, and the fewest they could take: two arrays (requests,).

    `addresses` (requests, lanes), 32 lanes or 64, are in bytes, multiples of `width`, the bytes that each lane
    accesses: 1, 2, 4, 8 or 16. `active` has the same shape. `kind` is "load", "store", "copy" (cp.async), "matrix"
    (ldmatrix, stmatrix) or "atomic".

    >>> lanes = np.arange(32)[None, :]
    >>> [int(wavefronts(stride * 4 * lanes, lanes >= 0, 4)[0][0]) for stride in (0, 1, 2, 32, 33)]
    [1, 1, 2, 32, 1]
    >>> [int(n[0]) for n in wavefronts(16 * lanes, lanes >= 0, 16)]
    [4, 4]
    """
    if active.shape[1] > WARP:
        halves = wavefronts(addresses.reshape(-1, WARP), active.reshape(-1, WARP), width, kind)
        took, least = (each.reshape(len(active), -1).sum(axis=1) for each in halves)
        return took, least
    if kind == "atomic":
        return _atomic(addresses, active, width)
    width = max(width, WORD)
    together = ROW // width  # lanes of a phase, and the aligned units of `width` bytes that fit into the banks
    units = addresses >> (width.bit_length() - 1)
    requests = len(units)
    if together == WARP:
        took = _phases(units, active, together)
        return took, (took > 0).astype(np.int64)
    took, least = _served(units, active, together)
    if kind in _JOINED:
        span = WARP if width == 8 else WARP // 2
        groups, lanes = units.reshape(-1, span), active.reshape(-1, span)
        joined = _can_join(groups, lanes)
        if joined.any():
            took, least = took.reshape(len(groups), -1).sum(axis=1), least.reshape(len(groups), -1).sum(axis=1)
            took[joined] = _phases(groups[joined], lanes[joined], together)
            least[joined] = took[joined] > 0
    return took.reshape(requests, -1).sum(axis=1), least.reshape(requests, -1).sum(axis=1)


def phases_of(addresses: Array, active: Array, width: int, kind: str) -> list[list[int]]:
    """Return the active lanes of each phase of one request: addresses and active lanes are (32,), or (64,).

    >>> lanes = np.arange(32)
    >>> [len(phase) for phase in phases_of(16 * lanes, lanes >= 0, 16, "load")]
    [8, 8, 8, 8]
    """
    together = ROW // max(width, WORD) if kind != "atomic" else WARP
    span = WARP if width <= 8 or kind not in _JOINED else WARP // 2
    found = []
    for first in range(0, len(active), span):
        group = slice(first, first + span)
        joins = kind in _JOINED and bool(_can_join(addresses[None, group], active[None, group])[0])
        size = span if joins else together
        found += [[lane for lane in range(k, k + size) if active[lane]] for k in range(first, first + span, size)]
    return [phase for phase in found if phase]


def _served(units: Array, active: Array, together: int) -> tuple[Array, Array]:
    """Return wavefronts and least of each phase by itself."""
    took = _phases(units.reshape(-1, together), active.reshape(-1, together), together)
    return took, (took > 0).astype(np.int64)


def _can_join(units: Array, active: Array) -> Array:
    """Return in which rows each active lane has a partner that is inactive or at the same address."""
    found = np.zeros(len(units), np.bool_)
    lanes = np.arange(units.shape[1])
    for step in (1, 2):
        partner = lanes ^ step
        found |= (~active | ~active[:, partner] | (units == units[:, partner])).all(axis=1)
    return found


def _phases(units: Array, active: Array, banks: int) -> Array:
    """Return for each row the most distinct units of active lanes in one of `banks` banks; 0 for an idle row."""
    some: Array = np.asarray(active.any(axis=1))
    if not active.all():
        first = np.take_along_axis(units, active.argmax(axis=1)[:, None], axis=1)
        units = np.where(active, units, first)
    result: Array = some.astype(np.int64)
    # Units less than `banks` apart lie in different banks: nothing to count in such rows.
    spread = np.flatnonzero(some & (units.max(axis=1) - units.min(axis=1) >= banks))
    if spread.size:
        result[spread] = _busiest(np.sort(units[spread], axis=1), banks)
    return result


def _busiest(units: Array, banks: int) -> Array:
    """Return for each sorted row the most distinct units in one bank."""
    fresh = np.ones(units.shape, np.bool_)
    fresh[:, 1:] = units[:, 1:] != units[:, :-1]
    rows = np.arange(len(units))[:, None] * banks
    counts = np.bincount((rows + units % banks)[fresh], minlength=len(units) * banks)
    busiest: Array = counts.reshape(-1, banks).max(axis=1)
    return busiest


def _atomic(addresses: Array, active: Array, width: int) -> tuple[Array, Array]:
    """Return passes where each lane's update is one, and the updates of the busiest address."""
    units = addresses // max(width, WORD)
    banks = ROW // max(width, WORD)
    rows = np.broadcast_to(np.arange(len(units))[:, None], units.shape)
    took = np.bincount((rows * banks + units % banks)[active], minlength=len(units) * banks)
    unsorted = np.where(active, units, np.arange(-1, -1 - units.shape[1], -1))  # idle lanes: each a place of its own
    ordered = np.sort(unsorted, axis=1)
    fresh = np.zeros(units.shape, np.int64)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = np.cumsum(fresh, axis=1) + rows * units.shape[1]
    alike = np.bincount(run[ordered >= 0], minlength=units.size).reshape(units.shape).max(axis=1)
    return took.reshape(-1, banks).max(axis=1), alike


def core_wavefronts(lines: Array) -> Array:
    """Return the passes that core matrices take: (..., 8) addresses of their lines of 16 bytes become (...).

    >>> rows = np.arange(8)
    >>> [int(core_wavefronts(stride * rows)) for stride in (16, 32, 128)]
    [1, 2, 8]
    >>> int(core_wavefronts(128 * rows ^ 16 * rows))
    1
    """
    groups = (lines >> 4) % (ROW // 16)
    found: Array = (groups[..., :, None] == np.arange(ROW // 16)).sum(axis=-2).max(axis=-1)
    return found


# --- global memory -------------------------------------------------------------------------------------------------


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
