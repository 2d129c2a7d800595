"""What several ranks bring to one launch: their arrays, numbers and tensor maps, and how their blocks are called.

The launches of the ranks run as one grid: first all blocks of the first rank, then those of the second. Blocks reach
the array arguments of their own rank, in memory that all share; so an array of a peer is an argument like any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.backends.sim.aliases import AddressSpace, PointedStorage
from tilewright.backends.sim.storage import GlobalStorage
from tilewright.backends.sim.values import Array, Lanes
from tilewright.ir.core import Buffer, TensorMap, Value
from tilewright.ir.maps import MapValues


class BlockOfRank(tuple[int, int, int]):
    """The coordinate of a block, and the rank that launched it: shown as `(0, 0, 0) of rank 2`."""

    rank: int

    @staticmethod
    def of(coordinate: tuple[int, int, int], rank: int) -> BlockOfRank:
        """Return the coordinate of a block of a rank."""
        found = BlockOfRank(coordinate)
        found.rank = rank
        return found

    def __repr__(self) -> str:
        return f"{tuple(self)} of rank {self.rank}"


@dataclass(frozen=True)
class RankArguments:
    """What each of the ranks, in order, launches one kernel with. `numbers` are what the ranks are called."""

    numbers: tuple[int, ...]
    arrays: Mapping[Buffer, Sequence[Array]]
    scalars: Mapping[Value, Sequence[Any]]  # NumPy's
    maps: Sequence[Mapping[TensorMap, MapValues]]

    @property
    def size(self) -> int:
        """How many ranks launch."""
        return len(self.numbers)

    def scalar(self, value: Value, blocks: int) -> Lanes:
        """Return a number as blocks see it, `blocks` of each rank: one where all ranks give the same."""
        given = self.scalars[value]
        if all(number.tobytes() == given[0].tobytes() for number in given):
            return given[0]
        return np.repeat(np.array(given, given[0].dtype), blocks)[:, None]

    def map_values(self, map: TensorMap, ranks: Array) -> MapValues:
        """Return what a tensor map describes, in columns: for each thread of one of the ranks."""
        found = [maps[map] for maps in self.maps]

        def columns(numbers: list[tuple[int, ...]]) -> Any:  # the extents and strides of all modes
            return tuple([np.array(mode)[ranks][:, None] for mode in zip(*numbers, strict=True)])

        start: Any = np.array([each.start for each in found])[ranks][:, None]
        return MapValues(start, columns([f.extents for f in found]), columns([f.strides for f in found]))


class RankedStorage(PointedStorage):
    """An array argument of a launch by several ranks: each block reaches the array of its own rank."""

    def __init__(self, buffer: Buffer, space: AddressSpace, arrays: Sequence[Array]) -> None:
        super().__init__(buffer, space)
        found = [GlobalStorage(buffer, array) for array in arrays]
        self._first = np.array([each.address - each.low * each.flat.itemsize for each in found], np.int64)
        # The first element of each rank and the one behind its last, in bytes from its element 0.
        self._lows = np.array([each.low * each.flat.itemsize for each in found], np.int64)
        self._highs = np.array([each.high * each.flat.itemsize for each in found], np.int64)
        self._ranks = np.zeros((1, 1), np.int64)

    def begin(self, ranks: Array) -> None:
        """Let blocks (blocks, 1) be of these ranks, by their places in the launch."""
        for each in (self, *self._views):
            assert isinstance(each, RankedStorage), each.buffer
            each._ranks, each._base = ranks, self._first[ranks]

    def view(self, buffer: Buffer) -> PointedStorage:
        found = RankedStorage.__new__(RankedStorage)
        PointedStorage.__init__(found, buffer, self.space)
        found._first, found._lows, found._highs = self._first, self._lows, self._highs
        found._ranks = self._ranks
        self._views.append(found)
        return found

    def outside(self, index: Lanes, lanes: int) -> Array:
        """Return the threads whose elements lie outside of the array of their rank."""
        item = self.flat.itemsize
        first = np.atleast_2d(index).astype(np.int64) * item
        beyond = (first < self._lows[self._ranks]) | (first + lanes * item > self._highs[self._ranks])
        return np.asarray(beyond | super().outside(index, lanes))

    def counted(self, rows: Array, index: Array) -> Array:
        item = self.flat.itemsize
        return self.space.places(self._first[self._ranks[rows]] + index * item) // item

    def name_at(self, row: int, index: int) -> str | None:
        """Return what an element is called for a block: by the array of its rank."""
        address = int(self._first[self._ranks[row, 0]]) + index * self.flat.itemsize
        found = self.space.name_of(int(self.space.places(np.array([address]))[0]))
        return None if found is None else f"element {found[1]} of {found[0]}"
