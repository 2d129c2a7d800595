"""Operands that a cache keeps in fragments: which tiles there are, and how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import ScheduleError
from tilewright.schedule.affine import Affine, Index
from tilewright.schedule.caches import Cache
from tilewright.schedule.filling import Filling
from tilewright.schedule.fragments import HeldOperand, Side, unrolled
from tilewright.schedule.statements import Access

if TYPE_CHECKING:
    from tilewright.schedule.tiles import Tiles


class HeldFragments(Filling):
    """A cache of A or B in fragments: `held` of them, for as many steps."""

    def __init__(self, tiles: Tiles, cache: Cache, held: int) -> None:
        super().__init__(tiles.emission, cache)
        self.tiles = tiles
        self.side: Side = "A" if cache.array is tiles.access("A").array else "B"
        self.access = tiles.access(self.side)
        self.rows, self.depth = tiles.rows(self.side), tiles.tile.indices[2]
        refuse_other_tiles(self, self.access, [(self.rows, tiles.extents[self.rows]), (self.depth, tiles.tile.shape.k)])
        self.tiles_along = [
            tiles_along(self, self.access, index, extent)
            for index, extent in ((self.rows, tiles.extents[self.rows]), (self.depth, tiles.tile.shape.k))
        ]
        self.fragment = tiles.operand(self.side, *self.tiles_along, held)

    def read(self, step: int) -> None:
        """Read the region, at the present values of the loops around, into the fragments of a step."""
        place = place_from(self, self.access, (self.rows, self.depth))
        access = Access(self.access.statement, self.access.array, place, False)
        along = [(self.rows, self.tiles.extents[self.rows]), (self.depth, self.tiles.tile.shape.k)]

        def at(row: Any, number: Any) -> None:  # Any: device numbers
            with self.emission.knowing({self.rows: row * along[0][1], self.depth: number * along[1][1]}):
                view = self.tiles.view(access, along)
            self.tiles.read(self.side, view, self.fragment[(None, None, None, row, number, step)])

        def every() -> None:
            unrolled(self.tiles_along[0], lambda row: unrolled(self.tiles_along[1], lambda number: at(row, number)))

        self.tiles.within((self.emission.plan.nest.parts[self.tiles.tile.part],), every)

    def storage(self, step: int) -> HeldOperand:  # type: ignore[override]  # by step, not by tensor
        """Return the storage of a step."""
        return HeldOperand(self.cache, self.fragment[(None, None, None, None, None, step)], self.region.origin)


def refuse_other_tiles(filling: Filling, access: Access, tile: list[tuple[Index, int]]) -> None:
    """Raise `ScheduleError` where a loop that runs while fragments are held moves an access to others than these.

    Fragments are told apart by whole tiles along the tile's own two indices, and by nothing else.
    """
    for loop in filling.cache.varying(filling.emission.plan):
        if loop.trips == 1 or any(loop.index is index for index, _ in tile):
            continue
        for place in access.place:
            extents = [extent for index, extent in tile if place.factor(index)]
            step = place.factor(loop.index) * loop.step
            if step and (not extents or step % extents[0]):
                raise ScheduleError(
                    f"{access} cannot be cached in fragments while {loop.index} runs: it moves to other elements than "
                    "whole tiles of these",
                    location=access.statement.location,
                    help=f"cache it inside of {loop.index}, or in shared memory, which tiles read their fragments from",
                )


def tiles_along(filling: Filling, access: Access, index: Index, extent: int) -> int:
    """Return how many tiles of a region an index of the tile runs through, alone in its mode of the array."""
    moving = [mode for mode, place in enumerate(access.place) if place.factor(index)]
    if len(moving) != 1 or access.place[moving[0]].factor(index) != 1 or filling.region.shape[moving[0]] % extent:
        raise ScheduleError(
            f"{access} cannot be cached in fragments: {index} does not move by itself through whole tiles of one mode",
            help="cache it in shared memory; the tile reads its fragments from there",
        )
    return filling.region.shape[moving[0]] // extent


def place_from(filling: Filling, access: Access, indices: tuple[Index, Index]) -> tuple[Affine, ...]:
    """Return the place of a region's first element, moving with the indices of the tile."""
    place = []
    for mode, start in zip(access.place, filling.region.origin, strict=True):
        for index in indices:
            if mode.factor(index):
                start = start + index
        place.append(start)
    return tuple(place)
