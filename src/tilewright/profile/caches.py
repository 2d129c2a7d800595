"""The second-level cache: what of the lines that requests reach it holds, and how full a schedule of tiles lets it be.

Both models are least-recently-used over the whole cache: the hardware's replacement is not documented, and a line that
multiprocessors of both partitions use may be held twice. So a report gives two figures, for the whole cache and for
the part of one partition; what a GPU does lies in between, as far as the order of requests is the simulator's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from tilewright.arch import DEFAULT_GPU, find_gpu
from tilewright.dtypes import dtype as as_dtype
from tilewright.errors import ArgumentError
from tilewright.figures import CacheLines
from tilewright.transactions import LINE

Tile = Sequence[Any]  # Any: (row, column), or (row, column, range of the steps of K)


class LeastRecentlyUsed:
    """A cache of `capacity` bytes that drops what was used longest ago.

    >>> cache = LeastRecentlyUsed(256)
    >>> [cache.use(line, 128) for line in (1, 2, 1, 3, 2)]
    [False, False, True, False, False]
    """

    def __init__(self, capacity: int) -> None:
        self._left = capacity
        self._held: OrderedDict[Any, int] = OrderedDict()  # Any: what a line is called

    def use(self, name: Any, size: int) -> bool:
        """Use a line of so many bytes; return whether it was there."""
        held = self._held
        if name in held:
            held.move_to_end(name)
            return True
        held[name] = size
        self._left -= size
        while self._left < 0:
            self._left += held.popitem(last=False)[1]
        return False


@dataclass(frozen=True)
class CacheUse:
    """How often a cache of `capacity` bytes has the line that a request reaches, and what it reads for the others."""

    capacity: int
    reads: int
    read_hits: int
    writes: int
    write_hits: int

    @property
    def hit_rate(self) -> float:
        """The share of lines that were there; 0 where none were asked for."""
        asked = self.reads + self.writes
        return (self.read_hits + self.write_hits) / asked if asked else 0.0

    @property
    def bytes_read(self) -> int:
        """The bytes that DRAM delivers for reads of lines that were not there."""
        return (self.reads - self.read_hits) * LINE


def use_of(trace: CacheLines, capacity: int) -> CacheUse:
    """Return what an LRU cache of so many bytes makes of the lines that a launch reached, in the simulator's order.

    Law: with room for all lines, those that miss are the distinct ones.
    """
    numbers, writes = trace.lines >> 1, (trace.lines & 1).astype(np.bool_)
    if len(distinct := np.unique(numbers, return_index=True)[1]) * LINE <= capacity:
        hits = np.ones(len(numbers), np.bool_)
        hits[distinct] = False
    else:
        cache = LeastRecentlyUsed(capacity // LINE * LINE)
        hits = np.fromiter((cache.use(line, LINE) for line in numbers.tolist()), np.bool_, len(numbers))
    return CacheUse(
        capacity, int((~writes).sum()), int(hits[~writes].sum()), int(writes.sum()), int(hits[writes].sum())
    )


# --- schedules of tiles --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wave:
    """The tiles that blocks compute at the same time: the distinct rows of A and columns of B that they share.

    `asked` are the bytes of A and B that the blocks ask for, `fetched` those of them that the cache did not hold.
    """

    tiles: int
    rows: int
    columns: int
    asked: int
    fetched: int


@dataclass(frozen=True)
class TileFill:
    """The bytes that a schedule of tiles reads from the L2 cache and from DRAM, by waves.

    A wave ends when each block that runs has computed one more tile. `stored` are the bytes of results.
    """

    waves: tuple[Wave, ...]
    capacity: int
    stored: int

    @property
    def asked(self) -> int:
        """The bytes of A and B that blocks ask for."""
        return sum(wave.asked for wave in self.waves)

    @property
    def fetched(self) -> int:
        """The bytes of A and B that come from DRAM."""
        return sum(wave.fetched for wave in self.waves)

    @property
    def hit_rate(self) -> float:
        """The share of the bytes asked for that the cache held; 0 for no tile."""
        return 1 - self.fetched / self.asked if self.asked else 0.0


def tile_fill(
    order: Iterable[Sequence[Tile]],
    tile: tuple[int, int, int],
    k: int,
    dtype: Any,
    out: Any = None,
    *,
    gpu: str = DEFAULT_GPU,
    capacity: int | None = None,
    resident: int | None = None,
) -> TileFill:
    """Return the bytes that L2 and DRAM deliver for an order of tiles of C = A B.

    `order` has for each block the tiles that it computes, one after another, as `order` of a scheduler
    (`tilewright.schedulers`) gives them: (row, column), or with the steps of K that it sums up, (row, column, range).
    `tile` is (m, n, k) of a tile and a step, `k` the whole extent, `dtype` the elements of A and B; with `out`, the
    elements of C, results take room in the cache too. `resident` blocks run at once (by default one for each of the
    GPU's multiprocessors), and the next one starts when one ends. Running blocks advance together by one step of K; the
    cache of `capacity` bytes (by default the GPU's) evicts the least recently used data.

    Two blocks that compute two tiles of one row share A:

    >>> fill = tile_fill([[(0, 0)], [(0, 1)]], (128, 256, 64), 4096, "bfloat16")
    >>> fill.waves[0].rows, fill.waves[0].columns, fill.fetched == (128 + 2 * 256) * 4096 * 2
    (1, 2, True)

    Raises `ArgumentError` for a GPU whose cache the table does not have, where no `capacity` is given, and for
    extents that are not positive.
    """
    described = find_gpu(gpu)
    size = described.l2_bytes if capacity is None else capacity
    if size is None:
        raise ArgumentError(
            f"the table has no second-level cache of {described.title}", help="give its bytes: capacity=50 << 20"
        )
    slots = described.multiprocessors if resident is None else resident
    if min(*tile, k, slots) < 1:
        raise ArgumentError(f"tile {tile}, k {k} and {slots} resident blocks: all have to be at least 1")
    m, n, step = tile
    item = as_dtype(dtype).bytes
    result = m * n * as_dtype(out).bytes if out is not None else 0
    cache = LeastRecentlyUsed(size)
    counted: dict[int, _Counted] = {}
    for wave, (row, column), place, ends in _steps(order, -(-k // step), slots):
        found = counted.setdefault(wave, _Counted())
        found.tiles += ends
        found.rows.add(row)
        found.columns.add(column)
        part = min(step, k - place * step) * item
        for name, bytes in ((("A", row, place), m * part), (("B", column, place), n * part)):
            found.asked += bytes
            found.fetched += 0 if cache.use(name, bytes) else bytes
        if ends and result:
            cache.use(("C", row, column), result)
    waves = [
        Wave(each.tiles, len(each.rows), len(each.columns), each.asked, each.fetched)
        for _, each in sorted(counted.items())
    ]
    return TileFill(tuple(waves), size, result * sum(wave.tiles for wave in waves))


class _Counted:
    """A wave while it is counted."""

    def __init__(self) -> None:
        self.tiles = self.asked = self.fetched = 0
        self.rows: set[int] = set()
        self.columns: set[int] = set()


def _steps(order: Iterable[Sequence[Tile]], steps: int, slots: int) -> Iterator[tuple[int, tuple[int, int], int, bool]]:
    """Yield each step of K of each tile in the order of time: its wave, tile, number, and whether it is the last.

    A heap holds for each place on the GPU the time of its next step, so that none goes ahead of the others.
    """
    blocks = iter(order)

    def work() -> Iterator[tuple[int, tuple[int, int], int, bool]]:
        """Yield the steps of one place: block after block, as these are left."""
        wave = 0
        for block in blocks:
            for row, column, *part in block:
                places = part[0] if part else range(steps)
                if not places or not 0 <= places[0] <= places[-1] < steps:
                    raise ArgumentError(f"tile ({row}, {column}) has the steps {places} of K, of {steps}")
                for place in places:
                    yield wave, (row, column), place, place == places[-1]
                wave += 1

    running: list[tuple[int, int, Callable[[], Any]]] = []
    for number in range(slots):
        running.append((0, number, work().__next__))
    heapify(running)
    while running:
        time, number, following = heappop(running)
        try:
            yield following()
        except StopIteration:
            continue
        heappush(running, (time + 1, number, following))
